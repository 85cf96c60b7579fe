"""Commands that draw results: the report and single figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atta._base.errors import InputError
from atta.cli.options import Pictured
from atta.cli.terminal import say_written, tell
from atta.results.rows import Results


def report(
    results: Annotated[
        Path,
        typer.Argument(metavar="RESULTS", help="What compare --json, run -o or reproduce wrote."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "",
    images: Pictured = None,
) -> None:
    """Turn results into one HTML page that opens offline, for people who were not there."""
    found = Results.load(results)
    shown = read_images(images, list(found.names("dataset")), output)
    say_written(report=write_page(found, output, title=title, images=shown))


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="reliability, confidence, weights, shares, per-class, ranking, entropy, sizes or cost.",
        ),
    ],
    results: Annotated[
        Path,
        typer.Argument(metavar="RESULTS", help="A file of numbers, as the commands write them."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to: .svg, .png, .pdf, .json or .html."
        ),
    ],
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this method; may be repeated.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this experiment.")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(metavar="IMAGES", help="Only fits on so many images.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Instead of the usual metric of the figure.")] = "",
    dark: Annotated[bool, typer.Option("--dark", help="For a dark background.")] = False,
) -> None:
    """Draw a figure from results."""
    from atta.report.figures.catalogue import figure as draw
    from atta.report.figures.write import picture

    found = Results.load(results)
    chart = draw(
        name,
        found,
        metric=metric,
        dark=dark,
        method=method,
        dataset=dataset,
        experiment=experiment,
        validation=validation,
    )
    tell(f"figure: {picture(chart, output)}")


def write_page(
    results: Results,
    path: Path | None,
    *,
    title: str = "",
    images: Any = None,
    pictures: Any = None,
) -> Path | None:
    """Write the report, if one is asked for, and give where it is; `images` are what `read_images` gives."""
    if path is None:
        return None
    from atta.lab.paper.claims import paper_tables
    from atta.report.page import write_report

    tables = paper_tables(results)
    return write_report(results, path, title=title, images=images, pictures=pictures, tables=tables)


def read_images(typed: list[str] | None, datasets: list[str], page: Path | None) -> Any:
    """The images that were named for a page: folders, saved sets, or datasets by name; False for no."""
    if not typed:
        return None
    if page is None:
        raise InputError(
            f"--images are for the page: expected --report FILE as well, got --images {typed[0]} alone"
        )
    if typed == ["no"]:
        return False
    found: dict[str, Any] = {}
    for text in typed:
        name, equals, place = text.partition("=")
        if not equals or name not in datasets:
            if len(datasets) > 1:
                several = ", ".join(datasets)
                raise InputError(
                    f"--images: there are several datasets, expected NAME=FOLDER of {several}, got {text}"
                )
            name, place = datasets[0], text
        found[name] = Path(place) if Path(place).exists() else _dataset(place)
    return found


def _dataset(name: str) -> Any:
    from atta.lab.datasets import load

    try:
        return load(name, "test")
    except InputError as error:
        raise InputError(
            f"--images: there is no folder {name}, nor such a dataset: {error}"
        ) from None
