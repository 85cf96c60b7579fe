"""Exported classifiers, ready to run: .pt2 by torch, .onnx by ONNX Runtime, on the CPU.

A graph takes `images` (n, c, h, w), floats in [0, 1] or bytes, and answers with `probs` and `base`, both (n, k).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atta.types import InputError

SUFFIXES = (".pt2", ".onnx")


@dataclass(frozen=True)
class Graph:
    """What runs, and what it takes and gives."""

    run: Callable[[Tensor], tuple[Tensor, Tensor]]
    shape: tuple[int, int, int]
    dtype: torch.dtype
    classes: int


def open_graph(path: str | os.PathLike[str]) -> Graph:
    """Open what `CalibratedClassifier.export` wrote."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return _of_torch(path) if path.suffix == ".pt2" else _of_onnx(path)
    except InputError:
        raise
    except Exception as error:  # each library has kinds of its own, and another graph has other inputs and outputs
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"expected a classifier that atta exported in {path}, but it is not one: {reason}") from error


def _of_torch(path: Path) -> Graph:
    with path.open("rb") as file:
        program = torch.export.load(file)
    graph, signature = program.module(), program.graph_signature
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    (images,) = (values[name] for name in signature.user_inputs)
    probs, _ = (values[name] for name in signature.user_outputs)

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        probs, base = graph(images)
        return probs, base

    _, channels, height, width = images.shape
    return Graph(run, (int(channels), int(height), int(width)), images.dtype, int(probs.shape[1]))


def _of_onnx(path: Path) -> Graph:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("a graph in ONNX needs ONNX Runtime: pip install 'atta[onnx]'") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    outputs = {output.name: output for output in session.get_outputs()}
    if not {"probs", "base"} <= outputs.keys():
        raise InputError(f"expected {path} to answer with probs and base, found {', '.join(outputs)}")

    def run(batch: Tensor) -> tuple[Tensor, Tensor]:
        probs, base = session.run(["probs", "base"], {images.name: batch.numpy()})
        return torch.from_numpy(probs), torch.from_numpy(base)

    _, channels, height, width = images.shape
    dtype = torch.uint8 if images.type == "tensor(uint8)" else torch.float32
    return Graph(run, (channels, height, width), dtype, outputs["probs"].shape[1])
