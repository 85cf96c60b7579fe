"""Options that several commands share, and functions that read what was typed.

typer makes an option of each parameter of a command. A group is a dataclass whose fields are such
parameters: `grouped` shows typer the fields, and gives the group to the command.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, BadParameter, Option

import atta
from atta._base.errors import InputError
from atta.cli.terminal import waiting

if TYPE_CHECKING:
    from atta.classifier.predict import Answerer
    from atta.data.folder import Place
    from atta.data.image_set import ImageSet
    from atta.run.runner import ExecutionOptions


def _seed(value: int) -> int:
    """Generators take 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise BadParameter(f"expected a whole number of at most 64 bits, got {value}")
    return value


# ---- options of one value ------------------------------------------------------------------------

ModelArgument = Annotated[
    str, Argument(help="What `atta train` wrote, an .onnx file, or package.module:name in Python.")
]
ClassifierArgument = Annotated[
    Path,
    Argument(
        metavar="CLASSIFIER",
        help="What `atta calibrate` wrote; predict and serve also take exported graphs.",
    ),
]
Output = Annotated[Path, Option("--output", "-o", metavar="PATH", help="Where to write it.")]
MethodName = Annotated[str, Option(help="One of `atta methods`.")]
Rows = Annotated[
    str | None, Option(metavar="FROM:TO", help="Use only these rows, such as 0:1000 or 1000:")
]
Set = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="NAME=VALUE", help="A setting of the method or recipe; may be repeated."
    ),
]
Report = Annotated[
    Path | None, Option("--report", metavar="FILE", help="Also write an HTML page to this file.")
]
PageImages = Annotated[
    list[str] | None,
    Option(
        "--images",
        metavar="[NAME=]FOLDER|no",
        help="Images for the thumbnails of the page; by default the folder named in the record.",
    ),
]
Intervals = Annotated[
    bool, Option("--intervals", help="Also print 95 % intervals of all numbers and differences.")
]
Json = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Also write the numbers; - prints them.")
]
RecordsFolder = Annotated[
    Path | None, Option(metavar="FOLDER", help="A folder of records: cifar10.safetensors, ...")
]
Validation = Annotated[
    int | None,
    Option(help="Images to fit on, instead of the experiment's; several sizes are scaled alike."),
]
Splits = Annotated[
    int | None, Option(help="Random splits into validation and test, instead of the experiment's.")
]
Data = Annotated[
    Path | None,
    Option(metavar="FOLDER", help="A folder of datasets; by default $ATTA_DATA, then the hub."),
]
ImageSize = Annotated[int | None, Option(metavar="PIXELS", help="Resize images to this side.")]
OwnModel = Annotated[
    str | None, Option(metavar="MODULE:NAME", help="The network, if the file cannot build it.")
]
BatchSize = Annotated[
    int | None, Option(help="Images per batch; by default chosen for the device.")
]
Seed = Annotated[int, Option(callback=_seed, help="The random seed.")]
Device = Annotated[str | None, Option(help="cpu, cuda, ...; by default the fastest.")]
Compile = Annotated[bool, Option(help="Compile the network first.")]
Engine = Annotated[
    str | None,
    Option(metavar="ray", help="Run on the Ray cluster of RAY_ADDRESS, or on one started here."),
]
Actors = Annotated[
    int | None,
    Option(metavar="N", help="Ray processes that hold the network; by default as many as fit."),
]


# ---- groups --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Which images to read, in which order, and their labels."""

    split: Annotated[str, Option(help="The split of the dataset.")] = "test"
    data: Data = None
    image_size: ImageSize = None
    columns: Annotated[
        str | None, Option(metavar="IMAGE,LABEL", help="The columns of a table.")
    ] = None
    shuffle: Annotated[
        str | None,
        Option(metavar="SEED|no", help="Shuffle first; labelled folders always are, unless no."),
    ] = None
    labels: Annotated[
        Path | None,
        Option(metavar="FILE", help="A .csv or .parquet with the columns file and label."),
    ] = None
    classes: Annotated[
        str | None,
        Option(
            metavar="FILE|A,B,...",
            help="The network's classes in its order: a file with one per line, or names.",
        ),
    ] = None
    skip_bad: Annotated[
        bool, Option("--skip-bad", help="Leave out and name images that cannot be decoded.")
    ] = False
    rows: Rows = None

    def class_names(self) -> tuple[str, ...]:
        """Return the names that were typed, or those in the file."""
        if self.classes is None:
            return ()
        path, names = Path(self.classes), self.classes.split(",")
        if path.is_file():
            names = path.read_text(encoding="utf-8").splitlines()
        elif len(names) < 2:
            raise InputError(
                "--classes: expected a file with one name per line, or names between commas, "
                f"got {self.classes!r}"
            )
        return tuple(name.strip() for name in names if name.strip())

    def read(self, dataset: str) -> tuple[ImageSet | str, dict[str, str]]:
        """Load a dataset or a folder; return the images in order, and what a record says of it.

        Shards are read in their own order, and stay a name until then.
        """
        from atta.data.folder import as_place
        from atta.data.image_set import arrange
        from atta.data.tables import shards_of
        from atta.lab.datasets import open_images

        shuffle = self._shuffle()
        if shards_of(dataset):
            if self.rows or self.image_size or not isinstance(shuffle, bool):
                raise InputError(
                    f"expected {dataset} alone: shards are read once, in their own order, without "
                    "--rows, --image-size and --shuffle"
                )
            return dataset, {}
        image, _, label = (self.columns or "").partition(",")
        images, seed = open_images(
            dataset,
            self.split,
            data=self.data,
            columns=(image, label or None) if image else None,
            shuffle=shuffle,
            labelled=self.labels is not None,
        )
        place = as_place(dataset)
        in_folder = self.data is None and place.is_dir()
        origin: dict[str, object] = {"split": self.split, "shuffle": seed, "rows": self.rows}
        if in_folder and isinstance(place, Path):
            origin["folder"] = place.absolute()
        arranged = arrange(
            images,
            by_name=in_folder and seed is not None,  # whatever the class folders are called
            shuffle=seed,
            rows=read_rows(self.rows, len(images)) if self.rows else None,
            image_size=self.image_size,
        )
        return arranged, {name: str(value) for name, value in origin.items() if value is not None}

    def _shuffle(self) -> int | bool:
        if self.shuffle in (None, "no"):
            return self.shuffle is None
        if not self.shuffle.removeprefix("-").isdecimal() or len(self.shuffle) > 20:
            raise InputError(f"--shuffle: expected a seed, or no, got {self.shuffle!r}")
        return _seed(int(self.shuffle))


@dataclass(frozen=True)
class Photographs:
    """How photographs become the images that the network expects."""

    resize: Annotated[
        str | None,
        Option(metavar="PIXELS|HxW", help="Resize: the shortest edge, or height x width."),
    ] = None
    crop: Annotated[str | None, Option(metavar="PIXELS|HxW", help="Then crop the centre.")] = None
    mean: Annotated[
        str | None,
        Option(metavar="R,G,B", help="Mean that the network subtracts from pixels in [0, 1]."),
    ] = None
    std: Annotated[str | None, Option(metavar="R,G,B", help="What it then divides by.")] = None
    interpolation: Annotated[str, Option(help="bilinear, bicubic, lanczos, ...")] = "bilinear"

    def read(self) -> atta.Preprocess | None:
        """Return the preprocessing, if any was typed."""
        texts = {"resize": self.resize, "crop": self.crop, "mean": self.mean, "std": self.std}
        typed = {name: _numbers(name, text) for name, text in texts.items() if text}
        return atta.Preprocess.of({**typed, "interpolation": self.interpolation}) if typed else None


@dataclass(frozen=True)
class Running:
    """Where and how the network runs."""

    device: Device = None
    batch_size: BatchSize = None
    autocast: Annotated[bool, Option(help="Run the network in bfloat16.")] = False
    channels_last: Annotated[
        bool | None, Option(help="Use the channels-last memory layout; calibrate tries it itself.")
    ] = None
    compile: Compile = False
    engine: Engine = None
    actors: Actors = None

    def read(self) -> ExecutionOptions:
        """Return the keyword arguments of `collect` and `calibrate`."""
        from atta.run.runner import check_engine

        check_engine(self.engine, self.actors, called="--{}".format)
        options = {**vars(self), "device": read_device(self.device, self.engine)}
        return cast("ExecutionOptions", options)


@dataclass(frozen=True)
class Network:
    """The network of a saved classifier, if its file cannot build it, and where it runs."""

    model: OwnModel = None
    device: Device = None

    def load(self, path: Path) -> atta.CalibratedClassifier:
        """Load a classifier."""
        with waiting(f"reading {path}"):
            device = read_device(self.device)
            return atta.CalibratedClassifier.load(path, self._own(), device=device)

    def open(
        self,
        path: Path,
        adapt_to: Sequence[Place],
        risk: float | None = None,
        classes: str | None = None,
    ) -> Answerer:
        """Open a classifier or an exported graph, which runs on the CPU."""
        from atta.classifier.export import SUFFIXES
        from atta.classifier.predict import open_predictor

        device = self.device if path.suffix in SUFFIXES else read_device(self.device)
        with waiting(f"reading {path}"):
            return open_predictor(
                path, self._own(), device=device, adapt_to=adapt_to, risk=risk, classes=classes
            )

    def _own(self) -> object:
        from atta.lab.recipe import find_model

        return None if self.model is None else find_model(self.model)[0]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups: typer sees their fields, each in the place of its group."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            inside = inspect.signature(groups[name], eval_str=True).parameters.values()
            shown += [field.replace(kind=parameter.kind) for field in inside]
        else:
            shown.append(parameter)

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    called.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


# ---- what was typed, read ------------------------------------------------------------------------


def check_output(path: Path) -> None:
    """Check that a classifier can be written there, before the network runs."""
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"expected a folder or FILE.safetensors, got {path}; `atta export` writes graphs"
        )
    if path.is_file() and path.suffix != ".safetensors":
        raise InputError(f"expected a folder or FILE.safetensors, got the file {path}")


def read_device(name: str | None, engine: str | None = None) -> str | None:
    """Return the device that was named, if it exists, or the GPU; a cluster's are not checked."""
    import torch

    from atta.networks.borrowing import find_device

    if name is None:
        return "cuda" if torch.cuda.is_available() else None
    return name if engine else str(find_device(name, "--device"))


def read_rows(text: str | None, images: int, option: str = "--rows") -> slice:
    """Read FROM:TO, which must leave some of the images."""
    try:
        first, last = (int(part) if part.strip() else None for part in (text or ":").split(":"))
    except ValueError:
        raise InputError(
            f"{option}: expected FROM:TO, such as 0:1000 or 1000:, got {text!r}"
        ) from None
    start, stop, _ = slice(first, last).indices(images)
    if start >= stop:
        raise InputError(f"{option} {text} leaves none of the {images} images")
    return slice(start, stop)


def _numbers(name: str, text: str) -> int | tuple[int | float, ...]:
    """Read PIXELS or HEIGHTxWIDTH for a size, and numbers between commas for the channels."""
    such = "224 or 224x320 pixels"
    try:
        if name in ("mean", "std"):
            such = "numbers, such as 0.485,0.456,0.406"
            return tuple(map(float, text.split(",")))
        sides = tuple(map(int, text.split("x")))
        return sides if len(sides) > 1 else sides[0]
    except ValueError:
        raise InputError(f"--{name}: expected {such}, got {text!r}") from None


def read_settings(texts: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE pairs: a value is JSON, a list between commas, or text."""
    settings: dict[str, Any] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--set: expected NAME=VALUE, got {text!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value.split(",") if "," in value or name == "views" else value
    return settings
