"""Commands that show results, report and figure, and how every command writes its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from atta._base.errors import InputError
from atta.cli.options import Output, PageImages
from atta.cli.terminal import say_written, show, tell, write_numbers
from atta.results.rows import Results
from atta.results.table import Table


def report(
    results: Annotated[
        Path, Argument(metavar="RESULTS", help="What compare --json, run -o or reproduce wrote.")
    ],
    output: Output = Path("report.html"),
    title: Annotated[str, Option(help="The title of the page.")] = "",
    images: PageImages = None,
) -> None:
    """Write results as one HTML page that needs no other file and no network."""
    found = Results.load(results)
    shown = read_images(images, found.names("dataset"), output)
    say_written(report=write_page(found, output, title=title, images=shown))


def figure(
    name: Annotated[
        str,
        Argument(
            help="reliability, confidence, weights, shares, per-class, ranking, entropy, sizes "
            "or cost.",
        ),
    ],
    results: Annotated[
        Path, Argument(metavar="RESULTS", help="A file of numbers that a command wrote.")
    ],
    output: Output,
    method: Annotated[
        list[str] | None, Option(metavar="NAME", help="Only this method; may be repeated.")
    ] = None,
    dataset: Annotated[str | None, Option(metavar="NAME", help="Only this dataset.")] = None,
    experiment: Annotated[str | None, Option(metavar="NAME", help="Only this experiment.")] = None,
    validation: Annotated[
        int | None, Option(metavar="IMAGES", help="Only fits on this many images.")
    ] = None,
    metric: Annotated[str, Option(help="Another metric than the usual one of the figure.")] = "",
    dark: Annotated[bool, Option("--dark", help="For a dark background.")] = False,
) -> None:
    """Draw a figure from results as .svg, .png, .pdf, .json or .html."""
    from atta.report.figures.catalogue import figure as draw
    from atta.report.figures.theme import picture

    chart = draw(
        name,
        Results.load(results),
        metric=metric,
        dark=dark,
        method=method,
        dataset=dataset,
        experiment=experiment,
        validation=validation,
    )
    tell(f"figure: {picture(chart, output)}")


def write_results(
    results: Results,
    tables: Iterable[Table],
    *,
    numbers: Path | None = None,
    page: Path | None = None,
    title: str = "",
    images: Mapping[str, object] | bool | None = None,
    write: Callable[[Table], None] = show,
) -> None:
    """Write the files that were asked for, print the tables in any case, and name the files."""
    try:
        file = write_numbers(numbers, results.to_json())
        report_file = write_page(results, page, title=title, images=images)
    finally:
        for table in tables:
            write(table)
    say_written(numbers=file, report=report_file)


def say_verdicts(results: Results) -> None:
    """Print the recommendation for each dataset, as the report gives it."""
    from atta.report.sections import sections_of

    for section in sections_of(results):
        if section.sentence:
            tell(section.sentence)


def write_page(
    results: Results,
    path: Path | None,
    *,
    title: str = "",
    images: Mapping[str, object] | bool | None = None,
) -> Path | None:
    """Write the report, if one was asked for; `images` are what `read_images` returns."""
    if path is None:
        return None
    from atta.lab.paper.published import paper_tables
    from atta.report.page import write_report

    tables = paper_tables(results)
    return write_report(results, path, title=title, images=images, tables=tables)


def read_images(
    typed: list[str] | None, datasets: list[str], page: Path | None
) -> dict[str, object] | bool | None:
    """Return the images named for a page, by dataset: folders or datasets; False for no images."""
    if not typed:
        return None
    if page is None:
        raise InputError(
            "--images are for the page: expected --report FILE as well, got --images "
            f"{typed[0]} alone"
        )
    if typed == ["no"]:
        return False
    from atta.lab.datasets import load

    found: dict[str, object] = {}
    for text in typed:
        name, equals, place = text.partition("=")
        if not equals or name not in datasets:
            if len(datasets) > 1:
                raise InputError(
                    "--images: there are several datasets, expected NAME=FOLDER of "
                    f"{', '.join(datasets)}, got {text}"
                )
            name, place = datasets[0], text
        try:
            found[name] = Path(place) if Path(place).exists() else load(place, "test")
        except InputError as error:
            raise InputError(
                f"--images: {place} is neither a folder nor a dataset: {error}"
            ) from None
    return found
