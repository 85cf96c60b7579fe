"""Labels: read from a table of files, matched to the network's class names, joined to a source.

A table is a CSV or Parquet file with a column of files (file, filename, path, image, ...) and a
column of labels (label or class, else category or target): class numbers or names. A file is found
by its name, or by as much of its path as is needed to tell it apart.

Names of classes are compared without case, spaces, dashes and underscores. One of several names
between commas is enough, as in ImageNet ("tench, Tinca tinca"). A number is a class number. A
WordNet id (n02123045) is a class of ImageNet if the network has 1000 classes.
"""

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from atta._base.errors import InputError, advise, require, suggest
from atta._base.tensors import as_tensor, plain
from atta.data.folder import as_place, folder_of_images, is_number, listed
from atta.data.image_set import BadImage, ImageSet, arrange
from atta.data.items import Channels, Shape
from atta.data.loading import Workers
from atta.data.preprocess import Preprocess
from atta.data.source import Source, as_source, batches_of, cached

FILES = (("file", "filename", "file_name", "path", "image"), ("filepath", "image_path", "img"))
LABELS = (("label", "class"), ("labels", "category", "target"))
"""Columns of a table; the first column with a name of the first group is preferred."""
TABLES = (".csv", ".parquet")
MOST_NAMED = 20
"""Images that cannot be read, named one by one; of more, only the number is given."""

IMAGENET = 1000
"""Number of classes of ImageNet."""


@dataclass(frozen=True)
class Labelling:
    """Class numbers, as far as they are known before the images are read, and the class names.

    Args:
        labels: Class number of each image.
        classes: Class names of the network, in its order.
        guessed: The names are those of the images, in their own order, because the network's are
            unknown: there must be as many of them as the network has classes.
        numbers: The network's class number for each class number of the dataset, for labels that
            come with each image.
    """

    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    guessed: bool = False
    numbers: Tensor | None = None

    def settled(self, k: int) -> "Labelling":
        """Check the names against the network's number of classes, once that is known."""
        wnids = self.guessed and k == IMAGENET and imagenet().keys() >= set(self.classes)
        if not self.classes or (len(self.classes) == k and not wnids):
            return self
        if not self.guessed:
            raise InputError(
                f"class_names: expected {k}, one for each class of the network, got "
                f"{len(self.classes)}"
            )
        if wnids:
            numbers = torch.tensor([imagenet()[name] for name in self.classes])
            labels = None if self.labels is None else numbers[self.labels]
            return Labelling(labels, imagenet_names(), numbers=numbers)
        raise InputError(
            f"the images have {len(self.classes)} classes ({listed(self.classes)}), and the network"
            f" has {k}: it is unclear which is which. Name the network's classes in its order, "
            "class_names=[...] (--classes FILE or a,b,c), or give class numbers"
        )

    def own(self, labels: Tensor | None) -> Tensor | None:
        """Translate labels that came with images into the network's class numbers."""
        return labels if labels is None or self.numbers is None else self.numbers[labels]


@dataclass(frozen=True)
class Reading:
    """How images and labels are read.

    Args:
        class_names: Names of the network's classes, in its order; empty if they are unknown.
        channels: Where arrays have their channels.
        preprocess: How photographs are resized and cropped.
        shuffle: Seed by which a labelled folder is shuffled; False leaves its order.
        skip_bad: Leave out images that cannot be decoded, with a line for each.
        shape: Channels, height and width that every image must have.
        cache: Decode each image once, however often it is read.
        workers: Processes that decode.
    """

    class_names: Sequence[str] = ()
    channels: Channels = None
    preprocess: Preprocess | None = None
    shuffle: int | bool | None = None
    skip_bad: bool = False
    shape: Shape | None = None
    cache: bool = False
    workers: Workers = 0


def labelled_source(
    images: object, labels: object, how: Reading
) -> tuple[Source, Labelling, dict[str, str]]:
    """Prepare images and labels for a network: order them, read the labels, leave out bad images.

    Args:
        images: What `as_source` takes.
        labels: Class numbers, names, a CSV or Parquet file, or None if the images have labels.
        how: How they are read.

    Returns:
        The source, its labels, and what the origin of a record says of their order.
    """
    names = how.class_names
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"class_names: expected a list of texts, one for each class, got {names!r}"
        )
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(
                f"class_names: expected a different name for each class, got {name!r} twice"
            )
    origin: dict[str, str] = {}
    # Labels that come as a list belong to the images in the order in which they are given.
    if how.shuffle is not False and (labels is None or isinstance(labels, str | Path)):
        folder = isinstance(images, str | Path) and (place := as_place(images)).is_dir()
        if folder:
            images = folder_of_images(place)
        if isinstance(images, ImageSet):
            labelled = labels is not None or images.labels is not None
            if how.shuffle is not None or (folder and labelled):
                seed = int(how.shuffle or 0)
                images = arrange(images, by_name=folder, shuffle=seed)
                origin["shuffle"] = str(seed)
    source = as_source(images, how.channels, how.preprocess, how.shape, how.skip_bad, how.workers)
    if how.skip_bad and source.once:
        raise InputError(
            "skip_bad: a loader or a stream reads its images itself, and once: expected a folder, "
            "files, a table or a dataset"
        )
    source = cached(source) if how.cache else source
    labelling = labelling_of(labels, source, names)
    if how.skip_bad:
        source, labelling, left_out = _without_bad(source, labelling, how.workers)
        origin |= left_out
    return source, labelling, origin


def _without_bad(
    source: Source, labelling: Labelling, workers: Workers
) -> tuple[Source, Labelling, dict[str, str]]:
    """Leave out images that cannot be decoded, and name them."""
    faults: dict[int, str] = {}
    count = source.count or 0
    for batch in source.read(batches_of(64, 0, count), workers, BadImage):
        faults |= batch.faults
    if not faults:
        return source, labelling, {}
    if len(faults) == count:
        raise InputError(f"expected at least one image, found {count} faults: {faults[0]}")
    for reason in islice(faults.values(), MOST_NAMED):
        advise(f"left out: {reason}")
    if len(faults) > MOST_NAMED:
        advise(f"left out: {len(faults) - MOST_NAMED} more, {len(faults)} of {count} images")
    rows = torch.tensor([row for row in range(count) if row not in faults])
    if labelling.labels is not None:
        labelling = replace(labelling, labels=labelling.labels[rows])
    left_out = {"left_out": json.dumps([source.where(row) for row in faults])}
    return source.subset(rows), labelling, left_out


def labelling_of(labels: Any, source: Source, names: Sequence[str]) -> Labelling:
    """Read the labels that were given, or those of the images, by the network's class names."""
    names = tuple(map(str, names))
    if labels is not None and source.shuffled:
        raise InputError(
            "labels: expected those in the batches of the DataLoader, because it shuffles the "
            "images, got labels in an order of their own: leave labels out if the batches hold "
            "them, or give shuffle=False"
        )
    if labels is None:
        own, labels = source.classes, source.labels
        if not names and not all(map(is_number, own)):
            return _guessed(labels, own)
        if not names or not own:
            return Labelling(labels, names)
        present = range(len(own)) if labels is None else sorted(set(labels.tolist()))
        known = numbers_of([own[i] for i in present], names, f"the classes of {source.name}")
        numbers = torch.tensor([known.get(name, -1) for name in own])
        return Labelling(None if labels is None else numbers[labels], names, numbers=numbers)
    if isinstance(labels, str | Path):
        labels = _of_files(read_labels(Path(labels)), source, Path(labels))
    labels = plain(labels)
    if isinstance(labels, list | tuple) and labels and all(isinstance(one, str) for one in labels):
        found = _named(labels, names)
    else:
        expected = "a list, an array or a tensor of class numbers, or names"
        found = Labelling(as_tensor(labels, "labels", expected), names)
    shape = tuple(torch.as_tensor(found.labels).shape)
    if source.count is not None and shape[:1] != (source.count,):
        raise InputError(f"expected {source.count} labels, one for each image, got {shape}")
    return found


def _named(texts: Sequence[str], names: tuple[str, ...]) -> Labelling:
    """Read labels that are text: numbers or names; unknown names are sorted alphabetically."""
    if all(map(is_number, texts)) and not {*texts} & {*names}:
        return Labelling(torch.tensor([int(text) for text in texts]), names)
    known = names or tuple(sorted(set(texts)))
    numbers = numbers_of(texts, known)
    labels = torch.tensor([numbers[text] for text in texts])
    return Labelling(labels, names) if names else _guessed(labels, known)


def _guessed(labels: Tensor | None, classes: tuple[str, ...]) -> Labelling:
    """Take the classes of the images for those of the network, and say in which order."""
    if not imagenet().keys() >= set(classes):
        order = listed([f"{i} is {name}" for i, name in enumerate(classes)])
        advise(
            f"the network does not name its classes; they are taken in alphabetical order: {order}."
            " If the network has another order, name its classes: class_names=[...] (--classes)"
        )
    return Labelling(labels, classes, guessed=True)


def read_labels(path: Path) -> dict[str, str]:
    """Read a table of files and labels, as text."""
    if path.suffix.lower() not in TABLES:
        raise InputError(
            f"labels: expected numbers, names or a file of labels ({', '.join(TABLES)}), got "
            f"{str(path)!r}"
        )
    if not path.is_file():
        raise InputError(f"labels: there is no file {path}")
    if path.suffix.lower() == ".parquet":
        with require("data", "labels in Parquet"):
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import read_table
        try:
            rows = read_table(path).to_pylist()
        except (ArrowInvalid, OSError) as error:
            raise InputError(
                f"labels: expected a Parquet file, but {path} cannot be read: {error}"
            ) from None
    else:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = list(csv.DictReader(lines))
    columns = list(rows[0]) if rows else []
    file, label = (
        next((name for names in known for name in columns if name.strip().lower() in names), None)
        for known in (FILES, LABELS)
    )
    if file is None or label is None:
        raise InputError(
            f"labels: expected the columns file and label in {path}, found "
            f"{', '.join(columns) or 'none'}: name them so in line 1"
        )
    found: dict[str, str] = {}
    for row in rows:
        name, said = str(row[file]).strip(), str(row[label]).strip()
        if found.setdefault(name, said) != said:
            raise InputError(f"labels: {path} says {found[name]!r} and {said!r} of {name}")
    return found


def _of_files(table: Mapping[str, str], source: Source, path: Path) -> list[str]:
    """Return the label of each file of a source."""
    if source.files is None:
        raise InputError(
            f"labels: {path.name} names files, and {source.name} has none: expected a folder, or "
            "files, of images"
        )
    by_name = defaultdict[str, list[tuple[PurePosixPath, str]]](list)
    for file, label in table.items():
        place = PurePosixPath(file.replace("\\", "/"))
        by_name[place.name].append((place, label))
    # By its own path and, if it is a link, by the path that it leads to.
    places = {
        file: {PurePosixPath(file.absolute()), PurePosixPath(file.resolve())}
        for file in source.files
    }
    here = set().union(*places.values())
    labels, missing = list[str](), list[str]()
    for file_path in source.files:
        # An absolute path to no file here dates from before the files were moved: match its name.
        said = {
            label
            for p, label in by_name[file_path.name]
            if any(way.parts[-len(p.parts) :] == p.parts for way in places[file_path])
            or (p.is_absolute() and p not in here)
        }
        if len(said) > 1:
            raise InputError(
                f"labels: {path.name} has several rows for {file_path}: write as much of the path "
                "as tells them apart"
            )
        labels += said
        missing += [] if said else [str(file_path)]
    if missing:
        raise InputError(
            f"labels: {path.name} has no row for {len(missing)} of {len(source.files)} images, "
            f"first {missing[0]}: expected its name in the column of files, whose first name is "
            f"{next(iter(table), 'missing')}"
        )
    return labels


# ---- names of classes ---------------------------------------------------------------------------


def numbers_of(found: Iterable[str], names: Sequence[str], what: str = "labels") -> dict[str, int]:
    """Return the class number of each name found, given the names of the network's classes.

    >>> numbers_of(["Polar-Bear", "2"], ["ant", "polar bear", "cat"])
    {'Polar-Bear': 1, '2': 2}
    """
    found = list(dict.fromkeys(found))
    folded = {name: re.sub(r"[\s_\-]+", "", name.casefold()) for name in (*names, *found)}
    whole, parts = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for i, name in enumerate(names):
        whole[folded[name]].add(i)
        for part in folded[name].split(","):
            parts[part].add(i)
    numbers: dict[str, int] = {}
    for name in found:
        places = whole[folded[name]] or _by_number(name, len(names)) or parts[folded[name]]
        if len(places) != 1:
            several = f"classes {', '.join(map(str, sorted(places)))} have that name."
            reason = several if places else f"no class has that name.{suggest(name, names)}"
            raise InputError(
                f"{what}: expected names of the network's classes ({listed(names)}), got {name!r}: "
                f"{reason} Give other names as class_names=... (--classes FILE or a,b,c), in the "
                "network's order, or use class numbers"
            )
        (numbers[name],) = places
    return numbers


def _by_number(name: str, classes: int) -> set[int]:
    """The class that a class number or a WordNet id refers to."""
    if is_number(name):
        return {int(name)} & set(range(classes))
    wnid = re.match(r"n\d{8}(?!\d)", name)
    number = imagenet().get(wnid[0]) if wnid and classes == IMAGENET else None
    return set() if number is None else {number}


@cache
def imagenet() -> dict[str, int]:
    """ImageNet's 1000 classes by WordNet id, in the order of every network trained on it."""
    text = Path(__file__).with_name("imagenet_wnids.txt").read_text(encoding="ascii")
    return {wnid: i for i, wnid in enumerate(text.split())}


@cache
def imagenet_names() -> tuple[str, ...]:
    """Names of ImageNet's classes in their order: words if timm is installed, else WordNet ids."""
    timm = find_spec("timm")
    words = dict[str, str]()
    with suppress(OSError, ValueError):
        info = Path(str(timm and timm.origin)).parent / "data" / "_info"
        rows = (info / "imagenet_synset_to_lemma.txt").read_text(encoding="utf-8").splitlines()
        words = dict(row.split("\t") for row in rows)
    names = {wnid: words.get(wnid, wnid) for wnid in imagenet()}
    often = Counter(names.values())  # the crane is a bird and a machine
    return tuple(f"{name} ({wnid})" if often[name] > 1 else name for wnid, name in names.items())
