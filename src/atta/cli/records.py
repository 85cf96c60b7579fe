"""Commands for records and results: methods, compare, fit, evaluate, search, report, figure, ...

`write_results` is how every command writes its numbers and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

import atta
from atta._base.errors import InputError, suggest
from atta.cli.options import (
    BatchSize,
    Intervals,
    Json,
    MethodName,
    Network,
    Output,
    PageImages,
    Report,
    Rows,
    Seed,
    Set,
    Source,
    grouped,
    read_rows,
    read_settings,
)
from atta.cli.terminal import (
    bar,
    err,
    formatted,
    say,
    say_written,
    show,
    tell,
    waiting,
    write_numbers,
)
from atta.results.rows import Results
from atta.results.table import Table
from atta.results.words import ANSWERED, CLASS_CHANGES, PASSES, dataset_name, digits

EVALUATED = ("accuracy", "brier", "nll", "ece", "aurc", *ANSWERED, CLASS_CHANGES, PASSES)
"""The metrics that `evaluate` prints without --all."""
RecordArguments = Annotated[
    list[str], Argument(metavar="RECORD...", help="Record files, or names of bundled records.")
]


def methods() -> None:
    """List the calibration methods, and whether they keep the predicted class."""
    cells = tuple(
        (name, "yes" if method().keeps_class else "no", method.summary)
        for name, method in atta.METHODS.items()
    )
    show(Table("Methods", ("name", "keeps the class", "what it is"), cells))


# ---- compare -------------------------------------------------------------------------------------


def compare(
    records: RecordArguments,
    validation: Annotated[int, Option(help="Images to fit on; the rest are for the test.")] = 1000,
    splits: Annotated[int, Option(help="Number of splits; the first keeps the order.")] = 5,
    methods: Annotated[
        str | None, Option(metavar="A,B,...", help="Only these methods; by default all.")
    ] = None,
    fit: Annotated[
        str | None, Option(metavar="RECORD", help="Fit on this record, test on the others.")
    ] = None,
    json_file: Json = None,
    report_file: Report = None,
    images: PageImages = None,
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    intervals: Intervals = False,
) -> None:
    """Fit methods on validation images, test them on the rest, and print the paper's table.

    The best method that keeps the class is bold. With several splits, ± is half the 95 % interval
    of the mean. ✓ and ✗: significantly better or worse than vanilla (95 %, bootstrap over images).
    """
    shown = read_images(images, [Path(name).stem for name in records], report_file)
    from atta.lab import compare as comparing

    loaded = {Path(name).stem: atta.find_record(name) for name in records}
    if len(loaded) < len(records):
        raise InputError(f"expected records with different names, got {', '.join(records)}")
    fit_on, splits = (atta.find_record(fit), 1) if fit else (None, splits)
    all_records = [*loaded.values(), fit_on] if fit_on else list(loaded.values())
    chosen = _read_methods(methods, all_records, validation, splits)
    with bar("comparing", len(chosen) * len(loaded) * splits) as advance:
        results = comparing.compare(
            loaded,
            chosen,
            validation=validation,
            splits=splits,
            fit_on=fit_on,
            cost=report_file is not None,
            done=advance,
        )
    write_results(
        results,
        comparing.comparison_tables(results, intervals=intervals),
        numbers=json_file,
        page=report_file,
        images=shown,
        write=formatted("markdown" if markdown else "table"),
    )
    _say_verdicts(results)


def _say_verdicts(results: Results) -> None:
    """Print the recommendation for each dataset, as the report gives it."""
    from atta.report.sections import sections_of

    for section in sections_of(results):
        if section.sentence:
            tell(section.sentence)


def _read_methods(
    names: str | None, records: list[atta.Record], images: int, splits: int
) -> list[atta.Method]:
    """Find the methods that were named, by default all suitable ones, and name the others."""
    from atta.lab.compare import suitable

    if names:
        return [atta.find_method(name.strip()) for name in names.split(",")]
    chosen, left_out = suitable(records, images, splits)
    for reason, others in left_out.items():
        say(f"left out, {reason}: {', '.join(others)}")
    return chosen


# ---- fit and evaluate ----------------------------------------------------------------------------


def fit(
    record: Annotated[
        str, Argument(metavar="RECORD", help="A record file, or the name of a bundled record.")
    ],
    output: Output,
    method: MethodName = "v-atta",
    settings: Set = None,
    rows: Rows = None,
) -> None:
    """Fit a method on a record and write the calibrator."""
    from torch import arange

    from atta.record.predictions import unfair

    chosen = atta.find_method(method, **read_settings(settings))
    whole = atta.find_record(record)
    part, labels = read_rows(rows, len(whole)), whole.require_labels()
    if sentence := unfair(labels, arange(len(whole))[part]):
        say(f"warning: --rows {rows}: {sentence} (--shuffle)")
    predictions = whole.predictions[part]
    with waiting(f"fitting {method}"):
        calibrator = chosen.fit(predictions, labels[part])
    path = calibrator.save(output)
    if not getattr(calibrator, "limit", True):
        say("The views do not help on these images: their share is 0.")
    passes = calibrator.passes(predictions).double().mean().item()
    tell(
        f"{method} fitted on {len(predictions)} images of {predictions.classes} classes, "
        f"{passes:.3g} passes per image: {path}"
    )


@grouped
def evaluate(
    record: Annotated[
        str, Argument(metavar="RECORD|CLASSIFIER", help="A record, or what `atta calibrate` wrote.")
    ],
    dataset: Annotated[
        str | None,
        Argument(help="New labelled images for a classifier: a dataset, or a folder of classes."),
    ] = None,
    *,
    calibrator: Annotated[
        Path | None, Option(metavar="FILE", help="What `atta fit` wrote, for a record.")
    ] = None,
    json_file: Json = None,
    everything: Annotated[bool, Option("--all", help="Print every metric.")] = False,
    source: Source,
    network: Network,
    batch_size: BatchSize = None,
) -> None:
    """Evaluate a classifier on labelled images, or a calibrator on a record.

    The network alone and temperature scaling are compared with it. Temperature scaling is
    cross-validated on these same images. Brackets are 95 % intervals (bootstrap over images).
    """
    from atta.lab.measure import evaluated

    if (dataset is None) == (calibrator is None):
        raise InputError(
            "expected RECORD --calibrator FILE, or CLASSIFIER DATASET, got "
            + ("both" if dataset else "neither")
        )
    if calibrator is not None:
        fitted, whole = atta.load(calibrator), atta.find_record(record)
        recorded = whole[read_rows(source.rows, len(whole))]
    elif dataset is not None:
        fitted, recorded = _record(Path(record), dataset, source, network, batch_size)
    name = Path(dataset or record).stem
    with waiting("evaluating"):
        results = evaluated(fitted, recorded, name)
    tables = [evaluation_table(results, name, None if everything else EVALUATED)]
    write_results(results, tables, numbers=json_file)


def evaluation_table(results: Results, title: str, metrics: tuple[str, ...] | None) -> Table:
    """Lay out a line per metric and a column per method, with the ends of the intervals."""
    bounds = {(one.method, one.metric): one for one in results.intervals}
    methods, cells = results.names("method"), []
    for metric in metrics or results.names("metric"):
        line, places = [metric], digits(metric)
        for method in methods:
            ends = bounds.get((method, metric))
            found = results.summary(method=method, metric=metric)
            text = found.text(places) if found else "–"
            if ends and metrics:
                text += f" [{ends.low:.{places}f}, {ends.high:.{places}f}]"
            line.append(text)
        cells.append(tuple(line))
    return Table(title, ("metric", *methods), tuple(cells))


def _record(
    path: Path, dataset: str, source: Source, network: Network, batch_size: int | None
) -> tuple[atta.Calibrator, atta.Record]:
    """Run a classifier on new images; return its calibrator, and the record of its answers."""
    classifier = network.load(path)
    if classifier.any_size:
        raise InputError(
            f"expected a classifier of images, got the segmenter {path}: evaluate it in Python, by "
            "segmenter.evaluate(images, masks)"
        )
    with waiting(f"reading {dataset}"):
        images, _ = source.read(dataset)
    known = isinstance(images, str) or images.labels is not None  # shards tell when they are read
    if not known and source.labels is None:
        raise InputError(
            f"{dataset} has no labels: expected a folder for each class, or --labels FILE; "
            "`atta drift` needs none"
        )
    record = classifier.record(
        images,
        source.labels,
        batch_size=batch_size,
        skip_bad=source.skip_bad,
        progress=err.is_terminal,
        checks=True,
    )
    return classifier.calibrator.cpu(), record


# ---- search --------------------------------------------------------------------------------------


def search(
    records: RecordArguments,
    budget: Annotated[int, Option(help="Most passes per image, itself included.")] = 4,
    method: MethodName = "c-atta",
    settings: Set = None,
    rows: Rows = None,
    test: Annotated[
        str | None, Option(metavar="FROM:TO", help="Also fit on --rows and test on these.")
    ] = None,
    folds: Annotated[int, Option(help="Folds of the cross-validation.")] = 5,
    seed: Seed = 0,
    greedy: Annotated[
        bool, Option("--greedy", help="Also combine passes freely, which over-fits.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Choose a policy from records of the same images: the fewest passes as good as the best.

    Policies are judged by cross-validated NLL. A record of stratified draws has each random view
    only with its own number of repeats: give several records to compare numbers of repeats.
    """
    from atta.lab.policy_search import Pool, Search

    chosen = atta.find_method(method, **read_settings(settings))
    whole = Pool.of(list(map(atta.find_record, records)))
    searched, tested = read_parts(len(whole), rows, test)
    how = Search(budget=budget, method=chosen, folds=folds, seed=seed)
    with waiting("searching"):
        found = how.explore(whole[searched], free=greedy, test=tested and whole[tested])
    results = found.results(Path(records[0]).stem, method=method, images=len(whole[searched]))
    title = "Policies by cross-validation; one-standard-error is the choice"
    tables = [results.pivot(("policy", "choice"), digits={PASSES: 0}, title=title)]
    write_results(results, tables, numbers=json_file)
    if found.missing:
        within = len(found.missing) + len(found.candidates)
        say(f"{len(found.missing)} of {within} policies within the budget are not in these records")
    if greedy:
        say("warning: greedy search over-fits a small validation set; its NLL is too optimistic")
    given = "".join(f" --set {text}" for text in settings or [])
    tell(
        f"atta calibrate MODEL DATASET -o FOLDER --method {method}{given} "
        f"--policy {found.choice.policy}"
    )


def read_parts(images: int, rows: str | None, test: str | None) -> tuple[slice, slice | None]:
    """Read the rows to search and the rows to test on, which must not overlap."""
    searched = read_rows(rows, images)
    if test is None:
        return searched, None
    tested = read_rows(test, images, "--test")
    if both := {*range(images)[searched]} & {*range(images)[tested]}:
        raise InputError(
            f"--test: expected other rows than --rows {rows or ':'}, got {len(both)} of them in "
            f"{test}"
        )
    return searched, tested


# ---- files ---------------------------------------------------------------------------------------


def records(
    name: Annotated[str | None, Argument(help="A record, to print its whole origin.")] = None,
    folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="List this folder instead of atta's own.")
    ] = None,
) -> None:
    """List the records that come with atta, or those of a folder, and where they came from."""
    from atta.record.predictions import own_records
    from atta.record.store import INDEX

    if folder is None:
        found = own_records()
    elif folder.is_dir():
        found = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
        found |= {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{INDEX}"))}
    else:
        raise InputError(f"--folder: there is no folder {folder}")
    if name is not None:
        if name not in found:
            raise InputError(
                f"there is no record {name!r}.{suggest(name, found)} There are: "
                f"{', '.join(found) or 'none'}"
            )
        found = {name: found[name]}
    cells = []
    origin: Mapping[str, str] = {}
    for one, path in found.items():
        try:
            record = atta.Record.load(path)
        except InputError as error:
            if name is not None:
                raise
            say(f"left out: {error}")
            continue
        origin, seen = record.origin, record.predictions
        network = ", ".join(origin[key][:16] for key in ("model", "trained_on") if key in origin)
        of = dataset_name(origin.get("dataset", "?"))
        cells.append((one, of, *map(str, (len(record), seen.classes, seen.passes)), network or "?"))
    show(Table("Records", ("name", "of", "images", "classes", "passes", "network"), tuple(cells)))
    if name is not None:
        show(Table(f"Origin of {name}", ("", ""), tuple(sorted(origin.items()))))
    for place in dict.fromkeys(found[one].parent for one, *_ in cells):
        tell(f"in {place}")


def check(
    files: Annotated[
        list[Path], Argument(metavar="FILE...", help="Files and folders that atta wrote.")
    ],
) -> None:
    """Say what each file is, and whether it is damaged.

    It knows records, calibrators, classifiers, results, exported graphs and trained networks.
    """
    from atta.classifier.check import check as look

    found = [look(file) for file in files]
    for one in found:
        tell(str(one))
    if not all(one.whole for one in found):
        raise Exit(1)


# ---- pages ---------------------------------------------------------------------------------------


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
            "or cost."
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
    from atta.report.figures.comparison import figure as draw
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
