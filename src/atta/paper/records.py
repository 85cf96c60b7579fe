"""The records of the paper's experiments, made from data: a network is trained, and looks at images and their views.

| record          | network trained on | images it looks at                                                    |
|-----------------|--------------------|-----------------------------------------------------------------------|
| `cifar10`       | CIFAR-10           | CIFAR-10's test images                                                |
| `cifar10_nudged`| CIFAR-10           | the same, also nudged, and all views spread evenly                    |
| `cifar10_shift` | CIFAR-10           | the same in the same order, with noise and blur: CIFAR-10*            |
| `cifar10_ood`   | CIFAR-10           | AID's test images after those for validation, without labels          |
| `cifar100`      | CIFAR-100          | CIFAR-100's test images                                               |
| `aid`           | AID                | AID's test images                                                     |
| `aid_shift`     | AID                | UC-Merced's images of the ten classes that AID has too, AID's labels  |
| `aid_ood`       | AID                | CIFAR-10's test images after those for validation, without labels     |

All of them are shuffled by one seed, so that the first 1000 rows of `cifar10`, `cifar100` and `aid` are the images to
calibrate on, and seen through the largest policy, which holds the views of the other seven. Only data on this machine is
used. What was stopped goes on: a training from its checkpoint, a recording from its shards.
"""

import difflib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atta.collection.collect import collect
from atta.collection.shards import beside
from atta.images.datasets import arrange, load, present, ucmerced_as_aid
from atta.images.sets import ImageSet
from atta.images.views import POLICIES, Policy
from atta.networks.recipe import Recipe
from atta.networks.trained import about, check_trained, load_trained
from atta.networks.training import train
from atta.predictions import Record
from atta.types import InputError

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
        return Network(recipe=recipe, image_size=self.image_size and (image_size or self.image_size))


# A zoomed crop is a slightly blurred image, and a network that knows blur finds the shifted test set of CIFAR-10 easy.
NETWORKS = {
    "cifar10": Network(recipe=Recipe(zoomed=0.0)),
    "cifar100": Network(recipe=Recipe(zoomed=0.0)),
    "aid": Network(recipe=Recipe(), image_size=224),
}


def own_labels(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images as they are: those of the dataset that the network was trained on."""
    return images


def no_labels(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images alone: what they show is none of the network's classes."""
    return ImageSet(images.name, images.images, indices=images.indices)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images of a dataset, and what becomes of them before a network sees them."""

    dataset: str
    split: str = "test"
    labels: Callable[[ImageSet, Sequence[str]], ImageSet] = own_labels
    """Given the images and the network's classes: the images to use, labelled for that network."""
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
        "cifar10", (Sample(dataset="cifar10"),), policy=f"{POLICIES[POLICY]} + 3 nudge", draws="stratified"
    ),
    "cifar10_shift": Recording("cifar10", (Sample(dataset="cifar10", shift=SEED),)),
    "cifar10_ood": Recording(
        "cifar10",
        (
            Sample(dataset="aid", labels=no_labels, after_validation=True),
            Sample(dataset="aid32", labels=no_labels),  # AID's test images, made small by someone before
        ),
    ),
    "cifar100": Recording("cifar100", (Sample(dataset="cifar100"),)),
    "aid": Recording("aid", (Sample(dataset="aid"),)),
    "aid_shift": Recording("aid", (Sample(dataset="ucmerced", split="train", labels=ucmerced_as_aid),)),
    "aid_ood": Recording("aid", (Sample(dataset="cifar10", labels=no_labels, after_validation=True),)),
}


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
    data: str | Path | None = None,
    records: Path,
    networks: Path,
    model: str = "resnet50",
    steps: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    validation: int = VALIDATION,
    device: str | torch.device | None = None,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Write `records/<name>.safetensors`, training `networks/<dataset>` first if it is not there; return its path.

    A record that is there is left alone. A finished network must be the one that would be trained now. `steps` changes
    the length of the training; `image_size` the side of AID's images, while those of CIFAR stay as they are; `seed` is
    the training's. `say` is told what begins, before it takes long.
    """
    recording, path = _recording(name), records / f"{name}.safetensors"
    if path.is_file():
        return path
    if problem := obstacle(name, data, networks):
        raise InputError(problem)
    sample = _sample(recording, data)
    assert sample is not None
    images = load(sample.dataset, sample.split, data=data)  # what is wrong with them is said before hours of training
    if sample.after_validation and len(images) <= validation:
        raise InputError(
            f"{name}: expected more than {validation} images in the {sample.split} split of {sample.dataset}, of which "
            f"that many are for validation, found {len(images)}"
        )
    at = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    plan, trained_on = NETWORKS[recording.network].changed(steps, image_size), recording.network
    file = _file(networks, trained_on)
    if not file.is_file():
        train_set = load(trained_on, "train", data=data, image_size=plan.image_size)
        n, epochs = len(train_set), plan.recipe.epochs(len(train_set))
        say(f"training {model} on {n:,} images of {trained_on}: {epochs:,} epoch{'s' if epochs > 1 else ''}")
        train(
            model,
            train_set.decoded(),
            recipe=plan.recipe,
            seed=seed,
            output=file.parent,
            device=at,
            progress=progress,
        )
    # From the file even if it was trained just now: in another memory format it would have other last bits.
    network, metadata = load_trained(file)
    check_trained(
        metadata,
        file,
        model=model,
        dataset=trained_on,
        recipe=plan.recipe,
        seed=seed,
        image_size=plan.image_size,
    )
    images = sample.labels(images, metadata["classes"])
    arrangement = {"shuffle": SEED, "shift": sample.shift}
    rows = slice(validation, None) if sample.after_validation else None
    images = arrange(images, rows=rows, image_size=metadata["shape"][-1], **arrangement)
    origin = {**about(metadata), "split": sample.split} | ({"rows": f"{validation}:"} if rows else {})
    origin |= {key: str(value) for key, value in arrangement.items() if value is not None}
    say(f"recording {len(images):,} images x {Policy.parse(recording.policy).passes} passes: {name}")
    with beside(path) as shards:
        record = collect(
            network,
            images,
            policy=recording.policy,
            seed=SEED,
            draws=recording.draws,
            device=at,
            shards=shards,
            progress=progress,
            origin=origin,
        )
        return record.save(path)


def check_made(
    name: str, path: Path, *, model: str, steps: int | None, image_size: int | None, validation: int = VALIDATION
) -> None:
    """Refuse a record that `make` made with other settings than it would now; what is not known of it is not asked."""
    recording, origin = _recording(name), Record.load(path).origin
    plan = NETWORKS[recording.network].changed(steps, image_size)
    recipe = json.loads(origin.get("recipe", "{}"))
    side = (origin.get("image_shape") or "").rpartition(" ")[2]
    told = {
        "model": (origin.get("model"), model),
        "steps": (recipe.get("steps"), plan.recipe.steps),
        "image size": (side or None, str(plan.image_size) if plan.image_size else side),
        "rows": (origin.get("rows"), f"{validation}:"),
    }
    for what, (found, wanted) in told.items():
        if found is not None and found != wanted:
            raise InputError(
                f"{path} was made with {what} {found} and not {wanted}; choose another folder, or delete it"
            )


def _file(networks: Path, dataset: str) -> Path:
    return networks / dataset / "model.safetensors"


def _sample(recording: Recording, data: str | Path | None) -> Sample | None:
    return next((sample for sample in recording.samples if present(sample.dataset, sample.split, data)), None)


def _recording(name: str) -> Recording:
    if name in RECORDINGS:
        return RECORDINGS[name]
    near = difflib.get_close_matches(name, RECORDINGS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"expected one of the records {', '.join(RECORDINGS)}, got {name!r}{hint}")
