"""Use a user's model and leave it unchanged; read its device, precision, class names, statistics.

Networks with batch normalisation answer corrupted images better if they normalise by the statistics
of those images (Nado et al. 2020, Schneider et al. 2020). No label and no gradient is needed. The
network that `renormalised` returns shares the weights; only running means and variances differ.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atta._base.errors import InputError, first_line
from atta.data.preprocess import Preprocess
from atta.networks.adapters import WRAPPERS, Normalized, network_in

DARK = 5 / 255  # the brightest pixel of several images is brighter than this
BATCH = 64
"""Images per batch: the statistics are means over the batches."""
OLD = 16
"""As many images with the old statistics are added to the new ones."""


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())


@contextmanager
def borrowed(model: nn.Module, device: torch.device, channels_last: bool) -> Iterator[None]:
    """Put a model into evaluation mode, on a device, in a memory format; restore it at the end.

    Flags and tensors are changed one by one, because `eval()` and `to()` may be overridden.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [(each, each.data) for each in _tensors(model)]
    try:
        for module, _ in modes:
            module.training = False
        for tensor, data in tensors:
            last = channels_last and data.ndim == 4
            layout = torch.channels_last if last else torch.preserve_format
            tensor.data = data.to(device, memory_format=layout)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for tensor, data in tensors:
            tensor.data = data


def device_of(model: nn.Module) -> torch.device:
    """The device of the first tensor of a model, or the CPU if it has none."""
    return next((tensor.device for tensor in _tensors(model)), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first floating point tensor of a model, or float32 if it has none."""
    floats = (each.dtype for each in _tensors(model) if each.is_floating_point())
    return next(floats, torch.float32)


def find_device(name: str | int | torch.device, called: str = "device") -> torch.device:
    """Return the device of that name if it works here; error messages name it `called`."""
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()  # fails without the GPU, and on the meta device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        known = "cpu or cuda" if torch.cuda.is_available() else "cpu, the only device here"
        raise InputError(
            f"{called}: expected {known}, got {str(name)!r} ({first_line(error)})"
        ) from None
    return device


# ---- what a network states about its images ------------------------------------------------------


def class_names_of(model: nn.Module) -> tuple[str, ...]:
    """The names in `class_names`, Hugging Face's `config.id2label` or timm's `label_names`."""
    inner = network_in(model, WRAPPERS | Normalized)
    own = getattr(inner, "class_names", None)
    if isinstance(own, tuple):  # of a network that `atta train` wrote
        return own
    table = getattr(getattr(inner, "config", None), "id2label", None)
    if isinstance(table, Mapping) and sorted(map(int, table)) == list(range(len(table))):
        names = tuple(str(table[key]) for key in sorted(table, key=int))
        # LABEL_0, ... are defaults; one name is that of the only output for two classes.
        default = len(names) == 1 or names == tuple(f"LABEL_{i}" for i in range(len(names)))
        return () if default else names
    config = getattr(inner, "pretrained_cfg", None)
    own = config.get("label_names") if isinstance(config, Mapping) else None
    return tuple(map(str, own or ()))


def _stated(network: nn.Module) -> Preprocess | None:
    """The preprocessing that a timm network states."""
    config = getattr(network, "pretrained_cfg", None)
    return Preprocess.of(network) if isinstance(config, Mapping) else None


def left_unnormalised(model: nn.Module) -> Preprocess | None:
    """The preprocessing of a timm network that expects normalised pixels and does not get them."""
    wanted = _stated(network_in(model))
    plain = wanted and set(wanted.mean or ()) <= {0.0} and set(wanted.std or ()) <= {1.0}
    return None if plain else wanted


def contradictions(model: nn.Module, images: Tensor, given: Preprocess | None) -> list[str]:
    """Say what images contradict of the input that a timm or Hugging Face network states."""
    found, outer = list[str](), network_in(model)
    inner = network_in(outer, WRAPPERS | Normalized)
    size = getattr(getattr(inner, "config", None), "image_size", None)
    if (wanted := _stated(inner)) is not None:
        size, stated = wanted.size, (wanted.mean or (), wanted.std or ())
        own = (outer.mean.tolist(), outer.std.tolist()) if isinstance(outer, Normalized) else stated
        alike = len(own[0]) != len(stated[0]) or np.allclose(own, stated, atol=0.05)
        if given is None and not alike:
            found.append(
                f"the network states that it wants photographs as '{wanted}', and is given another "
                "mean and std: are those of its training? preprocess=model takes the stated ones"
            )
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    pairs = zip(images.shape[2:], sides, strict=False)
    if (given is None or not given.size) and any(not 2 / 3 <= a / b <= 3 / 2 for a, b in pairs):
        expected, got = (" x ".join(map(str, one)) for one in (sides, images.shape[2:]))
        found.append(
            f"the network states images of {expected} pixels, and is given {got}: resize them as "
            "in training, or give files with preprocess=..."
        )
    if images.is_floating_point() and 0 < (brightest := float(images.max())) <= DARK:
        found.append(
            f"no pixel of the images that were tried is above {brightest:.2g}: were they divided "
            "by 255 twice? Give bytes, or floats in [0, 1]"
        )
    return found


@contextmanager
def watched_spread(network: nn.Module) -> Iterator[list[float]]:
    """Compare the variance of the input of the first batch normalisation with that in training.

    The layer remembers the variance of each channel in training, so that pixels on another scale
    show there, whatever the network answers. The list holds the median ratio of the channels at the
    end of the block: 0.5 to 1.2 on images like those of training. It stays empty for a network
    without such a layer.
    """
    ratio, seen = list[float](), list[Tensor]()
    norms = (layer for layer in layers(network).values() if isinstance(layer, nn.BatchNorm2d))
    norm = next(norms, nn.BatchNorm2d(0))
    with norm.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach())):
        yield ratio
    variance = norm.running_var
    # All ones: the layer was never trained.
    if seen and variance is not None and not (variance == 1).all():
        inputs = torch.cat([each.double().cpu() for each in seen])
        ratio.append(float((inputs.var(dim=(0, 2, 3)) / variance.double().cpu()).nanmedian()))


# ---- statistics of other images ------------------------------------------------------------------


def layers(network: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers with running statistics, by name."""
    return {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    }


def sharing(network: nn.Module, statistics: Mapping[str, Tensor]) -> nn.Module:
    """Return a network with the same weights and these statistics, by the names of its buffers."""
    if statistics.keys() != statistics_of(network).keys():
        raise InputError(
            f"statistics: expected those of the {len(layers(network))} layers with batch "
            f"normalisation of this network, got {len(statistics)} tensors of another one"
        )
    other = copy.deepcopy(network, {id(weight): weight for weight in network.parameters()})
    for name, buffer in statistics_of(other).items():
        buffer.data = statistics[name].to(buffer).reshape(buffer.shape).clone()
    return other


def statistics_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of a network, by name."""
    return {
        f"{name}.running_{what}": getattr(layer, f"running_{what}")
        for name, layer in layers(network).items()
        for what in ("mean", "var")
    }


@torch.no_grad()
def renormalised(network: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Return the network with the statistics of these images; OLD images count as before.

    Args:
        network: A network in evaluation mode, with batch normalisation.
        batches: Pixels of BATCH images each, or nearly, as the network takes them.
    """
    before = statistics_of(network)
    other = sharing(network, before)
    images = 0
    for layer in layers(other).values():
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    for pixels in batches:
        other(pixels)
        images += len(pixels)
    new = images / (images + OLD)
    mixed = {name: torch.lerp(before[name], one, new) for name, one in statistics_of(other).items()}
    return sharing(network, mixed)
