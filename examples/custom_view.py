"""A view of your own: any function of a batch of pixels, plus uniform numbers if it is random."""

from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

import atta


def solarize(images: Tensor) -> Tensor:
    """Invert the brighter half of the range."""
    return torch.where(images < 0.5, images, 1 - images)


def fade(images: Tensor, u: Tensor) -> Tensor:
    """Mix each image with its mean, by a share between 1/4 and 3/4."""
    share = (0.25 + 0.5 * u)[:, :, None, None]
    return torch.lerp(images, images.mean((1, 2, 3), keepdim=True), share)


views = {"solarize": atta.View("solarize", solarize), "fade": atta.View("fade", fade, numbers=1)}
policy = atta.Policy.parse("flip + solarize + 3 fade", views=views)

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))
images, labels = torch.rand(200, 3, 16, 16), torch.randint(0, 5, (200,))
record = atta.collect(model, images, labels, policy=policy, draws="stratified", progress=False)
calibrator = atta.VATTA().fit(record.predictions, record.labels)

print(record.predictions)
classifier = atta.CalibratedClassifier(model, calibrator, policy, image_shape=(3, 16, 16))
path = classifier.save(Path(mkdtemp()) / "classifier")
# The file contains no code, so pass the network and the views again.
loaded = atta.CalibratedClassifier.load(path, model=model, views=views)
assert torch.equal(loaded(images), classifier(images))

for kind, weight in zip(calibrator.kinds, calibrator.weights[:, 0].tolist(), strict=True):
    print(f"{kind:8} {weight:+.3f}")
