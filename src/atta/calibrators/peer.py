"""Calibrators of other libraries as methods: an estimator, or two functions.

    Peer(called="logistic", estimator=LogisticRegression())
    Peer(called="netcal", estimator=netcal.scaling.LogisticCalibration(), takes="probabilities")
    Peer(called="prior", fitting=lambda x, y: y.mean(), predicting=lambda fitted, x: ...)

They get NumPy arrays of float64, one row per image, and integer labels. Their probabilities are
checked, and the classes that they change are counted as for all methods. They guarantee nothing,
cannot be saved, and stay in this process.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from atta._base.errors import InputError, first_line
from atta._base.settings import shown
from atta._base.types import Labels, Logits, Probs
from atta.calibrators.base import Calibrator, Method, Views
from atta.metrics.per_image import as_tensor, per_image, validate
from atta.record.predictions import Predictions


@dataclass(frozen=True, kw_only=True, eq=False)
class Peer(Method):
    """A calibrator of another library, or your own, as a method.

    Use it to compare other calibrators with those of this package.

    Args:
        called: The name in tables.
        estimator: An object with `fit(x, y)` and `predict_proba(x)` or `transform(x)`; each fit
            uses a copy of it.
        fitting: Instead of an estimator, a function of (x, y) that returns what was learned.
        predicting: With `fitting`, a function of (learned, x) that returns probabilities.
        takes: What x is: "logits", or "probabilities" for their softmax.

    >>> def predict(learned, x):
    ...     return np.full_like(x, 1 / x.shape[1])
    >>> uniform = Peer(called="uniform", fitting=lambda x, y: None, predicting=predict)
    >>> uniform.fit(torch.zeros(2, 2), [0, 1])(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    called: str
    estimator: Any = None
    fitting: Any = None
    predicting: Any = None
    takes: Literal["logits", "probabilities"] = "logits"

    name = "peer"
    summary = "a calibrator of another library"
    keeps_class = False  # nobody guarantees it; results count the classes that it changes
    foreign = True

    __eq__, __hash__ = object.__eq__, object.__hash__  # the objects of others may support neither

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.called:
            raise InputError("called must be a name for the tables, got ''")
        functions = [one for one in (self.fitting, self.predicting) if one is not None]
        wanted = 2 if self.estimator is None else 0
        if len(functions) != wanted or not all(map(callable, functions)):
            raise InputError(
                f"{self.called}: expected an estimator, or two functions, fitting and predicting"
            )
        if isinstance(self.estimator, type):
            raise InputError(
                f"{self.called}: expected an estimator, "
                f"got the class {self.estimator.__name__}: call it first"
            )
        fit = getattr(self.estimator, "fit", None)
        if self.estimator is not None and not (callable(fit) and self.predictor()):
            raise InputError(
                f"{self.called}: expected an estimator with fit and predict_proba (or transform), "
                f"got {shown(self.estimator)}"
            )
        object.__setattr__(self, "name", self.called)  # the label in rows and tables

    def settings(self) -> dict[str, Any]:
        """Return the settings as text."""
        named = {
            key: getattr(value, "__qualname__", shown(value))
            for key in ("estimator", "fitting", "predicting")
            if (value := getattr(self, key)) is not None
        }
        return {"called": self.called, **named, "takes": self.takes}

    def learn(self, predictions: Predictions, labels: Labels) -> PeerCalibrator:
        """Fit a copy, so that the given estimator stays unfitted."""
        x, y = self.inputs(predictions.logits), labels.cpu().numpy()
        with _errors_named(f"{self.called} could not be fitted"):
            if self.estimator is None:
                return PeerCalibrator(self, self.fitting(x, y))
            own = copy.deepcopy(self.estimator)
            fitted = own.fit(x, y)
        return PeerCalibrator(self, own if fitted is None else fitted)

    def inputs(self, logits: Logits) -> np.ndarray:
        """Return the logits or their softmax as an array of float64."""
        wide = logits.detach().cpu().double()
        return np.asarray(wide.softmax(dim=-1) if self.takes == "probabilities" else wide)

    def predictor(self) -> str:
        """Return the name of the method that predicts."""
        names = ("predict_proba", "transform")
        return next((name for name in names if callable(getattr(self.estimator, name, None))), "")


class PeerCalibrator(Calibrator):
    """What an object of another library has learned."""

    def __init__(self, peer: Peer, fitted: Any) -> None:
        super().__init__()
        self.peer, self.fitted = peer, fitted

    def calibrate(self, logits: Logits, views: Views) -> Probs:
        """Predict, and check the probabilities."""
        if torch.compiler.is_compiling():
            raise InputError(
                f"{self.peer.called} is a Python object, which cannot be exported as a graph"
            )
        peer, x = self.peer, self.peer.inputs(logits)
        with _errors_named(f"{peer.called} could not answer {len(logits)} images"):
            if peer.estimator is None:
                answer = peer.predicting(self.fitted, x)
            else:
                answer = getattr(self.fitted, peer.predictor())(x)
        who = f"what {self.peer.called} answers"
        probs = as_tensor(answer, who)
        seen = getattr(self.fitted, "classes_", None)
        if seen is not None and probs.ndim == 2 and probs.shape[1] == len(seen) < logits.shape[1]:
            # scikit-learn returns a column only for each class among the labels.
            probs = probs.new_zeros(logits.shape).index_copy_(
                1, torch.as_tensor(np.asarray(seen, dtype=np.int64)), probs
            )
        if probs.shape != logits.shape:
            raise InputError(
                f"{who}: expected a probability for each of {tuple(logits.shape)} images and "
                f"classes, got shape {tuple(probs.shape)}"
            )
        try:
            deque(per_image(validate(probs, None)[0], None, simplex=True), maxlen=0)
        except InputError as error:
            raise InputError(f"{who}: {str(error).removeprefix('probs: ')}") from None
        return probs.to(logits)

    def header(self) -> dict[str, str]:
        """Refuse: a file holds numbers, and this may be anything."""
        raise InputError(
            f"{self.peer.called} is an object of another library, which atta cannot save: "
            "save it as its library does"
        )


@contextmanager
def _errors_named(what: str) -> Iterator[None]:
    """Turn any error into an InputError that names the calibrator."""
    try:
        yield
    except Exception as error:  # the code of others may raise anything
        raise InputError(f"{what}: {type(error).__name__}: {first_line(error)}") from error
