"""Runs the paper's evaluation from start to end: find or make the records, run the experiments.

experiments/*.toml ──► which records they need ──► found, or made from data, or skipped with a line
                   ──► run, every fit once     ──► results.json, tables, the claims, a page

The page (docs/results.md is one) is written from results alone: no number in it was typed. Its
text is `results.md.jinja`; there, too, is why ours differ, which is known for some datasets.
"""

import fnmatch
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import correlation
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from atta._base.errors import InputError, require, suggest
from atta._base.files import digest, locked, whole_file
from atta.lab import run as tables
from atta.lab.experiment import Experiment, fits_of, trials
from atta.lab.fits import Fit, Fits
from atta.lab.paper import published
from atta.lab.paper.records import RECORDINGS, Making, check_made, make, network_file, obstacle
from atta.lab.run import examined, joined, run
from atta.lab.workers import Tell, machine, silent
from atta.record.predictions import CLONE, Record, own_records
from atta.results import words
from atta.results.rows import Results
from atta.results.table import Table

BUNDLED_AS = {
    "cifar10": "cifar10-resnet50",
    "cifar10_nudged": "cifar10-resnet50-nudged",
    "cifar10_shift": "cifar10-resnet50-shift",
    "cifar10_ood": "cifar10-resnet50-ood",
}
"""The records of the package by the names of the experiments."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where files are. The package's own records are used if `records` and `data` are not set."""

    output: Path
    records: Path | None = None
    data: Path | None = None

    @property
    def made(self) -> Path:
        """Where records are made."""
        return self.records or self.output / "records"

    def find(self, name: str) -> Path | None:
        """The file of a record, if there is one."""
        own = self.records is None and self.data is None
        return record_file(name, self.made) or (record_file(name) if own else None)


def record_file(name: str, folder: Path | None = None) -> Path | None:
    """The file of a record in a folder, by default among the package's own, if it is there."""
    if folder is None:
        return own_records().get(BUNDLED_AS.get(name, name))
    path = folder / f"{name}.safetensors"
    return path if path.exists() else None


@dataclass
class Reproduction:
    """The numbers, and what was skipped and why."""

    results: Results
    experiments: list[Experiment]
    skipped: dict[str, str] = field(default_factory=dict)


def experiments_folder() -> Path:
    """The paper's experiments: inside the installed package, or in the clone of its source."""
    inside = Path(__file__).parent / "experiments"
    return inside if inside.is_dir() else CLONE / "experiments"


def find_experiments(only: Sequence[str] = (), folder: Path | None = None) -> list[Experiment]:
    """Read experiments by name, pattern, beginning of names, or place in the paper.

    "shift-cifar10", "*-cifar10", "policies" and "Table 3" all find some.
    """
    paths = sorted((folder or experiments_folder()).glob("*.toml"))
    known = {path.stem: read_experiment(path) for path in paths}
    chosen: dict[str, Experiment] = {}
    for text in only or ("*",):
        matches = [
            name for name in known if fnmatch.fnmatch(name, text) or name.startswith(f"{text}-")
        ] or [
            name for name, one in known.items() if one.paper and _plain(one.paper) == _plain(text)
        ]
        if not matches:
            names = [f"{name} ({e.paper})" if e.paper else name for name, e in known.items()]
            raise InputError(
                f"there is no experiment {text!r}.{suggest(text, known)} "
                f"There are: {', '.join(names) or 'none'}"
            )
        chosen |= {name: known[name] for name in matches}
    return sorted(chosen.values(), key=_in_the_papers_order)


def _plain(text: str) -> str:
    """Letters and digits only: "Table 3", "table-3" and "table3" are equal."""
    return "".join(filter(str.isalnum, text.lower()))


def read_experiment(path: Path) -> Experiment:
    """Read the TOML file of an experiment, and check that the paper has the table it names."""
    experiment = Experiment.read(path)
    if experiment.published:
        try:
            published.published(experiment.published)
        except InputError as error:
            raise InputError(f"{path}: published: {error}") from None
    return experiment


_ORDER = (
    *("policies-validation", "policies-test", "in-distribution", "shift", "ood", "validation-size"),
    *("space", "past-the-paper"),
)
_SETS = ("cifar10", "cifar100", "aid")


def _in_the_papers_order(experiment: Experiment) -> tuple[int, int, str]:
    kind, _, dataset = experiment.name.rpartition("-")
    place = _SETS.index(dataset) if dataset in _SETS else len(_SETS)
    return place, _ORDER.index(kind) if kind in _ORDER else len(_ORDER), experiment.name


def needed(experiments: Iterable[Experiment]) -> list[str]:
    """The names of the records that experiments need."""
    return list(dict.fromkeys(name for experiment in experiments for name in experiment.records))


Bar: TypeAlias = Callable[[str, int], AbstractContextManager[Tell]]
"""Makes a progress bar from a title and a total; what it yields is called once per step."""


def run_alone(
    experiment: Experiment,
    records: Path | None = None,
    *,
    workers: int,
    bar: Bar,
    resumable: Callable[[Path], AbstractContextManager[None]],
) -> Results:
    """Run one experiment on the records of a folder, or on the package's own.

    Fits are kept in the user's cache until it ends, inside of `resumable(folder)`, so that a run
    that was stopped or lost a process resumes.
    """
    files = {}
    for name in experiment.records:
        if (path := record_file(name, records)) is None:
            where = records or "the package: name a folder of records that has it"
            raise InputError(f"there is no record {name} in {where}")
        files[name] = path
    fits = Fits(_loaded(files), workers=workers, files=files)
    key = digest([experiment.about(), *map(fits.fingerprint, files)])[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    folder = Path(home).expanduser() / "atta" / "runs" / key
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
            stack.enter_context(resumable(folder))
        except InputError:  # the cache cannot be written, or the same run is going on
            folder = Path(stack.enter_context(TemporaryDirectory()))
        with bar(experiment.name, len(fits_of(experiment, fits.records))) as done:
            results = run(experiment, fits.records, fits=replace(fits, folder=folder), done=done)
        shutil.rmtree(folder, ignore_errors=True)
        return results


def reproduce(
    experiments: Sequence[Experiment],
    places: Places,
    making: Making | None = None,
    *,
    say: Tell = silent,
    bar: Bar = lambda *of: nullcontext(silent),
    workers: int = 0,
    engine: str | None = None,
) -> Reproduction:
    """Run experiments on records that are found or made; a stopped run resumes.

    Every fit is made once and kept in the output. `say` is called with one line for each record
    that is made and each experiment that cannot be run. Neither `workers` nor `engine`, whose
    cluster has to see the output and the records, changes a number. One run at a time writes to an
    output.
    """
    with locked(places.output / "results.json"):
        files, missing = _gather(needed(experiments), places, making or Making(), say)
        fits = Fits(_loaded(files), places.output / "fits", workers, files, engine)
        done = Reproduction(Results(()), [])
        wanted: list[Fit] = []
        for experiment in experiments:
            why = "; ".join(missing[name] for name in experiment.records if name in missing)
            try:
                if why:
                    raise InputError(why)
                wanted += fits_of(experiment, fits.records)
                done.experiments.append(experiment)
            except InputError as error:  # records that do not fit end one experiment only
                done.skipped[experiment.name] = str(error)
                say(f"skipped {experiment.name}: {error}")
        if not done.experiments:
            return done
        # All fits first: experiments share them, and the longest of all can begin first.
        with bar("fitting", len(set(wanted))) as advance:
            fits.make(wanted, advance)
        steps = sum(1 for one in done.experiments for _ in trials(one, fits.records))
        with bar("testing", steps) as advance:
            found = list(examined(done.experiments, fits, advance))
        for experiment, results in zip(done.experiments, found, strict=True):
            results.save(places.output / f"{experiment.name}.json")
        done.results = joined(found)
        done.results.save(places.output / "results.json")
        return done


def _loaded(files: Mapping[str, Path]) -> dict[str, Record]:
    return {name: Record.load(path) for name, path in files.items()}


def reproduced_tables(done: Reproduction) -> Iterator[Table]:
    """Our table of each experiment, the differences to the published, and the claims."""
    for experiment in done.experiments:
        yield tables.own_table(done.results, experiment)
        both = (published.against(done.results, experiment, first=one) for one in (False, True))
        yield from filter(None, both)
    claims = published.claims_table(done.results)
    if claims.cells:
        yield claims


def _gather(
    names: Sequence[str], places: Places, making: Making, say: Tell
) -> tuple[dict[str, Path], dict[str, str]]:
    """Find or make each record; return the files, and why the others are missing."""
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    networks = places.output / "networks"
    for name in names:
        own = RECORDINGS[name].network if name in RECORDINGS else name
        why = ""
        if path := places.find(name):
            if path.parent == places.output / "records":
                check_made(name, path, making)
            files[name] = path
        elif name not in RECORDINGS:
            why = "; the file of the experiment says what makes it"
        elif own != name and own in files and not network_file(networks, own).is_file():
            why = f", and the network of {own}.safetensors is missing"
        elif problem := obstacle(name, places.data, networks):
            why = f", and no data to make it from ({problem})"
        else:
            where = {"records": places.made, "networks": networks}
            files[name] = make(name, **where, data=places.data, making=making, say=say)
        if why:
            missing[name] = f"no {name}.safetensors in {places.made}{why}"
    return files, missing


# ---- the page


def write_page(done: Reproduction, path: Path, *, command: str) -> None:
    """Write the page, and the paper's figures, drawn from our results, into a folder next to it."""
    from atta.report.figures.comparison import figure  # here: these need the libraries of reports
    from atta.report.figures.theme import picture

    folder, pictures = path.with_suffix(""), {}
    for experiment in done.experiments:
        if experiment.paper.startswith("Figure"):
            folder.mkdir(parents=True, exist_ok=True)
            several = len(experiment.validation) > 1
            name, metric = ("sizes", "brier") if several else ("entropy", "entropy")
            drawn = figure(name, done.results, metric=metric, experiment=experiment.name)
            file = picture(drawn, folder / f"{experiment.name}.svg")
            pictures[experiment.name] = f"{folder.name}/{file.name}"
    text = results_page(done, machine(), command=command, pictures=pictures)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def results_page(
    done: Reproduction,
    machine: Mapping[str, str],
    *,
    command: str,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """The whole page as Markdown; `pictures` are files by experiment, as the page links them."""
    with require("report", "the page of a reproduction"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"anchor": _anchor, "one_line": _one_line}
    text = environment.get_template("results.md.jinja").render(
        results=done.results,
        experiments=sorted(done.experiments, key=_by_number),
        splits=max(experiment.splits for experiment in done.experiments),
        skipped=done.skipped,
        machine=Table("", ("", ""), tuple(machine.items())),
        records=_side_by_side(done.results.about["records"]),
        command=command,
        pictures=pictures or {},
        published=published,
        tables=tables,
        words=words,
        spearman=_spearman,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _by_number(experiment: Experiment) -> tuple[int, str]:
    """The paper's tables, figures and supplement, each by number; then what is ours."""
    kinds = ("Table", "Figure", "Supplement", "")
    return next(
        i for i, kind in enumerate(kinds) if experiment.paper.startswith(kind)
    ), experiment.paper


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _one_line(text: str) -> str:
    return re.sub(r" (?=[.,;])", "", " ".join(text.split()))


def _side_by_side(columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """What is known about several things, each in a column."""
    names = sorted({name for column in columns.values() for name in column})
    cells = ((name, *(str(column.get(name, "–")) for column in columns.values())) for name in names)
    return Table("", ("", *columns), tuple(cells))


def _spearman(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Spearman's correlation of two orders of the same names."""
    one, other = (sorted(values, key=values.__getitem__) for values in (a, b))
    ranks = [one.index(name) for name in a], [other.index(name) for name in a]
    return correlation(*ranks) if len(a) > 1 else 1.0
