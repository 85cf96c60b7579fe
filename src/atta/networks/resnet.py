"""Networks of the experiments in plain torch: ResNet-18, ResNet-20, ResNet-50 and a small network.

The parameters of the residual networks have torchvision's names, so that its checkpoints load.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atta._base.settings import check, hints
from atta._base.types import Logits

Width: TypeAlias = Annotated[int, "≥ 1", "≤ 100000"]
"""Classes or channels."""


class _Block(nn.Module):
    """Convolutions with batch normalisation, and a shortcut around them."""

    sizes: ClassVar[tuple[int, ...]]
    """The kernel sizes; the stride is that of the first 3x3 convolution, as in torchvision."""
    expansion: ClassVar[int] = 1
    """Channels of the output, per channel inside the block."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        last = width * self.expansion
        channels = [channels_in, *[width] * (len(self.sizes) - 1), last]
        for i, size in enumerate(self.sizes, start=1):
            step = stride if i == 1 + self.sizes.index(3) else 1
            self.add_module(f"conv{i}", _convolution(channels[i - 1], channels[i], size, step))
            self.add_module(f"bn{i}", nn.BatchNorm2d(channels[i]))
        self.downsample = None
        if stride != 1 or channels_in != last:
            self.downsample = nn.Sequential(
                _convolution(channels_in, last, 1, stride), nn.BatchNorm2d(last)
            )

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d y x"]:
        y = x
        for i in range(1, len(self.sizes) + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < len(self.sizes):
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class _BasicBlock(_Block):
    """Two 3x3 convolutions (ResNet-18)."""

    sizes = (3, 3)


class _Bottleneck(_Block):
    """1x1, 3x3 and 1x1 convolutions (ResNet-50)."""

    sizes, expansion = (1, 3, 1), 4


def _convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the image, apart from its stride."""
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


class ResNet(nn.Module):
    """A stem, stages that halve the image and double the width, the mean, a linear layer.

    With `small_images` the stem is a 3x3 convolution without pooling: torchvision's stem would
    leave an 8x8 map of an image of 32 pixels.
    """

    def __init__(
        self,
        block: type[_Block],
        depths: Sequence[int],
        width: int,
        num_classes: int,
        in_channels: int,
        small_images: bool,
    ) -> None:
        super().__init__()
        self.depths = tuple(depths)
        self.conv1 = _convolution(in_channels, width, *((3,) if small_images else (7, 2)))
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.maxpool: nn.Module = nn.Identity() if small_images else pool
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for i, depth in enumerate(depths):
            inner, blocks = width * 2**i, []
            for j in range(depth):
                blocks.append(block(channels, inner, stride=2 if i > 0 and j == 0 else 1))
                channels = inner * block.expansion
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "n c h w"]) -> Logits:
        """Return the logits of images of any height and width."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for i in range(len(self.depths)):
            x = getattr(self, f"layer{i + 1}")(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _small_cnn(num_classes: int, in_channels: int, small_images: bool) -> nn.Module:
    """Three convolutions and 57,000 parameters, for a CPU; a first stride of 4 on large images."""

    def layer(channels: int, width: int, size: int = 3, stride: int = 1) -> Sequence[nn.Module]:
        return _convolution(channels, width, size, stride), nn.BatchNorm2d(width), nn.ReLU()

    return nn.Sequential(
        *(layer(in_channels, 32) if small_images else layer(in_channels, 32, size=7, stride=4)),
        *layer(32, 64),
        nn.MaxPool2d(2),
        *layer(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": partial(ResNet, _BasicBlock, (2, 2, 2, 2), 64),
    "resnet20": partial(ResNet, _BasicBlock, (3, 3, 3), 16),
    "resnet50": partial(ResNet, _Bottleneck, (3, 4, 6, 3), 64),
    "small_cnn": _small_cnn,
}


def build(
    name: str, num_classes: Width, *, in_channels: Width = 3, small_images: bool = True
) -> nn.Module:
    """Build a network, which keeps in `built` how it was built, so that a file can say so."""
    settings = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "small_images": small_images,
    }
    settings = check(settings, hints(build))  # a file may say anything
    network = _BUILDERS[name](**settings)
    object.__setattr__(network, "built", {"name": name, **settings})
    return network


MODELS = {name: partial(build, name) for name in _BUILDERS}
"""Each is called as `MODELS[name](num_classes, in_channels=..., small_images=...)`.

ResNet-20 has three stages from 16 channels on, and 0.27 million parameters; ResNet-18 and ResNet-50
are those of torchvision, with a 3x3 stem for `small_images`.
"""
resnet18, resnet20, resnet50, small_cnn = MODELS.values()
