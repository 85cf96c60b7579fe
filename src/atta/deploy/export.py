"""A module as one graph that runs without Python: `torch.export` (.pt2) or ONNX (.onnx), held against the module itself.

The batch size is free. A graph is only left behind if it answers as the module does, within TOLERANCE, on images of noise,
black, white and smooth colour, in batches of several sizes: an exporter that drops or folds something is found out here.
"""

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atta.files import whole_file
from atta.types import InputError

TOLERANCE = 1e-5
BATCHES = (1, 3, 8)
TRACED = 2  # images the graph is traced with: one would be taken for a constant
ONE_FILE = 2_000_000_000  # bytes; protobuf ends at 2 GiB


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it was from the module."""

    path: Path
    opset: int | None
    size: int
    difference: float

    def __str__(self) -> str:
        graph = "torch.export" if self.opset is None else f"ONNX, opset {self.opset}"
        return f"{self.path}: {graph}, {self.size / 1e6:.1f} MB, within {self.difference:.1e} of eager"


def export(
    module: nn.Module,
    shape: Sequence[int],
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    outputs: Sequence[str],
    opset: int | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `module`, which maps images (n, *shape) of `dtype` to a tuple of tensors, as the ending of `path` says."""
    path = Path(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise InputError(f"expected a file that ends in .pt2 (torch.export) or .onnx, got {path.name!r}")
    if dtype not in (torch.float32, torch.uint8):
        raise InputError(f"expected images of float32 or uint8 as the input of the graph, got {dtype}")
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if path.suffix == ".onnx" and size > ONE_FILE:
        raise InputError(f"expected weights below 2 GB, which is what one ONNX file holds, got {size / 1e9:.1f} GB")
    program = _traced(module, sample(TRACED, shape, dtype))
    with whole_file(path) as part:
        if path.suffix == ".pt2":
            version, graph = None, _written(program, part)
        else:
            version = _write_onnx(program, part, outputs, opset)
            graph = _session(part)
        difference = _difference(module, graph, shape, dtype)
        if not difference <= tolerance:
            raise InputError(
                f"the exported graph differs from the model by {difference:.2g}, expected at most {tolerance:.0e}: "
                f"nothing was written to {path}"
            )
        written = part.stat().st_size
    return Exported(path, version, written, difference)


def sample(n: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Images to try a graph on: noise, and in a larger batch also black, white and a smooth ramp."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    if n > 3:
        images[0], images[1] = 0, 255
        images[2] = torch.linspace(0, 255, shape[-1]).to(torch.uint8)
    return images if dtype == torch.uint8 else images.to(dtype) / 255


def _traced(module: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters warn of their own workings
            return torch.export.export(module, (images,), dynamic_shapes=({0: batch},))
    except Exception as error:  # every layer of the exporter has its own kind
        raise InputError(f"the model cannot be exported: torch.export says {_reason(error)}") from error


def _written(program: torch.export.ExportedProgram, path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    """Write the program and read it back."""
    try:
        with path.open("w+b") as file:
            torch.export.save(program, file)
            file.seek(0)
            graph = torch.export.load(file).module()
    except Exception as error:  # as above
        raise InputError(f"the model cannot be exported: torch.export says {_reason(error)}") from error

    def run(images: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = graph(images)
        return found

    return run


def _write_onnx(program: torch.export.ExportedProgram, path: Path, outputs: Sequence[str], opset: int | None) -> int:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("export to ONNX needs onnx and onnxscript: pip install 'atta[onnx]'") from error
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it warns of libraries that are not there, and are not needed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=list(outputs),
                opset_version=opset,
                verbose=False,
            )
            written.save(path, external_data=False)
    except Exception as error:  # as above
        raise InputError(f"the model cannot be exported: torch.onnx says {_reason(error)}") from error
    finally:
        logger.setLevel(level)
    return int(written.model.opset_imports[""])


def _reason(error: BaseException) -> str:
    """The first line of what went wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _session(path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("an exported graph is checked with ONNX Runtime: pip install 'atta[onnx]'") from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise InputError(f"the model cannot be exported: ONNX Runtime says {_reason(error)}") from error

    def run(images: Tensor) -> Sequence[Tensor]:
        return [torch.from_numpy(answer) for answer in session.run(None, {"images": images.numpy()})]

    return run


def _difference(
    module: nn.Module, graph: Callable[[Tensor], Sequence[Tensor]], shape: Sequence[int], dtype: torch.dtype
) -> float:
    """The largest difference between the two in any number of any output."""
    worst = 0.0
    for n in BATCHES:
        images = sample(n, shape, dtype)
        with torch.no_grad():
            expected = module(images)
        try:
            found = graph(images)
        except Exception as error:  # a batch size that was frozen after all, an operator that is not there
            raise InputError(f"the exported graph fails on a batch of {n}: {str(error).splitlines()[0]}") from error
        for one, other in zip(expected, found, strict=True):
            gap = (one - other).abs().max().item() if one.shape == other.shape else float("inf")
            worst = gap if gap != gap else max(worst, gap)
    return worst
