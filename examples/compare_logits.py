"""Compare methods on your own logits, over several splits, with intervals.

The logits here come with the package. For your own logits:
`atta.Record(atta.Predictions(logits, views={...}), labels)`.
"""

from pathlib import Path
from tempfile import mkdtemp

import atta
from atta.lab.compare import compare

record = atta.find_record("cifar10-resnet50-nudged")[:3000]
methods = [
    atta.Vanilla(),
    atta.TemperatureScaling(),
    atta.VATTA(views=["flip"]),
    atta.CATTA(views=["nudge"]),
]

# Fit on 1000 images, test on the other 2000, three times.
results = compare({"mine": record}, methods, validation=1000, splits=3)
table = results.pivot(
    rows=["method"],
    columns=["metric"],
    where={"metric": ["brier", "ece", "nll", "class_changes"]},
    better={"brier": "lower", "ece": "lower", "nll": "lower"},
    baseline="vanilla",
)
# Mean ± half of its 95 % interval over the splits. ✓: significantly better than vanilla (95 %),
# on the same test images.
print(table.text())

# Is one method better than another? Look at the interval of the difference, not at the digits.
fitted, tested = record[:1000], record[1000:]
one, other = (
    method.fit(fitted.predictions, fitted.labels)(tested.predictions)
    for method in (methods[3], methods[1])
)
low, high = atta.paired(one, other, tested.labels, metrics=["nll"])["nll"]
print(f"NLL of C-ATTA minus NLL of temperature scaling: {low:+.4f} to {high:+.4f}")

chart = atta.compare_plot({"temperature": other, "c-atta, 3 nudges": one}, tested.labels)
chart.save(Path(mkdtemp()) / "reliability of both.svg")
