"""Somebody else's calibrator as a method: any object with `fit` and `predict_proba`, or two functions, on logits or softmax.

    Peer(called="logistic", estimator=LogisticRegression())
    Peer(called="netcal", estimator=netcal.scaling.LogisticCalibration(), takes="probabilities")    # `transform` will do
    Peer(called="prior", fitting=lambda x, y: y.mean(), predicting=lambda fitted, x: ...)

It is given NumPy arrays of float64, a row an image, and labels as whole numbers; what it answers is checked, and how many
classes it changes is counted with all other numbers. It promises nothing, has no file, and leaves this process in no way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from atta._base.errors import InputError, first_line
from atta._base.settings import shown
from atta._base.types import Labels, Logits, Probs, RepeatLogits
from atta.calibrators.base import Calibrator, Method
from atta.metrics.per_image import as_tensor, per_image, validate
from atta.record.predictions import Predictions


@dataclass(frozen=True, kw_only=True, eq=False)
class Peer(Method):
    """A calibrator of another library, or of your own, beside ours; `called` is what tables call it.

    `estimator`   an object with `fit(x, y)` and `predict_proba(x)` or `transform(x)`; each fit is one of a copy of it
    `fitting`     or a function of (x, y) that returns what was learned
    `predicting`  and one of (learned, x) that returns probabilities
    `takes`       what x is: the logits, or their softmax ("probabilities")
    """

    called: str
    estimator: Any = None
    fitting: Any = None
    predicting: Any = None
    takes: Literal["logits", "probabilities"] = "logits"

    name: ClassVar[str] = "peer"
    summary: ClassVar[str] = "somebody else's calibrator"

    __eq__, __hash__ = object.__eq__, object.__hash__  # others' objects may not know either

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.called:
            raise InputError("called must be a name for the tables, got ''")
        functions = [one for one in (self.fitting, self.predicting) if one is not None]
        if len(functions) != (2 if self.estimator is None else 0) or not all(
            map(callable, functions)
        ):
            raise InputError(
                f"{self.called}: expected an estimator, or two functions, fitting and predicting"
            )
        if isinstance(self.estimator, type):
            raise InputError(
                f"{self.called}: expected an estimator, got the class {self.estimator.__name__}: call it first"
            )
        if self.estimator is not None and not (_has(self.estimator, "fit") and self._asked()):
            got = shown(self.estimator)
            raise InputError(
                f"{self.called}: expected an estimator with fit and predict_proba (or transform), got {got}"
            )
        object.__setattr__(self, "name", self.called)  # what rows and tables are labelled by

    @property
    def keeps_class(self) -> bool:
        """Nobody has promised it; the results say how many classes it changed."""
        return False

    @property
    def foreign(self) -> bool:
        """What it learns is somebody else's object."""
        return True

    def settings(self) -> dict[str, Any]:
        """What can be said of it in words."""
        given = {
            "estimator": self.estimator,
            "fitting": self.fitting,
            "predicting": self.predicting,
        }
        named = {
            key: getattr(value, "__qualname__", shown(value))
            for key, value in given.items()
            if value is not None
        }
        return {"called": self.called, **named, "takes": self.takes}

    def learn(self, predictions: Predictions, labels: Labels) -> PeerCalibrator:
        """Fit a copy, so that the one that was given stays as it was."""
        x, y = self.given(predictions.logits), labels.cpu().numpy()
        with _its_own_words(f"{self.called} could not be fitted"):
            if self.estimator is None:
                return PeerCalibrator(self, self.fitting(x, y))
            own = copy.deepcopy(self.estimator)
            fitted = own.fit(x, y)
        return PeerCalibrator(self, own if fitted is None else fitted)

    def given(self, logits: Logits) -> np.ndarray:
        """What it is given of logits."""
        wide = logits.detach().cpu().double()
        return np.asarray(wide.softmax(dim=-1) if self.takes == "probabilities" else wide)

    def answer(self, fitted: Any, x: np.ndarray) -> Any:
        """What it says, unchecked."""
        if self.estimator is None:
            return self.predicting(fitted, x)
        return getattr(fitted, self._asked())(x)

    def _asked(self) -> str:
        return next(
            (name for name in ("predict_proba", "transform") if _has(self.estimator, name)), ""
        )


class PeerCalibrator(Calibrator):
    """What somebody else's object has learned."""

    def __init__(self, peer: Peer, fitted: Any) -> None:
        super().__init__()
        self.peer, self.fitted = peer, fitted

    def calibrate(self, logits: Logits, views: Mapping[str, RepeatLogits]) -> Probs:
        """Ask it, and check what comes back."""
        if torch.compiler.is_compiling():
            raise InputError(
                f"{self.peer.called} is an object of Python, of which no graph can be made"
            )
        with _its_own_words(f"{self.peer.called} could not answer {len(logits)} images"):
            answer = self.peer.answer(self.fitted, self.peer.given(logits))
        return self._checked(answer, logits).to(logits)

    def _checked(self, answer: Any, logits: Logits) -> Tensor:
        who = f"what {self.peer.called} answers"
        probs = as_tensor(answer, who)
        seen = getattr(self.fitted, "classes_", None)
        if seen is not None and probs.ndim == 2 and probs.shape[1] == len(seen) < logits.shape[1]:
            # scikit-learn's habit: a column for each class that was among the labels.
            probs = probs.new_zeros(logits.shape).index_copy_(
                1, torch.as_tensor(np.asarray(seen, dtype=np.int64)), probs
            )
        if probs.shape != logits.shape:
            got = f"shape {tuple(probs.shape)}"
            raise InputError(
                f"{who}: expected a probability for each of {tuple(logits.shape)} images and classes, got {got}"
            )
        try:
            for _ in per_image(validate(probs, None)[0], None, simplex=True):
                pass  # which has looked at them
        except InputError as error:
            raise InputError(f"{who}: {str(error).removeprefix('probs: ')}") from None
        return probs

    def header(self) -> dict[str, str]:
        """There is none: a file holds numbers, and this may be anything."""
        raise InputError(
            f"{self.peer.called} is somebody else's object, which atta cannot save: save it as its library does"
        )


@contextmanager
def _its_own_words(what: str) -> Iterator[None]:
    """Say whose error it is."""
    try:
        yield
    except Exception as error:  # it is someone's code, and may raise anything
        raise InputError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


def _has(thing: Any, name: str) -> bool:
    return callable(getattr(thing, name, None))
