"""Images and labels as they were given, made ready: in their order, as a source, without what cannot be read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from torch import nn

from atta.data.again import FOLDER
from atta.data.image_set import ImageSet, arrange
from atta.data.labels import Truth, truth_of
from atta.data.layouts import by_file_name, folder_of_images
from atta.data.preprocess import Preprocess
from atta.data.source import Channels, Source, as_source
from atta.networks.adapters import class_names_of
from atta.run.trial import check_names, without_bad


class Given(NamedTuple):
    """The images in their order, as the source that they are read from, what is known of their labels, and what was done."""

    images: object
    source: Source
    truth: Truth
    about: dict[str, str]
    """For a record's origin: the seed that they were shuffled by, those that were left out."""


def take(
    images: object,
    labels: object,
    class_names: Sequence[str],
    network: nn.Module,
    *,
    channels: Channels = None,
    preprocess: Preprocess | None = None,
    shuffle: int | bool | None = None,
    skip_bad: bool = False,
    workers: int = 0,
    held: Callable[[Source], Source] = lambda source: source,
) -> Given:
    """Make images and labels ready for a network, as `collect` says; what `held` makes of a source is read in its place."""
    check_names(class_names)
    images, about = _mixed(images, labels, shuffle)
    source = as_source(images, channels, preprocess)
    source = source if skip_bad else held(source)
    truth = truth_of(labels, source, class_names or class_names_of(network))
    if skip_bad:
        source, left_out = without_bad(source, truth, workers)
        about |= left_out
    return Given(images, source, truth, about)


def found_in(images: object) -> dict[str, str]:
    """The folder that they lie in, for a record's origin."""
    return {FOLDER: str(Path(images).absolute())} if _is_folder(images) else {}


def _mixed(
    images: object, labels: object, shuffle: int | bool | None
) -> tuple[object, dict[str, str]]:
    """Shuffle the images of a folder, unless labels in an order of their own go with them; say by which seed."""
    if shuffle is False or (labels is not None and not isinstance(labels, str | Path)):
        return images, {}
    seed = int(shuffle or 0)
    if _is_folder(images):
        found = folder_of_images(Path(images))
        if found.labels is None and labels is None and shuffle is None:
            return images, {}  # whoever has no labels goes by the names of the files
        return arrange(by_file_name(found), shuffle=seed), {"shuffle": str(seed)}
    if shuffle is not None and isinstance(images, ImageSet):
        return arrange(images, shuffle=seed), {"shuffle": str(seed)}
    return images, {}


def _is_folder(images: object) -> TypeGuard[str | Path]:
    return isinstance(images, str | Path) and Path(images).is_dir()
