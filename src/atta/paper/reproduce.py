"""The paper's evaluation from start to end: find or make the records, run the experiments, hold ours against the published.

experiments/*.toml ──► which records they need ──► found, or made from data, or skipped with a line
                   ──► run, every fit once     ──► results.json, one table an experiment, the claims, a page
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atta.experiments.experiment import Experiment, joined, planned, run
from atta.experiments.fits import Fits
from atta.paper import records as recording
from atta.predictions import BUNDLED, Record
from atta.results.rows import Results
from atta.results.words import FITTED, REST
from atta.types import InputError

BUNDLED_AS = {
    "cifar10": "cifar10-resnet50",
    "cifar10_nudged": "cifar10-resnet50-nudged",
    "cifar10_shift": "cifar10-resnet50-shift",
    "cifar10_ood": "cifar10-resnet50-ood",
}
"""The records that come with the package, by the names the experiments know them by."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie. Bundled records serve only where neither a folder of records nor one of data is named."""

    output: Path
    records: Path | None = None
    data: Path | None = None
    own: bool = True
    """Whether records may lie in the output, where they are made."""

    @property
    def bundled(self) -> bool:
        """Whether the records that come with the package may be used."""
        return self.records is None and self.data is None

    @property
    def made(self) -> Path:
        """Where records are made."""
        return self.records or self.output / "records"

    def find(self, name: str) -> Path | None:
        """The file of a record, if there is one."""
        path = self.made / f"{name}.safetensors"
        if (self.own or self.records is not None) and path.exists():
            return path
        return BUNDLED / f"{BUNDLED_AS[name]}.safetensors" if self.bundled and name in BUNDLED_AS else None


@dataclass(frozen=True, kw_only=True)
class Making:
    """How missing records are made."""

    model: str = "resnet50"
    steps: int | None = None
    image_size: int | None = None
    validation: int | None = None
    """The images of a dataset that are to calibrate on, which are no test images elsewhere either."""
    device: str | None = None
    progress: bool = True


@dataclass
class Reproduction:
    """What came out: the numbers, what was skipped and why, and which files the records came from."""

    results: Results
    experiments: list[Experiment]
    skipped: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


def experiments_folder() -> Path:
    """The paper's experiments: inside the installed package, or beside its source."""
    inside, beside = Path(__file__).parent / "experiments", Path(__file__).parents[3] / "experiments"
    return inside if inside.is_dir() else beside


def find_experiments(only: Sequence[str] = (), folder: Path | None = None) -> list[Experiment]:
    """Read the experiments whose names match: "shift-cifar10", "*-cifar10", or the beginning of names, "policies"."""
    found = {path.stem: path for path in sorted((folder or experiments_folder()).glob("*.toml"))}
    chosen: dict[str, Path] = {}
    for text in only or ("*",):
        matches = [name for name in found if fnmatch.fnmatch(name, text) or name.startswith(f"{text}-")]
        if not matches:
            raise InputError(f"there is no experiment {text!r}; there are: {', '.join(found) or 'none'}")
        chosen |= {name: found[name] for name in matches}
    return sorted((Experiment.read(path) for path in chosen.values()), key=_in_the_papers_order)


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
            raise InputError(f"there is no record {name}: expected {places.made / f'{name}.safetensors'}")
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
    bar: Callable[[str, int], object] | None = None,
    workers: int = 0,
) -> Reproduction:
    """Run experiments on records that are found or made, one after the other; each fit is made once and kept in the output.

    `say` is told one line for each record that is made and each experiment that cannot be run; `bar(title, total)` is a context
    in which what it returns is called after each fit. Stopped, the same call goes on where it was. Fits are made in `workers`
    processes; their number changes no number.
    """
    making = making or Making()
    files, missing = _gather(needed(experiments), places, making, say)
    records = load_records(files)
    fits = Fits(records, places.output / "fits", workers)
    done, parts = Reproduction(Results(()), [], files=files), []
    for experiment in experiments:
        lacking = [name for name in needed([experiment]) if name in missing]
        try:
            total = 0 if lacking else planned(experiment, records)
        except InputError as error:  # records that do not fit together end one experiment, not the others
            lacking, missing = [experiment.name], {**missing, experiment.name: str(error)}
        if lacking:
            done.skipped[experiment.name] = "; ".join(missing[name] for name in lacking)
            say(f"skipped {experiment.name}: {done.skipped[experiment.name]}")
            continue
        results = _run(experiment, records, fits, bar, total)
        results.save(places.output / f"{experiment.name}.json")
        parts.append(results)
        done.experiments.append(experiment)
    if parts:
        done.results = joined(parts)
        done.results.save(places.output / "results.json")
    return done


def _run(
    experiment: Experiment,
    records: Mapping[str, Record],
    fits: Fits,
    bar: Callable[[str, int], object] | None,
    total: int,
) -> Results:
    if bar is None:
        return run(experiment, records, fits=fits)
    with bar(experiment.name, total) as advance:  # type: ignore[attr-defined]
        return run(experiment, records, fits=fits, done=lambda what: advance(f"{experiment.name}: {what}"))


def _gather(
    names: Sequence[str], places: Places, making: Making, say: Callable[[str], None]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Find or make each record; return their files, and for each that cannot be had, why."""
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    networks, validation = places.output / "networks", making.validation or recording.VALIDATION
    for name in names:
        path = places.find(name)
        own = recording.RECORDINGS[name].network if name in recording.RECORDINGS else name
        if path is None and own != name and own in files and not (networks / own / "model.safetensors").is_file():
            missing[name] = (
                f"no {name}.safetensors in {places.made}, and the network of {own}.safetensors is not at hand"
            )
            continue
        if path is not None and path.parent == places.output / "records":
            recording.check_made(
                name,
                path,
                model=making.model,
                steps=making.steps,
                image_size=making.image_size,
                validation=validation,
            )
        if path is None:
            obstacle = recording.obstacle(name, places.data, networks)
            if obstacle is not None:
                missing[name] = f"no {name}.safetensors in {places.made}, nor data to make it from ({obstacle})"
                continue
            path = recording.make(
                name,
                data=places.data,
                records=places.made,
                networks=networks,
                model=making.model,
                steps=making.steps,
                image_size=making.image_size,
                validation=validation,
                device=making.device,
                progress=making.progress,
                say=say,
            )
        files[name] = path
    return files, missing
