"""Networks for segmentation: a module from pixels (n c h w) to logits (n k h w) of the same size.

| the network returns                        | as                            | is                |
|--------------------------------------------|-------------------------------|-------------------|
| a tensor (segmentation-models-pytorch)     | (n, k, h, w)                  | taken as it is    |
| a dict (torchvision)                       | {"out": ...}, {"logits": ...} | its first of them |
| an object (Hugging Face)                   | .logits                       | taken             |
| any of these at another size (SegFormer)   | (n, k, h / 4, w / 4)          | resized, bilinear |
| one logit for each pixel                   | (n, 1, h, w)                  | that of class 1   |
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atta._base.errors import InputError
from atta._base.types import Images
from atta.data.preprocess import Preprocess
from atta.data.segmentation import LogitMaps, resize
from atta.networks.adapters import Adapter, TorchModel, as_logits

MULTIPLES = (1, 32)
"""What height and width may have to be multiples of."""


class Dense(Adapter):
    """A segmentation network as a module that returns logits at the size of the images.

    Args:
        model: The network, with its normalisation.
        multiple: What height and width have to be a multiple of: images are padded by repeating
            their border, and the padding is cut off again.
    """

    def __init__(self, model: nn.Module, multiple: int = 1) -> None:
        super().__init__()
        self.model, self.multiple = model, multiple

    def raw(self, images: Images) -> Any:
        """Return the output of the network for padded images."""
        *_, h, w = images.shape
        down, right = (-side % self.multiple for side in (h, w))
        padded = F.pad(images, (0, right, 0, down), mode="replicate") if down or right else images
        found = self.model.raw(padded) if isinstance(self.model, Adapter) else self.model(padded)
        if isinstance(found, Mapping):
            found = next((found[name] for name in ("out", "logits") if name in found), found)
        found = getattr(found, "logits", found)
        if isinstance(found, Tensor) and found.ndim == 4 and (down or right):
            return resize(found, tuple(padded.shape[-2:]))[..., :h, :w]
        return found

    def forward(self, images: Images, *, pad: bool = True) -> LogitMaps:
        """Return logits (n, k, h, w) on the device of the images."""
        found = self.raw(images)
        n, *_, h, w = images.shape
        if not isinstance(found, Tensor) or found.ndim != 4 or found.shape[0] != n:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"expected the model to return logits of shape ({n}, k, h, w), for masks are "
                f"given, got {got}"
            )
        if not found.is_floating_point():
            raise InputError(
                f"expected the model to return logits as floating point numbers, got {found.dtype}"
            )
        found = resize(found.to(images.device), (h, w))
        return F.pad(found, (0, 0, 0, 0, 1, 0)) if pad and found.shape[1] == 1 else found


def as_dense(model: object, preprocess: Preprocess | None = None) -> Dense:
    """Return a segmentation network as a module of logits at the size of the images."""
    if isinstance(model, Dense):
        return model
    adapted = as_logits(model, preprocess)
    return Dense(adapted.model if isinstance(adapted, TorchModel) else adapted)


def fitted(network: Dense, image: Tensor) -> Dense:
    """Return the network with the padding that it needs for such an image (1, c, h, w).

    Raises:
        InputError: The network fails on it, whatever the padding.
    """
    first: Exception | None = None
    for multiple in dict.fromkeys((network.multiple, *MULTIPLES)):
        try:
            with torch.no_grad():
                tried = Dense(network.model, multiple)
                tried(image)
                tried(image[..., 1:, 1:])  # views and other images have other sizes
            return tried
        except InputError:
            raise
        except Exception as error:  # whatever a network says of images it cannot take
            first = first or error
    raise InputError(
        f"the model failed on an image of {tuple(image.shape[1:])} (channels, height, width), also "
        f"padded to multiples of {MULTIPLES[-1]}: {first}"
    ) from first
