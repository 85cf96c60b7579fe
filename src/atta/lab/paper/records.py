"""The records of the paper's experiments, made from data: a network is trained, and looks at images and their views.

| record          | network trained on | images it looks at                                                    |
|-----------------|--------------------|-----------------------------------------------------------------------|
| `cifar10`       | CIFAR-10           | CIFAR-10's test images                                                |
| `cifar10_nudged`| CIFAR-10           | the same, also nudged, and all views spread evenly                    |
| `cifar10_shift` | CIFAR-10           | the same in the same order, with noise and blur: CIFAR-10*            |
| `cifar10_ood`   | CIFAR-10           | AID's test images after those for validation, without labels          |
| `cifar100`      | CIFAR-100          | CIFAR-100's test images                                               |
| `cifar100_nudged`| CIFAR-100         | the same, flipped and nudged, spread evenly                           |
| `aid`           | AID                | AID's test images                                                     |
| `aid_shift`     | AID                | UC-Merced's images of the ten classes that AID has too, AID's labels  |
| `aid_ood`       | AID                | CIFAR-10's test images after those for validation, without labels     |

All of them are shuffled by one seed, so that the first 1000 rows of `cifar10`, `cifar100` and `aid` are the images to
calibrate on, and seen through the largest policy, which holds the views of the other seven. Only data on this machine is
used. What was stopped goes on: a training from its checkpoint, a recording from its shards.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atta._base.errors import InputError, suggest
from atta.data.image_set import ImageSet
from atta.data.views import POLICIES, Policy
from atta.lab.datasets import arrange, load, present
from atta.lab.paper.shifts import shifted, ucmerced_as_aid
from atta.lab.training.recipe import Recipe
from atta.lab.training.train import train
from atta.lab.training.trained import about, check_trained, load_trained
from atta.record.predictions import Record
from atta.run.collect import collect

POLICY = "aug8"
VALIDATION = 1000
"""The images to calibrate on, which come first."""
SEED = 0
"""Of the order of the images, of what is done to shifted ones, and of the views; the networks have their own."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the network of a dataset is trained."""

    recipe: Recipe
    image_size: int | None = None
    """The side its images are resized to; None leaves them as they are published."""

    def changed(self, steps: int | None, image_size: int | None) -> "Network":
        """A shorter or longer training, on images of another side where they are resized at all."""
        recipe = self.recipe if steps is None else replace(self.recipe, steps=steps)
        return Network(
            recipe=recipe, image_size=self.image_size and (image_size or self.image_size)
        )


# A zoomed crop is a slightly blurred image, and a network that knows blur finds the shifted test set of CIFAR-10 easy.
NETWORKS = {
    "cifar10": Network(recipe=Recipe(zoomed=0.0)),
    "cifar100": Network(recipe=Recipe(zoomed=0.0)),
    "aid": Network(recipe=Recipe(), image_size=224),
}


def no_labels(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images alone: what they show is none of the network's classes."""
    return ImageSet(images.name, images.images, indices=images.indices)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images of a dataset, and what becomes of them before a network sees them."""

    dataset: str
    split: str = "test"
    labels: Callable[[ImageSet, Sequence[str]], ImageSet] = lambda images, classes: images
    """Given the images and the network's classes: the images to use, labelled for that network; as they are by default."""
    after_validation: bool = False
    """Leave out the rows that would be calibrated on if the dataset were the network's own."""
    shift: int | None = None
    """The seed of the noise and blur of CIFAR-10*."""


@dataclass(frozen=True)
class Recording:
    """What a record is made of: the dataset of its network, and the first of the samples that is there."""

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
            Sample(
                dataset="aid32", labels=no_labels
            ),  # AID's test images, made small by someone before
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
    """The length of the training, instead of the recipe's."""
    image_size: int | None = None
    """The side of AID's images; those of CIFAR stay as they are."""
    seed: int = 0
    """The training's."""
    validation: int = VALIDATION
    """The images of a dataset that are to calibrate on, which are no test images elsewhere either."""
    device: str | None = None
    progress: bool = True

    def plan(self, dataset: str) -> Network:
        """How the network of a dataset is trained."""
        return NETWORKS[dataset].changed(self.steps, self.image_size)

    @property
    def at(self) -> torch.device:
        """Where the network runs."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def obstacle(name: str, data: str | Path | None = None, networks: Path | None = None) -> str | None:
    """One line that says why the record cannot be made from what lies in the folder of data, or None if it can.

    Only names of files are looked at. Where `networks` has the finished network, the images it was trained on are not
    needed. Without `data`, the folder is $ATTA_DATA.
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
    """Write `records/<name>.safetensors`, training `networks/<dataset>` first if it is not there; return its path.

    A record that is there is left alone. A finished network must be the one that would be trained now. `say` is told what
    begins, before it takes long.
    """
    making, recording, path = making or Making(), _recording(name), records / f"{name}.safetensors"
    if path.is_file():
        return path
    if problem := obstacle(name, data, networks):
        raise InputError(problem)
    sample = _sample(recording, data)
    assert sample is not None
    images = load(
        sample.dataset, sample.split, data=data
    )  # what is wrong with them is said before hours of training
    if sample.after_validation and len(images) <= making.validation:
        raise InputError(
            f"{name}: expected more than {making.validation} images in the {sample.split} split of {sample.dataset}, of "
            f"which that many are for validation, found {len(images)}"
        )
    network, metadata = _network(recording.network, networks, data, making, say)
    images, origin = _arranged(images, sample, metadata, making)
    say(
        f"recording {len(images):,} images x {Policy.parse(recording.policy).passes} passes: {name}"
    )
    collect(
        network,
        images,
        policy=recording.policy,
        seed=SEED,
        draws=recording.draws,
        output=path,
        device=making.at,
        progress=making.progress,
        origin=origin,
    )
    return path


def _network(
    dataset: str,
    networks: Path,
    data: str | Path | None,
    making: Making,
    say: Callable[[str], None],
) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a dataset and what is known of it, trained now if it was not before."""
    plan, file = making.plan(dataset), _file(networks, dataset)
    if not file.is_file():
        images = load(dataset, "train", data=data, image_size=plan.image_size)
        epochs = plan.recipe.epochs(len(images))
        say(
            f"training {making.model} on {len(images):,} images of {dataset}: {epochs:,} epoch{'s' * (epochs > 1)}"
        )
        train(
            making.model,
            images.decoded(),
            recipe=plan.recipe,
            seed=making.seed,
            output=file.parent,
            device=making.at,
            progress=making.progress,
        )
    # From the file even if it was trained just now: in another memory format it would have other last bits.
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
    """The images as the network is to see them, and the origin of their record."""
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
    """Refuse a record that `make` made with other settings than it would now; what is not known of it is not asked."""
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
                f"{path} was made with {what} {found} and not {wanted}; choose another folder, or delete it"
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
            f"expected one of the records {', '.join(RECORDINGS)}, got {name!r}.{suggest(name, RECORDINGS)}"
        )
    return RECORDINGS[name]
