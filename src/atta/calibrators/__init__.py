"""Every way to calibrate: a method is fitted to predictions and labels, and what it has learned is a calibrator.

A method is a frozen dataclass of settings, a calibrator an `nn.Module` of buffers (`base`). Here are all of them by name
(METHODS, CALIBRATORS), and calibrators from files (`load`).

| module           | calibrators (what is learned) | methods (how)                                |
|------------------|-------------------------------|----------------------------------------------|
| scaling          | Temperature, Affine           | vanilla, temperature, dirichlet              |
| probability_maps | Steps, Polyline               | histogram, isotonic                          |
| atta             | ViewBlend                     | m-atta, v-atta                               |
| averages         | AverageBlend, ViewMean        | adaptive-tta, mean-tta, mean-tta-temperature |
| convex           | ViewBlend                     | c-atta                                       |
| shrunk           | ViewBlend                     | shrunk-m-atta                                |
| selective        | StagedBlend                   | selective-v-atta, sequential-v-atta          |
| hedged           | Temperature, ViewBlend        | hedged-temperature, hedged-c-atta            |

Beside them: `shift` estimates the accuracy on images without labels and softens a calibrator to it, `conformal` makes sets of
classes of any calibrator's answers, `peer` makes a method of somebody else's, `crossval` judges methods on held-out images,
`fitting` finds minima, and `slopes` is the gradient of M-ATTA's loss, written out.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atta._base.errors import InputError, first_line, suggest
from atta._base.settings import shown
from atta._base.tensors import read_tensors
from atta.calibrators.atta import MATTA, VATTA, ViewBlend
from atta.calibrators.averages import (
    AdaptiveTTA,
    AverageBlend,
    MeanTTA,
    MeanTTATemperature,
    ViewMean,
)
from atta.calibrators.base import Calibrator, Method, check_format
from atta.calibrators.convex import CATTA
from atta.calibrators.hedged import HedgedCATTA, HedgedTemperature
from atta.calibrators.maps import Histogram, Isotonic, Polyline, Steps
from atta.calibrators.peer import Peer
from atta.calibrators.scaling import Affine, Dirichlet, Temperature, TemperatureScaling, Vanilla
from atta.calibrators.selective import SelectiveVATTA, SequentialVATTA, StagedBlend
from atta.calibrators.shrunk import ShrunkMATTA
from atta.record.predictions import Predictions

__all__ = [
    "CALIBRATORS",
    "CATTA",
    "MATTA",
    "METHODS",
    "VATTA",
    "AdaptiveTTA",
    "Affine",
    "AverageBlend",
    "Calibrator",
    "Dirichlet",
    "HedgedCATTA",
    "HedgedTemperature",
    "Histogram",
    "Isotonic",
    "MeanTTA",
    "MeanTTATemperature",
    "Method",
    "Peer",
    "Polyline",
    "SelectiveVATTA",
    "SequentialVATTA",
    "ShrunkMATTA",
    "StagedBlend",
    "Steps",
    "Temperature",
    "TemperatureScaling",
    "Vanilla",
    "ViewBlend",
    "ViewMean",
    "as_method",
    "find_method",
    "load",
    "restore",
]

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Vanilla,
        TemperatureScaling,
        Isotonic,
        Histogram,
        Dirichlet,
        AdaptiveTTA,
        MeanTTA,
        MeanTTATemperature,
        MATTA,
        VATTA,
        ShrunkMATTA,
        CATTA,
        SelectiveVATTA,
        SequentialVATTA,
        HedgedTemperature,
        HedgedCATTA,
    )
}
CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.__name__: calibrator
    for calibrator in (
        Temperature,
        Affine,
        Steps,
        Polyline,
        ViewBlend,
        AverageBlend,
        ViewMean,
        StagedBlend,
    )
}
"""By the names that files know them by."""
BEFORE: dict[str, dict[str, Any]] = {"dirichlet": {"diagonal": 0.0}}
"""How a method was set before it had that setting, for files that do not name it."""


def find_method(name: str, /, **settings: Any) -> Method:
    """Return the method of that name with these settings.

    >>> find_method("mean-tta", views=["flip", "crop"])
    MeanTTA(views=('flip', 'crop'), original=True)
    """
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(
            f"unknown method {shown(name)}.{suggest(name, METHODS)} Known: {', '.join(METHODS)}"
        )
    known = {field.name: field.default for field in dataclasses.fields(METHODS[name])}
    for setting in settings:
        if setting not in known:
            hint = suggest(setting, known)
            raise InputError(
                f"{name} has no setting {setting!r}.{hint} It has: {', '.join(known) or 'none'}"
            )
    try:
        method = METHODS[name](**settings)
        hash(method)  # the settings are kept, and looked things up by
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except TypeError as error:
        given = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        raise InputError(f"{name} cannot be set so: {given} ({error})") from None
    return method


def as_method(method: object) -> Method:
    """A method, whatever it is given as: itself, its class (`atta.VATTA`), or its name.

    >>> as_method(CATTA) == as_method("c-atta") == CATTA()
    True
    """
    if isinstance(method, str):
        return find_method(method)
    if isinstance(method, type) and issubclass(method, Method):
        return (
            find_method(method.name)
            if METHODS.get(getattr(method, "name", "")) is method
            else method()
        )
    if isinstance(method, Method):
        return method
    got = "a fitted calibrator" if isinstance(method, Calibrator) else repr(method)
    raise InputError(
        f"method: expected a name, such as 'c-atta', or a method, such as atta.CATTA(), got {got}"
    )


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that `save` wrote."""
    return restore(*read_tensors(path), path=path)


def restore(
    tensors: Mapping[str, Tensor], header: Mapping[str, str], *, path: str | os.PathLike[str]
) -> Calibrator:
    """Make a calibrator of its buffers and its header, which come from `path`."""
    check_format(header, path)
    try:
        about = json.loads(header["about"])
        calibrator = CALIBRATORS[about["calibrator"]](**tensors, **about["options"])
        calibrator.classes = int(about["classes"])
        calibrator.method = find_method(
            about["method"], **{**BEFORE.get(about["method"], {}), **about["settings"]}
        )
        _calibrate_one(calibrator)
    except Exception as error:  # forged tensors and options reach every layer of every calibrator
        raise InputError(f"{path} is damaged: {type(error).__name__} {first_line(error)}") from None
    return calibrator


def _calibrate_one(calibrator: Calibrator) -> None:
    """Calibrate one image: tensors that do not fit together are found now, not at someone's first picture."""
    if not all(torch.isfinite(buffer).all() for buffer in calibrator.buffers()):
        raise InputError("its numbers must be finite")
    logits = torch.zeros(1, calibrator.classes)
    calibrator(Predictions(logits, {kind: logits.unsqueeze(1) for kind in calibrator.kinds}))
