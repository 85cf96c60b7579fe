"""Calibrated confidence for image classifiers: learned test-time views, the same predicted class.

For a network and labelled images, in one call:

    classifier = atta.calibrate(model, images, labels)
    classifier.predict_proba(new_images)

Step by step, to compare methods on recorded predictions:

    record = atta.collect(model, images, labels)    # the network runs here, once
    calibrator = atta.VATTA().fit(record.predictions, record.labels)
    probs = calibrator(test.predictions)
    atta.evaluate(probs, test.labels)

Input that cannot be used raises `atta.InputError`; suspicious input warns with `atta.Advice`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "CATTA": "calibrators",
    "MATTA": "calibrators",
    "METHODS": "calibrators",
    "METRICS": "metrics.scores",
    "PAPER_POLICIES": "data.views",
    "POLICIES": "data.views",
    "VATTA": "calibrators",
    "VIEWS": "data.views",
    "AdaptiveTTA": "calibrators",
    "Advice": "_base.errors",
    "CalibratedClassifier": "classifier.classifier",
    "CalibratedSegmenter": "classifier.segmenter",
    "Calibrator": "calibrators",
    "Conformal": "calibrators.conformal",
    "ConformalSets": "calibrators.conformal",
    "Dirichlet": "calibrators",
    "Execution": "run.runner",
    "FromProbabilities": "networks.adapters",
    "HedgedCATTA": "calibrators",
    "HedgedTemperature": "calibrators",
    "Histogram": "calibrators",
    "InputError": "_base.errors",
    "Isotonic": "calibrators",
    "MeanTTA": "calibrators",
    "MeanTTATemperature": "calibrators",
    "Method": "calibrators",
    "Normalized": "networks.adapters",
    "NumpyModel": "networks.adapters",
    "OnnxModel": "networks.adapters",
    "Peer": "calibrators",
    "Policy": "data.views",
    "Predictions": "record.predictions",
    "Preprocess": "data.preprocess",
    "Record": "record.predictions",
    "RecordWriter": "record.writer",
    "Results": "results.rows",
    "SelectiveVATTA": "calibrators",
    "SequentialVATTA": "calibrators",
    "ShrunkMATTA": "lab.shrunk",
    "Sums": "metrics.scores",
    "TemperatureScaling": "calibrators",
    "Vanilla": "calibrators",
    "View": "data.views",
    "bins": "metrics.binning",
    "bootstrap": "metrics.resampling",
    "calibrate": "classifier.calibrate",
    "collect": "run.collect",
    "compare_plot": "report.figures.detail",
    "evaluate": "metrics.scores",
    "find_method": "calibrators",
    "find_record": "record.predictions",
    "load": "calibrators",
    "paired": "metrics.resampling",
    "reliability": "report.figures.detail",
    "risk_plot": "report.figures.detail",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `import atta` and `atta --help` need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'atta' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"atta.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
