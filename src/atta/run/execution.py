"""How a network is run: device, batch size, precision, workers, engine; the same everywhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Literal, TypedDict

import torch
from torch import nn

from atta._base.errors import InputError, suggest
from atta._base.settings import Count
from atta.data.loading import Workers, check_workers
from atta.networks.borrowing import device_of, find_device
from atta.run.cluster import check_engine


class ExecutionOptions(TypedDict, total=False):
    """The fields of `Execution` as keyword arguments."""

    device: str | int | torch.device | None
    batch_size: int | None
    workers: Workers
    autocast: bool | torch.dtype
    channels_last: bool | None
    compile: bool
    engine: Literal["ray"] | None
    actors: Count | None
    progress: bool | Callable[[int], None]


@dataclass(frozen=True)
class Execution:
    """How a network is run. None of this changes which passes are run, only how fast.

    `collect`, `calibrate` and `CalibratedClassifier.fit` take these fields as keyword arguments:
    `atta.collect(model, images, device="cuda", workers=8)`.

    Args:
        device: Where the network runs; by default where it is.
        batch_size: Most images in a forward pass; by default 256 on a GPU and 32 on a CPU. A GPU
            whose memory is full halves it.
        workers: Processes that read and decode files ahead of the network; 0 reads in this one.
            "auto" starts one for each core where there are many files (on Linux). In a script, a
            number on another system needs `if __name__ == "__main__":` around its calls.
        autocast: Run the network in bfloat16, or in another dtype.
        channels_last: Run in the memory layout in which some networks are faster. By default, only
            `calibrate` does so: on a CPU, if a trial of eight images is faster.
        compile: Run the network through `torch.compile`.
        engine: "ray" decodes and runs on a Ray cluster; None runs in this process.
        actors: Ray processes that hold the network; by default as many as fit.
        progress: Show a progress bar, or a function that is told how many passes were run since
            the last call.

    Example:
        >>> Execution(device="cpu", workers=4).workers
        4
    """

    device: str | int | torch.device | None = None
    batch_size: int | None = None
    workers: Workers = "auto"
    autocast: bool | torch.dtype = False
    channels_last: bool | None = None
    compile: bool = False
    engine: Literal["ray"] | None = None
    actors: Count | None = None
    progress: bool | Callable[[int], None] = True

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of autocast, if there is one."""
        if self.autocast is True:
            return torch.bfloat16
        return self.autocast if isinstance(self.autocast, torch.dtype) else None

    def device_of(self, network: nn.Module) -> torch.device:
        """Return where the network runs; a cluster's devices are not looked for here."""
        if self.device is None:
            return device_of(network)
        return torch.device(self.device) if self.engine else find_device(self.device)


def split_options(
    name: str, options: Mapping[str, Any], function: Callable[..., Any], extra: type
) -> tuple[Execution, dict[str, Any]]:
    """Split keyword arguments into the execution and the rest, and refuse unknown names.

    Args:
        name: How an error calls the function.
        options: The keyword arguments of a call.
        function: The function, whose own parameters are named in an error.
        extra: The `TypedDict` of its keyword arguments, the fields of `Execution` among them.
    """
    own = [each for each in signature(function).parameters if each not in ("self", "options")]
    known = [*own, *extra.__annotations__]
    for given in options:
        if given not in known:
            raise InputError(
                f"{name} takes no {given!r}.{suggest(given, known)} It takes: {', '.join(known)}"
            )
    names = {each.name for each in fields(Execution)}
    execution = Execution(**{key: value for key, value in options.items() if key in names})
    check_engine(execution.engine, execution.actors)
    check_workers(execution.workers)
    return execution, {key: value for key, value in options.items() if key not in names}
