"""Every way to calibrate, by name, and calibrators from files.

| file      | calibrators (what is learned)      | methods (how)                                        |
|-----------|------------------------------------|------------------------------------------------------|
| scaling   | Temperature, Affine                | vanilla, temperature, dirichlet                      |
| binning   | Steps, Polyline                    | histogram, isotonic                                  |
| views     | ViewBlend, AverageBlend, ViewMean  | m-atta, v-atta, adaptive-tta, mean-tta(-temperature) |
| selective | StagedBlend                        | selective-v-atta, sequential-v-atta                  |
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atta.calibrators.base import FORMAT, FORMAT_VERSION, Calibrator, Method
from atta.calibrators.binning import Histogram, Isotonic, Polyline, Steps
from atta.calibrators.scaling import Affine, Dirichlet, Temperature, TemperatureScaling, Vanilla
from atta.calibrators.selective import SelectiveVATTA, SequentialVATTA, StagedBlend
from atta.calibrators.views import (
    MATTA,
    VATTA,
    AdaptiveTTA,
    AverageBlend,
    MeanTTA,
    MeanTTATemperature,
    ViewBlend,
    ViewMean,
)
from atta.predictions import Predictions, read_tensors
from atta.types import InputError

__all__ = [
    "CALIBRATORS",
    "MATTA",
    "METHODS",
    "VATTA",
    "AdaptiveTTA",
    "Affine",
    "AverageBlend",
    "Calibrator",
    "Dirichlet",
    "Histogram",
    "Isotonic",
    "MeanTTA",
    "MeanTTATemperature",
    "Method",
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
    "find_method",
    "load",
    "restore",
]

METHODS: dict[str, type[Method]] = {
    "vanilla": Vanilla,
    "temperature": TemperatureScaling,
    "isotonic": Isotonic,
    "histogram": Histogram,
    "dirichlet": Dirichlet,
    "adaptive-tta": AdaptiveTTA,
    "mean-tta": MeanTTA,
    "mean-tta-temperature": MeanTTATemperature,
    "m-atta": MATTA,
    "v-atta": VATTA,
    "selective-v-atta": SelectiveVATTA,
    "sequential-v-atta": SequentialVATTA,
}

CALIBRATORS: dict[str, type[Calibrator]] = {
    "Temperature": Temperature,
    "Affine": Affine,
    "Steps": Steps,
    "Polyline": Polyline,
    "ViewBlend": ViewBlend,
    "AverageBlend": AverageBlend,
    "ViewMean": ViewMean,
    "StagedBlend": StagedBlend,
}


def find_method(name: str, **settings: Any) -> Method:
    """Return the method of that name with these settings: `find_method("v-atta", views=["flip", "crop"])`."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"unknown method {name!r}.{hint} Known: {', '.join(METHODS)}")
    known = [field.name for field in dataclasses.fields(METHODS[name])]
    for setting in settings:
        if setting not in known:
            near = difflib.get_close_matches(setting, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{name} has no setting {setting!r}.{hint} It has: {', '.join(known) or 'none'}")
    usual = METHODS[name]()
    for setting, value in settings.items():
        if type(getattr(usual, setting)) is int and type(value) is not int:
            raise InputError(f"{name}: {setting} must be a whole number, got {value!r}")
    try:
        method = METHODS[name](**settings)
        hash(method)  # the settings are kept, and looked things up by
    except TypeError as error:
        given = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        raise InputError(f"{name} cannot be set so: {given} ({error})") from None
    return method


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that `save` wrote."""
    return restore(*read_tensors(path), path=path)


def restore(tensors: Mapping[str, Tensor], header: Mapping[str, str], *, path: str | os.PathLike[str]) -> Calibrator:
    """Make a calibrator of its buffers and its header, which come from `path`."""
    if header.get("format") != FORMAT:
        raise InputError(f"{path} is not a calibrator: expected format {FORMAT!r}, got {header.get('format')!r}")
    version = header.get("format_version", "")
    if not version.isdecimal() or int(version) > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, this atta reads up to {FORMAT_VERSION}: install a newer one"
        )
    try:
        about = json.loads(header["about"])
        calibrator = CALIBRATORS[about["calibrator"]](**tensors, **about["options"])
        calibrator.classes = int(about["classes"])
        calibrator.method = find_method(about["method"], **about["settings"])
        _try_out(calibrator)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} is damaged: {type(error).__name__} {error}") from None
    return calibrator


def _try_out(calibrator: Calibrator) -> None:
    """Calibrate one image: tensors that do not fit together are found now, not at someone's first picture."""
    if not all(torch.isfinite(buffer).all() for buffer in calibrator.buffers()):
        raise InputError("its numbers must be finite")
    logits = torch.zeros(1, calibrator.classes)
    calibrator(Predictions(logits, {kind: logits.unsqueeze(1) for kind in calibrator.kinds}))
