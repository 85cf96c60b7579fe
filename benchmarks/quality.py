"""Every calibrator of the peers that sees the logits alone beside ours with 1, 2, 4 and 17 passes.

On the records of this repository, each is fitted on 1000 images drawn at random and tested on the others, in several draws,
the same for all, by `compare`; those of the peers as `atta.Peer`s. "±" is the standard deviation over the draws.

    python -m benchmarks.quality [--quick]
"""

import importlib
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import atta
from atta import (
    CATTA,
    MATTA,
    VATTA,
    InputError,
    MeanTTATemperature,
    Method,
    Peer,
    Predictions,
    Record,
    SelectiveVATTA,
)
from atta.calibrators import Dirichlet, Histogram, Isotonic, TemperatureScaling, Vanilla
from atta.data.views import Policy
from atta.lab.compare import compare
from atta.results.rows import Row
from benchmarks import children
from benchmarks.measured import Asked, Measured, Role, Steps, alone

METRICS = ("brier", "mc_brier", "nll", "ece", "class_changes", "passes")
DRAWS, VALIDATION = 5, 1000
LIMIT = 40.0  # seconds for all draws of one calibrator
AUG8 = "flip + 5 crop + 5 brightness + 5 contrast"
FOUR = {"CIFAR-10": "3 nudge", "CIFAR-100": "3 nudge", "AID": "flip + 2 crop"}
"""Which views make four passes: what the record of that dataset holds."""


# ---------------------------------------------------------------------------------------------------------- records


def record(name: str) -> Record:
    """The record of a dataset, with all the views that four and seventeen passes take."""
    if name == "CIFAR-10":
        return atta.find_record("cifar10-resnet50-nudged")
    folder = children.ROOT / "records"
    if name == "AID":
        return Record.load(folder / "aid.safetensors")
    nudged = Record.load(
        folder / "cifar100_nudged.safetensors"
    )  # the first images of the other one
    whole = Record.load(folder / "cifar100.safetensors")[: len(nudged)]
    if not torch.equal(whole.require_labels(), nudged.require_labels()):
        raise InputError(
            "expected cifar100_nudged to be of the first images of cifar100, got other labels"
        )
    views = {**whole.predictions.views, "nudge": nudged.predictions.views["nudge"]}
    return Record(Predictions(whole.predictions.logits, views), whole.labels, whole.origin)


def shown(whole: Record, policy: str) -> Record:
    """The record with the views of a policy alone."""
    views = (
        whole.predictions.take(Policy.parse(policy).repeats)
        if policy
        else whole.predictions.select(())
    )
    return Record(views, whole.labels, whole.origin)


# ------------------------------------------------------------------------------------------------------ calibrators


def ours(name: str) -> dict[str, Sequence[Method]]:
    """Ours, by the views they are shown."""
    looking = (CATTA(), VATTA(), MeanTTATemperature())
    return {
        "": (Vanilla(), TemperatureScaling(), Isotonic(), Histogram(), Dirichlet()),
        "flip": looking,
        FOUR[name]: (*looking, SelectiveVATTA()),
        AUG8: (*looking, MATTA()),
    }


class Given:
    """What scikit-learn takes for a classifier: the logits are its decisions."""

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)

    def fit(self, x: Any, y: Any) -> "Given":
        """It is what it is."""
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The class of the largest logit."""
        return x.argmax(axis=1)

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        """The logits themselves."""
        return x


def of_scikit_learn(method: str) -> Any:
    """CalibratedClassifierCV on logits, which are somebody's decisions already."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Classifier(Given, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, classes: int = 2) -> None:
            super().__init__(classes)
            self.classes = classes

    class Calibrated:
        def fit(self, x: np.ndarray, y: np.ndarray) -> Any:
            return CalibratedClassifierCV(
                FrozenEstimator(Classifier(x.shape[1])), method=method
            ).fit(x, y)

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            raise NotImplementedError  # what `fit` returns is asked

    return Calibrated()


def _scikit_learn(classes: int) -> dict[str, Method]:
    from sklearn.linear_model import LogisticRegression

    methods = {name: of_scikit_learn(name) for name in ("temperature", "sigmoid", "isotonic")}
    methods["logistic regression"] = LogisticRegression(max_iter=1000)
    return {name: Peer(called=name, estimator=one) for name, one in methods.items()}


def _netcal(classes: int) -> dict[str, Method]:
    from netcal import binning, scaling

    scalings = ("TemperatureScaling", "LogisticCalibration", "BetaCalibration")
    rooms = dict.fromkeys(scalings, scaling) | dict.fromkeys(
        ("HistogramBinning", "IsotonicRegression", "BBQ", "ENIR"), binning
    )
    made = {name: getattr(room, name)() for name, room in rooms.items()}
    return {
        name: Peer(called=name, estimator=one, takes="probabilities") for name, one in made.items()
    }


PROBMETRICS = (
    "temp-scaling",
    "ts-mix",
    "svs",
    "sms",
    "platt",
    "isotonic",
    "ivap",
    "dircal",
    "dircal-cv",
)
PROBMETRICS_MORE = (
    "VectorScalingCalibrator",
    "MatrixScalingCalibrator",
    "ETSCalibrator",
    "SoftPlusCalibrator",
)


def _probmetrics(classes: int) -> dict[str, Method]:
    from probmetrics.calibrators.factory import get_calibrator

    def named(name: str) -> Any:
        if name in PROBMETRICS:
            return get_calibrator(name, svs_print_init_info=False, sms_print_init_info=False)
        modules = (
            importlib.import_module(f"probmetrics.calibrators.{room}")
            for room in ("logistic", "temperature_scaling")
        )
        return next(getattr(module, name)() for module in modules if hasattr(module, name))

    def fitting(name: str) -> Callable[[np.ndarray, np.ndarray], Any]:
        return lambda x, y: named(name).fit(
            x, y
        )  # made when it is fitted: some want a library that is not there

    def predicting(fitted: Any, x: np.ndarray) -> Any:
        return fitted.predict_proba(x)

    every = (*PROBMETRICS, *PROBMETRICS_MORE)
    return {
        name: Peer(called=name, fitting=fitting(name), predicting=predicting, takes="probabilities")
        for name in every
    }


def _torch_uncertainty(classes: int) -> dict[str, Method]:
    from torch_uncertainty.post_processing import calibration

    plain = ("TemperatureScaler", "HistogramBinningScaler", "IsotonicRegressionScaler", "BBQScaler")
    sized = ("VectorScaler", "MatrixScaler", "DirichletScaler")

    def fitting(name: str) -> Callable[[np.ndarray, np.ndarray], Any]:
        def fit(x: np.ndarray, y: np.ndarray) -> Any:
            made = getattr(calibration, name)(**({"num_classes": classes} if name in sized else {}))
            made.fit([(torch.from_numpy(x).float(), torch.from_numpy(y))], progress=False)
            return made

        return fit

    def predicting(fitted: Any, x: np.ndarray) -> Any:
        return fitted(torch.from_numpy(x).float()).double().softmax(dim=1)

    return {
        name: Peer(called=name, fitting=fitting(name), predicting=predicting)
        for name in (*plain, *sized)
    }


LIBRARIES: Mapping[str, Callable[[int], dict[str, Method]]] = {
    "scikit-learn": _scikit_learn,
    "netcal": _netcal,
    "probmetrics": _probmetrics,
    "torch-uncertainty": _torch_uncertainty,
}


# -------------------------------------------------------------------------------------------------------- measuring


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of each metric over the draws, its standard deviation, and the classes that were changed in all of them."""
    found = {}
    for metric in METRICS:
        values = [row.value for row in rows if row.metric == metric]
        found[metric] = sum(values) if metric == "class_changes" else statistics.fmean(values)
        found[f"{metric} ±"] = statistics.stdev(values) if len(values) > 1 else 0.0
    tested = sum(row.metric == "brier" for row in rows)
    return {
        **{
            name: value
            for name, value in found.items()
            if name not in ("class_changes ±", "passes ±")
        },
        "draws": tested,
    }


def measure(
    name: str, library: str, draws: int, images: int | None, limit: float
) -> list[dict[str, Any]]:
    """Fit and test all of one library, or ours, in this process; what fails says why."""
    whole = record(name)[slice(images)]
    if library:
        jobs = [
            ("", f"{library}: {own}", method)
            for own, method in LIBRARIES[library](whole.predictions.classes).items()
        ]
    else:
        jobs = [
            (policy, method.name, method)
            for policy, methods in ours(name).items()
            for method in methods
        ]
    found = []
    for policy, who, method in jobs:
        row: dict[str, Any] = {"who": f"{who} · {policy}" if policy else who}
        try:
            with children.within(limit), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = compare(
                    {name: shown(whole, policy)}, [method], validation=VALIDATION, splits=draws
                ).rows
            row["numbers"] = summary(rows)
        except (children.Failed, InputError) as error:
            row["note"] = children.reason(str(error), 1)
        found.append(row)
    return found


def contest(
    name: str, library: str, draws: int, images: int | None = None, limit: float = LIMIT
) -> list[Measured]:
    """All of one library on one dataset."""
    role: Role = "peer" if library else "ours"
    try:
        found = children.call(
            "benchmarks.quality:measure", name, library, draws, images, limit, limit=20 * limit
        )
    except children.Failed as error:
        return [Measured(name, library, role=role, note=str(error))]
    return [
        Measured(name, one["who"], one.get("numbers", {}), role, one.get("note", ""))
        for one in found
    ]


def steps(asked: Asked) -> Steps:
    """Each library on each dataset."""
    few = (1, 1200, 10.0) if asked.quick else (DRAWS, None, LIMIT)
    return {
        f"{name}, {library or 'ours'}": partial(contest, name, library, *few)
        for name in (("CIFAR-10",) if asked.quick else FOUR)
        for library in ("", *LIBRARIES)
    }


if __name__ == "__main__":
    alone(steps, __doc__)
