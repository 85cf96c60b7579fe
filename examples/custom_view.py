"""A view of your own: any function of a batch of pixels, and of uniform numbers if it is random."""

import torch
from torch import Tensor, nn

import atta


def rotate(images: Tensor) -> Tensor:
    """Turn by a quarter."""
    return images.rot90(dims=(2, 3))


def gamma(images: Tensor, u: Tensor) -> Tensor:
    """Raise pixels to a power between 1/2 and 2, one an image: u = 1/2 changes nothing."""
    return images ** (2 ** (2 * u[:, :, None, None] - 1))


views = {"rotate": atta.View("rotate", rotate), "gamma": atta.View("gamma", gamma, numbers=1)}
policy = atta.Policy.parse("flip + rotate + 3 gamma", views=views)

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))
images, labels = torch.rand(200, 3, 16, 16), torch.randint(0, 5, (200,))
record = atta.collect(model, images, labels, policy=policy, progress=False)
calibrator = atta.VATTA().fit(record.predictions, record.labels)

print(record.predictions)
for kind, weight in zip(calibrator.kinds, calibrator.weights[:, 0].tolist(), strict=True):
    print(f"{kind:8} {weight:+.3f}")
