"""The paper's evaluation from start to end: find or make the records, run the experiments, hold ours against the published.

experiments/*.toml ──► which records they need ──► found, or made from data, or skipped with a line
                   ──► run, every fit once     ──► results.json, one table an experiment, the claims, a page
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from atta._base.errors import InputError, suggest
from atta._base.files import locked
from atta.lab.experiment import Experiment
from atta.lab.fits import Fit, Fits
from atta.lab.paper.published import published
from atta.lab.paper.records import RECORDINGS, Making, check_made, make, obstacle
from atta.lab.run import examined, joined, parts
from atta.lab.trials import fits_of, trials
from atta.record.predictions import CLONE, Record, own_records
from atta.results.rows import Results
from atta.results.words import FITTED, REST

BUNDLED_AS = {
    "cifar10": "cifar10-resnet50",
    "cifar10_nudged": "cifar10-resnet50-nudged",
    "cifar10_shift": "cifar10-resnet50-shift",
    "cifar10_ood": "cifar10-resnet50-ood",
}
"""What the records that come with the package are called there, by the names the experiments know them by."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie. Records that come with atta serve only where neither a folder of records nor one of data is named."""

    output: Path
    records: Path | None = None
    data: Path | None = None
    own: bool = True
    """Whether records may lie in the output, where they are made."""

    @property
    def made(self) -> Path:
        """Where records are made."""
        return self.records or self.output / "records"

    def find(self, name: str) -> Path | None:
        """The file of a record, if there is one."""
        path = self.made / f"{name}.safetensors"
        if (self.own or self.records is not None) and path.exists():
            return path
        own = own_records() if self.records is None and self.data is None else {}
        return own.get(BUNDLED_AS.get(name, name))


@dataclass
class Reproduction:
    """What came out: the numbers, what was skipped and why, and which files the records came from."""

    results: Results
    experiments: list[Experiment]
    skipped: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


def experiments_folder() -> Path:
    """The paper's experiments: inside the installed package, or beside its source."""
    inside, beside = Path(__file__).parent / "experiments", CLONE / "experiments"
    return inside if inside.is_dir() else beside


def find_experiments(only: Sequence[str] = (), folder: Path | None = None) -> list[Experiment]:
    """Read experiments whose names match: "shift-cifar10", "*-cifar10", the beginning of names, "policies", or "Table 3"."""
    found = {path.stem: path for path in sorted((folder or experiments_folder()).glob("*.toml"))}
    chosen: dict[str, Path] = {}
    for text in only or ("*",):
        matches = [
            name for name in found if fnmatch.fnmatch(name, text) or name.startswith(f"{text}-")
        ]
        if not matches:
            papers = {name: read_experiment(path).paper for name, path in found.items()}
            matches = [
                name for name, paper in papers.items() if paper and _plain(paper) == _plain(text)
            ]
        if not matches:
            known = (
                ", ".join(f"{name} ({paper})" if paper else name for name, paper in papers.items())
                or "none"
            )
            raise InputError(
                f"there is no experiment {text!r}.{suggest(text, found)} There are: {known}"
            )
        chosen |= {name: found[name] for name in matches}
    return sorted(map(read_experiment, chosen.values()), key=_in_the_papers_order)


def _plain(text: str) -> str:
    """Letters and numbers alone: "Table 3", "table-3" and "table3" are one."""
    return "".join(filter(str.isalnum, text.lower()))


def read_experiment(path: Path) -> Experiment:
    """Read the TOML file of an experiment; that the paper has the table it names is made sure before anything is run."""
    experiment = Experiment.read(path)
    try:
        if experiment.published:
            published(experiment.published)
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
    """The records that experiments ask for."""
    names = (name for e in experiments for name in (e.fit, e.test) if name not in (REST, FITTED))
    return list(dict.fromkeys(names))


def find_records(experiments: Iterable[Experiment], places: Places) -> dict[str, Path]:
    """The files of the records that experiments ask for; a missing one is an error that says where it was looked for."""
    found = {}
    for name in needed(experiments):
        path = places.find(name)
        if path is None:
            raise InputError(
                f"there is no record {name}: expected {places.made / f'{name}.safetensors'}"
            )
        found[name] = path
    return found


def load_records(files: Mapping[str, Path]) -> dict[str, Record]:
    """Load records by name."""
    return {name: Record.load(path) for name, path in files.items()}


def reproduce(
    experiments: Sequence[Experiment],
    places: Places,
    making: Making | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
    bar: Callable[[str, int], AbstractContextManager[Callable[[str], None]]] = lambda *of: (
        nullcontext(lambda what: None)
    ),
    workers: int = 0,
    engine: str | None = None,
) -> Reproduction:
    """Run experiments on records that are found or made: each fit once, kept in the output, then the tests.

    `say` is told one line for each record that is made and each experiment that cannot be run; `bar(title, total)` is a context
    in which what it returns is called after each fit. Stopped, the same call goes on where it was. Fits are made in `workers`
    processes, or on the cluster of an `engine`, which has to see the output and the records; neither changes a number. One run
    at a time writes to an output.
    """
    with locked(places.output / "results.json"):
        return _reproduced(
            experiments,
            places,
            making or Making(),
            say=say,
            bar=bar,
            workers=workers,
            engine=engine,
        )


def _reproduced(
    experiments: Sequence[Experiment],
    places: Places,
    making: Making,
    *,
    say: Callable[[str], None],
    bar: Callable[[str, int], AbstractContextManager[Callable[[str], None]]],
    workers: int,
    engine: str | None,
) -> Reproduction:
    files, missing = _gather(needed(experiments), places, making, say)
    records = load_records(files)
    done = Reproduction(Results(()), [], files=files)
    wanted: set[Fit] = set()
    for experiment in experiments:
        why = [missing[name] for name in needed([experiment]) if name in missing]
        try:
            if not why:
                wanted |= set(fits_of(experiment, list(trials(experiment, records))))
                done.experiments.append(experiment)
        except (
            InputError
        ) as error:  # records that do not fit together end one experiment, not the others
            why = [str(error)]
        if why:
            done.skipped[experiment.name] = "; ".join(why)
            say(f"skipped {experiment.name}: {done.skipped[experiment.name]}")
    if not done.experiments:
        return done
    # All fits first: experiments share them, and the longest of all can begin first.
    fits = Fits(records, places.output / "fits", workers, files, engine)
    with bar("fitting", len(wanted)) as advance:
        fits.make(wanted, advance)
    with bar(
        "testing", sum(len(parts(experiment, records)) for experiment in done.experiments)
    ) as advance:
        found = list(examined(done.experiments, fits, advance))
    for experiment, results in zip(done.experiments, found, strict=True):
        results.save(places.output / f"{experiment.name}.json")
    done.results = joined(found)
    done.results.save(places.output / "results.json")
    return done


def _gather(
    names: Sequence[str], places: Places, making: Making, say: Callable[[str], None]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Find or make each record; return their files, and for each that cannot be had, why."""
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    networks = places.output / "networks"
    for name in names:
        path = places.find(name)
        if path is not None:
            if path.parent == places.output / "records":
                check_made(name, path, making)
            files[name] = path
            continue
        absent = f"no {name}.safetensors in {places.made}"
        if name not in RECORDINGS:
            missing[name] = f"{absent}; the file of the experiment says what makes it"
            continue
        own = RECORDINGS[name].network
        if own != name and own in files and not (networks / own / "model.safetensors").is_file():
            missing[name] = f"{absent}, and the network of {own}.safetensors is not at hand"
        elif why := obstacle(name, places.data, networks):
            missing[name] = f"{absent}, nor data to make it from ({why})"
        else:
            files[name] = make(
                name,
                records=places.made,
                networks=networks,
                data=places.data,
                making=making,
                say=say,
            )
    return files, missing
