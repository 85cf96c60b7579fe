"""Calibrate logits that you already have, evaluate, and save.

Logits of the images and of any views of them, as NumPy arrays or tensors. The logits here come
with the package.
"""

from pathlib import Path
from tempfile import mkdtemp

import atta

# A ResNet-50 on the 10,000 test images of CIFAR-10, with 16 views of each.
record = atta.find_record("cifar10-resnet50")
predictions = atta.Predictions(
    record.predictions.logits.numpy(),  # (images, classes)
    # Each view: (images, repeats, classes).
    views={name: view.numpy() for name, view in record.predictions.views.items()},
)
validation, test = predictions[:1000], predictions[1000:]
labels = record.labels.numpy()

calibrator = atta.VATTA().fit(validation, labels[:1000])
probs, alone = calibrator(test), test.logits.softmax(dim=-1)

before = atta.evaluate(alone, labels[1000:])
after = atta.evaluate(probs, labels[1000:])
for metric in ("accuracy", "brier", "ece", "nll"):
    print(f"{metric:10} {before[metric]:.4f} → {after[metric]:.4f}")

folder = Path(mkdtemp())
chart = atta.compare_plot({"network alone": alone, "V-ATTA": probs}, labels[1000:], bins=10)
chart.save(folder / "reliability before and after.svg")

path = calibrator.save(folder / "v-atta.safetensors")
assert (atta.load(path)(test) == probs).all()
