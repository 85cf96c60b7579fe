"""Which method is best on your own logits? Every one that interests you, over several splits, with how sure the answer is.

The logits come with the package. Yours: `atta.Record(atta.Predictions(logits, views={...}), labels)`.
"""

import atta
from atta.lab.compare import compare

record = atta.find_record("cifar10-resnet50-nudged")[:3000]
methods = [
    atta.Vanilla(),
    atta.TemperatureScaling(),
    atta.VATTA(views=["flip"]),
    atta.CATTA(views=["nudge"]),
]

# Fitted on 1000 images, tested on the other 2000, three times.
results = compare({"mine": record}, methods, validation=1000, splits=3)
table = results.pivot(
    rows=["method"],
    columns=["metric"],
    where={"metric": ["brier", "ece", "nll", "class_changes"]},
    better={"brier": "lower", "ece": "lower", "nll": "lower"},
    baseline="vanilla",
)
print(
    table.text()
)  # mean ± half its 95 % interval over the splits; ✓ surely better than vanilla on the same test images

# Is one method better than another? Look at the interval of the difference, not at the digits.
fitted, tested = record[:1000], record[1000:]
one, other = (
    method.fit(fitted.predictions, fitted.labels)(tested.predictions)
    for method in (methods[3], methods[1])
)
low, high = atta.paired(one, other, tested.labels, metrics=["nll"])["nll"]
print(f"NLL of C-ATTA less that of temperature scaling: {low:+.4f} to {high:+.4f}")
