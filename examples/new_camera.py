"""A new camera: detect the shift without labels, and adapt the confidence to it.

The photographs are those of examples/cifar10; noise and blur stand for the new camera.
"""

from pathlib import Path

import torch

import atta
from atta.data.folder import folder_of_images
from atta.lab.paper.records import shifted
from atta.lab.recipe import load_trained

here = Path("examples/cifar10")  # in a clone of the repository
model, _ = load_trained(here / "resnet20.safetensors")
classifier = atta.calibrate(model, here / "validation", policy="flip", progress=False)
print(classifier.summary)

photographs = folder_of_images(here / "test")
old, truth = photographs.tensors(), photographs.labels
new = shifted(shifted(photographs)).tensors()  # what the new camera sees

for name, seen in (("old camera", old), ("new camera", new)):
    drift = classifier.drift(seen)  # no labels
    right = (classifier(seen).argmax(dim=1) == truth).float().mean()
    estimate = f"{drift.low:.0%} to {drift.high:.0%}"
    print(f"{name}: drifted {drift.drifted}; estimated accuracy {estimate}, true {right:.0%}")

adapted = classifier.adapt(new)  # no labels here either
before, after = (atta.evaluate(one(new), truth) for one in (classifier, adapted))
for metric in ("accuracy", "brier", "ece", "nll"):
    print(f"{metric:10} {before[metric]:.4f} → {after[metric]:.4f}")
# Lower confidence, the same classes.
assert torch.equal(adapted(new).argmax(dim=1), classifier(new).argmax(dim=1))
print(f"NLL on the new camera: {after['nll'] / before['nll'] - 1:+.0%}, without a label")
