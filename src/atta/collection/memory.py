"""How much memory a piece of work takes: asked of the allocator on a GPU, counted tensor by tensor elsewhere."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KERNELS = 3
"""Convolutions on a CPU copy their input into a layout of their own; measured, up to 2.2 times what tensors hold."""


def peak_memory(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that `work` takes at once, beside what was there before it began."""
    if device.type != "cuda":
        return _KERNELS * tensor_memory(work)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def tensor_memory(work: Callable[[], object]) -> int:
    """The most bytes that the tensors made by `work` hold at once; what another runtime allocates is not seen."""
    meter = _Meter()
    with meter:
        work()
    return meter.most


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that live: adds those an operation makes, and takes them off when they go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._living = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key and key not in self._living:
                self._living.add(key)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, key, storage.nbytes()).atexit = False
        return result

    def _gone(self, key: int, size: int) -> None:
        self._living.discard(key)
        self.now -= size
