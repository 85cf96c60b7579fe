"""Running someone else's model without changing it, on a device that is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from atta._base.errors import InputError, first_line


@contextmanager
def borrowed(model: nn.Module, device: torch.device, channels_last: bool) -> Iterator[None]:
    """Put the model into evaluation mode, on the device and in the memory format, and put all of it back.

    Flags and tensors are exchanged one by one: `eval()` and `to()` may do more than can be undone.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    try:
        for module, _ in modes:
            module.training = False
        for tensor, data in tensors:
            layout = (
                torch.channels_last if channels_last and data.ndim == 4 else torch.preserve_format
            )
            tensor.data = data.to(device, memory_format=layout)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for tensor, data in tensors:
            tensor.data = data


def device_of(model: nn.Module) -> torch.device:
    """Where the model is: on the device of its first tensor, or the CPU if it has none."""
    return next(
        (tensor.device for tensor in chain(model.parameters(), model.buffers())),
        torch.device("cpu"),
    )


def dtype_of(model: nn.Module) -> torch.dtype:
    """What the model computes in: the dtype of its first floating point tensor, or float32."""
    dtypes = (
        tensor.dtype
        for tensor in chain(model.parameters(), model.buffers())
        if tensor.is_floating_point()
    )
    return next(dtypes, torch.float32)


def find_device(name: str | int | torch.device, called: str = "device") -> torch.device:
    """The device of that name, if numbers can be had from it here; `called` is what whoever named it knows it by."""
    try:
        device = torch.device(name)
        torch.zeros(
            (), device=device
        ).item()  # a GPU that is absent says so, and the meta device has no numbers
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        there = "cpu or cuda" if torch.cuda.is_available() else "cpu, for there is no other"
        raise InputError(
            f"{called}: expected {there}, got {str(name)!r} ({first_line(error)})"
        ) from None
    return device
