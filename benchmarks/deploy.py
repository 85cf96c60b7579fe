"""What a calibrated classifier costs beside its network: views and calibrator over the bare forward, in one run.

    python -m benchmarks.deploy                        on the CPU
    python -m benchmarks.deploy --device cuda          the networks and batches of a GPU
    python -m benchmarks.deploy --compiled cudagraphs  the classifier through torch.compile, with that backend
    python -m benchmarks.deploy --profile FILE         what one answer is made of: kernels, copies, waits, the costliest steps

`bare` runs the network on tensors that are ready, in passes of the same size and as many of them. `classifier` is the whole
answer: bytes to pixels, every view, the network, the calibrator, the checks at the door. Both run in turns and the medians
of paired turns are compared, so that a machine that slows down slows both.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import atta
from atta.calibrators import ViewBlend
from atta.networks.resnet import resnet50
from benchmarks.collect import pixels, resnet20, table

POLICIES = ("shift-mix-4", "aug8")
CALLS = 10  # that are looked into
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def asked_of(size: int, device: torch.device) -> float:
    return 1.05 if device.type == "cuda" and size <= 32 else 1.03


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
    name: str, network: nn.Module, policy: str, size: int, device: torch.device, asked: argparse.Namespace, most: int
) -> list[str]:
    network = network.eval().to(device)
    deployed = classifier(network, policy, device)
    images = pixels(size, 32).to(device)
    passes = deployed.policy.passes if deployed.policy else 1
    ready = (images.float() / 255).repeat(passes, 1, 1, 1)
    together = max(1, most // size) * size
    parts = list(torch.split(ready, together))
    whole = torch.compile(deployed, backend=asked.compiled) if asked.compiled else deployed

    def answer() -> None:
        whole(images).cpu()

    ways = (answer, lambda: bare(network, parts))
    for work in ways * 3:
        work()  # warm up
    if asked.profile:
        with asked.profile.open("a") as file:
            file.write(f"{name}, {policy}, {size} images\n{profiled(answer, device)}\n\n")
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begun < asked.seconds:
        times.append([timed(work) for work in ways])
    ratio = statistics.median(one / other for one, other in times)
    alone = statistics.median(other for _, other in times)
    how = f"{policy}, {asked.compiled}" if asked.compiled else policy
    limit = asked_of(size, device)
    return [f"{name}, {device.type}", how, str(passes), str(size), f"{1000 * alone:.2f}", f"{ratio:.3f}", f"≤ {limit}"]


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def profiled(work: Callable[[], None], device: torch.device) -> str:
    """Count what a GPU is asked for in one answer, and list what takes the longest to ask for and to do."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(CALLS):
            work()
    there = [event.name for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = sum(name.startswith("Memcpy") for name in there)
    calls = found.key_averages()
    waits = sum(event.count for event in calls if event.key in WAITS)
    operators = sum(event.count for event in calls if event.key.startswith("aten::"))
    counts = {"kernels": len(there) - copies, "copies": copies, "waits": waits, "operators": operators}
    said = ", ".join(f"{count / CALLS:.1f} {name}" for name, count in counts.items())
    orders = ["self_cpu_time_total", *(["self_device_time_total"] if device.type == "cuda" else [])]
    return "\n".join([f"in one answer: {said}", *(calls.table(sort_by=order, row_limit=15) for order in orders)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument("--sizes", type=int, nargs="+", help="images to a batch")
    parser.add_argument("--compiled", metavar="BACKEND", help="run the classifier through torch.compile")
    parser.add_argument("--profile", metavar="FILE", type=Path, help="add what an answer is made of to a file")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.manual_seed(0)
    from atta.collection.runner import ROWS

    if device.type == "cuda":
        networks = {"ResNet-50, 3x3 stem": (resnet50(10), (32, 256, 1024))}
    else:
        networks = {
            "ResNet-20": (resnet20(), (1, 32)),
            "ResNet-50": (resnet50(10, small_images=False), (1, 32)),
        }
    rows = (
        compare(name, network, policy, size, device, asked, ROWS[device.type])
        for name, (network, sizes) in networks.items()
        for policy in POLICIES
        for size in asked.sizes or sizes
    )
    table(["network", "policy     ", "passes", "batch", "bare, ms", "classifier : bare", "asked "], rows)


if __name__ == "__main__":
    main()
