"""A new camera: detect the shift without labels, and adapt the confidence to it.

The photographs are those of examples/cifar10; noise and blur stand for the new camera.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
from PIL import Image

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

rows = [torch.cat([*images[::125]], dim=2) for images in (old, new)]
picture = Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy())
folder = Path(mkdtemp())
picture.resize((640, 160), Image.Resampling.NEAREST).save(folder / "old and new camera.png")

for name, seen in (("old camera", old), ("new camera", new)):
    drift = classifier.drift(seen)  # no labels
    right = (classifier(seen).argmax(dim=1) == truth).float().mean()
    estimate = f"{drift.low:.0%} to {drift.high:.0%}"
    print(f"{name}: drifted {drift.drifted}; estimated accuracy {estimate}, true {right:.0%}")

adapted = classifier.adapt(new)  # no labels here either
answers = {"before adapting": classifier(new), "adapted": adapted(new)}
before, after = (atta.evaluate(probs, truth) for probs in answers.values())
for metric in ("accuracy", "brier", "ece", "nll"):
    print(f"{metric:10} {before[metric]:.4f} → {after[metric]:.4f}")
# Lower confidence, the same classes.
assert torch.equal(*(probs.argmax(dim=1) for probs in answers.values()))
print(f"NLL on the new camera: {after['nll'] / before['nll'] - 1:+.0%}, without a label")
chart = atta.compare_plot(answers, truth, bins=10)
chart.save(folder / "reliability on the new camera.svg")
