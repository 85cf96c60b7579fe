"""Draw the charts of the pages from the tables of the pages that were measured.

`python docs/charts.py` (part of `make docs`) reads docs/*.md and writes docs/charts/*.svg.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atta.report.figures.theme import BLUE, GREY, ORANGE, PURPLE, SKY, alt, finished, picture

DOCS = Path(__file__).parent
NAMES = {
    "vanilla": "the network alone, 1 pass",
    "temperature": "temperature scaling, 1 pass",
    "selective, 3 nudges": "selective V-ATTA, 3 nudges, 1.7 passes",
    "c-atta, flip": "C-ATTA, flip, 2 passes",
    "c-atta, 3 nudges": "C-ATTA, 3 nudges, 4 passes",
    "v-atta": "V-ATTA, the paper's views, 17 passes",
}
SHIFT = {
    "v-atta, 17 passes": "V-ATTA, 17 passes",
    "c-atta": "C-ATTA",
    "hedged-temperature": "hedged temperature",
    "hedged-c-atta": "hedged C-ATTA",
    "adapted, 500": "adapted to 500 images",
}
CLASSES = {"all": "all classes", "half of them": "half of the classes"}
COLOURS = [GREY, ORANGE, SKY, BLUE, PURPLE]
CHANGE = "change in Brier score relative to temperature scaling"


def rows(page: str, start: str = "", end: str = "\n## ") -> Iterator[dict[str, str]]:
    """The rows of the tables of a section: by the names of their columns."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif set(line) - set("|- "):
            yield dict(reversed([*zip(header, cells, strict=True)]))  # the first of equal names


def number(cell: str) -> float:
    """The first number in a cell."""
    found = re.search(r"[+-]?\d+(?:\.\d+)?", cell)
    assert found is not None, cell
    return float(found[0])


def gain() -> Any:
    """NLL in distribution: a point and an interval for each method."""
    data = []
    for row in rows("results.md", "## Past the paper, CIFAR-10\n"):
        if row["method"] in NAMES:
            mean, half = (number(part) for part in row["nll"].split("±"))
            data.append(
                {
                    "method": NAMES[row["method"]],
                    "nll": mean,
                    "low": mean - half,
                    "high": mean + half,
                }
            )
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("method:N", sort=list(NAMES.values()), title=None, axis=WIDE)
    )
    scale = alt.Scale(zero=False)
    bar = base.mark_rule(strokeWidth=3, color=SKY).encode(
        x=alt.X("low:Q", scale=scale, axis=alt.Axis(tickCount=5), title="NLL, lower is better"),
        x2="high:Q",
    )
    point = base.mark_point(filled=True, size=70, color=BLUE).encode(x=alt.X("nll:Q", scale=scale))
    text = base.mark_text(align="left", dx=8).encode(
        x="high:Q", text=alt.Text("nll:Q", format=".4f")
    )
    return alt.layer(bar, point, text, width=330, height=180)


WIDE = alt.Axis(labelLimit=300)
PER_CENT = alt.Axis(format="+.0%", tickCount=6)


def shifted() -> Any:
    """Brier score under shift, a row for each pair of datasets and a colour for each method."""
    data = []
    pages = (DOCS / "shift.md").read_text(encoding="utf-8")
    for title in re.findall(r"^## (.+ → .+)$", pages, flags=re.MULTILINE):
        for row in rows("shift.md", f"## {title}\n", "In distribution:"):
            if row[""] in SHIFT:
                change = number(row["Brier"].partition("(")[2]) / 100
                data.append({"pair": title, "method": SHIFT[row[""]], "change": change})
    return dots(data, list(SHIFT.values()), 330)


def dots(data: list[dict[str, Any]], methods: list[str], width: int) -> Any:
    """A row for each pair, a point for each method, and a line at zero."""
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=methods, range=COLOURS[: len(methods)]),
        legend=alt.Legend(title=None, orient="top", columns=3, labelLimit=300),
    )
    pairs = list(dict.fromkeys(row["pair"] for row in data))
    base = alt.Chart(alt.Data(values=data))
    line = base.mark_rule(color=GREY).encode(x=alt.datum(0))
    point = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("change:Q", title=f"{CHANGE}; left is better", axis=alt.Axis(format="+.0%")),
        y=alt.Y("pair:N", sort=pairs, title=None, axis=WIDE),
        color=colour,
    )
    return alt.layer(line, point, width=width, height=36 * len(pairs))


def passes() -> Any:
    """What passes buy: Brier relative to temperature scaling, by passes per image."""
    data = []
    for row in rows("past-the-paper.md", "## What a pass buys", "### On each network"):
        method = row["candidate"].split(" ")[0].rstrip(",")
        change = number(row["to temperature"]) / 100
        if change < 0.05:  # two policies that harm are left out
            data.append({"method": method, "passes": number(row["passes"]), "change": change})
    methods = ["temperature", "v-atta", "c-atta", "selective-v-atta", "sequential-v-atta"]
    axis = alt.Axis(values=[1, 1.5, 2, 3, 4, 5, 7, 9, 12, 17])
    base = alt.Chart(alt.Data(values=data), width=420, height=260)
    return alt.layer(
        base.mark_rule(color=GREY).encode(y=alt.datum(0)),
        base.mark_point(filled=True, size=60, opacity=0.85).encode(
            x=alt.X(
                "passes:Q",
                scale=alt.Scale(type="log", domain=[0.95, 18], nice=False),
                axis=axis,
                title="passes per image",
            ),
            y=alt.Y("change:Q", axis=alt.Axis(format="+.0%"), title="change in Brier score"),
            color=alt.Color(
                "method:N",
                scale=alt.Scale(domain=methods, range=COLOURS),
                legend=alt.Legend(title=None, orient="top", columns=3),
            ),
        ),
    )


def adapting() -> Any:
    """Brier score after adapting, by the number of images."""
    data = [
        {
            "pair": f"{row['images']} images, {CLASSES[row['classes']]}",
            "method": "adapted",
            "change": number(next(row[name] for name in row if name.startswith("Brier"))) / 100,
        }
        for row in rows("adapting.md", "# Adapting, measured")
    ]
    return bars(data, ["adapted"])


def statistics() -> Any:
    """Brier score after adapting with and without batch normalisation statistics."""
    columns = {"hedged": "hedged", "adapted": "adapted", "with statistics": "with statistics"}
    data = [
        {
            "pair": f"{row['sets']}, {CLASSES[row['classes']]}",
            "method": said,
            "change": number(row[name]) / 100,
        }
        for row in rows("statistics.md", "# Adapting with statistics, measured")
        for name, said in columns.items()
    ]
    return bars(data, list(columns.values()))


def bars(data: list[dict[str, Any]], methods: list[str]) -> Any:
    """A bar for each row and method, with its number."""
    pairs = list(dict.fromkeys(row["pair"] for row in data))
    scale = alt.Scale(domain=[1.2 * min(row["change"] for row in data), 0])  # room for numbers
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("pair:N", sort=pairs, title=None, axis=WIDE),
        yOffset=alt.YOffset("method:N", sort=methods),
        x=alt.X(
            "change:Q",
            title=f"{CHANGE}; left is better",
            scale=scale,
            axis=alt.Axis(format="+.0%", tickCount=6),
        ),
    )
    legend = alt.Legend(title=None, orient="top") if len(methods) > 1 else None
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=methods, range=[SKY, BLUE, PURPLE][: len(methods)]),
        legend=legend,
    )
    text = base.mark_text(align="right", dx=-4).encode(text=alt.Text("change:Q", format="+.1%"))
    height = 24 * len(pairs) * max(1, len(methods) * 0.7)
    return alt.layer(base.mark_bar().encode(color=colour), text, width=360, height=height)


CHARTS: dict[str, Callable[[], Any]] = {
    "in-distribution": gain,
    "shift": shifted,
    "passes": passes,
    "adapting": adapting,
    "statistics": statistics,
}


if __name__ == "__main__":
    (DOCS / "charts").mkdir(exist_ok=True)
    for name, chart in CHARTS.items():
        described = chart().properties(
            description=(chart.__doc__ or "").split("\n")[0],
            padding={"left": 35, "right": 30, "top": 5, "bottom": 5},  # for wider fonts
        )
        print(picture(finished(described), DOCS / "charts" / f"{name}.svg"))
