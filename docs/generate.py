"""Write the generated pages: cli.md from `--help`, tables of other pages from measurements."""

import json
import re
from pathlib import Path

import click
import typer
from typer.cli import get_docs_for_click

from atta.cli.app import commands
from atta.results.rows import Results

DOCS = Path(__file__).parent
PASSES = (
    "vanilla",
    "temperature",
    "v-atta",
    "c-atta, flip",
    "c-atta, 3 nudges",
    "selective, 3 nudges",
)
README = {
    "vanilla": "the network alone",
    "temperature": "temperature scaling",
    "v-atta": "V-ATTA, the paper's views",
    "c-atta, flip + 2 crop": "C-ATTA, flip + 2 crops",
    "c-atta, 3 nudges": "C-ATTA, 3 nudges",
    "selective, 3 nudges": "selective V-ATTA, 3 nudges",
    "hedged-c-atta, flip": "hedged C-ATTA, flip",
}
COSTS = (
    ("ImageNet's validation set, 50,000 images, 3 views", 50_000, 3),
    ("the same, 16 views", 50_000, 16),
    ("ImageNet's training set, 1.28 million, 3 views", 1_281_167, 3),
    ("a billion images, 3 views", 10**9, 3),
)
SHIFT = ("v-atta, 17 passes", "c-atta", "hedged-c-atta", "hedged-temperature", "adapted, 500")


def cli_page() -> str:
    """Return the page, as Markdown."""
    command = typer.main.get_command(commands)
    text = get_docs_for_click(
        obj=command, ctx=click.Context(command), name="atta", title="The command line"
    )
    return "<!-- made by `make docs` from the commands' --help -->\n\n" + text.rstrip() + "\n"


def which_method_page() -> str:
    """Return the page with its two tables made anew; the text between them is written by hand."""
    return _filled("which-method.md", {"results.md": _passes(), "shift.md": _shift()})


def readme() -> str:
    """Return the README with its table made anew."""
    return _filled("../README.md", {"results/front-page.json": _front_page()})


def scale_page() -> str:
    """Return the page with the cost of large sets, computed from what benchmarks.scale measured."""
    return _filled("scale.md", {"speed/scale-cuda.json": _costs("scale-cuda")})


def _costs(name: str) -> str:
    """Passes, disk space and time for sets of photographs, and the time of the network alone."""
    rows = {
        row["who"]: row["numbers"]
        for row in json.loads((DOCS / "speed" / f"{name}.json").read_text())["rows"]
        if row["what"].startswith("ResNet-50")
    }
    ours, bare, decoding = (
        rows["atta"],
        rows["the bare network"]["seconds"],
        rows["reading and decoding"]["seconds"],
    )
    passes, over = ours["images"] * ours["passes"], ours["seconds"] / max(bare, decoding)
    cells = []
    for said, images, views in COSTS:
        count = images * (1 + views)
        # Files are decoded once, however many views are made of each.
        alone, read = count * bare / passes, images * decoding / ours["images"]
        cells.append(
            [
                said,
                f"{count:,}",
                _size(count * 1000 * 4),
                _time(over * max(alone, read)),
                _time(alone),
            ]
        )
    header = ["record, 1000 classes", "passes", "on disk", "time, from files", "the network alone"]
    said = (
        f"Measured: {passes / ours['seconds']:,.0f} passes per second from files to shards, "
        f"{passes / bare:,.0f} by the network alone, {ours['images'] / decoding:,.0f} files "
        f"decoded per second. The whole run took {over:.2f} times the longer of the two."
    )
    return f"\n{said}\n{_table(header, cells)}"


def _size(count: float) -> str:
    unit, length = next(
        (unit, length)
        for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
        if count >= length
    )
    return f"{count / length:.3g} {unit}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _filled(name: str, tables: dict[str, str]) -> str:
    """A page written by hand, with what stands between its marks made anew."""
    page = (DOCS / name).read_text(encoding="utf-8")
    for source, table in tables.items():
        mark, end = f"<!-- made by `make docs` from {source} -->\n", "<!-- end -->"
        page, made = re.subn(
            re.escape(mark) + ".*?" + end, lambda _, made=mark + table + end: made, page, flags=re.S
        )
        assert made == 1, source
    return page


def _front_page() -> str:
    """A row for each method: its passes and metrics, as they are and under shift."""
    found = Results.load(DOCS / "results" / "front-page.json")
    cells = {}
    for state in ("photographs", "shifted"):
        for metric in ("brier", "ece", "nll"):
            values = {
                name: found.summary(dataset=state, method=name, metric=metric) for name in README
            }
            least = min(round(one.mean, 4) for one in values.values())
            for name, one in values.items():
                best = "**" if round(one.mean, 4) == least else ""
                tied = one.text().replace(" ", "\N{NO-BREAK SPACE}")  # ± does not end a line
                cells[name, state, metric] = f"{best}{tied}{best}"
    header = ["", "passes", "Brier", "ECE", "NLL", "Brier, shifted", "NLL, shifted"]
    columns = [("photographs", name) for name in ("brier", "ece", "nll")]
    columns += [("shifted", name) for name in ("brier", "nll")]
    rows = []
    for name, said in README.items():
        passes = found.summary(dataset="photographs", method=name, metric="passes").mean
        rows.append([said, f"{passes:.3g}", *(cells[name, *column] for column in columns)])
    return _table(header, rows)


def _columns(section: str) -> dict[str, dict[str, str]]:
    """The first table of a section: by row and column."""
    header, _, *rows = _rows(section.partition("</details>")[0])
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def _passes() -> str:
    """Some rows and columns of what was measured past the paper."""
    section = _sections("results.md")["Past the paper, CIFAR-10"]
    header, _, *rows = _rows(section)
    kept = [
        header.index(name) for name in ("method", "passes", "brier", "ece", "nll", "class_changes")
    ]
    found = {row[0]: [row[column] for column in kept] for row in rows}
    return _table([header[column] for column in kept], [found[name] for name in PASSES])


def _shift() -> str:
    """The Brier scores of the natural pairs, shifted, in per cent of temperature's."""
    rows = []
    for title, section in _sections("shift.md").items():
        if " → " in title:
            found = {row[0]: row[1] for row in _rows(section.partition("In distribution:")[0])}
            rows.append(
                [
                    title.replace("*", "\\*"),
                    *(found[name].partition("(")[2].rstrip(")") for name in SHIFT),
                ]
            )
    return _table(["fitted → shifted", *SHIFT], rows)


def _sections(page: str) -> dict[str, str]:
    pieces = re.split(r"^## (.+)\n", (DOCS / page).read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _rows(section: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]


def _table(header: list[str], rows: list[list[str]]) -> str:
    return (
        "\n"
        + "".join("| " + " | ".join(row) + " |\n" for row in (header, ["---"] * len(header), *rows))
        + "\n"
    )


PAGES = {
    "cli.md": cli_page,
    "which-method.md": which_method_page,
    "../README.md": readme,
    "scale.md": scale_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(DOCS / name)
