"""All methods of calibration: a method is fitted to labelled predictions and returns a calibrator.

A method is a frozen dataclass of settings, a calibrator an `nn.Module` of buffers (`base`). This
module lists all of them by name (METHODS, CALIBRATORS) and loads calibrators from files (`load`).

| module    | calibrators            | methods                                      |
|-----------|------------------------|----------------------------------------------|
| scaling   | Temperature, Affine    | vanilla, temperature, dirichlet              |
| maps      | Steps, Polyline        | histogram, isotonic                          |
| atta      | ViewBlend              | m-atta, v-atta                               |
| averages  | AverageBlend, ViewMean | adaptive-tta, mean-tta, mean-tta-temperature |
| convex    | ViewBlend              | c-atta                                       |
| selective | StagedBlend            | selective-v-atta, sequential-v-atta          |
| hedged    | Temperature, ViewBlend | hedged-temperature, hedged-c-atta            |
| peer      | PeerCalibrator         | calibrators of other libraries               |

| module    | purpose                                                           |
|-----------|-------------------------------------------------------------------|
| base      | the base classes of methods and calibrators                       |
| shift     | estimate the accuracy on unlabelled images, adapt a calibrator    |
| alarm     | watch a stream of images for drift                                |
| risk      | thresholds that keep a promised risk, and decisions by cost        |
| conformal | sets of classes with a promised coverage, for any calibrator      |
| crossval  | compare methods on held-out images                                |
| fitting   | optimisers                                                        |
| slopes    | the gradient of the loss of M-ATTA and V-ATTA                     |

Packages add methods by entry points of the group `atta.methods`, each with the name of a method and
its class (`atta.lab` adds shrunk-m-atta this way).
"""

import dataclasses
import json
import os
from collections import UserDict
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
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
from atta.calibrators.base import FORMAT, FORMAT_VERSION, Calibrator, Method
from atta.calibrators.convex import CATTA
from atta.calibrators.hedged import HedgedCATTA, HedgedTemperature
from atta.calibrators.maps import Histogram, Isotonic, Polyline, Steps
from atta.calibrators.peer import Peer
from atta.calibrators.scaling import Affine, Dirichlet, Temperature, TemperatureScaling, Vanilla
from atta.calibrators.selective import SelectiveVATTA, SequentialVATTA, StagedBlend
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


class Methods(UserDict[str, type[Method]]):
    """Methods by name; those of entry points are imported when they are used."""

    data: dict[str, Any]  # methods and entry points

    def __getitem__(self, name: str) -> type[Method]:
        if isinstance(self.data[name], EntryPoint):
            self.data[name] = self.data[name].load()
        method: type[Method] = self.data[name]
        return method


METHODS = Methods(
    {
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
            CATTA,
            SelectiveVATTA,
            SequentialVATTA,
            HedgedTemperature,
            HedgedCATTA,
        )
    }
)
for point in sorted(entry_points(group="atta.methods")):
    METHODS.data.setdefault(point.name, point)
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
"""Calibrators by their names in files."""


def find_method(name: str, /, **settings: Any) -> Method:
    """Return a method by its name.

    Use it if the name comes from a file or the command line; otherwise use the class.

    Args:
        name: A name in `METHODS`.
        settings: The settings that differ from their defaults.

    Returns:
        The method.

    Raises:
        InputError: If the name or a setting is unknown or wrong.

    >>> find_method("mean-tta", views=["flip", "crop"])
    MeanTTA(views=('flip', 'crop'), original=True)
    """
    found = METHODS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(
            f"unknown method {shown(name)}.{suggest(name, METHODS)} Known: {', '.join(METHODS)}"
        )
    known = [field.name for field in dataclasses.fields(found)]
    for setting in settings:
        if setting not in known:
            hint = suggest(setting, known)
            raise InputError(
                f"{name} has no setting {setting!r}.{hint} It has: {', '.join(known) or 'none'}"
            )
    try:
        method = found(**settings)
        hash(method)  # methods are keys of dictionaries
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except TypeError as error:
        given = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        raise InputError(f"{name} cannot be set so: {given} ({error})") from None
    return method


def as_method(method: object) -> Method:
    """Return a method, given as a method, its class (`atta.VATTA`) or its name.

    >>> as_method(CATTA) == as_method("c-atta") == CATTA()
    True
    """
    if isinstance(method, str):
        return find_method(method)
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    if isinstance(method, Method):
        return method
    got = "a fitted calibrator" if isinstance(method, Calibrator) else repr(method)
    raise InputError(
        f"method: expected a name, such as 'c-atta', or a method, such as atta.CATTA(), got {got}"
    )


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that `Calibrator.save` wrote.

    Args:
        path: The safetensors file.

    Returns:
        The calibrator.

    Raises:
        InputError: If the file is not a calibrator, damaged, or of a later version of atta.

    >>> import tempfile
    >>> path = TemperatureScaling().fit(torch.eye(2), [0, 1]).save(f"{tempfile.mkdtemp()}/file")
    >>> load(path)
    Temperature(temperature, classes=2)
    """
    return restore(*read_tensors(path), path=path)


def restore(
    tensors: Mapping[str, Tensor], header: Mapping[str, str], *, path: str | os.PathLike[str]
) -> Calibrator:
    """Make a calibrator of the buffers and the header that were read from `path`."""
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a calibrator: expected format {FORMAT!r}, got {header.get('format')!r}"
        )
    version = header.get("format_version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version[:9]}, this atta reads up to {FORMAT_VERSION}: "
            "install a newer one"
        )
    try:
        about = json.loads(header["about"])
        # Early versions had no penalty on the diagonal.
        earlier = {"diagonal": 0.0} if about["method"] == "dirichlet" else {}
        # First: the module of a method may add its calibrator to CALIBRATORS.
        method = find_method(about["method"], **{**earlier, **about["settings"]})
        calibrator = CALIBRATORS[about["calibrator"]](**tensors, **about["options"])
        calibrator.classes, calibrator.method = int(about["classes"]), method
        if not all(torch.isfinite(buffer).all() for buffer in calibrator.buffers()):
            raise InputError("its numbers must be finite")
        # Calibrate one image: tensors that do not match are found now, not at the first image.
        logits = torch.zeros(1, calibrator.classes)
        calibrator(Predictions(logits, {kind: logits.unsqueeze(1) for kind in calibrator.kinds}))
    except Exception as error:  # a forged file may fail anywhere
        raise InputError(f"{path} is damaged: {type(error).__name__} {first_line(error)}") from None
    return calibrator
