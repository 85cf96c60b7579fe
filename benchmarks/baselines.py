"""Calibrators that see the logits alone, ours and those of the peers: what fitting and predicting take.

Each runs in a process of its own and is given what it takes (logits or probabilities, torch or NumPy) before the clock
starts, on one thread. Memory is what is held at the peak beyond the data. "apart" is how far its probabilities are from ours
at most, over the images whose class both keep; "nll" is that of the images it was fitted on. The limits: one NLL is what a
fit has to compute at least once, one softmax what an answer is at least, and a copy of the logits is what the memory can do.

    python -m benchmarks.baselines [--quick]
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import atta
from benchmarks import children
from benchmarks.measured import (
    OURS,
    Asked,
    Measured,
    Steps,
    alone,
    extra_megabytes,
    role_of,
    seconds,
    sized,
    too_sure,
    usual_seconds,
)

BINS = 15
LAMBDA, MU = (
    100.0,
    1.0,
)  # of torch-uncertainty's Dirichlet loss, which takes means where ours takes sums
SAMPLE = 2000  # images on which answers are compared
COVERAGE = 0.9
LIMIT = 240.0  # seconds for everything that is done in one process


@dataclass(frozen=True)
class Way:
    """How someone does it: what it takes of the logits, how it is fitted, and how it answers."""

    fit: Callable[[Any, Any], Any]
    predict: Callable[[Any, Any], Any]
    x: Callable[[Tensor], Any] = lambda logits: logits
    y: Callable[[Tensor], Any] = lambda labels: labels


def probabilities(logits: Tensor) -> np.ndarray:
    """The softmax in float64, as NumPy has it: netcal returns its input where it is given float32."""
    return logits.double().softmax(dim=1).numpy()


def ours(method: atta.Method) -> Way:
    return Way(lambda x, y: method.fit(x, y), lambda fitted, x: fitted(x), x=atta.Predictions)


def ours_normalized(method: atta.Method) -> Way:
    """Divided by their sum, as the peers do; by default ours carries the class along instead."""

    def predict(fitted: Any, x: atta.Predictions) -> Tensor:
        mapped = fitted(x)
        return mapped.div_(mapped.sum(dim=1, keepdim=True).clamp_(min=1e-12))

    return Way(lambda x, y: method.fit(x, y), predict, x=atta.Predictions)


def netcal(make: Callable[[], Any]) -> Way:
    def fit(x: np.ndarray, y: np.ndarray) -> Any:
        made = make()
        made.fit(x, y)
        return made

    return Way(fit, lambda fitted, x: fitted.transform(x), probabilities, Tensor.numpy)


def probmetrics(name: str) -> Way:
    from probmetrics.calibrators.factory import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    def fit(x: Tensor, y: Tensor) -> Any:
        made = get_calibrator(name)
        made.fit_torch(CategoricalLogits(x), y)  # made anew each time: it keeps the softmax
        return made

    return Way(fit, lambda fitted, x: fitted.predict_proba_torch(CategoricalLogits(x)).get_probs())


def torch_uncertainty(make: Callable[[], Any]) -> Way:
    def fit(x: Tensor, y: Tensor) -> Any:
        made = make()
        made.fit([(x, y)], progress=False)  # one batch: what a loader would give, without its time
        return made

    return Way(fit, lambda fitted, x: fitted(x).softmax(dim=1))


def sklearn_isotonic() -> Way:
    from sklearn.isotonic import IsotonicRegression

    def fit(x: np.ndarray, y: np.ndarray) -> list[Any]:
        return [
            IsotonicRegression(out_of_bounds="clip").fit(x[:, k], y == k) for k in range(x.shape[1])
        ]

    def predict(fitted: list[Any], x: np.ndarray) -> np.ndarray:
        answers = np.stack([one.predict(x[:, k]) for k, one in enumerate(fitted)], axis=1)
        return answers / answers.sum(axis=1, keepdims=True).clip(min=1e-12)

    return Way(fit, predict, probabilities, Tensor.numpy)


def sklearn_temperature() -> Way:
    from benchmarks.quality import of_scikit_learn

    def fit(x: np.ndarray, y: np.ndarray) -> Any:
        return of_scikit_learn("temperature").fit(x, y)

    return Way(fit, lambda fitted, x: fitted.predict_proba(x), Tensor.numpy, Tensor.numpy)


def limit() -> Way:
    return Way(lambda x, y: F.cross_entropy(x, y), lambda _, x: x.softmax(dim=1))


def copy() -> Way:
    return Way(lambda x, y: x.clone(), lambda _, x: x.clone())


def _netcal(room: str, name: str, **settings: Any) -> Way:
    import importlib

    return netcal(lambda: getattr(importlib.import_module(f"netcal.{room}"), name)(**settings))


def _torch_uncertainty(name: str, **settings: Any) -> Way:
    from torch_uncertainty.post_processing import calibration

    return torch_uncertainty(lambda: getattr(calibration, name)(**settings))


class Given:
    """An estimator for MAPIE that returns the probabilities it is given."""

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Given":
        """Learn nothing."""
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Return the probabilities."""
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the most likely classes."""
        return x.argmax(axis=1)


def our_sets(score: str) -> Way:
    method = atta.Conformal(coverage=COVERAGE, score=score)
    return Way(method.fit, lambda fitted, x: fitted(x), lambda logits: logits.softmax(dim=1))


def mapie_sets(score: str, classes: int) -> Way:
    from mapie.classification import SplitConformalClassifier

    def fit(x: np.ndarray, y: np.ndarray) -> Any:
        made = SplitConformalClassifier(
            Given(classes), COVERAGE, conformity_score=score, prefit=True
        )
        return made.conformalize(x, y)

    return Way(fit, lambda fitted, x: fitted.predict_set(x)[1], probabilities, Tensor.numpy)


def _dirichlet(classes: int) -> atta.Method:
    """The loss of torch-uncertainty's, in our words."""
    return atta.Dirichlet(grid=[(LAMBDA / (classes * (classes - 1)), MU / classes)], diagonal=0)


LIMITS = {"one NLL, one softmax": lambda k: limit(), "a copy of the logits": lambda k: copy()}
WAYS: Mapping[str, Mapping[str, Callable[[int], Way]]] = {
    "temperature": {
        OURS: lambda k: ours(atta.TemperatureScaling()),
        "netcal": lambda k: _netcal("scaling", "TemperatureScaling"),
        "probmetrics": lambda k: probmetrics("temp-scaling"),
        "torch-uncertainty": lambda k: _torch_uncertainty("TemperatureScaler"),
        "scikit-learn": lambda k: sklearn_temperature(),
    },
    "isotonic, class by class": {
        OURS: lambda k: ours_normalized(atta.Isotonic(pooled=False, normalize=False)),
        "netcal": lambda k: _netcal("binning", "IsotonicRegression"),
        "probmetrics": lambda k: probmetrics("isotonic"),
        "torch-uncertainty": lambda k: _torch_uncertainty("IsotonicRegressionScaler"),
        "scikit-learn": lambda k: sklearn_isotonic(),
    },
    "histogram, class by class": {
        OURS: lambda k: ours_normalized(atta.Histogram(bins=BINS, pooled=False, normalize=False)),
        "netcal": lambda k: _netcal("binning", "HistogramBinning", bins=BINS),
        "torch-uncertainty": lambda k: _torch_uncertainty("HistogramBinningScaler", num_bins=BINS),
    },
    "Dirichlet, λ and μ given": {
        OURS: lambda k: ours(_dirichlet(k)),
        "torch-uncertainty": lambda k: _torch_uncertainty(
            "DirichletScaler", num_classes=k, lambda_reg=LAMBDA, mu_reg=MU
        ),
    },
    "sets, APS": {
        OURS: lambda k: our_sets("aps"),
        "mapie": lambda k: mapie_sets("aps", k),
    },
    "sets, smallest": {
        OURS: lambda k: our_sets("threshold"),
        "mapie": lambda k: mapie_sets("lac", k),
    },
}
"""Who does the same, by method: a function of the number of classes."""
SIZES = {
    "temperature": ((1000, 10), (100_000, 100), (1_000_000, 100)),
    "isotonic, class by class": ((1000, 10), (100_000, 100)),
    "histogram, class by class": ((1000, 10), (100_000, 100)),
    "Dirichlet, λ and μ given": ((1000, 10), (1000, 100)),
    "sets, APS": ((1000, 10), (100_000, 100)),
    "sets, smallest": ((1000, 10), (100_000, 100)),
}


def as_probs(answer: Any) -> Tensor:
    """Answers of any library in float64; some are torch's, some NumPy's."""
    return torch.as_tensor(np.asarray(answer)).double()


def measure(method: str, who: str, images: int, classes: int, sample: str) -> dict[str, float]:
    """Fit and predict in this process; answers to the first images are written to `sample`."""
    way = (LIMITS | dict(WAYS[method]))[who](classes)
    few = too_sure(20 * classes, classes)
    way.predict(way.fit(way.x(few[0]), way.y(few[1])), way.x(few[0]))  # warm up: some compile
    logits, labels = too_sure(images, classes)
    x, y = way.x(logits), way.y(labels)
    fitted, times = [], []
    fit_mb = extra_megabytes(lambda: times.append(seconds(lambda: fitted.append(way.fit(x, y)))))
    answered: list[Any] = []
    predict_mb = extra_megabytes(
        lambda: times.append(seconds(lambda: answered.append(way.predict(fitted[0], x))))
    )
    fit, predict = times
    if fit < 1:
        fit = usual_seconds(lambda: way.fit(x, y))
    if predict < 1:
        predict = usual_seconds(lambda: way.predict(fitted[0], x))
    numbers = {"fit": fit, "predict": predict, "fit_mb": fit_mb, "predict_mb": predict_mb}
    if who in LIMITS or method.startswith("sets"):  # sets are no probabilities to compare
        return numbers
    probs = as_probs(answered[0][:SAMPLE])
    probs[probs.argmax(dim=1) != logits[:SAMPLE].argmax(dim=1)] = torch.nan
    np.save(sample, probs.numpy())
    own = torch.as_tensor(np.asarray(answered[0]))[torch.arange(images), labels].double()
    return {**numbers, "nll": float(-own.clamp(min=1e-30).log().mean())}


def apart(theirs: np.ndarray, ours: np.ndarray) -> float:
    """How far answers are from ours at most; nan stands for images whose class was changed."""
    return float(np.nanmax(abs(theirs - ours)))


def contest(method: str, images: int, classes: int, most: float = LIMIT) -> list[Measured]:
    """Everyone who does it, one after the other, and how far their answers are from ours."""
    what = f"{method}, {sized(images, classes)}"
    rows, answers = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for i, who in enumerate((*WAYS[method], *LIMITS)):
            sample, role = Path(folder) / f"{i}.npy", role_of(who, LIMITS)
            own = (method, who, images, classes, str(sample))
            row = children.measured(
                what, who, role, "benchmarks.baselines:measure", *own, limit=most
            )
            if sample.exists():
                answers[who] = np.load(sample)
                if OURS in answers:
                    row = replace(
                        row, numbers={**row.numbers, "apart": apart(answers[who], answers[OURS])}
                    )
            rows.append(row)
    return rows


def steps(asked: Asked) -> Steps:
    """Each method at each size."""

    def sizes(method: str) -> Sequence[tuple[int, int]]:
        return ((300, 5),) if asked.quick else SIZES[method]

    return {
        f"{method}, {sized(*size)}": partial(
            contest, method, *size, most=60.0 if asked.quick else LIMIT
        )
        for method in WAYS
        for size in sizes(method)
    }


if __name__ == "__main__":
    alone(steps, __doc__)
