"""From logits that you already have: calibrate, evaluate, save.

Any source of logits will do: NumPy or torch, of the images and of any views of them. Here they come with the package.
"""

from pathlib import Path
from tempfile import mkdtemp

import atta

record = atta.find_record(
    "cifar10-resnet50"
)  # a ResNet-50 on 10,000 CIFAR-10 test images and 16 views of each
predictions = atta.Predictions(
    record.predictions.logits.numpy(),  # (images, classes)
    views={
        name: view.numpy() for name, view in record.predictions.views.items()
    },  # (images, repeats, classes) each
)
validation, test = predictions[:1000], predictions[1000:]
labels = record.labels.numpy()

calibrator = atta.VATTA().fit(validation, labels[:1000])
probs = calibrator(test)

before = atta.evaluate(test.logits.softmax(dim=-1), labels[1000:])
after = atta.evaluate(probs, labels[1000:])
for metric in ("accuracy", "brier", "ece", "nll"):
    print(f"{metric:10} {before[metric]:.4f} → {after[metric]:.4f}")

path = calibrator.save(Path(mkdtemp()) / "v-atta.safetensors")
assert (atta.load(path)(test) == probs).all()
