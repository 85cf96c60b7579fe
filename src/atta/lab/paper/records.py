"""Makes the records of the paper's experiments from data, and its shifted test sets.

A network is trained, and run on images and their views:

| record            | network of | images                                                          |
|-------------------|------------|------------------------------------------------------------------|
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from atta._base.errors import InputError, suggest
from atta.data.draws import draw_numbers
from atta.data.image_set import Bytes, ImageSet
from atta.data.layouts import listed
from atta.data.transforms import gaussian_blur, gaussian_noise
from atta.data.views import POLICIES, Policy
from atta.lab.datasets import arrange, load, present
from atta.lab.recipe import Recipe
from atta.lab.trained import about, check_trained, load_trained
from atta.lab.training import train
from atta.record.predictions import Record
from atta.record.shards import beside
from atta.run.collect import collect

POLICY = "aug8"
VALIDATION = 1000
"""The number of images to calibrate on, which come first."""
SEED = 0
"""The seed of the order of the images, of shifts and of views; the networks have their own."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the network of a dataset is trained."""

    recipe: Recipe
    image_size: int | None = None
    """The side its images are resized to; None leaves them as they are published."""

    def changed(self, steps: int | None, image_size: int | None) -> "Network":
        """The same with other steps, and with another image size where images are resized."""
        recipe = self.recipe if steps is None else replace(self.recipe, steps=steps)
        size = self.image_size and (image_size or self.image_size)
        return Network(recipe=recipe, image_size=size)


# Zoomed crops are slightly blurred, and a network that knows blur finds CIFAR-10* easy.
NETWORKS = {
    "cifar10": Network(recipe=Recipe(zoomed=0.0)),
    "cifar100": Network(recipe=Recipe(zoomed=0.0)),
    "aid": Network(recipe=Recipe(), image_size=224),
}


def shifted(images: ImageSet, seed: int = 0) -> ImageSet:
    """CIFAR-10*: noise of variance U(10, 50) for each image and channel, then blur of size 1 to 5.

    The shift of an image depends on the seed and its index alone.
    """
    worse = _worsened(images.tensors(), images.indices, seed)
    return ImageSet(f"{images.name}*", worse, images.labels, images.classes, images.indices)


def _worsened(images: Bytes, indices: Int[Tensor, "_"], seed: int) -> Bytes:
    pieces = []
    # In chunks: an image needs a float per value.
    for some, rows in zip(torch.split(images, 1000), torch.split(indices, 1000), strict=True):
        noise = draw_numbers(
            "shift-noise", some.shape[1] + some[0].numel(), rows, repeat=0, repeats=1, seed=seed
        )
        blur = draw_numbers("shift-blur", 1, rows, repeat=0, repeats=1, seed=seed)
        noisy = gaussian_noise(some.float() / 255, noise.to(some.device))
        pieces.append((gaussian_blur(noisy, blur.to(some.device)) * 255).round().byte())
    return torch.cat(pieces) if pieces else images


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
    if ucmerced.labels is None:
        raise InputError(f"expected labels with {ucmerced.name}, found none")
    target = torch.full((len(ucmerced.classes),), -1)
    for theirs, ours in UCMERCED_IN_AID.items():
        target[_class(theirs, ucmerced.classes)] = _class(ours, aid_classes)
    shared = ucmerced.subset((target[ucmerced.labels] >= 0).nonzero()[:, 0])
    assert shared.labels is not None
    return ImageSet(
        ucmerced.name, shared.images, target[shared.labels], aid_classes, shared.indices
    )


def _class(name: str, classes: Sequence[str]) -> int:
    plain = [re.sub(r"[\W_]", "", label).lower() for label in classes]
    if name.lower() not in plain:
        raise InputError(
            f"expected a class {name.lower()} among those of UC-Merced and AID, "
            f"found {listed(classes)}"
        )
    return plain.index(name.lower())


# ---- records


def no_labels(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images without labels: their classes are unknown to the network."""
    return ImageSet(images.name, images.images, indices=images.indices)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images of a dataset, and what is done to them before a network sees them."""

    dataset: str
    split: str = "test"
    labels: Callable[[ImageSet, Sequence[str]], ImageSet] = lambda images, classes: images
    """Given the images and the network's classes: the images with labels for that network."""
    after_validation: bool = False
    """Leave out the rows that would be validation images of the dataset's own network."""
    shift: int | None = None
    """The seed of the noise and blur of CIFAR-10*."""


@dataclass(frozen=True)
class Recording:
    """How a record is made: the dataset of its network, and the first sample that is there."""

    network: str
    samples: tuple[Sample, ...]
    policy: str = POLICY
    draws: str = "random"


RECORDINGS: dict[str, Recording] = {
    "cifar10": Recording("cifar10", (Sample(dataset="cifar10"),)),
    "cifar10_nudged": Recording(
        "cifar10",
        (Sample(dataset="cifar10"),),
        policy=f"{POLICIES[POLICY]} + 3 nudge",
        draws="stratified",
    ),
    "cifar10_shift": Recording("cifar10", (Sample(dataset="cifar10", shift=SEED),)),
    "cifar10_ood": Recording(
        "cifar10",
        (
            Sample(dataset="aid", labels=no_labels, after_validation=True),
            Sample(dataset="aid32", labels=no_labels),  # AID's test images, resized before
        ),
    ),
    "cifar100": Recording("cifar100", (Sample(dataset="cifar100"),)),
    "cifar100_nudged": Recording(
        "cifar100", (Sample(dataset="cifar100"),), policy="flip + 3 nudge", draws="stratified"
    ),
    "aid": Recording("aid", (Sample(dataset="aid"),)),
    "aid_shift": Recording(
        "aid", (Sample(dataset="ucmerced", split="train", labels=ucmerced_as_aid),)
    ),
    "aid_ood": Recording(
        "aid", (Sample(dataset="cifar10", labels=no_labels, after_validation=True),)
    ),
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

    def plan(self, dataset: str) -> Network:
        """How the network of a dataset is trained."""
        return NETWORKS[dataset].changed(self.steps, self.image_size)

    @property
    def at(self) -> torch.device:
        """The device of the network."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def obstacle(name: str, data: str | Path | None = None, networks: Path | None = None) -> str | None:
    """One line that says why the record cannot be made from the data, or None if it can.

    Only file names are looked at. If `networks` has the finished network, its training images are
    not needed. Without `data`, the folder is $ATTA_DATA.
    """
    recording, missing = _recording(name), []
    try:
        trained = networks is not None and _file(networks, recording.network).is_file()
        if not trained and not present(recording.network, "train", data):
            missing.append(f"no train split of {recording.network}")
        if _sample(recording, data) is None:
            wanted = " or ".join(sample.dataset for sample in recording.samples)
            missing.append(f"no {recording.samples[0].split} split of {wanted}")
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
    say: Callable[[str], None] = print,
) -> Path:
    """Write `records/<name>.safetensors` and return its path; train the network if it is missing.

    A record that is there stays as it is. A finished network must be the one that would be trained
    now. `say` is called before work that takes long.
    """
    making, recording, path = making or Making(), _recording(name), records / f"{name}.safetensors"
    if path.is_file():
        return path
    if problem := obstacle(name, data, networks):
        raise InputError(problem)
    sample = _sample(recording, data)
    assert sample is not None
    # Loaded first, so that bad images are reported before hours of training.
    images = load(sample.dataset, sample.split, data=data)
    if sample.after_validation and len(images) <= making.validation:
        raise InputError(
            f"{name}: expected more than {making.validation} images in the {sample.split} split of "
            f"{sample.dataset}, of which that many are for validation, found {len(images)}"
        )
    network, metadata = _network(recording.network, networks, data, making, say)
    images, origin = _arranged(images, sample, metadata, making)
    passes = Policy.parse(recording.policy).passes
    say(f"recording {len(images):,} images x {passes} passes: {name}")
    with beside(path) as shards:
        record = collect(
            network,
            images,
            policy=recording.policy,
            seed=SEED,
            draws=recording.draws,
            device=making.at,
            shards=shards,
            progress=making.progress,
            origin=origin,
        )
        return record.save(path)


def _network(
    dataset: str,
    networks: Path,
    data: str | Path | None,
    making: Making,
    say: Callable[[str], None],
) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a dataset and its metadata; trained now if it was not before."""
    plan, file = making.plan(dataset), _file(networks, dataset)
    if not file.is_file():
        images = load(dataset, "train", data=data, image_size=plan.image_size)
        epochs = plan.recipe.epochs(len(images))
        length = f"{epochs:,} epoch{'s' * (epochs > 1)}"
        say(f"training {making.model} on {len(images):,} images of {dataset}: {length}")
        train(
            making.model,
            images.decoded(),
            recipe=plan.recipe,
            seed=making.seed,
            output=file.parent,
            device=making.at,
            progress=making.progress,
        )
    # From the file even if it was just trained: another memory format has other last bits.
    network, metadata = load_trained(file)
    check_trained(
        metadata,
        file,
        model=making.model,
        dataset=dataset,
        recipe=plan.recipe,
        seed=making.seed,
        image_size=plan.image_size,
    )
    return network, metadata


def _arranged(
    images: ImageSet, sample: Sample, metadata: Mapping[str, Any], making: Making
) -> tuple[ImageSet, dict[str, str]]:
    """The images as the network sees them, and the origin of their record."""
    rows = slice(making.validation, None) if sample.after_validation else None
    images = sample.labels(images, metadata["classes"])
    images = arrange(images, shuffle=SEED, rows=rows, image_size=metadata["shape"][-1])
    origin = {**about(metadata), "split": sample.split, "shuffle": str(SEED)}
    if rows is not None:
        origin["rows"] = f"{making.validation}:"
    if sample.shift is not None:
        images, origin["shift"] = shifted(images, sample.shift), str(sample.shift)
    return images, origin


def check_made(name: str, path: Path, making: Making) -> None:
    """Refuse a record that `make` made with other settings; unknown settings are not checked."""
    plan, origin = making.plan(_recording(name).network), Record.load(path).origin
    recipe = json.loads(origin.get("recipe", "{}"))
    side = (origin.get("image_shape") or "").rpartition(" ")[2]
    told = {
        "model": (origin.get("model"), making.model),
        "steps": (recipe.get("steps"), plan.recipe.steps),
        "image size": (side or None, str(plan.image_size) if plan.image_size else side),
        "rows": (origin.get("rows"), f"{making.validation}:"),
    }
    for what, (found, wanted) in told.items():
        if found is not None and found != wanted:
            raise InputError(
                f"{path} was made with {what} {found} and not {wanted}; "
                "choose another folder, or delete it"
            )


def _file(networks: Path, dataset: str) -> Path:
    return networks / dataset / "model.safetensors"


def _sample(recording: Recording, data: str | Path | None) -> Sample | None:
    return next(
        (sample for sample in recording.samples if present(sample.dataset, sample.split, data)),
        None,
    )


def _recording(name: str) -> Recording:
    if name not in RECORDINGS:
        raise InputError(
            f"expected one of the records {', '.join(RECORDINGS)}, "
            f"got {name!r}.{suggest(name, RECORDINGS)}"
        )
    return RECORDINGS[name]
