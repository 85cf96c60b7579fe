"""Commands that need records alone: every way to calibrate, compared, fitted, evaluated, searched for its views."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atta._base.errors import Advice, InputError
from atta.cli.arguments import (
    read_device,
    read_model,
    read_parts,
    read_record,
    read_settings,
    unfair_rows,
)
from atta.cli.options import (
    ANY,
    BatchSize,
    Device,
    Intervals,
    Json,
    OwnModel,
    Pictured,
    RecordArgument,
    Report,
    Rows,
    Seed,
    Set,
    Source,
    grouped,
)
from atta.cli.pages import read_images, write_page
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
from atta.results.rows import Results, Row
from atta.results.table import Table
from atta.results.words import BASELINE, BETTER, DIGITS

if TYPE_CHECKING:
    from atta.calibrators import Calibrator, Method
    from atta.lab.policy_search import Findings
    from atta.record.predictions import Record

COMPARED = ("brier", "ece", "smooth_ece", "mc_brier", "nll", "accuracy", "class_changes")


def methods() -> None:
    """List every way to calibrate, and whether it keeps the predicted class."""
    from atta.calibrators import METHODS

    cells = tuple(
        (name, "yes" if method().keeps_class else "no", method.summary)
        for name, method in METHODS.items()
    )
    show(Table("Methods", ("name", "keeps the class", "what it is"), cells))


def compare(
    records: Annotated[
        list[str],
        typer.Argument(metavar="RECORD...", help="Record files, or names of bundled records."),
    ],
    validation: Annotated[
        int, typer.Option(help="Images to fit on; the rest is tested on.")
    ] = 1000,
    splits: Annotated[
        int, typer.Option(help="How often to split anew; the first takes the rows as they stand.")
    ] = 1,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Only these methods; all of them by default."),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD", help="Fit on all of this record, test on all of the others."
        ),
    ] = None,
    json_file: Json = None,
    report_file: Report = None,
    images: Pictured = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, to paste into a document.")
    ] = False,
    intervals: Intervals = False,
) -> None:
    """Fit methods on validation images, test them on the rest, and print the paper's table.

    The best of each column is bold, among the methods that keep the class. Over several splits, mean ± half the
    width of the 95 % interval of the mean. ✓ and ✗ are surely better or worse than vanilla: the interval of the
    difference, by the bootstrap over the test images, excludes 0.
    """
    shown = read_images(images, [Path(name).stem for name in records], report_file)
    results = run_comparison(
        records,
        methods,
        validation=validation,
        splits=splits,
        fit=fit,
        cost=report_file is not None,
    )
    from atta.lab.tables import (
        interval_table,  # now that torch is there: mistakes need not wait for it
    )

    write = formatted("markdown" if markdown else "table")
    try:
        numbers = write_numbers(json_file, results.to_json())
        page = write_page(results, report_file, images=shown)
    finally:  # what cannot be written is still shown
        for name in results.names("dataset"):
            write(comparison_table(results, name))
            if intervals:
                write(
                    interval_table(
                        results.where(experiment=name), title=f"{name}: how sure", metrics=COMPARED
                    )
                )
    say_written(numbers=numbers, report=page)


def fit(
    record: RecordArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the calibrator.")
    ],
    method: Annotated[str, typer.Option(help="One of `atta methods`.")] = "v-atta",
    settings: Set = None,
    rows: Rows = None,
) -> None:
    """Fit a method on a record and write the calibrator."""
    from atta.calibrators import find_method

    chosen = find_method(method, **read_settings(settings))
    source = read_record(record, rows)
    if rows is not None and (sentence := unfair_rows(record, rows)):
        say(f"warning: --rows {rows}: {sentence} (--shuffle)")
    with waiting(f"fitting {method}"):
        calibrator = chosen.fit(source.predictions, source.require_labels())
    path = calibrator.save(output)
    limit = dict(calibrator.named_buffers()).get("limit")
    if limit is not None and float(limit) == 0:
        say(
            "The views do not help on these images: their share is 0, and the probabilities stay as they were."
        )
    passes = calibrator.passes(source.predictions).double().mean().item()
    tell(
        f"{method} fitted on {len(source)} images of {source.predictions.classes} classes, {passes:.3g} passes an image: {path}"
    )


@grouped
def evaluate(
    record: Annotated[
        str,
        typer.Argument(
            metavar="RECORD|CLASSIFIER",
            help="A record, or what `atta calibrate` wrote with new images.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="New labelled images for a classifier: a folder with one for each class, or a name."
        ),
    ] = None,
    calibrator: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `atta fit` wrote, for a record.")
    ] = None,
    rows: Rows = None,
    json_file: Json = None,
    source: Source = ANY,
    model: OwnModel = None,
    device: Device = None,
    batch_size: BatchSize = None,
) -> None:
    """Evaluate a fitted calibrator on a record, or a classifier on new labelled images, beside the network as it is."""
    from atta.calibrators import Vanilla, load
    from atta.lab.measure import measure

    if (dataset is None) == (calibrator is None):
        raise InputError(
            "expected RECORD --calibrator FILE, or CLASSIFIER DATASET, got "
            + ("both" if dataset else "neither")
        )
    if dataset is not None:
        name = Path(dataset).stem
        fitted, source_record = _record_anew(
            record, dataset, source, rows, model, device=device, batch_size=batch_size
        )
    elif calibrator is not None:
        fitted, source_record, name = load(calibrator), read_record(record, rows), Path(record).stem
    with waiting("evaluating"):
        before = Vanilla().fit(source_record.predictions, source_record.require_labels())
        measured = {c.method.name: measure(c, source_record) for c in (before, fitted)}
    found = (
        Row(dataset=name, method=m, metric=k, value=v)
        for m, ks in measured.items()
        for k, v in ks.items()
    )
    results = Results(tuple(found))
    try:
        numbers = write_numbers(json_file, results.to_json())
    finally:
        show(metrics_table(results, name))
    say_written(numbers=numbers)


def _record_anew(
    classifier: str,
    dataset: str,
    source: Source,
    rows: str | None,
    model: str | None,
    device: str | None,
    batch_size: int | None,
) -> tuple[Calibrator, Record]:
    """What a classifier's network says of new images in the classifier's views, and the classifier's calibrator."""
    from atta.classifier.classifier import CalibratedClassifier

    with waiting(f"reading {classifier} and {dataset}"):
        loaded = CalibratedClassifier.load(
            classifier, None if model is None else read_model(model)[0]
        )
        images, _ = source.read(dataset, rows)
    if images.labels is None and source.labels is None:
        next(loaded.source(images).read([[0]]))  # a path without photographs is said to be that
        raise InputError(
            f"{dataset} has no labels: expected a folder for each class, or --labels FILE; `atta drift` needs none"
        )
    record = loaded.record(
        images,
        source.labels,
        device=read_device(device),
        batch_size=batch_size,
        skip_bad=source.skip_bad,
        progress=err.is_terminal,
        checks=True,
    )
    return loaded.calibrator, record


def search(
    records: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORD...", help="Records of the same images, or names of bundled ones."
        ),
    ],
    budget: Annotated[
        int, typer.Option(help="The most passes an image may take, itself included.")
    ] = 4,
    method: Annotated[
        str, typer.Option(help="One of `atta methods` that looks at views.")
    ] = "c-atta",
    settings: Set = None,
    rows: Rows = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="FROM:TO", help="Also fit on all searched rows and test on these."),
    ] = None,
    folds: Annotated[
        int, typer.Option(help="Parts that the images are dealt into, each held out once.")
    ] = 5,
    seed: Seed = 0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Also put passes together freely, which over-fits.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Choose the policy of views from records: the fewest passes that are as good as the best.

    The policies of the library are judged by the NLL of images that their fits did not see. A record of stratified draws holds
    a random view only with the repeats it was made with; give several records where policies differ in those.
    """
    from atta.calibrators import find_method
    from atta.lab.policy_search import Pool, Search

    chosen = find_method(method, **read_settings(settings))
    whole = Pool.of([read_record(name) for name in records])
    searched, tested = read_parts(len(whole), rows, test)
    how = Search(budget=budget, method=chosen, folds=folds, seed=seed)
    with waiting("searching"):
        found = how.explore(
            whole[searched], free=greedy, test=None if tested is None else whole[tested]
        )
    results = found.results(Path(records[0]).stem, method=method, images=len(whole[searched]))
    try:
        numbers = write_numbers(json_file, results.to_json())
    finally:
        show(search_table(found))
    if found.missing:
        within = len(found.missing) + len(found.candidates)
        say(f"{len(found.missing)} of {within} policies within the budget are not in these records")
    if greedy:
        say(
            "warning: a greedy search over-fits a small validation set; its NLL is the least of many that were looked at, and "
            "too good for new images"
        )
    given = "".join(f" --set {text}" for text in settings or [])
    tell(
        f"atta calibrate MODEL DATASET -o FOLDER --method {method}{given} --policy {found.choice.policy}"
    )
    say_written(numbers=numbers)


def run_comparison(
    records: list[str],
    methods: str | None,
    *,
    validation: int,
    splits: int,
    fit: str | None = None,
    cost: bool = False,
) -> Results:
    """Compare methods on records, with a bar; methods that need views a record lacks are named and left out."""
    from atta.calibrators import METHODS, find_method
    from atta.lab.compare import compare, unfair_splits

    names = [name.strip() for name in methods.split(",")] if methods else list(METHODS)
    chosen = [find_method(name) for name in names]
    loaded = {Path(name).stem: read_record(name) for name in records}
    if len(loaded) < len(records):
        raise InputError(f"expected records with different names, got {', '.join(records)}")
    fit_on = read_record(fit) if fit else None
    for name, record in loaded.items() if fit_on is None else ():
        if not 0 < validation < len(record):
            most = len(record) - 1
            raise InputError(
                f"{name} has {most + 1} images: expected --validation from 1 to {most}, got {validation}"
            )
    chosen = usable(
        chosen, [*loaded.values(), *([fit_on] if fit_on else [])], explicit=methods is not None
    )
    chosen = quick(
        chosen,
        [*loaded.values()],
        validation,
        1 if fit_on else splits,
        explicit=methods is not None,
    )
    total = len(chosen) * len(loaded) * (1 if fit_on else splits)
    for sentence in unfair_splits(loaded, validation) if fit_on is None else ():
        say(f"warning: {sentence}")
    with bar("comparing", total) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is said above
        warnings.simplefilter("always", Advice)  # each sentence of which is said once
        return compare(
            loaded,
            chosen,
            validation=validation,
            splits=splits,
            fit_on=fit_on,
            cost=cost,
            done=advance,
        )


def usable(methods: list[Method], records: list[Record], *, explicit: bool) -> list[Method]:
    """Leave out methods that need views where a record has none, saying so; if they were asked for, refuse."""
    if all(record.predictions.kinds for record in records):
        return methods
    left_out = [method.name for method in methods if method.needs_views]
    if explicit and left_out:
        raise InputError(f"{', '.join(left_out)} need the logits of views, and a record has none")
    if left_out:
        say(f"left out, for want of views: {', '.join(left_out)}")
    return [method for method in methods if not method.needs_views]


def quick(
    methods: list[Method], records: list[Record], images: int, splits: int, *, explicit: bool
) -> list[Method]:
    """Leave out methods that would take more than a minute, saying so, unless they were asked for."""
    if explicit:
        return methods
    known = [
        max(splits * method.minutes(images, record.predictions.classes) for record in records)
        for method in methods
    ]
    for method, long in zip(methods, known, strict=True):
        if long > 1:
            say(
                f"left out, for it would take about {long:.0f} min: {method.name} (--methods names what to compare)"
            )
    return [method for method, long in zip(methods, known, strict=True) if long <= 1]


def comparison_table(results: Results, dataset: str) -> Table:
    """Lay the comparison out as the paper does."""
    keeps = {detail["method"] for detail in results.details if detail["keeps_class"]}
    return results.pivot(
        # without what each pass buys, which is an experiment of its own
        where={"experiment": dataset, "metric": COMPARED},
        better=BETTER,
        eligible=keeps.__contains__,
        digits=DIGITS,
        baseline=BASELINE,
        title=dataset,
    )


def search_table(found: Findings) -> Table:
    """Lay the candidates of a search out, the choice first, the greedy one last."""
    cells, metrics = [], list(found.tested.get(found.choice.policy, {}))
    for one in found.rows:
        mark = (
            "chosen"
            if one is found.choice
            else "greedy, selected on this NLL"
            if one is found.free
            else ""
        )
        measured = (f"{found.tested[one.policy][metric]:.4f}" for metric in metrics)
        above = f"{one.above:.4f} ± {one.error:.4f}"
        cells.append((one.policy, str(one.passes), f"{one.nll:.4f}", above, *measured, mark))
    tested = (f"test {metric}" for metric in metrics)
    header = ("policy", "passes", "cross-validated NLL", "above the best", *tested, "")
    return Table("Policies by cross-validation, ± one standard error", header, tuple(cells))


def metrics_table(results: Results, dataset: str) -> Table:
    """Lay every metric out as a row, a method a column."""
    methods = results.names("method")
    cells = []
    for metric in results.names("metric"):
        row = [results.summary(method=method, metric=metric) for method in methods]
        cells.append((metric, *(f"{summary.mean:.5g}" if summary else "–" for summary in row)))
    return Table(dataset, ("metric", *methods), tuple(cells))
