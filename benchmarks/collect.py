"""What collecting costs beside the network itself: one table of ratios, measured in one run.

    python -m benchmarks.collect                        on the CPU, some minutes
    python -m benchmarks.collect --device cuda          larger batches, bfloat16 too
    python -m benchmarks.collect --quick                fewer images, in seconds

Each way is run in turns, and medians are compared, so that a machine that slows down slows all of them. `bare` is the
network on tensors that are ready, as often as `collect` runs it. ttach, where it is installed, runs as many views: a
flip and eight brightnesses, the same for every image, averaged as it does.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor, nn

import atta
from atta.networks.resnet import resnet50

POLICY = "flip + 5 crop + 5 brightness + 4 contrast"
PASSES = 16


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.stride, self.padding = stride, (width - channels_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Subsample the shortcut and pad it with channels of zeros."""
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(self.body(x) + shortcut)


def resnet20(classes: int = 10) -> nn.Module:
    widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-20": resnet20,
    "ResNet-50": lambda: resnet50(10, small_images=False),  # at 32 pixels: what a CPU runs in seconds
    "ResNet-50, 3x3 stem": lambda: resnet50(10),
}


def pixels(n: int, side: int) -> Tensor:
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def bare(model: nn.Module, batches: list[Tensor], device: torch.device, fast: bool) -> None:
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=fast):
        for batch in batches:
            answers = [model(batch) for _ in range(PASSES)]
        answers[-1].cpu()


def ttach_wrapper(model: nn.Module) -> nn.Module | None:
    try:
        import ttach
    except ImportError:
        return None
    levels = [0.8 + 0.05 * i for i in range(8)]
    views = ttach.Compose([ttach.HorizontalFlip(), ttach.Multiply(levels)])
    assert len(views) == PASSES
    return ttach.ClassificationTTAWrapper(model, views)


def with_ttach(wrapper: nn.Module, images: Tensor, size: int, device: torch.device, fast: bool) -> None:
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=fast):
        for part in torch.split(images, size):
            answer = wrapper(part.to(device).float() / 255)
        answer.cpu()


def interleaved(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turns; the median passes by the first turn, in which things warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            begun = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(name: str, device: torch.device, size: int, target: float, fast: bool, repeats: int) -> list[str]:
    """Run a network over as many batches of `size` as the bare network takes about `target` seconds for."""
    torch.manual_seed(0)
    layout = torch.channels_last if fast else torch.contiguous_format
    model = NETWORKS[name]().eval().to(device, memory_format=layout)
    first = [pixels(size, 32).to(device).float().div(255).contiguous(memory_format=layout)]
    bare(model, first, device, fast)  # warm up
    begun = time.perf_counter()
    bare(model, first, device, fast)
    n = size * max(1, min(64, round(target / (time.perf_counter() - begun))))
    images = pixels(n, 32)
    ready = [part.to(device).float().div(255).contiguous(memory_format=layout) for part in torch.split(images, size)]
    settings = {"policy": POLICY, "batch_size": size, "autocast": fast, "channels_last": fast, "progress": False}
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(model, ready, device, fast),
        "collect": lambda: atta.collect(model, images, **settings),
    }
    wrapper = ttach_wrapper(model)
    if wrapper is not None:
        ways["ttach"] = lambda: with_ttach(wrapper, images, size, device, fast)
    seconds = interleaved(ways, repeats)
    against = f"{seconds['ttach'] / seconds['collect']:.2f}" if "ttach" in seconds else "not installed"
    return [
        f"{name}, {device.type}{', bf16' if fast else ''}",
        f"{n} x {PASSES}",
        str(size),
        f"{n * PASSES / seconds['collect']:,.0f}",
        f"{n * PASSES / seconds['bare']:,.0f}",
        f"{seconds['bare'] / seconds['collect']:.3f}",
        against,
    ]


def table(header: list[str], rows: Iterable[list[str]]) -> None:
    """Print each row as soon as it is measured."""
    widths = [max(len(header[0]), 31), *(len(name) for name in header[1:])]
    for row in chain([header, ["-" * width for width in widths]], rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a quarter of the images")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    gpu = device.type == "cuda"
    sizes = {"ResNet-20": 4096, "ResNet-50": 4096, "ResNet-50, 3x3 stem": 1024} if gpu else {"ResNet-20": 32, "ResNet-50": 32}
    target, repeats = (2.0 if gpu else 4.0) / (4 if asked.quick else 1), 5
    rows = (compare(name, device, size, target, fast, repeats) for fast in (False, True) for name, size in sizes.items())
    table(["network", "images x passes", "batch", "collect /s", "bare /s", "collect : bare", "collect : ttach"], rows)


if __name__ == "__main__":
    main()
