"""The public names, for type checkers; `__init__.py` imports each when it is first used."""

from atta._base.errors import (
    Advice as Advice,
)
from atta._base.errors import (
    InputError as InputError,
)
from atta.calibrators import (
    CATTA as CATTA,
)
from atta.calibrators import (
    MATTA as MATTA,
)
from atta.calibrators import (
    METHODS as METHODS,
)
from atta.calibrators import (
    VATTA as VATTA,
)
from atta.calibrators import (
    AdaptiveTTA as AdaptiveTTA,
)
from atta.calibrators import (
    Calibrator as Calibrator,
)
from atta.calibrators import (
    Dirichlet as Dirichlet,
)
from atta.calibrators import (
    HedgedCATTA as HedgedCATTA,
)
from atta.calibrators import (
    HedgedTemperature as HedgedTemperature,
)
from atta.calibrators import (
    Histogram as Histogram,
)
from atta.calibrators import (
    Isotonic as Isotonic,
)
from atta.calibrators import (
    MeanTTA as MeanTTA,
)
from atta.calibrators import (
    MeanTTATemperature as MeanTTATemperature,
)
from atta.calibrators import (
    Method as Method,
)
from atta.calibrators import (
    Peer as Peer,
)
from atta.calibrators import (
    SelectiveVATTA as SelectiveVATTA,
)
from atta.calibrators import (
    SequentialVATTA as SequentialVATTA,
)
from atta.calibrators import (
    TemperatureScaling as TemperatureScaling,
)
from atta.calibrators import (
    Vanilla as Vanilla,
)
from atta.calibrators import (
    find_method as find_method,
)
from atta.calibrators import (
    load as load,
)
from atta.calibrators.conformal import (
    Conformal as Conformal,
)
from atta.calibrators.conformal import (
    ConformalSets as ConformalSets,
)
from atta.classifier.calibrate import calibrate as calibrate
from atta.classifier.classifier import CalibratedClassifier as CalibratedClassifier
from atta.classifier.segmenter import CalibratedSegmenter as CalibratedSegmenter
from atta.data.preprocess import Preprocess as Preprocess
from atta.data.views import (
    PAPER_POLICIES as PAPER_POLICIES,
)
from atta.data.views import (
    POLICIES as POLICIES,
)
from atta.data.views import (
    VIEWS as VIEWS,
)
from atta.data.views import (
    Policy as Policy,
)
from atta.data.views import (
    View as View,
)
from atta.lab.shrunk import ShrunkMATTA as ShrunkMATTA
from atta.metrics.binning import bins as bins
from atta.metrics.resampling import (
    bootstrap as bootstrap,
)
from atta.metrics.resampling import (
    paired as paired,
)
from atta.metrics.scores import (
    METRICS as METRICS,
)
from atta.metrics.scores import Sums as Sums
from atta.metrics.scores import (
    evaluate as evaluate,
)
from atta.networks.adapters import (
    FromProbabilities as FromProbabilities,
)
from atta.networks.adapters import (
    Normalized as Normalized,
)
from atta.networks.adapters import (
    NumpyModel as NumpyModel,
)
from atta.networks.adapters import (
    OnnxModel as OnnxModel,
)
from atta.record.predictions import (
    Predictions as Predictions,
)
from atta.record.predictions import (
    Record as Record,
)
from atta.record.predictions import (
    find_record as find_record,
)
from atta.record.writer import RecordWriter as RecordWriter
from atta.report.figures.detail import (
    compare_plot as compare_plot,
)
from atta.report.figures.detail import (
    reliability as reliability,
)
from atta.report.figures.detail import (
    risk_plot as risk_plot,
)
from atta.results.rows import Results as Results
from atta.run.collect import collect as collect
from atta.run.runner import Execution as Execution

__version__: str
