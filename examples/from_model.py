"""From a model and labelled images that it was not trained on: a classifier with calibrated confidence, saved and loaded.

The model here is an untrained toy; put your own trained classifier in its place.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn

import atta

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
model = atta.Normalized(
    network, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25]
)  # views act on pixels before this
images = torch.randint(
    0, 256, (400, 3, 32, 32), dtype=torch.uint8
)  # or floats in [0, 1], a Dataset, a folder, ...
labels = torch.randint(0, 4, (400,))

# Without `policy`, the best of several within `budget` passes an image is found by cross-validation.
classifier = atta.calibrate(
    model, images[:200], labels[:200], policy="flip + shift", progress=False
)
print(classifier.summary)

probs = classifier(images[200:])
print(atta.evaluate(probs, labels[200:])["brier"])
assert (
    probs.argmax(dim=1) == model(images[200:] / 255).argmax(dim=1)
).all()  # the class is the model's own

path = classifier.save(Path(mkdtemp()) / "classifier.safetensors")
assert torch.equal(atta.CalibratedClassifier.load(path, model=network)(images[200:]), probs)
