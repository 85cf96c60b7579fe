"""A view of your own: any function of a batch of pixels, plus uniform numbers if it is random."""

from pathlib import Path
from tempfile import mkdtemp

import torch
from PIL import Image
from torch import Tensor

import atta
from atta.data.folder import folder_of_images
from atta.lab.recipe import load_trained


def solarize(images: Tensor) -> Tensor:
    """Invert the brighter half of the range."""
    return torch.where(images < 0.5, images, 1 - images)


def fade(images: Tensor, u: Tensor) -> Tensor:
    """Mix each image with its mean, by a share of up to 1/3."""
    share = (u / 3)[:, :, None, None]
    return torch.lerp(images, images.mean((1, 2, 3), keepdim=True), share)


views = {"solarize": atta.View("solarize", solarize), "fade": atta.View("fade", fade, numbers=1)}
policy = atta.Policy.parse("flip + solarize + 2 fade", views=views)

here, folder = Path("examples/cifar10"), Path(mkdtemp())  # in a clone of the repository
images = folder_of_images(here / "test").tensors()[::125]
# One row each: the photographs, solarized, faded.
rows = [images / 255, solarize(images / 255), fade(images / 255, torch.ones(len(images), 1))]
grid = torch.cat([torch.cat([*row], dim=2) for row in rows], dim=1)
picture = Image.fromarray((grid * 255).byte().permute(1, 2, 0).numpy())
picture.resize((640, 240), Image.Resampling.NEAREST).save(folder / "photographs and views.png")

model, _ = load_trained(here / "resnet20.safetensors")
record = atta.collect(model, here / "validation", policy=policy, draws="stratified", progress=False)
calibrator = atta.VATTA().fit(record.predictions, record.labels)
for kind, weight in zip(calibrator.kinds, calibrator.weights[:, 0].tolist(), strict=True):
    print(f"{kind:8} {weight:+.3f}")  # a view that does not help gets a weight near 0

classifier = atta.CalibratedClassifier(model, calibrator, policy, image_shape=(3, 32, 32))
before, after = classifier.evaluate(here / "test", progress=False).values()
assert after["nll"] < before["nll"]
print(f"NLL on other photographs: {before['nll']:.4f} → {after['nll']:.4f}")

path = classifier.save(folder / "classifier")
# The file contains no code of views, so pass them again.
loaded = atta.CalibratedClassifier.load(path, model=model, views=views)
assert torch.equal(loaded(images), classifier(images))
