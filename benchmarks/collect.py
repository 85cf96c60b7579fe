"""What collecting costs beside the network itself.

    python -m benchmarks.collect                        on the CPU, some minutes
    python -m benchmarks.collect --device cuda          larger batches, bfloat16 too
    python -m benchmarks.collect --quick                few images

Each way is run in turns, and medians are compared, so that a machine that slows down slows all of them. `bare` is the
network on tensors that are ready, as often as `collect` runs it. ttach, where it is installed, runs as many views: a
flip and eight brightnesses, the same for every image, averaged as it does.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import atta
from atta.networks.resnet import resnet50
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, interleaved, seconds

POLICY = "flip + 5 crop + 5 brightness + 4 contrast"
PASSES = 16
BARE = "the bare network"


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
        shortcut = nn.functional.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding)
        )
        return torch.relu(self.body(x) + shortcut)


def resnet20(classes: int = 10) -> nn.Module:
    widths = (
        [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    )
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-20": resnet20,
    "ResNet-50": lambda: resnet50(
        10, small_images=False
    ),  # at 32 pixels: what a CPU runs in seconds
    "ResNet-50, 3x3 stem": lambda: resnet50(10),
}


def pixels(n: int, side: int) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


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


def with_ttach(
    wrapper: nn.Module, images: Tensor, size: int, device: torch.device, fast: bool
) -> None:
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=fast):
        for part in torch.split(images, size):
            answer = wrapper(part.to(device).float() / 255)
        answer.cpu()


def measure(
    name: str, device: torch.device, size: int, target: float, fast: bool, repeats: int
) -> list[Measured]:
    """Run a network over as many batches of `size` as the bare network takes about `target` seconds for."""
    torch.manual_seed(0)
    layout = torch.channels_last if fast else torch.contiguous_format
    model = NETWORKS[name]().eval().to(device, memory_format=layout)
    first = [pixels(size, 32).to(device).float().div(255).contiguous(memory_format=layout)]
    bare(model, first, device, fast)  # warm up
    n = size * max(1, min(64, round(target / seconds(lambda: bare(model, first, device, fast)))))
    images = pixels(n, 32)
    ready = [
        part.to(device).float().div(255).contiguous(memory_format=layout)
        for part in torch.split(images, size)
    ]
    settings = {
        "policy": POLICY,
        "batch_size": size,
        "autocast": fast,
        "channels_last": fast,
        "progress": False,
    }
    ways: dict[str, Callable[[], object]] = {
        BARE: lambda: bare(model, ready, device, fast),
        OURS: lambda: atta.collect(model, images, **settings),
    }
    wrapper = ttach_wrapper(model)
    if wrapper is not None:
        ways["ttach"] = lambda: with_ttach(wrapper, images, size, device, fast)
    times = interleaved(ways, repeats)
    what = f"{name}{', bf16' if fast else ''}"
    about = {"images": n, "passes": PASSES, "batch": size}
    rows = [Measured(what, OURS, {"seconds": times[OURS], **about})]
    rows.append(
        Measured(
            what,
            "ttach",
            {"seconds": times["ttach"]} if wrapper else {},
            "peer",
            "" if wrapper else "not installed",
        )
    )
    return [*rows, Measured(what, BARE, {"seconds": times[BARE]}, "limit")]


def steps(asked: Asked) -> Steps:
    """Each network, in float32 and bfloat16."""
    device = torch.device(asked.device)
    gpu = device.type == "cuda"
    sizes = (
        {"ResNet-20": 4096, "ResNet-50": 4096, "ResNet-50, 3x3 stem": 1024}
        if gpu
        else {"ResNet-20": 32, "ResNet-50": 32}
    )
    target = 2.0 / (100 if asked.quick else 1)
    return {
        f"{name}{', bf16' if fast else ''}": partial(
            measure, name, device, size, target, fast, asked.few(5, 2)
        )
        for fast in (False, True)
        for name, size in sizes.items()
    }


if __name__ == "__main__":
    alone(steps, __doc__)
