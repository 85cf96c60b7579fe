"""Calibrate a network with labelled photographs that it was not trained on; save and load it.

The network and the photographs are those of examples/cifar10. Replace them with your own.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch

import atta
from atta.data.folder import folder_of_images
from atta.lab.recipe import load_trained

here = Path("examples/cifar10")  # in a clone of the repository
# Any torch module that returns logits. Views are made before pixels are normalised.
model, about = load_trained(here / "resnet20.safetensors")
print(f"{about['architecture']['name']} is right on {about['accuracy']:.1%} of the test images")

# A folder for each class, or a tensor, an array, a Dataset, a DataLoader, ...
# Without `policy`, cross-validation chooses one within `budget` passes per image.
classifier = atta.calibrate(model, here / "validation", policy="flip + 2 crop", progress=False)
print(classifier.summary)

# The metrics of the network itself ("vanilla") and of the classifier, on other photographs.
metrics = classifier.evaluate(here / "test", progress=False)
for name, numbers in metrics.items():
    print(f"{name:8} Brier {numbers['brier']:.4f}, NLL {numbers['nll']:.4f}")
before, after = metrics.values()
assert before["accuracy"] == after["accuracy"]
assert after["nll"] < before["nll"]
print(f"NLL {after['nll'] / before['nll'] - 1:+.0%}, and every predicted class stays the same")

photographs, folder = folder_of_images(here / "test"), Path(mkdtemp())
images = photographs.tensors()
with torch.no_grad():
    alone = model(images / 255).softmax(dim=1)
answers = {"network alone": alone, "calibrated": classifier(images)}
chart = atta.compare_plot(answers, photographs.labels, bins=10)
chart.save(folder / "reliability before and after.svg")

files = sorted((here / "test").glob("*/*.png"))[:8]
path = classifier.save(folder / "classifier.safetensors")
loaded = atta.CalibratedClassifier.load(path)
assert (loaded.predict_proba(files) == classifier.predict_proba(files)).all()
