"""Experiments as data: what is fitted on which rows of which record, and tested on which.

experiments/in-distribution-cifar10.toml ──► Experiment ──► run(experiment, records) ──► Results
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from atta._base.errors import InputError, suggest
from atta.calibrators import Method, find_method
from atta.data.views import Policy
from atta.lab.fits import RECORDED
from atta.lab.measure import MEASURES
from atta.lab.policy_rules import RULES
from atta.results.words import CLASS_CHANGES, FITTED, REST

Settings: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper, or of your own: everything that decides its numbers, as in its TOML file.

    `dataset`     what the tables call it
    `fit`         the record to fit on; `validation` of its rows, drawn `splits` times
    `test`        "rest": the other rows of that record; "fitted": the fitted ones themselves; or another record
    `aligned`     the rows of that other record are the last rows of the fitted one, the same images in another state: those
                  fitted on are left out
    `methods`     by the name the tables give them: settings, and `method` where that is not the name itself, and `policy` or
                  `policies` where a method has its own; or, in Python, a method as it is
    `policies`    the policies of views that methods are tried with; "recorded" takes the record's views as they are
    `choose`      rules by which one of the policies is chosen (`policy_rules.RULES`); without any, each stands for itself
    `validation`  numbers of images to fit on; 0 is all of them
    `seeds`       of methods that draw random numbers when they are fitted
    `published`   where in the paper's numbers (`atta.lab.paper.published`) this experiment's are
    """

    name: str
    dataset: str
    fit: str
    methods: Mapping[str, Settings | Method]
    test: str = REST
    aligned: bool = False
    policies: tuple[str, ...] = (RECORDED,)
    choose: tuple[str, ...] = ()
    validation: tuple[int, ...] = (1000,)
    splits: int = 10
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = ("brier", "ece", "mc_brier", "nll", "accuracy", CLASS_CHANGES)
    title: str = ""
    paper: str = ""
    published: str = ""

    def __post_init__(self) -> None:
        own = {
            label: one if isinstance(one, Method) else dict(one)
            for label, one in self.methods.items()
        }
        object.__setattr__(self, "methods", MappingProxyType(own))
        for name in (
            "name",
            "dataset",
            "fit",
            "test",
            "methods",
            "policies",
            "validation",
            "seeds",
            "metrics",
        ):
            if not getattr(self, name):
                self._refuse(f"{name}: expected at least one, got none")
        for name in ("policies", "choose", "validation", "seeds", "metrics"):
            if twice := [one for one, count in Counter(getattr(self, name)).items() if count > 1]:
                self._refuse(f"{name}: expected each once, got {twice[0]!r} twice")
        if self.test == self.fit:
            self._refuse(
                f"test: {self.fit} is fitted on; expected {REST!r}, {FITTED!r} or another record"
            )
        if self.aligned and self.test in (REST, FITTED):
            self._refuse(f"aligned: expected another record to test on, got {self.test!r}")
        if self.splits < 1:
            self._refuse(f"splits: expected at least 1, got {self.splits}")
        if min(self.validation) < 0:
            self._refuse(f"validation: expected numbers of images, got {min(self.validation)}")
        _check_names(f"experiment {self.name!r}: choose", self.choose, RULES)
        _check_names(f"experiment {self.name!r}: metrics", self.metrics, MEASURES)
        for label in self.methods:
            try:
                self.method(label)
                self.tried(label)
            except InputError as error:
                self._refuse(f"methods: {label}: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"experiment {self.name!r}: {what}") from None

    def method(self, label: str, seed: int = 0) -> Method:
        """The method behind a name of the tables, with its settings, and this seed where the experiment gives it one."""
        own = self.methods[label]
        if isinstance(own, Method):
            return own
        settings = {name: value for name, value in own.items() if name not in _OUTSIDE}
        found = find_method(str(own.get("method", label)), **settings)
        return replace(found, seed=seed) if _draws(found) and "seed" not in own else found  # type: ignore[call-arg]

    def seeded(self, label: str) -> tuple[int, ...]:
        """The seeds a method is fitted with: one that draws nothing, or comes with its own seed, is fitted once."""
        own, method = self.methods[label], self.method(label)
        if _draws(method) and not isinstance(own, Method) and "seed" not in own:
            return self.seeds
        return (getattr(method, "seed", 0),)

    def tried(self, label: str) -> tuple[str, ...]:
        """The policies a method is tried with; "" alone for one that needs no views."""
        if not self.method(label).needs_views:
            return ("",)
        own = self.methods[label]
        given = (
            self.policies
            if isinstance(own, Method)
            else own.get("policies", own.get("policy", self.policies))
        )
        policies = (
            (given,)
            if isinstance(given, str)
            else tuple(given)
            if isinstance(given, list | tuple)
            else ()
        )
        if not policies or not all(isinstance(policy, str) for policy in policies):
            raise InputError(
                f"expected a policy, such as 'flip + 5 crop', or a list of them, got {given!r}"
            )
        for policy in policies:
            if policy != RECORDED:
                Policy.parse(policy)
        return policies

    def changed(self, *, splits: int | None = None, validation: int | None = None) -> Experiment:
        """The experiment with other draws; of several sizes of the validation set, the first becomes `validation`."""
        sizes = self.validation
        if validation is not None:
            sizes = tuple(
                round(size * validation / sizes[0]) if sizes[0] else validation for size in sizes
            )
            if len(set(sizes)) < len(sizes):
                self._refuse(f"{len(sizes)} sizes from {validation} images on would not differ")
        return replace(self, splits=self.splits if splits is None else splits, validation=sizes)

    @classmethod
    def of(cls, content: Settings, source: str = "an experiment") -> Experiment:
        """Make one from plain values; a key that it does not have is named, with those it has."""
        _check_names(source, content, [f.name for f in fields(cls)], "key")
        needed = [name for name in ("name", "dataset", "fit", "methods") if name not in content]
        if needed:
            raise InputError(f"{source}: expected {', '.join(needed)}, which it does not have")
        return cls(
            **{name: _typed(f"{source}: {name}", name, value) for name, value in content.items()}
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """Read a TOML file."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a TOML file ({error})") from None
        except RecursionError:
            raise InputError(
                f"{path} is not an experiment: expected values, got lists inside of lists, too deep to be read"
            ) from None
        return cls.of({"name": Path(path).stem, **content}, str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: what cannot be changed cannot be packed."""
        return partial(Experiment, **{**vars(self), "methods": dict(self.methods)}), ()

    def about(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def described(method: Method) -> dict[str, Any]:
    """A method as plain values: its name and its settings."""
    return {
        "method": method.name,
        **{name: _plain(value) for name, value in method.settings().items()},
    }


def _draws(method: Method) -> bool:
    return "seed" in {f.name for f in fields(method)}


_OUTSIDE = ("method", "policy", "policies")
_LISTS: dict[str, type] = {
    "policies": str,
    "choose": str,
    "metrics": str,
    "validation": int,
    "seeds": int,
}
_KINDS: dict[str, type] = {"aligned": bool, "splits": int}
_CALLED: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}


def _typed(where: str, name: str, value: Any) -> Any:
    """A value as the experiment holds it, if it is of the right type; one alone is a list of one."""
    if name == "methods":
        if not isinstance(value, Mapping) or not all(
            isinstance(own, Mapping) for own in value.values()
        ):
            raise InputError(
                f"{where}: expected a table for each, such as [methods.v-atta], got {value!r}"
            )
        return value
    if name in _LISTS:
        given = value if isinstance(value, list | tuple) else (value,)
        return tuple(_one(where, _LISTS[name], item) for item in given)
    return _one(where, _KINDS.get(name, str), value)


def _one(where: str, kind: type, value: Any) -> Any:
    if type(value) is not kind:  # exactly: True is no number of images
        raise InputError(f"{where}: expected {_CALLED[kind]}, got {value!r}")
    return value


def _check_names(
    where: str, given: Iterable[str], known: Iterable[str], what: str = "name"
) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"{where}: unknown {what} {name!r}.{suggest(name, known)} Known: {', '.join(known)}"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return described(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
