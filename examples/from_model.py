"""From a model and labelled images: look at them through views, once, and calibrate.

The model here is an untrained toy; put your own trained classifier in its place.
"""

import torch
from torch import nn

import atta

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
model = atta.Normalized(network, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])  # views act on pixels before this
images = torch.randint(0, 256, (400, 3, 32, 32), dtype=torch.uint8)  # or floats in [0, 1], a Dataset, a folder, ...
labels = torch.randint(0, 4, (400,))

record = atta.collect(model, images, labels, policy="flip + 5 crop + 5 brightness", progress=False)
calibrator = atta.VATTA().fit(record[:200].predictions, record[:200].labels)
probs = calibrator(record[200:].predictions)

print(record.predictions)
print(atta.evaluate(probs, record[200:].labels)["brier"])
assert (probs.argmax(dim=1) == record[200:].predictions.logits.softmax(dim=1).argmax(dim=1)).all()
