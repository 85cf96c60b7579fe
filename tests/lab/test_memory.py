"""Evaluating and fitting a record in a folder takes memory for a chunk, and a few numbers of each image."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atta import RecordWriter

CLASSES, ROWS, SMALL, LARGE = 200, 2000, 4000, 12_000
SCRIPT = """
import json, sys, threading, time
from pathlib import Path
import torch
from atta import CATTA, Record
from atta.calibrators import fitting, scaling
from atta.lab import measure
from atta.record import store

measure.AT_ONCE, store.OPEN = 1 << 16, 2
fitting.KEPT_LOGITS, fitting.SAMPLE_LOGITS, scaling.SAMPLE_LOGITS = 1 << 19, 1 << 18, 1 << 18
torch.set_num_threads(1)
status = Path("/proc/self/status")

def held():
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

def peak(work):
    most, over, before = [0.0], threading.Event(), held()
    def look():
        while not over.is_set():
            most[0] = max(most[0], held() - before)
            time.sleep(0.001)
    watch = threading.Thread(target=look)
    watch.start()
    work()
    over.set()
    watch.join()
    return most[0]

def work(record):
    fitted = CATTA().fit(record.predictions, record.labels)
    fitted.passes(record.predictions)
    measure.measure(fitted, record)

small, large = map(Record.load, sys.argv[1:])
work(small)  # what is imported and kept for the next time
print(json.dumps([peak(lambda: work(record)) for record in (small, large)]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_three_times_the_images_take_a_little_more_memory_not_three_times(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for images in (SMALL, LARGE):
        with RecordWriter(tmp_path / str(images), dtype="float16") as writer:
            for _ in range(images // ROWS):
                labels = torch.randint(CLASSES, (ROWS,), generator=generator)
                logits = torch.randn(ROWS, CLASSES, generator=generator)
                logits[torch.arange(ROWS), labels] += 3
                writer.append(logits, {"flip": logits[:, None]}, labels)
    order = [sys.executable, "-c", SCRIPT, *(str(tmp_path / str(n)) for n in (SMALL, LARGE))]
    # What is freed goes back at once: otherwise it counts until the allocator gives it back.
    given_back = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")
    surroundings = {**os.environ, **given_back}
    ended = subprocess.run(order, capture_output=True, text=True, check=True, env=surroundings)
    small, large = json.loads(ended.stdout)
    megabytes = (LARGE - SMALL) * CLASSES * 4 / 2**20  # of the probabilities alone
    assert large - small < megabytes / 3
