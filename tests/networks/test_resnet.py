"""Our own architectures: torchvision's names and shapes, any size of image, level gradients."""

import pytest
import torch

from atta.networks.resnet import MODELS, resnet18, resnet50, small_cnn


def torchvision_shapes(
    depths: tuple[int, ...], convolutions: int, expansion: int
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's ResNet with 1000 classes, from its checkpoints."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(conv_name: str, norm_name: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{conv_name}.weight"] = (out, into, kernel, kernel)
        shapes.update(
            {
                f"{norm_name}.{part}": (out,)
                for part in ("weight", "bias", "running_mean", "running_var")
            }
        )
        shapes[f"{norm_name}.num_batches_tracked"] = ()

    conv("conv1", "bn1", 64, 3, 7)
    into = 64
    for stage, depth in enumerate(depths, start=1):
        width = 32 * 2**stage
        for index in range(depth):
            name = f"layer{stage}.{index}"
            if convolutions == 3:
                sizes = [(width, into, 1), (width, width, 3), (4 * width, width, 1)]
            else:
                sizes = [(width, into, 3), (width, width, 3)]
            for number, (out, channels, kernel) in enumerate(sizes, start=1):
                conv(f"{name}.conv{number}", f"{name}.bn{number}", out, channels, kernel)
            if index == 0 and into != expansion * width:
                conv(f"{name}.downsample.0", f"{name}.downsample.1", expansion * width, into, 1)
            into = expansion * width
    return shapes | {"fc.weight": (1000, into), "fc.bias": (1000,)}


@pytest.mark.parametrize(
    ("build", "shapes", "entries", "parameters"),
    [
        (resnet18, torchvision_shapes((2, 2, 2, 2), 2, 1), 122, 11_689_512),
        (resnet50, torchvision_shapes((3, 4, 6, 3), 3, 4), 320, 25_557_032),
    ],
)
def test_torchvision_checkpoints_fit_by_name_and_shape(build, shapes, entries, parameters):
    with torch.device("meta"):
        model = build(1000, small_images=False)
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert found == shapes
    assert len(found) == entries
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 32, 32), (3, 64, 48)])
def test_every_network_takes_greyscale_and_any_size(name, channels, height, width):
    model = MODELS[name](7, in_channels=channels, small_images=height <= 32).eval()
    with torch.inference_mode():
        logits = model(torch.rand(1, channels, height, width))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()


def test_a_small_stem_keeps_the_resolution_and_a_large_one_quarters_it():
    image = torch.rand(1, 3, 32, 32)
    for small, side in ((True, 32), (False, 8)):
        model = resnet18(2, small_images=small)
        assert model.maxpool(model.conv1(image)).shape[-1] == side


def test_the_small_network_is_small():
    assert 50_000 < sum(p.numel() for p in small_cnn(10, in_channels=1).parameters()) < 100_000


def test_convolutions_start_with_the_variance_that_keeps_gradients_level():
    weight = resnet18(10).layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
