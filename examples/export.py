"""Export views, network and calibration as one graph that runs without atta.

Its input is `images` (n, c, h, w) with any n. Its outputs are the calibrated `probs` and `base`,
the probabilities of the network itself.
"""

from pathlib import Path
from tempfile import mkdtemp

import onnxruntime
import torch

import atta
from atta.data.folder import folder_of_images
from atta.lab.recipe import load_trained

here = Path("examples/cifar10")  # in a clone of the repository
model, _ = load_trained(here / "resnet20.safetensors")
# The normalisation of the network becomes part of the graph.
classifier = atta.calibrate(model, here / "validation", policy="flip", progress=False)

folder = Path(mkdtemp())
# Each file is compared with the classifier before it is kept.
print(classifier.export(folder / "classifier.onnx", pixels="uint8"))
print(classifier.export(folder / "classifier.pt2"))  # torch.export; floats in [0, 1]

photographs = folder_of_images(here / "test")
images = photographs.tensors()
expected = classifier(images)
path = folder / "classifier.onnx"
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
probs, base = session.run(["probs", "base"], {"images": images.numpy()})
assert torch.allclose(torch.from_numpy(probs), expected, atol=1e-4)
assert (probs.argmax(axis=1) == base.argmax(axis=1)).all()  # the graph keeps the class, too

# torch itself reads .pt2 files; atta predict and atta serve take ONNX graphs.
graph = torch.export.load(folder / "classifier.pt2").module()
assert torch.allclose(graph(images / 255)[0], expected, atol=1e-4)
print("both graphs return the probabilities of the classifier")

answers = {"base: the network": base, "probs: calibrated": probs}
chart = atta.compare_plot(answers, photographs.labels, bins=10)
chart.save(folder / "reliability of the graph.svg")
