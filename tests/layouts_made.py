"""Small made-up datasets, written in the layouts that datasets are published in."""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import torch
from PIL import Image

AID = """
    Airport BareLand BaseballField Beach Bridge Center Church Commercial DenseResidential Desert Farmland Forest Industrial
    Meadow MediumResidential Mountain Park Parking Playground Pond Port RailwayStation Resort River School SparseResidential
    Square Stadium StorageTanks Viaduct
"""
UCMERCED = """
    agricultural airplane baseballdiamond beach buildings chaparral denseresidential forest freeway golfcourse harbor
    intersection mediumresidential mobilehomepark overpass parkinglot river runway sparseresidential storagetanks tenniscourt
"""
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
AID, UCMERCED, CIFAR10 = (names.split() for names in (AID, UCMERCED, CIFAR10))
CIFAR100 = [f"class {i}" for i in range(100)]


def pixels(n: int, side: int, seed: int) -> np.ndarray:
    """Smooth images, as JPEG likes them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
    return coarse.repeat(side // 4, axis=1).repeat(side // 4, axis=2)


def labels(n: int, classes: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, classes, n).tolist()


# ---- as their authors publish them


def pickled(path: Path, content: dict[bytes, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=4))


def flat(n: int, seed: int) -> np.ndarray:
    return pixels(n, 32, seed).transpose(0, 3, 1, 2).reshape(n, 3072)


def classic(root: Path) -> None:
    """CIFAR as pickles, AID and UC-Merced as their archives unpack."""
    ten, hundred = root / "cifar10" / "cifar-10-batches-py", root / "cifar100" / "cifar-100-python"
    for i in range(1, 6):
        pickled(ten / f"data_batch_{i}", {b"data": flat(4, i), b"labels": labels(4, 10, i)})
    pickled(ten / "test_batch", {b"data": flat(14, 6), b"labels": labels(14, 10, 6)})
    pickled(ten / "batches.meta", {b"label_names": [name.encode() for name in CIFAR10]})
    for split, n, seed in (("train", 20, 7), ("test", 14, 8)):
        both = {b"fine_labels": labels(n, 100, seed), b"coarse_labels": labels(n, 20, seed)}
        pickled(hundred / split, {b"data": flat(n, seed)} | both)
    pickled(hundred / "meta", {b"fine_label_names": [name.encode() for name in CIFAR100]})
    folders = (
        (root / "aid" / "AID", AID, "jpg", 40),
        (root / "ucmerced" / "UCMerced_LandUse" / "Images", UCMERCED, "tif", 24),
    )
    for folder, classes, suffix, side in folders:
        for i, name in enumerate(classes):
            (folder / name).mkdir(parents=True)
            for j, image in enumerate(pixels(2, side, 100 + i)):
                Image.fromarray(image).save(folder / name / f"{name.lower()}{j}.{suffix}")


# ---- as the Hugging Face hub has them


def encoded(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def table(
    path: Path, image: str, images: Any, columns: dict[str, tuple[list[int], Sequence[str] | None]]
) -> None:
    """One parquet file of images, arrays or the bytes of files, and of labels, with the names of their classes or without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    features: dict[str, Any] = {image: hf.Image()}
    for name, (_, classes) in columns.items():
        features[name] = hf.ClassLabel(names=list(classes)) if classes else hf.Value("int64")
    cells = [
        {"bytes": one if isinstance(one, bytes) else encoded(one), "path": None} for one in images
    ]
    content = {image: cells} | {name: values for name, (values, _) in columns.items()}
    hf.Dataset.from_dict(content, features=hf.Features(features)).to_parquet(str(path))


def hub(root: Path) -> None:
    """Tables, in the folders and with the columns of the repositories."""
    file = "{}-00000-of-00001.parquet"
    for split, n, seed in (("train", 20, 1), ("test", 14, 6)):
        ten = {"label": (labels(n, 10, seed), CIFAR10)}
        table(root / "cifar10" / "plain_text" / file.format(split), "img", pixels(n, 32, seed), ten)
        hundred = {
            "fine_label": (labels(n, 100, seed), CIFAR100),
            "coarse_label": (labels(n, 20, seed), CIFAR100[:20]),
        }
        table(
            root / "cifar100" / "cifar100" / file.format(split), "img", pixels(n, 32, seed), hundred
        )
    for name, classes, side in (("aid", AID, 40), ("ucmerced", UCMERCED, 24)):
        n = 2 * len(classes)
        column = {"label": ([i % len(classes) for i in range(n)], classes)}
        table(root / name / "data" / file.format("train"), "image", pixels(n, side, n), column)


# ---- six insects

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]
INSECTS = ("ant", "bee", "cat")
EXPECTED = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def write_parquet(
    path: Path, columns=("img", "label"), names=INSECTS, pixels=PIXELS, labels=LABELS
) -> None:
    image, label = columns
    table(path, image, pixels, {} if label is None else {label: (labels, names)})


def write_images(folder: Path, classes=INSECTS, suffix="png") -> None:
    for i, image in enumerate(PIXELS):
        path = folder / classes[LABELS[i]] / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def write_cifar10(folder: Path) -> torch.Tensor:
    """Twelve images of noise in CIFAR-10's own files, two in each."""
    noise = np.random.default_rng(1).integers(0, 256, (12, 3072), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {b"data": noise[2 * i : 2 * i + 2], b"labels": [i, 9], b"batch_label": b"made up"}
        pickled(folder / name, content)
    pickled(folder / "batches.meta", {b"label_names": [b"class %d" % i for i in range(10)]})
    return torch.from_numpy(noise).reshape(12, 3, 32, 32)
