"""Makes the records of the paper's experiments from data, and its shifted test sets.

A network is trained, and run on images and their views:

| record            | network of | images                                                          |
|-------------------|------------|-----------------------------------------------------------------|
| `cifar10`         | CIFAR-10   | CIFAR-10's test images                                          |
| `cifar10_nudged`  | CIFAR-10   | the same, also nudged, all views spread evenly                  |
| `cifar10_shift`   | CIFAR-10   | the same in the same order, with noise and blur: CIFAR-10*      |
| `cifar10_ood`     | CIFAR-10   | AID's test images after the validation images, without labels   |
| `cifar100`        | CIFAR-100  | CIFAR-100's test images                                         |
| `cifar100_nudged` | CIFAR-100  | the same, flipped and nudged, spread evenly                     |
| `aid`             | AID        | AID's test images                                               |
| `aid_shift`       | AID        | UC-Merced's images of ten classes that AID has, with its labels |
| `aid_ood`         | AID        | CIFAR-10's test images after the validation images, no labels |

All are shuffled with one seed, so that the first 1000 rows of `cifar10`, `cifar100` and `aid` are
the validation images. They are seen through the largest policy, which holds the views of the other
seven. Only data on this machine is used. A stopped training resumes from its checkpoint, a stopped
recording from its shards.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atta._base.errors import InputError, suggest
from atta.data.draws import random_numbers
from atta.data.folder import listed
from atta.data.image_set import ImageSet, arrange
from atta.data.transforms import gaussian_blur, gaussian_noise
from atta.data.views import POLICIES, Policy
from atta.lab.datasets import load, present
from atta.lab.recipe import Recipe, about, check_same_run, load_trained
from atta.lab.training import labels_of, train
from atta.lab.workers import Tell
from atta.record.predictions import Record
from atta.run.collect import collect

POLICY = "aug8"
VALIDATION = 1000
"""The number of images to calibrate on, which come first."""
SEED = 0
"""The seed of the order of the images, of shifts and of views; the networks have their own."""


# Zoomed crops are slightly blurred, and a network that knows blur finds CIFAR-10* easy.
NETWORKS: dict[str, tuple[Recipe, int | None]] = {
    "cifar10": (Recipe(zoomed=0.0), None),
    "cifar100": (Recipe(zoomed=0.0), None),
    "aid": (Recipe(), 224),
}
"""How the network of a dataset is trained, and the side its images are resized to, if any."""


# ---- shifted test sets


def shifted(images: ImageSet, seed: int = 0) -> ImageSet:
    """CIFAR-10*: noise of variance U(10, 50) for each image and channel, then blur of size 1 to 5.

    The shift of an image depends on the seed and its index alone.
    """
    worse = images.tensors().clone()
    # In chunks: an image needs a float per value.
    for some, rows in zip(torch.split(worse, 1000), torch.split(images.indices, 1000), strict=True):
        numbers = partial(random_numbers, indices=rows, seed=seed)
        noise = numbers("shift-noise", some.shape[1] + some[0].numel()).to(some.device)
        blur = numbers("shift-blur", 1).to(some.device)
        noisy = gaussian_noise(some.float() / 255, noise)
        some.copy_((gaussian_blur(noisy, blur) * 255).round())
    return ImageSet(f"{images.name}*", worse, images.labels, images.classes, images.indices)


UCMERCED_IN_AID = {
    "agricultural": "Farmland",
    "baseballdiamond": "BaseballField",
    "beach": "Beach",
    "denseresidential": "DenseResidential",
    "forest": "Forest",
    "mediumresidential": "MediumResidential",
    "parkinglot": "Parking",
    "river": "River",
    "sparseresidential": "SparseResidential",
    "storagetanks": "StorageTanks",
}
"""The ten classes that the two datasets of aerial images share."""


def ucmerced_as_aid(ucmerced: ImageSet, aid_classes: Sequence[str]) -> ImageSet:
    """The images of the ten shared classes, with AID's labels; ignores case, spaces and dashes."""
    labels = labels_of(ucmerced)
    target = torch.full((len(ucmerced.classes),), -1)
    for theirs, ours in UCMERCED_IN_AID.items():
        target[_class(theirs, ucmerced.classes)] = _class(ours, aid_classes)
    rows = (target[labels] >= 0).nonzero()[:, 0]
    shared = ucmerced.subset(rows)
    return ImageSet(ucmerced.name, shared.images, target[labels[rows]], aid_classes, shared.indices)


def _class(name: str, classes: Sequence[str]) -> int:
    plain = [re.sub(r"[\W_]", "", label).lower() for label in classes]
    if name.lower() not in plain:
        raise InputError(
            f"expected a class {name.lower()} among those of UC-Merced and AID, "
            f"found {listed(classes)}"
        )
    return plain.index(name.lower())


# ---- records


@dataclass(frozen=True)
class Recording:
    """How a record is made: by which network, from which images, through which views."""

    network: str
    """The dataset of the network."""
    dataset: str
    split: str = "test"
    unknown: bool = False
    """Whether the network does not know the classes: the images get no labels."""
    instead: str = ""
    """A dataset to use if `dataset` is missing."""
    shift: int | None = None
    """The seed of the noise and blur of CIFAR-10*."""
    policy: str = POLICY
    draws: str = "random"

    @property
    def after_validation(self) -> bool:
        """Whether to leave out rows: those that another network would be calibrated on."""
        return self.unknown and self.dataset in NETWORKS


_stratified = partial(Recording, draws="stratified")
RECORDINGS = {
    "cifar10": Recording("cifar10", "cifar10"),
    "cifar10_nudged": _stratified("cifar10", "cifar10", policy=f"{POLICIES[POLICY]} + 3 nudge"),
    "cifar10_shift": Recording("cifar10", "cifar10", shift=SEED),
    "cifar10_ood": Recording("cifar10", "aid", unknown=True, instead="aid32"),  # AID's, resized
    "cifar100": Recording("cifar100", "cifar100"),
    "cifar100_nudged": _stratified("cifar100", "cifar100", policy="flip + 3 nudge"),
    "aid": Recording("aid", "aid"),
    "aid_shift": Recording("aid", "ucmerced", split="train"),
    "aid_ood": Recording("aid", "cifar10", unknown=True),
}


@dataclass(frozen=True, kw_only=True)
class Making:
    """How missing records are made."""

    model: str = "resnet50"
    steps: int | None = None
    """Steps of the training, instead of the recipe's."""
    image_size: int | None = None
    """The side of AID's images; those of CIFAR keep their size."""
    seed: int = 0
    """The seed of the training."""
    validation: int = VALIDATION
    """Validation images of each dataset, which are not tested on by another network either."""
    device: str | None = None
    progress: bool = True

    def plan(self, dataset: str) -> tuple[Recipe, int | None]:
        """The recipe for the network of a dataset, and the side of its images if it is changed."""
        recipe, side = NETWORKS[dataset]
        recipe = recipe if self.steps is None else replace(recipe, steps=self.steps)
        return recipe, side and (self.image_size or side)


def obstacle(name: str, data: str | Path | None = None, networks: Path | None = None) -> str | None:
    """One line that says why the record cannot be made from the data, or None if it can.

    Only file names are looked at. If `networks` has the finished network, its training images are
    not needed. Without `data`, the folder is $ATTA_DATA.
    """
    recording, missing = _recording(name), []
    try:
        trained = networks is not None and network_file(networks, recording.network).is_file()
        if not trained and not present(recording.network, "train", data):
            missing.append(f"no train split of {recording.network}")
        if _available(name, data) is None:
            wanted = " or ".join(filter(None, (recording.dataset, recording.instead)))
            missing.append(f"no {recording.split} split of {wanted}")
    except InputError as error:
        return f"{name}: {error}"
    root = data or os.environ.get("ATTA_DATA")
    where = f" under {root}" if root else ": ATTA_DATA does not say where the data is"
    return f"{name}: {' and '.join(missing)}{where}" if missing else None


def make(
    name: str,
    *,
    records: Path,
    networks: Path,
    data: str | Path | None = None,
    making: Making | None = None,
    say: Tell = print,
) -> Path:
    """Write `records/<name>.safetensors` and return its path; train the network if it is missing.

    A record that is there stays as it is. A finished network must be the one that would be trained
    now. `say` is called before work that takes long.
    """
    making, path = making or Making(), records / f"{name}.safetensors"
    if path.is_file():
        return path
    recording = _available(name, data)
    if recording is None:
        raise InputError(obstacle(name, data, networks))
    # Loaded first, so that bad images are reported before hours of training.
    images = load(recording.dataset, recording.split, data=data)
    if recording.after_validation and len(images) <= making.validation:
        raise InputError(
            f"{name}: expected more than {making.validation} images in the {recording.split} split "
            f"of {recording.dataset}, of which that many are for validation, found {len(images)}"
        )
    network, metadata = _network(recording.network, networks, data, making, say)
    images, origin = _arranged(images, recording, metadata, making)
    passes = Policy.parse(recording.policy).passes
    say(f"recording {len(images):,} images x {passes} passes: {name}")
    collect(
        network,
        images,
        policy=recording.policy,
        seed=SEED,
        draws=recording.draws,
        output=path,
        device=making.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        progress=making.progress,
        origin=origin,
    )
    return path


def _network(
    dataset: str,
    networks: Path,
    data: str | Path | None,
    making: Making,
    say: Tell,
) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a dataset and its metadata; trained now if it was not before."""
    (recipe, side), file = making.plan(dataset), network_file(networks, dataset)
    if not file.is_file():
        images = load(dataset, "train", data=data, image_size=side)
        epochs = recipe.epochs(len(images))
        length = f"{epochs:,} epoch{'s' * (epochs > 1)}"
        say(f"training {making.model} on {len(images):,} images of {dataset}: {length}")
        train(
            making.model,
            images.decoded(),
            recipe=recipe,
            seed=making.seed,
            output=file.parent,
            device=making.device,
            progress=making.progress,
        )
    # From the file even if it was just trained: another memory format has other last bits.
    network, metadata = load_trained(file)
    expected = {
        "architecture": {"name": making.model},
        "dataset": dataset,
        "recipe": {name: value for name, value in asdict(recipe).items() if value is not None},
        "seed": making.seed,
        "shape": [*metadata["shape"][:1], side, side] if side else metadata["shape"],
    }
    check_same_run(file, metadata, expected)
    return network, metadata


def _arranged(
    images: ImageSet, recording: Recording, metadata: Mapping[str, Any], making: Making
) -> tuple[ImageSet, dict[str, str]]:
    """The images as the network sees them, and the origin of their record."""
    rows = slice(making.validation, None) if recording.after_validation else None
    if recording.unknown:
        images = ImageSet(images.name, images.images, indices=images.indices)
    elif recording.dataset == "ucmerced":
        images = ucmerced_as_aid(images, metadata["classes"])
    images = arrange(images, shuffle=SEED, rows=rows, image_size=metadata["shape"][-1])
    origin = {**about(metadata), "split": recording.split, "shuffle": str(SEED)}
    if rows is not None:
        origin["rows"] = f"{making.validation}:"
    if recording.shift is not None:
        images, origin["shift"] = shifted(images, recording.shift), str(recording.shift)
    return images, origin


def check_made(name: str, path: Path, making: Making) -> None:
    """Refuse a record that `make` made with other settings; unknown settings are not checked."""
    recipe, wanted_side = making.plan(_recording(name).network)
    origin = Record.load(path).origin
    side = origin.get("image_shape", "").rpartition(" ")[2]
    found = {
        "model": origin.get("model"),
        "steps": json.loads(origin.get("recipe", "{}")).get("steps"),
        "image size": side or None,
        "rows": origin.get("rows"),
    }
    wanted = (making.model, recipe.steps, str(wanted_side or side), f"{making.validation}:")
    pairs = zip(found.items(), wanted, strict=True)
    check_same_run(path, found, {name: value for (name, known), value in pairs if known})


def network_file(networks: Path, dataset: str) -> Path:
    """The file of the network of a dataset."""
    return networks / dataset / "model.safetensors"


def _available(name: str, data: str | Path | None) -> Recording | None:
    """The recording, with the dataset that is there."""
    recording = _recording(name)
    if present(recording.dataset, recording.split, data):
        return recording
    if recording.instead and present(recording.instead, recording.split, data):
        return replace(recording, dataset=recording.instead)
    return None


def _recording(name: str) -> Recording:
    if name not in RECORDINGS:
        raise InputError(
            f"expected one of the records {', '.join(RECORDINGS)}, "
            f"got {name!r}.{suggest(name, RECORDINGS)}"
        )
    return RECORDINGS[name]
