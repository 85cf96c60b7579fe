"""Fits, answers and scores of logits that lie on a GPU: time beside softmaxes of the same logits, and how far from a CPU.

The limit is one softmax of every logit that is read: those of the images alone for temperature and for scores, those of the
images and their views otherwise. `apart` is the largest difference from what the CPU computes of a smaller set.

    python -m benchmarks.gpu                     on a GPU, into docs/speed/gpu-cuda.json
    python -m benchmarks.gpu --profile           which kernels take the time instead, and what waits for the GPU
    python -m benchmarks.gpu --profile --only V-ATTA   the same of the works with this in their name
    python -m benchmarks.gpu --device cpu --quick
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atta import CATTA, VATTA, Predictions, TemperatureScaling, evaluate
from benchmarks import __main__ as bench
from benchmarks.measured import (
    OURS,
    Asked,
    Measured,
    Steps,
    interleaved,
    measured,
    seconds,
    shown,
    sized,
)

SIZES = ((1_000_000, 100), (100_000, 1000))
SMALL = (20_000, 100)
KINDS = 4
SOFTMAX = "softmaxes of the same logits"


def data(images: int, classes: int, device: str) -> tuple[Predictions, Tensor]:
    """Logits that are too sure of themselves, and views that differ by noise; made where they are used."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.randint(classes, (images,), generator=generator, device=device)

    def noise() -> Tensor:
        return torch.randn(images, classes, generator=generator, device=device)

    logits = noise().mul_(2)
    logits[torch.arange(images, device=device), labels] += 6
    logits.mul_(1.7)
    views = {f"kind{i}": noise().mul_(2).add_(logits).unsqueeze(1) for i in range(KINDS)}
    return Predictions(logits, views), labels


def works(predictions: Predictions, labels: Tensor) -> dict[str, tuple[Callable[[], Any], bool]]:
    """What is done, by name, and whether it reads the views."""
    alone = Predictions(predictions.logits)
    few = predictions[:2000], labels[:2000]
    tempered, summed, blended = (
        method.fit(*few) for method in (TemperatureScaling(), CATTA(), VATTA())
    )
    probs = tempered(alone)
    return {
        "temperature, fit": (lambda: TemperatureScaling().fit(alone, labels), False),
        "C-ATTA, fit": (lambda: CATTA().fit(predictions, labels), True),
        "V-ATTA, fit": (lambda: VATTA().fit(predictions, labels), True),
        "temperature, predict": (lambda: tempered(alone), False),
        "C-ATTA, predict": (lambda: summed(predictions), True),
        "V-ATTA, predict": (lambda: blended(predictions), True),
        "ECE": (lambda: evaluate(probs, labels, metrics=["ece"]), False),
        "all metrics": (lambda: evaluate(probs, labels), False),
    }


def finished(work: Callable[[], Any], device: str) -> None:
    """Do it, and wait for the GPU."""
    work()
    if device != "cpu":
        torch.cuda.synchronize()


def measure(images: int, classes: int, device: str) -> Iterator[Measured]:
    """Each work beside the softmaxes, in turns."""
    predictions, labels = data(images, classes, device)
    for name, (work, with_views) in works(predictions, labels).items():
        read = (predictions.logits, *(predictions.views.values() if with_views else ()))
        ways = {
            OURS: partial(finished, work, device),
            SOFTMAX: partial(finished, lambda read=read: [x.softmax(-1) for x in read], device),
        }
        interleaved(ways, 1)  # warm up
        times = interleaved(ways, 5)
        what = f"{name}, {sized(images, classes)}"
        yield Measured(what, OURS, {"seconds": times[OURS]})
        yield Measured(what, SOFTMAX, {"seconds": times[SOFTMAX]}, "limit")


def numbers(found: Any, predictions: Predictions) -> Tensor:
    """What a work returned, as numbers: of a calibrator its answers."""
    if isinstance(found, dict):
        return torch.tensor(list(found.values()), dtype=torch.float64)
    if not isinstance(found, Tensor):
        found = found(predictions if found.kinds else Predictions(predictions.logits))
    return found.double().cpu()


def compare(images: int, classes: int, device: str) -> Iterator[Measured]:
    """How far the GPU's answers are from the CPU's, of the same logits."""
    predictions, labels = data(images, classes, "cpu")
    here = works(predictions, labels)
    there = works(predictions.to(device), labels.to(device))
    for name, (work, _) in here.items():
        apart = numbers(work(), predictions) - numbers(there[name][0](), predictions)
        what = f"{name}, {sized(images, classes)}"
        yield Measured(what, OURS, {"apart": float(apart.abs().max())})


def steps(asked: Asked) -> Steps:
    """Both sizes, and the comparison."""
    sizes = ((2000, 10),) if asked.quick else SIZES
    found: Steps = {
        sized(*size): lambda size=size: [*measure(*size, asked.device)] for size in sizes
    }
    small = (500, 10) if asked.quick else SMALL
    return {**found, "apart": lambda: [*compare(*small, asked.device)]}


def profiled(images: int, classes: int, device: str, only: str) -> None:
    """Print the kernels that take most of each work's time, and what the host did meanwhile."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    predictions, labels = data(images, classes, device)
    for name, (work, _) in works(predictions, labels).items():
        if only not in name:
            continue
        finished(work, device)
        usual = seconds(partial(finished, work, device))
        with profile(activities=activities) as seen:
            finished(work, device)
        print(f"==== {name}, {sized(images, classes)}: {1e3 * usual:.2f} ms, without the profiler")
        found = seen.key_averages()
        print_top(found, "kernel", "self_device_time_total", 16)
        print_top(found, "host", "self_cpu_time_total", 8)


def print_top(found: Any, title: str, key: str, rows: int) -> None:
    """Print the events that take longest: milliseconds, share of all, calls."""
    timed = sorted(((getattr(one, key, 0), one) for one in found), key=lambda pair: -pair[0])
    whole = sum(time for time, _ in timed)
    if whole:
        print(f"{title}, {whole / 1e3:.2f} ms in {sum(one.count for t, one in timed if t)} calls")
    for time, one in timed[:rows]:
        if time:
            print(f"{time / 1e3:9.2f} ms {time / whole:6.1%} {one.count:6} x {one.key[:120]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes: a trial")
    parser.add_argument("--profile", action="store_true", help="kernels instead of times")
    parser.add_argument("--only", default="", help="with --profile: works with this in their name")
    parser.add_argument("--into", type=Path, default=Path("docs/speed"), metavar="FOLDER")
    given = parser.parse_args()
    if given.profile:
        profiled(*((2000, 10) if given.quick else SIZES[0]), given.device, given.only)
    elif given.quick:
        for step in steps(Asked(given.device, quick=True)).values():
            for row in measured(step):
                print(shown(row), flush=True)
    else:
        bench.main(
            ["--only", "gpu", "--device", given.device, "--fresh", "--into", str(given.into)]
        )
        print((given.into / f"gpu-{given.device}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
