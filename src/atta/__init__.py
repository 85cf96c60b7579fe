"""Trustworthy confidence for image classifiers: learned test-time views that never change the predicted class.

calibrator = atta.VATTA().fit(record.predictions, record.labels)
probs = calibrator(test.predictions)
atta.evaluate(probs, test.labels)
"""

__version__ = "0.1.0.dev0"

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
    TemperatureScaling,
    Vanilla,
    find_method,
    load,
)
from atta.collect import collect
from atta.metrics import METRICS, Sums, bins, evaluate
from atta.predictions import Predictions, Record
from atta.results import Results
from atta.types import InputError
from atta.views import POLICIES, VIEWS, Policy, View

__all__ = [
    "MATTA",
    "METHODS",
    "METRICS",
    "POLICIES",
    "VATTA",
    "VIEWS",
    "AdaptiveTTA",
    "Calibrator",
    "Dirichlet",
    "Histogram",
    "InputError",
    "Isotonic",
    "MeanTTA",
    "MeanTTATemperature",
    "Method",
    "Policy",
    "Predictions",
    "Record",
    "Results",
    "Sums",
    "TemperatureScaling",
    "Vanilla",
    "View",
    "bins",
    "collect",
    "evaluate",
    "find_method",
    "load",
]
