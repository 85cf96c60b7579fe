"""Export views, network and calibration as one graph that runs without atta.

Its input is `images` (n, c, h, w) with any n. Its outputs are the calibrated `probs` and `base`,
the probabilities of the network itself.
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
# The normalisation becomes part of the graph.
model = atta.Normalized(network, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
images = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8)
labels = torch.randint(0, 4, (60,))
classifier = atta.calibrate(model, images, labels, policy="flip + vflip", progress=False)

folder = Path(mkdtemp())
# Each file is compared with the classifier before it is kept.
print(classifier.export(folder / "classifier.onnx", pixels="uint8"))
print(classifier.export(folder / "classifier.pt2"))  # torch.export; floats in [0, 1]

expected = classifier(images[:5])
path = folder / "classifier.onnx"
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
probs, base = session.run(["probs", "base"], {"images": images[:5].numpy()})
assert torch.allclose(torch.from_numpy(probs), expected, atol=1e-5)
assert (probs.argmax(axis=1) == base.argmax(axis=1)).all()  # the graph keeps the class, too

# torch itself reads .pt2 files; atta predict and atta serve take ONNX graphs.
graph = torch.export.load(folder / "classifier.pt2").module()
assert torch.allclose(graph(images[:5] / 255)[0], expected, atol=1e-5)
print("both graphs return the probabilities of the classifier")
