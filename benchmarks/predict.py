"""V-ATTA on a million images × 100 classes × four kinds of view: memory, and time in units of one plain softmax.

python -m benchmarks.predict [--images 1000000]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from atta import VATTA, Predictions

CLASSES, KINDS = 100, 4


def memory(field: str) -> int:
    """VmRSS: the bytes this process holds; VmHWM: the most it has held since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def extra_memory(work: Callable[[], object]) -> int:
    """The bytes that `work` took at its peak, beyond what was held before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1_000_000)
    images = parser.parse_args().images
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(images, CLASSES, generator=generator) * 3
    views = {f"kind{i}": (logits + torch.randn(images, CLASSES, generator=generator))[:, None] for i in range(KINDS)}
    predictions = Predictions(logits, views)
    labels = logits[:1000].argmax(dim=1)
    labels[::5] = (labels[::5] + 1) % CLASSES
    calibrator = VATTA().fit(predictions[:1000], labels)
    softmaxes, calibrations = [], []
    with torch.no_grad():
        calibrator(predictions[:10_000])
        for _ in range(5):  # in turn, so that a slow moment of the machine hits both
            softmaxes.append(seconds(lambda: logits.softmax(dim=-1)))
            calibrations.append(seconds(lambda: calibrator(predictions)))
        answer = images * CLASSES * 4
        extra = extra_memory(lambda: calibrator(predictions))
        probs = calibrator(predictions)
    changed = int((probs.argmax(dim=-1) != logits.softmax(dim=-1).argmax(dim=-1)).sum())
    ratio = statistics.median(calibrations) / statistics.median(softmaxes)
    print(f"{images:,} images × {CLASSES} classes × {KINDS} kinds, {torch.get_num_threads()} threads\n")
    print("| | measured | asked |")
    print("|---|---|---|")
    print(f"| time, in plain softmaxes over the same images | {ratio:.1f} | ≤ 10 |")
    print(f"| memory taken at the peak, in answers of {answer / 1e6:.0f} MB | {extra / answer:.2f} | the answer and a little |")
    print(f"| classes changed | {changed} | 0 |")


if __name__ == "__main__":
    main()
