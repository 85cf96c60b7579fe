"""Run a user's model and leave it unchanged; find its device and precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from atta._base.errors import InputError, first_line


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
