"""Networks of the paper's experiments in plain torch: ResNet-18, ResNet-50, and a small one for the demo.

The parameters of the residual networks are named as torchvision's, so that its checkpoints load as they are.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atta._base.types import Logits


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-18)."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(channels_in, width * self.expansion, stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d y x"]:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(
            self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x))
        )


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut (ResNet-50); the stride sits in the 3x3, as in torchvision."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(channels_in, width * self.expansion, stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d y x"]:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(
            self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x))
        )


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels_in == channels_out:
        return None
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
    )


class ResNet(nn.Module):
    """A residual network: a stem, four stages that halve the image and double the width, the mean, a linear layer."""

    def __init__(
        self,
        block: type[_BasicBlock] | type[_Bottleneck],
        depths: Sequence[int],
        num_classes: int,
        *,
        in_channels: int = 3,
        small_images: bool = True,
    ) -> None:
        super().__init__()
        if (
            small_images
        ):  # At 32 pixels torchvision's stem would leave an 8x8 map before the first block.
            self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(64)
        channels, stages = 64, []
        for i in range(4):
            width, blocks = 64 * 2**i, []
            for j in range(depths[i]):
                blocks.append(block(channels, width, stride=2 if i > 0 and j == 0 else 1))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "n c h w"]) -> Logits:
        """Give the logits; any height and width will do."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def resnet18(num_classes: int, *, in_channels: int = 3, small_images: bool = True) -> nn.Module:
    """ResNet-18; `small_images` takes a 3x3 stem without pooling, else it is torchvision's network."""
    network = ResNet(
        _BasicBlock, (2, 2, 2, 2), num_classes, in_channels=in_channels, small_images=small_images
    )
    return _named(network, "resnet18", num_classes, in_channels, small_images)


def resnet50(num_classes: int, *, in_channels: int = 3, small_images: bool = True) -> nn.Module:
    """ResNet-50; `small_images` takes a 3x3 stem without pooling, else it is torchvision's network."""
    network = ResNet(
        _Bottleneck, (3, 4, 6, 3), num_classes, in_channels=in_channels, small_images=small_images
    )
    return _named(network, "resnet50", num_classes, in_channels, small_images)


def small_cnn(num_classes: int, *, in_channels: int = 3, small_images: bool = True) -> nn.Module:
    """Three convolutions, some 57,000 parameters, for a CPU; without `small_images` the first one strides by 4."""

    def layer(channels: int, width: int, size: int = 3, stride: int = 1) -> Sequence[nn.Module]:
        return (
            nn.Conv2d(channels, width, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )

    first = layer(in_channels, 32) if small_images else layer(in_channels, 32, size=7, stride=4)
    middle = *layer(32, 64), nn.MaxPool2d(2), *layer(64, 64)
    network = nn.Sequential(
        *first, *middle, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes)
    )
    return _named(network, "small_cnn", num_classes, in_channels, small_images)


def _named(
    network: nn.Module, name: str, num_classes: int, in_channels: int, small_images: bool
) -> nn.Module:
    """Let the network say how it was built, so that a file can say it, too."""
    built = {
        "name": name,
        "num_classes": num_classes,
        "in_channels": in_channels,
        "small_images": small_images,
    }
    object.__setattr__(network, "built", built)
    return network


MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "small_cnn": small_cnn,
}
"""Each is called as `build(num_classes, in_channels=..., small_images=...)`."""
