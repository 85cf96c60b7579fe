"""Use a user's model and leave it unchanged: its device, its precision, its statistics.

Networks with batch normalisation answer corrupted images better if they normalise by the statistics
of those images (Nado et al. 2020, Schneider et al. 2020). No label and no gradient is needed. The
network that `renormalised` returns shares the weights; only running means and variances differ.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atta._base.errors import InputError, first_line

BATCH = 64
"""Images per batch: the statistics are means over the batches."""
OLD = 16
"""As many images with the old statistics are added to the new ones."""


@contextmanager
def borrowed(model: nn.Module, device: torch.device, channels_last: bool) -> Iterator[None]:
    """Put a model into evaluation mode, on a device, in a memory format; restore it at the end.

    Flags and tensors are changed one by one, because `eval()` and `to()` may be overridden.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [(each, each.data) for each in chain(model.parameters(), model.buffers())]
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
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first floating point tensor of a model, or float32 if it has none."""
    tensors = chain(model.parameters(), model.buffers())
    return next((each.dtype for each in tensors if each.is_floating_point()), torch.float32)


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
    names = {f"{name}.running_{what}" for name in layers(network) for what in ("mean", "var")}
    if statistics.keys() != names:
        raise InputError(
            f"statistics: expected those of the {len(names) // 2} layers with batch normalisation "
            f"of this network, got {len(statistics)} tensors of another one"
        )
    other = copy.deepcopy(network, {id(weight): weight for weight in network.parameters()})
    for name, buffer in other.state_dict(keep_vars=True).items():
        if name in names:
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
