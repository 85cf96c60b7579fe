"""Classifiers as one graph that runs without Python: `torch.export` (.pt2) or ONNX (.onnx), written and run again.

A graph takes `images` (n, c, h, w), floats in [0, 1] or bytes, n free, and answers with `probs` and `base`, both (n, k). It is
only left behind if it answers as the module does, within TOLERANCE, on images of noise, black, white and smooth colour, in
batches of several sizes: an exporter that drops or folds something is found out here. It runs on the CPU.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line, require
from atta._base.files import whole_file
from atta.classifier.inline import inlined
from atta.classifier.pt2 import harmless
from atta.networks.adapters import OnnxModel, check_external_data

SUFFIXES = (".pt2", ".onnx")
OUTPUTS = ("probs", "base")
ABOUT = "atta.json"
TOLERANCE = 1e-5
BATCHES = (1, 3, 8)
TRACED = 2  # images the graph is traced with: one would be taken for a constant
OPSETS = (
    7,
    99,
)  # what converters take and what may still come; whether torch writes one shows when it does
ONE_FILE = 2_000_000_000  # bytes; protobuf ends at 2 GiB
Both: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Graph:
    """What runs, and what it takes and gives."""

    run: Callable[[Tensor], Both]
    shape: tuple[int, int, int]
    dtype: torch.dtype
    classes: int
    about: Mapping[str, str] = field(default_factory=dict)
    """What the file says of itself: preprocess, class_names, policy, mean_passes."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it was from the module."""

    path: Path
    opset: int | None
    size: int
    difference: float

    def __str__(self) -> str:
        graph = "torch.export" if self.opset is None else f"ONNX, opset {self.opset}"
        return (
            f"{self.path}: {graph}, {self.size / 1e6:.1f} MB, within {self.difference:.1e} of eager"
        )


# ---- reading -------------------------------------------------------------------------------------------------------


def open_graph(path: str | os.PathLike[str]) -> Graph:
    """Open what `CalibratedClassifier.export` wrote."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return _open_torch(path) if path.suffix == ".pt2" else _open_onnx(path)
    except InputError:
        raise
    except (
        Exception
    ) as error:  # each library has kinds of its own, and another graph has other inputs and outputs
        raise InputError(
            f"expected a classifier that atta exported in {path}, but it is not one: {first_line(error)}"
        ) from error


def _open_torch(path: Path) -> Graph:
    beside = {ABOUT: ""}
    with _quiet("torch.export"):  # it logs tracebacks of what it then says in a sentence
        program = torch.export.load(harmless(path), extra_files=beside)
    graph, signature = program.module(), program.graph_signature
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    (images,) = (values[name] for name in signature.user_inputs)
    probs, _ = (values[name] for name in signature.user_outputs)

    def run(images: Tensor) -> Both:
        probs, base = graph(images)
        return probs, base

    _, channels, height, width = images.shape
    about = json.loads(beside[ABOUT] or "{}")
    return Graph(
        run, (int(channels), int(height), int(width)), images.dtype, int(probs.shape[1]), about
    )


def _open_onnx(path: Path) -> Graph:
    with require("onnx", "a graph in ONNX"):
        import onnxruntime
    check_external_data(path, beside=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    outputs = {output.name: output for output in session.get_outputs()}
    if not outputs.keys() >= {*OUTPUTS}:
        raise InputError(
            f"expected {path} to answer with probs and base, found {', '.join(outputs)}"
        )

    def run(batch: Tensor) -> Both:
        probs, base = session.run(list(OUTPUTS), {images.name: batch.numpy()})
        return torch.from_numpy(probs), torch.from_numpy(base)

    _, channels, height, width = images.shape
    dtype = torch.uint8 if images.type == "tensor(uint8)" else torch.float32
    about = dict(session.get_modelmeta().custom_metadata_map)
    return Graph(run, (channels, height, width), dtype, outputs["probs"].shape[1], about)


# ---- writing -------------------------------------------------------------------------------------------------------


def export(
    module: nn.Module,
    shape: Sequence[int],
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    opset: int | None = None,
    tolerance: float = TOLERANCE,
    about: Mapping[str, str] | None = None,
    network: OnnxModel | None = None,
) -> Exported:
    """Write `module`, which maps images (n, *shape) of `dtype` to `probs` and `base`, as the ending of `path` says.

    A `network` of ONNX inside of it is put in as it is. `about` goes into the file: ONNX's `metadata_props`, or the extra file
    atta.json of a .pt2.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"expected a file that ends in .pt2 (torch.export) or .onnx, got {path.name!r}"
        )
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if path.suffix == ".onnx" and size > ONE_FILE:
        raise InputError(
            f"expected weights below 2 GB, which is what one ONNX file holds, got {size / 1e9:.1f} GB"
        )
    if opset is not None and not OPSETS[0] <= opset <= OPSETS[1]:
        raise InputError(
            f"opset: expected a version of ONNX's operators from {OPSETS[0]} to {OPSETS[1]}, got {opset}"
        )
    program = _traced(module, sample(TRACED, shape, dtype))
    with whole_file(path) as part:
        if path.suffix == ".pt2":
            version, graph = _write_torch(program, part, about or {})
        else:
            version, graph = _write_onnx(program, part, opset, about or {}, network)
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


@contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Let a library log errors only."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _refused_by(library: str) -> Iterator[None]:
    """Whatever an exporter finds wrong, as one sentence: the first line of what went wrong in the first place."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # every layer of an exporter has its own kind
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise InputError(
            f"the model cannot be exported: {library} says {first_line(first)}"
        ) from error


def _traced(module: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    with _refused_by("torch.export"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters warn of their own workings
        return torch.export.export(module, (images,), dynamic_shapes=({0: batch},))


def _write_torch(
    program: torch.export.ExportedProgram, path: Path, about: Mapping[str, str]
) -> tuple[int | None, Graph]:
    """Write the program and read it back."""
    with _refused_by("torch.export"):
        content = io.BytesIO()  # given a file, torch ends the process when the disk is full
        torch.export.save(program, content, extra_files={ABOUT: json.dumps(dict(about))})
        path.write_bytes(content.getbuffer())
        return None, _open_torch(path)


def _write_onnx(
    program: torch.export.ExportedProgram,
    path: Path,
    opset: int | None,
    about: Mapping[str, str],
    network: OnnxModel | None,
) -> tuple[int | None, Graph]:
    """Write the program as ONNX and read it back; give the opset that it came out in."""
    with require("onnx", "export to ONNX"):
        import onnxscript  # noqa: F401
    # It warns of libraries that are not there, and are not needed.
    with _quiet("torch.onnx"), _refused_by("torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names: Any = {"input_names": ["images"], "output_names": list(OUTPUTS)}
        written: Any = torch.onnx.export(
            program, dynamo=True, opset_version=opset, verbose=False, **names
        )
        _name_batch(written.model)
        written.model.metadata_props.update(about)
        if network is None:
            written.save(path, external_data=False)
        else:
            path.write_bytes(inlined(written.model_proto, network).SerializeToString())
    with _refused_by("ONNX Runtime"):
        return int(written.model.opset_imports[""]), _open_onnx(path)


def _name_batch(model: Any) -> None:
    """Call the free axis `batch`: the exporter makes up a name of its own."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape[0] = "batch"


def _difference(module: nn.Module, graph: Graph, shape: Sequence[int], dtype: torch.dtype) -> float:
    """The largest difference between the two in any number of any output."""
    worst = 0.0
    for n in BATCHES:
        images = sample(n, shape, dtype)
        with torch.no_grad():
            expected = module(images)
        try:
            found = graph.run(images)
        except (
            Exception
        ) as error:  # a batch size that was frozen after all, an operator that is not there
            raise InputError(
                f"the exported graph fails on a batch of {n}: {first_line(error)}"
            ) from error
        for one, other in zip(expected, found, strict=True):
            gap = (one - other).abs().max().item() if one.shape == other.shape else float("inf")
            worst = gap if gap != gap else max(worst, gap)
    return worst
