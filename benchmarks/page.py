"""docs/speed.md, made of the parts in docs/speed: every number comes from there, and so does what is said of it.

python -m benchmarks.page        writes the page again, without measuring
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from atta._base.files import whole_file
from atta.results.table import Table
from benchmarks.growth import curves, draw
from benchmarks.measured import (
    COSTS,
    LEAST_MB,
    OURS,
    Measured,
    Part,
    against_best,
    by_what,
    cost,
    ratio,
    slope,
)

ROOT = Path(__file__).parent.parent
PAGE, PARTS = ROOT / "docs" / "speed.md", ROOT / "docs" / "speed"
PICTURE = "growth.svg"
LEVEL = 1.05  # ratios up to here count as level: as much lies between two runs
CONTESTS = ("baselines", "scores", "fit", "collect")  # those in which peers do the same
Parts = Mapping[str, Part]
"""Parts by the name of their file: "collect-cpu"."""

INTRODUCTION = """\
What atta costs, and how good its answers are, compared with other libraries. `make bench` measures all of it and writes this page. It
makes an environment for the other libraries and measures each on the same data with one thread; if it is stopped, it resumes. Ratios are
*ours over theirs*: below 1, atta takes less. The limit is the least that any library needs: the bare network, one softmax, or a copy of
the memory.
"""
WHY = {
    (
        "temperature",
        "predict",
    ): "close calls are looked for in every row and decided as the network does: the class is kept",
    ("temperature", "fit"): "to convergence in float64",
    ("isotonic", "fit_mb"): "atta computes the softmax; some peers are given it",
    ("histogram", "fit_mb"): "atta computes the softmax; some peers are given it",
    ("isotonic", "predict"): "the softmax, and what comes in is checked",
    ("histogram", "predict"): "the softmax, and what comes in is checked",
    (
        "Dirichlet",
        "fit",
    ): "to convergence in float64, where the peer stops after 200 steps in float32",
    ("Dirichlet", "fit_mb"): "float64, and a matrix of curvatures a class",
    ("Dirichlet", "predict"): "what comes in is checked",
    ("sets, smallest", "fit"): "what comes in is checked to be probabilities",
    ("sets, APS", "fit"): "sorted in torch, a chunk at a time: a sixth of the memory",
    ("sets, APS", "predict"): "sorted in torch, a chunk at a time: a sixth of the memory",
    ("ECE", "seconds"): "what comes in is checked to be probabilities, and counted in float64",
    ("Brier", "seconds"): "what comes in is checked to be probabilities, and counted in float64",
    (
        "ResNet",
        "seconds",
    ): "views of each image by itself, where the peer shows all images the same ones",
}
"""What the difference is spent on, where a row is behind: by how its name begins and the cost."""


# ------------------------------------------------------------------------------------------------------------- words


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return Table("", tuple(header), tuple(map(tuple, rows))).markdown()


def amount(value: float | None, column: str) -> str:
    """A cost as people write it."""
    if value is None:
        return "–"
    if column.endswith("mb"):
        return f"under {LEAST_MB:.0f} MB" if value <= LEAST_MB else f"{value:,.0f} MB"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1 or unit == "µs":
            return f"{value * scale:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    raise AssertionError


def times(value: float | None) -> str:
    """A ratio."""
    return (
        "–"
        if value is None
        else f"{value:.2g}"
        if value < 0.1
        else f"{value:.2f}"
        if value < 10
        else f"{value:,.0f}"
    )


def measured_cell(row: Measured, ours: Measured | None, column: str) -> str:
    """A cost and, in brackets, ours over it."""
    said = amount(cost(row, column), column)
    held = None if ours is None or row is ours else ratio(ours, row, column)
    return said if held is None else f"{said} ({times(held)})"


def where(part: Part) -> str:
    """On what a part was measured, in words."""
    about = part.machine
    device = (
        f"One {about['gpu']}"
        if about.get("gpu", "none") != "none"
        else f"One thread, {about.get('processor', 'unknown')}"
    )
    return (
        f"{device}, torch {about.get('torch', 'unknown')}{', a quick trial' if part.quick else ''}"
    )


def notes(rows: Iterable[Measured]) -> str:
    """What was not measured, and why, and what else is to be known; the same once."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.note:
            who = row.who if row.numbers else f"{row.who}, not measured"
            said.setdefault((who, row.note), []).append(row.what)
    return "\n".join(f"- {who} ({'; '.join(whats)}): {note}" for (who, note), whats in said.items())


# ----------------------------------------------------------------------------------------------------------- summary


def contests(parts: Parts) -> list[tuple[str, str, Measured, float]]:
    """Everything that a peer does too: what, which cost, the best peer, and ours over it."""
    found = []
    for name, part in parts.items():
        if name.rpartition("-")[0] in CONTESTS:
            for what, rows in by_what(part.rows).items():
                found += [(what, column, best, value) for column, best, value in against_best(rows)]
    return found


def why(what: str, column: str) -> str:
    """What the difference is spent on, where it is known."""
    return next(
        (
            reason
            for (start, own), reason in WHY.items()
            if what.startswith(start) and column == own
        ),
        "",
    )


def summary(parts: Parts) -> str:
    """Where we are ahead, and where behind."""
    held = contests(parts)
    behind = sorted((one for one in held if one[3] > LEVEL), key=lambda one: -one[3])
    lines = []
    if held:
        ahead = sum(value < 1 / LEVEL for *_, value in held)
        level = len(held) - ahead - len(behind)
        lines.append(
            f"Of {len(held)} costs that a peer has too (time and memory, each method at each size, against the best peer), "
            f"atta is ahead in {ahead}, level in {level} (within {LEVEL:.2f}) and behind in {len(behind)}."
        )
    if behind:
        cells = (
            (what, COSTS[column], best.who, times(value), why(what, column))
            for what, column, best, value in behind
        )
        lines += ["Behind:", table(("", "cost", "best peer", "ours : its", "why"), cells)]
    return "\n\n".join([*lines, *limits_said(parts)])


def limits_said(parts: Parts) -> list[str]:
    """How far from the limits, a sentence each."""
    said = []
    for name, what, unit in (
        ("collect", "Recording views takes", "times the bare network's time"),
        ("deploy", "A deployed classifier takes", "times the bare network's time"),
        ("predict", "V-ATTA's answer takes", "times as long as one softmax of the images"),
    ):
        for file, part in parts.items():
            if file.rpartition("-")[0] == name and (held := of_limits(part)):
                spread = (
                    times(min(held))
                    if times(min(held)) == times(max(held))
                    else f"{times(min(held))} to {times(max(held))}"
                )
                said.append(f"- {what} {spread} {unit} ({where(part)}).")
    return ["Against the limits:\n\n" + "\n".join(said)] if said else []


def of_limits(part: Part) -> list[float]:
    """Ours over the first limit, of each thing that a part measured."""
    found = []
    for rows in by_what(part.rows).values():
        limit = next((row for row in rows if row.role == "limit"), None)
        column = "relative" if limit and "relative" in limit.numbers else "seconds"
        value = ratio(rows[0], limit, column) if limit else None
        found += [] if value is None else [value]
    return found


# ---------------------------------------------------------------------------------------------------------- sections


def contest_table(
    part: Part,
    columns: Sequence[str],
    more: Mapping[str, Callable[[Measured, Measured | None], str]],
) -> str:
    """A line for each who did what, ours first, with ours over each in brackets."""
    cells = []
    for what, rows in by_what(part.rows).items():
        ours = next((row for row in rows if row.role == "ours" and row.numbers), None)
        for i, row in enumerate(row for row in rows if row.numbers):
            who = f"limit: {row.who}" if row.role == "limit" else row.who
            extra = [form(row, ours) for form in more.values()]
            cells.append(
                [
                    what if i == 0 else "",
                    who,
                    *(measured_cell(row, ours, column) for column in columns),
                    *extra,
                ]
            )
    written = table(("", "", *(COSTS[column] for column in columns), *more), cells)
    return "\n\n".join(filter(None, (written, notes(part.rows))))


def less(column: str) -> Callable[[Measured, Measured | None], str]:
    """A number less ours."""

    def form(row: Measured, ours: Measured | None) -> str:
        if column not in row.numbers or ours is None:
            return "–"
        return "0" if row is ours else f"{row.numbers[column] - ours.numbers[column]:+.1e}"

    return form


def number(column: str, form: str) -> Callable[[Measured, Measured | None], str]:
    """A number as it is."""
    return lambda row, _: format(row.numbers[column], form) if column in row.numbers else "–"


def per_second(row: Measured, ours: Measured | None) -> str:
    """Images × passes a second."""
    if ours is None:
        return "–"
    return f"{ours.numbers['images'] * ours.numbers['passes'] / row.numbers['seconds']:,.0f}"


def relative(row: Measured, ours: Measured | None) -> str:
    """Ours over the bare network, from paired turns."""
    return times(ratio(ours, row, "relative")) if ours is not None and row is not ours else "–"


def on_each(parts: Parts, name: str, written: Callable[[Part], str]) -> str:
    """A benchmark on each device that it was measured on."""
    found = [part for file, part in parts.items() if file.rpartition("-")[0] == name]
    return (
        "\n\n".join(f"{where(part)}:\n\n{written(part)}" for part in found) or "Not measured yet."
    )


def growth(parts: Parts) -> str:
    """The picture, and the exponents."""
    part = parts.get("growth-cpu")
    if part is None:
        return "Not measured yet."
    found = curves(part.rows)
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    cells = []
    for name in names:
        lines = [found[varied].get(name, []) for varied in found]
        cells.append(
            [
                name,
                *(
                    f"{slope(*zip(*points, strict=True)):.2f}" if len(points) > 1 else "–"
                    for points in lines
                ),
            ]
        )
    header = ("exponent of the time", *(f"by {varied}" for varied in found))
    return f"{where(part)}:\n\n![Time by images, classes and views](speed/{PICTURE})\n\n{table(header, cells)}"


def passes_of(row: Measured) -> int:
    """The network runs so often for an image, at most."""
    return max(1, round(row.numbers["passes"] + 0.49))


def quality_tables(part: Part) -> str:
    """For each dataset what is best with so many passes, and everybody."""
    found = []
    for what, rows in by_what(part.rows).items():
        held = [row for row in rows if row.numbers]
        found += [f"### {what}", best_table(held), quality_table(held)]
        found += filter(None, [notes(rows)])
    return "\n\n".join(found)


def best_table(rows: Sequence[Measured]) -> str:
    """The best peer, which has one pass, and the best of ours that keeps every class, by passes, as ratios to it."""
    peers = [row for row in rows if row.role == "peer"]
    kept = sorted(
        (row for row in rows if row.role == "ours" and not row.numbers["class_changes"]),
        key=passes_of,
    )
    if not peers:
        return ""
    cells = []
    for metric, name in (("brier", "Brier"), ("nll", "NLL"), ("ece", "ECE")):
        best = min(peers, key=lambda row: row.numbers[metric])
        line = [name, f"{best.who}: {best.numbers[metric]:.4f}"]
        for _, those in groupby(kept, passes_of):
            ours = min(those, key=lambda row: row.numbers[metric])
            line.append(
                f"{ours.numbers[metric] / best.numbers[metric]:.3f} ({ours.who.partition(' · ')[0]})"
            )
        cells.append(line)
    passes = [
        f"ours, {count} pass{'es' if count > 1 else ''}" for count, _ in groupby(kept, passes_of)
    ]
    return table(("", "best peer, 1 pass", *passes), cells)


def quality_table(rows: Sequence[Measured]) -> str:
    """Everybody, by passes and then by Brier score."""

    def spread(row: Measured, metric: str) -> str:
        return f"{row.numbers[metric]:.4f} ± {row.numbers[f'{metric} ±']:.4f}"

    cells = [
        [
            f"{OURS}: {row.who}" if row.role == "ours" else row.who,
            f"{row.numbers['passes']:.3g}",
            *(spread(row, metric) for metric in ("brier", "mc_brier", "nll", "ece")),
            f"{row.numbers['class_changes']:,.0f}",
        ]
        for row in sorted(rows, key=lambda row: (passes_of(row), row.numbers["brier"]))
    ]
    return table(
        ("", "passes", "Brier", "multi-class Brier", "NLL", "ECE", "classes changed"), cells
    )


def about(parts: Parts) -> str:
    """The peers, and on what each part was measured."""
    peers = {name: said for part in parts.values() for name, said in part.peers.items()}
    cells = [
        (
            name,
            where(part),
            part.machine.get("cores", "–"),
            part.machine.get("commit", "–"),
            f"{part.seconds / 60:.1f}",
        )
        for name, part in parts.items()
    ]
    return "\n\n".join(
        [
            table(("peer", "version, or why it is not here"), sorted(peers.items()))
            if peers
            else "No peers.",
            table(("part", "on", "cores", "commit", "minutes"), cells),
        ]
    )


SECTIONS: Mapping[str, tuple[str, Callable[[Parts], str]]] = {
    "Recording": (
        "`python -m benchmarks.collect`: `atta.collect` on 32 x 32 pixels, 16 passes per image, compared with the bare network on "
        "prepared tensors and with ttach, which shows as many views, the same for every image.",
        lambda parts: on_each(
            parts,
            "collect",
            lambda part: contest_table(
                part, ["seconds"], {"images × passes per second": per_second}
            ),
        ),
    ),
    "Recording photographs": (
        "`python -m benchmarks.scale`: JPEG files of 500 x 375 pixels into a folder of shards, 4 passes each through a "
        "ResNet-50 at 224 x 224 pixels with 1000 classes, compared with the bare network and "
        "with reading and decoding the files in as many processes; and reading alone, compared with a bare `DataLoader` whose dataset "
        "takes the same steps of Pillow. [scale.md](scale.md) works out what larger sets cost.",
        lambda parts: on_each(
            parts,
            "scale",
            lambda part: contest_table(
                part,
                ["seconds"],
                {
                    "images × passes per second": per_second,
                    "processes that decode": number("processes", ".0f"),
                },
            ),
        ),
    ),
    "Fit and predict, method by method": (
        "`python -m benchmarks.baselines`: each in a process of its own, on one thread, with what it takes (logits or "
        "probabilities) ready. Memory is what is held at the peak beyond the data. NLL is that of the images fitted on; "
        "*apart* is the largest difference of a probability from ours over 2000 images, those left out whose class the peer "
        "changes.",
        lambda parts: on_each(
            parts,
            "baselines",
            lambda part: contest_table(
                part,
                ["fit", "predict", "fit_mb", "predict_mb"],
                {"NLL minus ours": less("nll"), "apart": number("apart", ".1e")},
            ),
        ),
    ),
    "ECE and Brier score": (
        "`python -m benchmarks.scores`: of probabilities in float32, 15 bins.",
        lambda parts: on_each(
            parts,
            "scores",
            lambda part: contest_table(part, ["seconds", "mb"], {"value": number("value", ".7f")}),
        ),
    ),
    "The paper's loop": (
        "`python -m benchmarks.fit`: 1000 images, 10 classes, 4 kinds of view. The loop is Algorithm 1 as it is written, image "
        "by image.",
        lambda parts: on_each(parts, "fit", lambda part: contest_table(part, ["seconds"], {})),
    ),
    "Predicting with views": (
        "`python -m benchmarks.predict`: V-ATTA's answer to given logits, compared with softmaxes of the same logits.",
        lambda parts: on_each(
            parts,
            "predict",
            lambda part: contest_table(
                part, ["seconds", "mb"], {"classes changed": number("changed", ".0f")}
            ),
        ),
    ),
    "On a GPU": (
        "`python -m benchmarks.gpu`: logits on the GPU, compared with one softmax of each logit that is read (with 4 kinds "
        "of view where the method takes views). The last lines are the largest difference from what the CPU computes.",
        lambda parts: on_each(
            parts,
            "gpu",
            lambda part: contest_table(part, ["seconds"], {"apart": number("apart", ".1e")}),
        ),
    ),
    "Searches": (
        "`python -m benchmarks.dirichlet`, `python -m benchmarks.shrunk`: Dirichlet calibration "
        "with its search for λ and μ, and M-ATTA shrunk by a λ that is searched for, compared with one M-ATTA by the paper's "
        "recipe.",
        lambda parts: "\n\n".join(
            on_each(
                parts,
                name,
                lambda part: contest_table(part, ["seconds"], {"fits": number("fits", ".0f")}),
            )
            for name in ("dirichlet", "shrunk")
        ),
    ),
    "A deployed classifier": (
        "`python -m benchmarks.deploy`: the whole answer of a `CalibratedClassifier` (bytes to pixels, views, network, "
        "calibrator, checks) over the bare network on tensors that are ready, in as many passes of the same size, at 32 x "
        "32 pixels. What is left beyond the network at small batches on a GPU is the time it takes to start some forty small "
        "kernels, whatever the batch.",
        lambda parts: on_each(
            parts,
            "deploy",
            lambda part: contest_table(
                part,
                ["seconds"],
                {"passes": number("passes", ".0f"), "classifier : bare": relative},
            ),
        ),
    ),
    "How cost grows": (
        "`python -m benchmarks.growth`: from 10,000 images of 100 classes with 4 views, one of the three varied. An "
        "exponent of 1 is growth in proportion; views are kinds of their own.",
        growth,
    ),
    "Quality": (
        "`python -m benchmarks.quality`: every calibrator of the peers that sees the logits alone, as an `atta.Peer`, "
        "compared with ours, on the records of this repository; fitted on 1000 images drawn at random, tested on the others, in "
        "several draws, the same for all. ± is the standard deviation over the draws, classes changed are those of all "
        "draws together. Brier is that of the predicted class. The first table of a dataset says what the best peer has, "
        "and ours over it: the best of those that changed no class, by passes.",
        lambda parts: (
            quality_tables(parts["quality-cpu"]) if "quality-cpu" in parts else "Not measured yet."
        ),
    ),
    "The class never changes": (
        "",
        lambda parts: (
            "`python -m benchmarks.attack --only formula` tries ten million rows, close calls, ties and extremes among "
            "them, `--long` a hundred million; [reliability.md](reliability.md#what-was-tried) has the result."
        ),
    ),
}


def page(parts: Parts) -> str:
    """All of it, as Markdown."""
    written = [
        "<!-- made by `make bench` (python -m benchmarks): change benchmarks/page.py, or measure again -->",
        "# Speed and quality, compared with other libraries",
        INTRODUCTION.strip(),
        "## In short",
        summary(parts) or "Nothing measured yet.",
    ]
    for title, (said, body) in SECTIONS.items():
        written += [f"## {title}", *filter(None, (said, body(parts)))]
    written += ["## On what", about(parts)]
    return "\n\n".join(written) + "\n"


def read(folder: Path) -> dict[str, Part]:
    """The parts of a folder."""
    return {path.stem: Part.load(path) for path in sorted(folder.glob("*-*.json"))}


def write(folder: Path, path: Path) -> None:
    """Draw the picture and write the page, from the parts of a folder."""
    parts = read(folder)
    if "growth-cpu" in parts:
        draw(parts["growth-cpu"].rows, folder / PICTURE)
    with whole_file(path) as part:
        part.write_text(page(parts), encoding="utf-8")


if __name__ == "__main__":
    write(PARTS, PAGE)
