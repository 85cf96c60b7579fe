"""What a calibrated classifier costs beside its network: views and calibrator over the bare forward, in one run.

    python -m benchmarks.deploy                        on the CPU
    python -m benchmarks.deploy --device cuda          the networks and batches of a GPU

`bare` runs the network on tensors that are ready: one pass per view of the whole batch, as a loop over views does.
`classifier` is the whole answer: bytes to pixels, every view, the network, the calibrator, the checks of the input. Both run
in turns and the medians of paired turns are compared, so that a machine that slows down slows both. On a CPU, `--cpu-time`
counts the time of one thread instead, which other programs on the machine change least.
"""

import statistics
import time
from functools import partial

import torch
from torch import Tensor, nn

import atta
from atta.calibrators import ViewBlend
from atta.run.runner import ROWS
from benchmarks.collect import BARE, NETWORKS, pixels
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, seconds

POLICIES = ("shift-mix-4", "aug8")


def classifier(network: nn.Module, policy: str, device: torch.device) -> atta.CalibratedClassifier:
    """Weights as a fit would leave them; what they are does not change the time."""
    taken = atta.Policy.parse(policy)
    weights = torch.full((len(taken.kinds), 1), 0.7 / len(taken.kinds))
    calibrator = ViewBlend(weights, torch.tensor(0.9), kinds=taken.kinds)
    calibrator.classes, calibrator.method = 10, atta.VATTA()
    return atta.CalibratedClassifier(network, calibrator, policy, image_shape=(3, 32, 32)).to(
        device
    )


def bare(network: nn.Module, parts: list[Tensor]) -> None:
    with torch.no_grad():
        for part in parts:
            answer = network(part)
        answer.cpu()


def measure(
    name: str, policy: str, size: int, device: torch.device, most_seconds: float
) -> list[Measured]:
    """Both in turns, until the time is over."""
    torch.manual_seed(0)
    network = NETWORKS[name]().eval().to(device)
    deployed = classifier(network, policy, device)
    images = pixels(size, 32).to(device)
    passes = deployed.policy.passes
    ready = (images.float() / 255).repeat(passes, 1, 1, 1)
    parts = list(torch.split(ready, max(1, ROWS[device.type] // size) * size))
    ways = (lambda: deployed(images).cpu(), lambda: bare(network, parts))
    for work in ways * 3:
        work()  # warm up
    pairs: list[tuple[float, ...]] = []
    begun = time.perf_counter()
    while len(pairs) < 5 or time.perf_counter() - begun < most_seconds:
        pairs.append(tuple(seconds(work) for work in ways))
    what = f"{name}, {policy}, batch of {size}"
    own, usual = (statistics.median(times) for times in zip(*pairs, strict=True))
    relative = statistics.median(
        one / other for one, other in pairs
    )  # of paired turns: of one moment of the machine each
    return [
        Measured(
            what, OURS, {"seconds": own, "relative": relative, "passes": passes, "batch": size}
        ),
        Measured(what, BARE, {"seconds": usual, "relative": 1.0}, "limit"),
    ]


def steps(asked: Asked) -> Steps:
    """Each network, policy and size of batch."""
    device = torch.device(asked.device)
    gpu = device.type == "cuda"
    names = (
        {"ResNet-50, 3x3 stem": (32, 256, 1024)}
        if gpu
        else {"ResNet-20": (1, 32), "ResNet-50": (1, 32)}
    )
    return {
        f"{name}, {policy}, {size}": partial(
            measure, name, policy, size, device, 0.1 if asked.quick else 10.0
        )
        for name, sizes in names.items()
        for policy in POLICIES
        for size in sizes
    }


if __name__ == "__main__":
    alone(steps, __doc__)
