"""Calibrate a model with labelled images that it was not trained on; save and load the result.

The model here is a small untrained network. Replace it with your trained classifier.
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
# Views are made before pixels are normalised.
model = atta.Normalized(network, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
# Or floats in [0, 1], a Dataset, a DataLoader, a folder, ...
images = torch.randint(0, 256, (400, 3, 32, 32), dtype=torch.uint8)
labels = torch.randint(0, 4, (400,))

# Without `policy`, cross-validation chooses one within `budget` passes per image.
classifier = atta.calibrate(
    model, images[:200], labels[:200], policy="flip + shift", progress=False
)
print(classifier.summary)

probs = classifier(images[200:])
assert torch.equal(probs.argmax(dim=1), model(images[200:] / 255).argmax(dim=1))  # same class

# The metrics of the model itself ("vanilla") and of the classifier.
for name, metrics in classifier.evaluate(images[200:], labels[200:]).items():
    print(f"{name:8} Brier {metrics['brier']:.4f}, NLL {metrics['nll']:.4f}")

path = classifier.save(Path(mkdtemp()) / "classifier.safetensors")
assert torch.equal(atta.CalibratedClassifier.load(path, model=network)(images[200:]), probs)
