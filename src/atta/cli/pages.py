"""Commands that draw results: the report and single figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atta.cli.options import Pictured
from atta.cli.terminal import say_written, tell
from atta.errors import InputError
from atta.results.rows import Results


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="What compare --json, run -o or reproduce wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "",
    images: Pictured = None,
) -> None:
    """Turn results into one HTML page that opens offline, for people who were not there."""
    say_written(report=write_page(Results.load(results), output, title=title, images=images))


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="reliability, confidence, weights, shares, per-class, ranking, entropy, sizes or cost.",
        ),
    ],
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file of numbers, as the commands write them.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to: .svg, .png, .pdf, .json or .html.")],
    method: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this method; may be repeated.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset.")] = None,
    experiment: Annotated[str | None, typer.Option(metavar="NAME", help="Only this experiment.")] = None,
    validation: Annotated[int | None, typer.Option(metavar="IMAGES", help="Only fits on so many images.")] = None,
    metric: Annotated[str, typer.Option(help="Instead of the usual metric of the figure.")] = "",
    dark: Annotated[bool, typer.Option("--dark", help="For a dark background.")] = False,
) -> None:
    """Draw a figure from results."""
    from atta.figures.catalogue import figure as draw
    from atta.figures.write import picture

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
    results: Results, path: Path | None, *, title: str = "", images: list[str] | None = None, pictures: Any = None
) -> Path | None:
    """Write the report, if one is asked for, and give where it is; `images` as they were typed."""
    if path is None:
        if images:
            raise InputError("--images are for the page: expected --report FILE as well")
        return None
    from atta.paper.comparison import paper_tables
    from atta.report.page import write_report

    tables = paper_tables(results)
    return write_report(results, path, title=title, images=_images(images, results), pictures=pictures, tables=tables)


def _images(typed: list[str] | None, results: Results) -> Any:
    """The images that were named: folders, saved sets, or datasets by name; False for no."""
    if not typed:
        return None
    if typed == ["no"]:
        return False
    datasets, found = results.names("dataset"), {}
    for text in typed:
        name, equals, place = text.partition("=")
        if not equals or name not in datasets:
            if len(datasets) > 1:
                several = ", ".join(datasets)
                raise InputError(f"--images: there are several datasets, expected NAME=FOLDER of {several}, got {text}")
            name, place = datasets[0], text
        found[name] = Path(place) if Path(place).exists() else _dataset(place, results, name)
    return found


def _dataset(place: str, results: Results, name: str) -> Any:
    """A dataset by its name, in the split that was recorded."""
    from atta.images.datasets import load

    split = results.known("records").get(name, {}).get("split", "test")
    return load(place, str(split))
