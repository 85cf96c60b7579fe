"""The options that several commands share, with their help, and groups of them.

typer reads one option from each parameter of a command. A `group` is a dataclass whose fields are such parameters: `grouped`
shows typer the fields in the place of the group, and gives the command the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from atta._base.errors import InputError
from atta.cli.arguments import read_device, read_engine, read_numbers, read_rows, read_size

if TYPE_CHECKING:
    from atta.data.image_set import ImageSet
    from atta.data.preprocess import Preprocess
    from atta.run.execution import ExecutionOptions


def _seed(value: int | None) -> int | None:
    """Generators take 64 bits."""
    if value is not None and not -(2**63) <= value < 2**63:
        raise typer.BadParameter(f"expected a whole number of at most 64 bits, got {value}")
    return value


RecordArgument = Annotated[
    str, typer.Argument(metavar="RECORD", help="A record file, or the name of a bundled record.")
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="What `atta train` wrote, an .onnx file, or package.module:name in Python."
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        metavar="FROM:TO", help="Use only these rows of the record, such as 0:1000 or 1000:"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated."),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write an HTML page that opens anywhere."),
]
Pictured = Annotated[
    list[str] | None,
    typer.Option(
        "--images",
        metavar="[NAME=]FOLDER|no",
        help="Where the images of the most changed lie, for the page's thumbnails; found again where the record remembers.",
    ),
]
Intervals = Annotated[
    bool,
    typer.Option(
        "--intervals",
        help="Also print how sure each number is, and each difference to vanilla on the same images.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the numbers here; - prints them."),
]
RecordsFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where records lie: cifar10.safetensors, cifar10_shift.safetensors, ...",
    ),
]
Validation = Annotated[
    int | None,
    typer.Option(
        help="Images to fit on, instead of what the experiment says; several sizes are scaled alike."
    ),
]
Splits = Annotated[
    int | None,
    typer.Option(help="How often to draw validation images, instead of what the experiment says."),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where datasets lie; by default $ATTA_DATA, then the hub."),
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Resize the images to this side.")
]
OwnModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="The network, where the file cannot build it: package.module:name.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Images at a time; found by itself if not given.")
]
Seed = Annotated[int, typer.Option(callback=_seed, help="The seed of everything random.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, ...; the fastest there is by default.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ray",
        help="Run on a Ray cluster: that of RAY_ADDRESS, or one started on this machine.",
    ),
]
Actors = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes of the cluster that hold the network; as many as it has room for.",
    ),
]


@dataclass(frozen=True)
class Source:
    """Where images come from, and in which order."""

    split: Annotated[str, typer.Option(help="The split of the dataset.")] = "test"
    data: Data = None
    image_size: ImageSize = None
    columns: Annotated[
        str | None, typer.Option(metavar="IMAGE,LABEL", help="The columns of a table.")
    ] = None
    shuffle: Annotated[
        str | None,
        typer.Option(
            metavar="SEED|no",
            help="Put the images into a random order first; folders always, unless no.",
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .csv or .parquet with the columns file and label."),
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B,...",
            help="The network's classes in its order: a line each, or listed.",
        ),
    ] = None

    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad", help="Leave out images that cannot be decoded, with a line each."
        ),
    ] = False

    def class_names(self) -> tuple[str, ...]:
        """The names that were typed, or stand in the file that was."""
        if self.classes is None:
            return ()
        if Path(self.classes).is_file():
            return tuple(
                line.strip()
                for line in Path(self.classes).read_text(encoding="utf-8").splitlines()
                if line.strip()
            )
        if "," not in self.classes:
            raise InputError(
                f"--classes takes a file with a name a line, or names between commas, got {self.classes!r}"
            )
        return tuple(name.strip() for name in self.classes.split(","))

    def seed(self, images: ImageSet) -> int | None:
        """What to shuffle by: folders stand class by class, and are shuffled unless that is asked for."""
        from torch import Tensor

        if self.shuffle == "no":
            return None
        if self.shuffle is not None:
            if not self.shuffle.removeprefix("-").isdecimal() or len(self.shuffle) > 20:
                raise InputError(f"--shuffle takes a seed, or no, got {self.shuffle!r}")
            return _seed(int(self.shuffle))
        files = (
            not isinstance(images.images, Tensor)
            and len(images)
            and images.images.path(0) is not None
        )
        return 0 if files and (images.labels is not None or self.labels is not None) else None

    def read(self, dataset: str, rows: str | None) -> tuple[ImageSet, int | None]:
        """Load a dataset by name, or a folder of images by its path; shuffled and cut; with the seed."""
        from atta.data.folder import by_file_name, files_of_images, folder_of_images
        from atta.data.image_set import arrange
        from atta.lab.datasets import load

        part = None if rows is None else read_rows(rows)
        if Path(dataset).is_symlink() and not Path(dataset).exists():
            return files_of_images([Path(dataset)]), None
        if self.data is None and Path(dataset).is_dir():
            images = folder_of_images(Path(dataset))
            seed = self.seed(images)
            images = (
                images if seed is None else by_file_name(images)
            )  # however the folders of its classes are called
            return arrange(images, shuffle=seed, rows=part, image_size=self.image_size), seed
        image, _, label = (self.columns or "").partition(",")
        columns = (image, label or None) if self.columns else None
        images = load(
            dataset, self.split, data=self.data, image_size=self.image_size, columns=columns
        )
        seed = self.seed(images)
        return arrange(images, shuffle=seed, rows=part), seed


@dataclass(frozen=True)
class Photographs:
    """What the network wants done to a photograph before it looks at it."""

    resize: Annotated[
        str | None,
        typer.Option(
            metavar="PIXELS|HxW", help="Resize photographs: the shortest edge, or height x width."
        ),
    ] = None
    crop: Annotated[
        str | None, typer.Option(metavar="PIXELS|HxW", help="Then cut this out of the centre.")
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B",
            help="The mean of pixels in [0, 1] that the network takes off, after the views.",
        ),
    ] = None
    std: Annotated[str | None, typer.Option(metavar="R,G,B", help="What it then divides by.")] = (
        None
    )
    interpolation: Annotated[
        str, typer.Option(help="How to resize: bilinear, bicubic, lanczos, ...")
    ] = "bilinear"

    def read(self) -> Preprocess | None:
        """What was typed, if anything was."""
        from atta.data.preprocess import Preprocess

        if not (self.resize or self.crop or self.mean or self.std):
            return None
        numbers: Any = {
            name: read_numbers(getattr(self, name), f"--{name}") for name in ("mean", "std")
        }
        sizes: Any = {
            name: read_size(getattr(self, name), f"--{name}") for name in ("resize", "crop")
        }
        if (numbers["mean"] is None) != (numbers["std"] is None):
            given, other = ("--mean", "--std") if self.std is None else ("--std", "--mean")
            raise InputError(
                f"--mean and --std go together, got {given} alone: give {other} as well"
            )
        return Preprocess(**sizes, **numbers, interpolation=self.interpolation)


@dataclass(frozen=True)
class Running:
    """Where and how the network runs."""

    device: Device = None
    batch_size: BatchSize = None
    autocast: Annotated[bool, typer.Option(help="Run the network in bfloat16.")] = False
    channels_last: Annotated[bool, typer.Option(help="Lay the images out channels last.")] = False
    compile: Annotated[bool, typer.Option(help="Compile the network first.")] = False
    engine: Engine = None
    actors: Actors = None

    def read(self) -> ExecutionOptions:
        """What `collect` takes of it, if it can be had."""
        return {
            "engine": read_engine(self.engine, self.actors),
            "actors": self.actors,
            "device": read_device(self.device, self.engine),
            "batch_size": self.batch_size,
            "autocast": self.autocast,
            "channels_last": self.channels_last,
            "compile": self.compile,
        }


AS_THEY_ARE = Photographs()
HERE = Running()
ANY = (
    Source()
)  # what a signature has as the default of the group; typer goes by those of its fields


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: typer is shown their fields, each in the place of its group."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            shown.append(parameter.replace(annotation=hints[name]))
            continue
        inside = get_type_hints(groups[name], include_extras=True)
        shown += [
            parameter.replace(name=f.name, annotation=inside[f.name], default=f.default)
            for f in fields(groups[name])
        ]

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called
