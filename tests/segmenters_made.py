"""Small segmentation networks and data, for tests."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

import atta


class Shaped(nn.Module):
    """A small network with a form of answer: that of smp, torchvision or Hugging Face."""

    def __init__(self, form: str = "tensor", classes: int = 4, seed: int = 0, multiple: int = 32):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1)
            )
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.7)
        self.form, self.multiple = form, multiple

    def forward(self, x):
        found = 3 * self.layers(x)
        if self.form == "multiple":
            if x.shape[-1] % self.multiple or x.shape[-2] % self.multiple:
                raise RuntimeError(f"Wrong input shape {tuple(x.shape)}")
            return found
        return {
            "tensor": lambda: found,
            "out": lambda: {"aux": found * 0, "out": found},
            "logits": lambda: SimpleNamespace(logits=F.avg_pool2d(found, 4)),
        }[self.form]()


def data(n: int = 24, size: tuple[int, int] = (16, 20), classes: int = 4):
    """Smooth images, and masks that the network gets right about two times in three."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(n, 3, 4, 5, generator=generator)
    images = F.interpolate(coarse, size=size, mode="bilinear").clamp(0, 1)
    with torch.no_grad():
        noisy = Shaped(classes=classes)(
            images + 0.2 * torch.randn(images.shape, generator=generator)
        )
    masks = noisy.argmax(1)
    masks[:, :2] = 255
    return images, masks


def fitted(network=None, images=None, masks=None, **how):
    if images is None:
        images, masks = data()
    how = {"progress": False, "rehearse": False, "pixels": 50, "policy": "flip + scale-75"} | how
    return atta.calibrate(network or Shaped(), images, masks, **how)
