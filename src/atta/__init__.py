"""Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.

record = atta.collect(model, images, labels)                             # the network runs here, once
calibrator = atta.VATTA().fit(record.predictions, record.labels)
probs = calibrator(test.predictions)
atta.evaluate(probs, test.labels)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from atta.calibrating import calibrate
    from atta.calibrators import (
        MATTA,
        METHODS,
        VATTA,
        AdaptiveTTA,
        Calibrator,
        Dirichlet,
        Histogram,
        Isotonic,
        MeanTTA,
        MeanTTATemperature,
        Method,
        SelectiveVATTA,
        SequentialVATTA,
        TemperatureScaling,
        Vanilla,
        find_method,
        load,
    )
    from atta.collecting import collect
    from atta.conformal import Conformal, ConformalSets
    from atta.deploy import CalibratedClassifier
    from atta.errors import InputError
    from atta.figures import compare_plot, reliability
    from atta.metrics import METRICS, Sums, bins, evaluate
    from atta.models import FromProbabilities, Normalized, NumpyModel, OnnxModel
    from atta.predictions import Predictions, Record, find_record
    from atta.results import Results
    from atta.views import PAPER_POLICIES, POLICIES, VIEWS, Policy, View

__all__ = [
    "MATTA",
    "METHODS",
    "METRICS",
    "PAPER_POLICIES",
    "POLICIES",
    "VATTA",
    "VIEWS",
    "AdaptiveTTA",
    "CalibratedClassifier",
    "Calibrator",
    "Conformal",
    "ConformalSets",
    "Dirichlet",
    "FromProbabilities",
    "Histogram",
    "InputError",
    "Isotonic",
    "MeanTTA",
    "MeanTTATemperature",
    "Method",
    "Normalized",
    "NumpyModel",
    "OnnxModel",
    "Policy",
    "Predictions",
    "Record",
    "Results",
    "SelectiveVATTA",
    "SequentialVATTA",
    "Sums",
    "TemperatureScaling",
    "Vanilla",
    "View",
    "bins",
    "calibrate",
    "collect",
    "compare_plot",
    "evaluate",
    "find_method",
    "find_record",
    "load",
    "reliability",
]

_HOMES = (
    *("calibrators", "errors", "metrics", "predictions", "results", "views", "models", "collecting", "figures"),
    *("conformal", "deploy", "calibrating"),
)


def __getattr__(name: str) -> Any:
    """Find a name when it is first used: `import atta` and `atta --help` need not wait for torch."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"atta.{home}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'atta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
