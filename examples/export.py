"""One graph that holds the views, the network and the calibration, and runs without Python's part of atta.

Input `images` (n, c, h, w), n free; outputs `probs`, calibrated, and `base`, the network's own.
"""

from pathlib import Path
from tempfile import mkdtemp

import onnxruntime
import torch
from torch import nn

import atta

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
model = atta.Normalized(
    network, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25]
)  # goes into the graph, too
images, labels = (
    torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8),
    torch.randint(0, 4, (60,)),
)
classifier = atta.calibrate(model, images, labels, policy="flip + vflip", progress=False)

folder = Path(mkdtemp())
print(
    classifier.export(folder / "classifier.onnx", pixels="uint8")
)  # held against the classifier before it is left
print(classifier.export(folder / "classifier.pt2"))  # torch.export; floats in [0, 1]

expected = classifier(images[:5])
session = onnxruntime.InferenceSession(
    folder / "classifier.onnx", providers=["CPUExecutionProvider"]
)
probs, base = session.run(["probs", "base"], {"images": images[:5].numpy()})
assert torch.allclose(torch.from_numpy(probs), expected, atol=1e-5)
assert (
    probs.argmax(axis=1) == base.argmax(axis=1)
).all()  # the class is the network's own, in the graph, too

graph = torch.export.load(folder / "classifier.pt2").module()
assert torch.allclose(graph(images[:5] / 255)[0], expected, atol=1e-5)
print("both graphs answer as the classifier does")
