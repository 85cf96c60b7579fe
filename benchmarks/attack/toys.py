"""What is attacked: a small record, network, classifier, results and images, and all of them as files."""

import shutil
from functools import cache
from pathlib import Path

import torch
from torch import nn

import atta

CLASSES, SHAPE = 3, (3, 8, 8)
POLICY = "flip + 2 brightness"
NETWORK = """
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network

    def forward(self, images):
        import time

        time.sleep(0.02)
        return self.inner(images)


slow = Slow()


def raises():
    raise KeyError("weights")


class Odd(nn.Module):
    def forward(self, images):
        raise KeyError("no such layer")


odd = Odd()
"""
EXPERIMENT = """
name = "toy"
dataset = "toy"
fit = "record"
validation = [100]
splits = 2

[methods.vanilla]
[methods.temperature]
"""


def predictions(
    n: int = 200, k: int = CLASSES, *, seed: int = 0, scale: float = 2.5
) -> tuple[atta.Predictions, torch.Tensor]:
    """Over-confident logits of an image and three views, right four times in five, and the labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % k
    truth = 2 * nn.functional.one_hot(labels, k) + torch.randn(n, k, generator=draw)
    views = {
        name: scale * (truth[:, None] + 0.7 * torch.randn(n, r, k, generator=draw))
        for name, r in repeats().items()
    }
    return atta.Predictions(
        scale * (truth + 0.7 * torch.randn(n, k, generator=draw)), views
    ), labels


def repeats() -> dict[str, int]:
    """How often each view of the policy is shown."""
    return atta.Policy.parse(POLICY).repeats


def record(n: int = 200, k: int = CLASSES, *, seed: int = 0) -> atta.Record:
    """The same, as a record."""
    return atta.Record(*predictions(n, k, seed=seed), {"dataset": "toy", "made by": "attack"})


def network(classes: int = CLASSES, seed: int = 0) -> nn.Module:
    """A small network that a file can describe."""
    from atta.networks.resnet import small_cnn

    torch.manual_seed(seed)
    return small_cnn(classes).eval()


def classifier(method: str = "v-atta", seed: int = 0) -> atta.CalibratedClassifier:
    """The network with a calibrator."""
    calibrator = atta.find_method(method).fit(*predictions(seed=seed))
    return atta.CalibratedClassifier(network(seed=seed), calibrator, POLICY, image_shape=SHAPE)


def images(n: int, seed: int = 0) -> torch.Tensor:
    """Noise."""
    return torch.randint(
        0, 256, (n, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def results(seed: int = 0) -> atta.Results:
    """Two methods compared."""
    from atta.lab.compare import compare

    return compare(
        {"toy": record(seed=seed)}, [atta.Vanilla(), atta.VATTA()], validation=100, splits=2
    )


def photos(folder: Path, count: int = 12, size: int = 8) -> Path:
    """Images of two classes, in a folder each."""
    from PIL import Image

    for name in ("dark", "light"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, pixels in enumerate(images(count, seed=len(name))):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((size, size)).save(
                folder / name / f"{i:03}.png"
            )
    return folder


def workshop(folder: Path, *, graphs: bool = False) -> Path:
    """A folder with one of each file; files with a graph take seconds to make."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own_network.py").write_text(NETWORK)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    photos(folder / "photos")
    record().save(folder / "record.safetensors")
    atta.Record(record().predictions).save(folder / "unlabelled.safetensors")
    atta.VATTA().fit(*predictions()).save(folder / "calibrator.safetensors")
    made = classifier()
    made.save(folder / "classifier")
    made.save(folder / "classifier.safetensors")
    results().save(folder / "results.json")
    if graphs:
        made.export(folder / "graph.onnx")
        made.export(folder / "graph.pt2")
    return folder


@cache
def plain() -> tuple[atta.Predictions, torch.Tensor]:
    """Few rows, for what is tried thousands of times."""
    return predictions(40)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
