"""What a calibrated classifier costs beside its network: views and calibrator over the bare forward, in one run.

    python -m benchmarks.deploy                        on the CPU
    python -m benchmarks.deploy --device cuda          the networks and batches of a GPU

`bare` runs the network on tensors that are ready, in passes of the same size and as many of them. `classifier` is the whole
answer: bytes to pixels, every view, the network, the calibrator, the checks at the door. Both run in turns and the medians
of paired turns are compared, so that a machine that slows down slows both.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

import atta
from atta.calibrators import ViewBlend
from atta.networks.resnet import resnet50
from benchmarks.collect import pixels, resnet20, table

POLICIES = ("shift-mix-4", "aug8")
ASKED = 1.03


def classifier(network: nn.Module, policy: str, device: torch.device) -> atta.CalibratedClassifier:
    """Weights as a fit would leave them; what they are does not change the time."""
    taken = atta.Policy.parse(policy)
    weights = torch.full((len(taken.kinds), 1), 0.7 / len(taken.kinds))
    calibrator = ViewBlend(weights, torch.tensor(0.9), kinds=taken.kinds)
    calibrator.classes, calibrator.method = 10, atta.VATTA()
    return atta.CalibratedClassifier(network, calibrator, policy, image_shape=(3, 32, 32)).to(device)


def bare(network: nn.Module, parts: list[Tensor]) -> None:
    with torch.no_grad():
        for part in parts:
            answer = network(part)
        answer.cpu()


def compare(
    name: str, network: nn.Module, policy: str, size: int, device: torch.device, seconds: float, most: int
) -> list[str]:
    network = network.eval().to(device)
    deployed = classifier(network, policy, device)
    images = pixels(size, 32).to(device)
    passes = deployed.policy.passes if deployed.policy else 1
    ready = (images.float() / 255).repeat(passes, 1, 1, 1)
    together = max(1, most // size) * size
    parts = list(torch.split(ready, together))

    def answer() -> None:
        deployed(images).cpu()

    pairs = []
    for work in (answer, lambda: bare(network, parts)):
        work()  # warm up
    begun = time.perf_counter()
    while len(pairs) < 5 or time.perf_counter() - begun < seconds:
        times = []
        for work in (answer, lambda: bare(network, parts)):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        pairs.append(times[0] / times[1])
    ratio = statistics.median(pairs)
    return [f"{name}, {device.type}", policy, str(passes), str(size), f"{ratio:.3f}", f"≤ {ASKED}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.manual_seed(0)
    from atta.deploy.classifier import ROWS

    if device.type == "cuda":
        networks = {"ResNet-50, 3x3 stem": (resnet50(10), (32, 256, 1024))}
    else:
        networks = {
            "ResNet-20": (resnet20(), (1, 32)),
            "ResNet-50": (resnet50(10, small_images=False), (1, 32)),
        }
    rows = (
        compare(name, network, policy, size, device, asked.seconds, ROWS[device.type])
        for name, (network, sizes) in networks.items()
        for policy in POLICIES
        for size in sizes
    )
    table(["network", "policy     ", "passes", "batch", "classifier : bare", "asked "], rows)


if __name__ == "__main__":
    main()
