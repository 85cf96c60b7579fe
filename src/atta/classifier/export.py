"""Export a classifier as one graph that runs without atta: `torch.export` (.pt2) or ONNX (.onnx).

A graph takes `images` (n, c, h, w), floats in [0, 1] or bytes, with n free. It returns `probs` and
`base`, both (n, k), `confidence` (n) and, at a stated risk, `answered` (n). `export` writes it only
if its outputs equal those of the module within TOLERANCE on noise, black, white and a ramp, in
batches of several sizes, because exporters can drop or fold operations. `open_graph` reads an ONNX
graph; `torch.export.load` reads a .pt2 file.

An ONNX network inside a classifier is not traced again, but inlined where torch left a stand-in:

    classifier ─ torch.onnx ─► images ─ views ─ [atta::Network] ─ calibration ─► probs, …
    file of the network ─► a function of that name ─ onnx's inliner ─► one graph
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line, require
from atta._base.files import whole_file
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.risk import Promise
from atta.calibrators.shift import Reference
from atta.classifier.archive import READERS, Answerer, AnyPath, Archived, read_values
from atta.classifier.estimator import Details
from atta.data.photographs import named
from atta.data.preprocess import Preprocess, sheet_of
from atta.networks.adapters import STAND_IN, NumpyModel, OnnxModel, check_external_data
from atta.networks.borrowing import dtype_of

SUFFIXES = (".pt2", ".onnx")
OUTPUTS = ("probs", "base", "confidence", "answered")
"""The last one only at a stated risk; graphs of 0.1.0 return the first two."""
ABOUT = "atta.json"
TOLERANCE = 1e-5
BATCHES = (1, 3, 8)
TRACED = 2  # images to trace with: a batch of one would become a constant
OPSETS = (7, 99)  # versions that converters may accept; torch says which it can write
ONE_FILE = 2_000_000_000  # bytes; protobuf ends at 2 GiB
Outputs: TypeAlias = tuple[Tensor, ...]
Run: TypeAlias = Callable[[Tensor], Outputs]


@dataclass(frozen=True)
class Graph(Answerer):
    """A graph that runs on the CPU, and answers as the classifier that it was exported from.

    `dense` says that it answers every pixel: a segmenter.
    """

    run: Run
    image_shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...] = ()
    preprocess: Preprocess | None = None
    reference: Reference | None = None
    conformity: ConformityScores | None = None
    promise: Promise | None = None
    dtype: torch.dtype = torch.float32
    dense: bool = False

    any_size = False
    device = torch.device("cpu")

    def details(self, images: Tensor) -> Details:
        """Return what the answer to each image, uint8, is made of, as far as a graph knows it."""
        pixels = images if self.dtype == torch.uint8 else images.to(self.dtype) / 255
        probs, base, *certain = self.run(pixels)
        # Graphs of 0.1.0 return no confidence.
        confidence = certain[0] if certain else probs.amax(dim=1)
        answered = None
        if self.promise is not None:
            answered = self.promise.answered(confidence, probs.argmax(dim=1))
        return Details(probs, confidence, answered, base)


@dataclass(frozen=True)
class Exported:
    """A written graph: its file, the version of ONNX's operators, and its error.

    Attributes:
        path: The file.
        opset: The version of ONNX's operators; None for a .pt2 file.
        size: Its size in bytes.
        difference: The largest difference from the classifier in any probability.
    """

    path: Path
    opset: int | None
    size: int
    difference: float

    def __str__(self) -> str:
        graph = "torch.export" if self.opset is None else f"ONNX, opset {self.opset}"
        size = f"{self.size / 1e6:.1f} MB"
        return f"{self.path}: {graph}, {size}, within {self.difference:.1e} of eager"


# ---- reading


def open_graph(path: AnyPath) -> Graph:
    """Open an ONNX graph that `CalibratedClassifier.export` wrote."""
    path = Path(path)
    if path.suffix == ".pt2":
        raise InputError(
            f"{path} is a torch.export file, which torch.export.load reads and atta does not: "
            "export the classifier to .onnx for `atta predict` and `atta serve`"
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    with require("onnx", "a graph in ONNX"):
        import onnxruntime
    check_external_data(path, same_folder=False)
    with _refused(f"expected {path} to be a classifier that atta exported"):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (images,) = session.get_inputs()
        outputs = {output.name: output.shape for output in session.get_outputs()}
        names = [name for name in OUTPUTS if name in outputs]
        if len(names) < 2 or names != [*OUTPUTS[: len(names)]]:
            raise InputError(f"it returns {', '.join(outputs)} and not probs and base")
        _, classes, *size = outputs["probs"]
        sides = [classes, *images.shape[1:]]
        if len(sides) != 4 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise InputError(f"it takes {images.shape} and returns {outputs['probs']}")
    about = session.get_modelmeta().custom_metadata_map
    readers = {**READERS, "promise": Promise.read}
    with _refused(f"{path}: expected class_names, preprocess, ... as `export` writes them"):
        entries = ("class_names", *readers)
        known = {name: json.loads(about[name]) for name in entries if name in about}
        values = read_values(known, readers)
        class_names = tuple(map(str, known.get("class_names") or ()))
        if len(class_names) not in (0, classes):
            raise InputError(f"{classes} class names, got {len(class_names)}")
    size = images.shape[2:] if size else []  # of a segmenter, whose sides are not named twice
    shapes = dict(zip(names, [[classes, *size]] * 2 + [size] * 2, strict=False))
    return Graph(
        partial(_run, session, path, shapes),
        tuple(images.shape[1:]),
        classes,
        class_names,
        values["preprocess"],
        values["reference"],
        values["strangeness"],
        values["promise"],
        torch.uint8 if images.type == "tensor(uint8)" else torch.float32,
        bool(size),
    )


def _run(session: Any, path: Path, shapes: Mapping[str, list[int]], batch: Tensor) -> Outputs:
    """Run a graph, and check each output; `shapes` are those for one image."""
    (images,) = session.get_inputs()
    with _refused(
        f"{path} fails on images of shape {tuple(batch.shape)}: expected a graph that atta "
        "exported, and enough memory; ONNX Runtime says"
    ):
        found = tuple(map(torch.from_numpy, session.run([*shapes], {images.name: batch.numpy()})))
    for each, (name, shape) in zip(found, shapes.items(), strict=True):
        expected = (len(batch), *shape)
        if each.shape != expected or not each.isfinite().all():
            raise InputError(
                f"{path} is damaged: expected {name} of shape {expected}, got shape "
                f"{tuple(each.shape)}, or values that are not finite"
            )
    return found


@contextmanager
def _refused(sentence: str) -> Iterator[None]:
    """Turn an error into a sentence and its first cause: every library has its own exceptions."""
    try:
        yield
    except Exception as error:
        first: BaseException = error
        while first.__cause__ is not None and not isinstance(first, InputError):
            first = first.__cause__
        raise InputError(f"{sentence}: {first_line(first)}") from error


# ---- writing


class Exportable(Archived):
    """A classifier that can be written as a graph."""

    tolerance = TOLERANCE

    def graph(self, images: Tensor) -> Outputs:
        """Return OUTPUTS without looking at values."""
        raise NotImplementedError

    def export(
        self,
        path: AnyPath,
        *,
        pixels: str = "float32",
        opset: int | None = None,
        tolerance: float | None = None,
    ) -> Exported:
        """Write normalisation, views, network and calibrator as one graph.

        The graph takes `images` (n, c, h, w). It returns `probs`, `base` (the probabilities of the
        network), `confidence` and, after `at_risk`, `answered`. Resizing and cropping stay outside:
        the metadata says how. The graph is compared with this classifier first.

        Args:
            path: A file that ends in .onnx, or in .pt2 (`torch.export`).
            pixels: "float32" for pixels in [0, 1], or "uint8".
            opset: ONNX opset; by default the exporter's.
            tolerance: Largest difference to this classifier: 1e-5, or 1e-3 for segmenters, some
                of whose many pixels are near ties.
        """
        path = Path(path)
        if pixels not in ("float32", "uint8"):
            raise InputError(f"pixels: expected 'float32' or 'uint8', got {pixels!r}")
        network = next((part for part in self.modules() if isinstance(part, OnnxModel)), None)
        _check(self.model, path, opset, network)
        here = self if self.device.type == "cpu" else copy.deepcopy(self).cpu()
        here.check()
        module, dtype = _Graph(here).eval(), getattr(torch, pixels)
        with torch.autocast("cpu", enabled=False), whole_file(path) as part:
            batch = torch.export.Dim("batch", min=1)
            traced = (sample(TRACED, self.image_shape, dtype),)
            with _exporter("torch.export"), torch.no_grad():
                program = torch.export.export(module, traced, dynamic_shapes=({0: batch},))
            if path.suffix == ".pt2":
                version, run = _write_torch(program, part, self._metadata(pixels))
            else:
                version, run = _write_onnx(program, part, opset, self._metadata(pixels), network)
            difference = _difference(here, run, dtype)
            most = self.tolerance if tolerance is None else tolerance
            if not difference <= most:
                raise InputError(
                    f"the exported graph differs from the model by {difference:.2g}, expected at "
                    f"most {most:.0e}: nothing was written to {path}. Rounding can do this "
                    "where two classes are nearly tied: then pass a larger tolerance=..."
                )
            return Exported(path, version, part.stat().st_size, difference)

    def _metadata(self, pixels: str) -> dict[str, str]:
        """Return metadata for the graph: what a program that runs it has to know."""
        values = "bytes" if pixels == "uint8" else "floats in [0, 1]"
        known = ["preprocess", "reference", "promise"]
        if not self.answers_otherwise:
            known.append("strangeness")
        about, cropped = self.about(), "cropped"
        if sheet := sheet_of(self.preprocess):
            tops = {named((term,)): places for term, places in sheet.places.items()}
            cropped = f"crop {sheet.size} on top, below it (top, height, width) {json.dumps(tops)}"
        return {
            "input": f"{values}, channels first, {cropped}, not normalised: the graph normalises",
            "class_names": json.dumps(self.class_names),
            "policy": str(self.policy),
            "mean_passes": str(self.passes),  # a graph shows every view
            "method": self.calibrator.method.name,
            **{name: json.dumps(about[name]) for name in known if about[name] is not None},
        }


class _Graph(nn.Module):
    """`CalibratedClassifier.graph` as a module."""

    def __init__(self, classifier: Exportable) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Outputs:
        return self.classifier.graph(images)


def _check(module: nn.Module, path: Path, opset: int | None, network: OnnxModel | None) -> None:
    """Refuse what cannot be written, before any work."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"expected a file that ends in .pt2 (torch.export) or .onnx, got {path.name!r}"
        )
    if (dtype := dtype_of(module)) != torch.float32:
        raise InputError(
            f"expected a classifier in float32, got {dtype}: export classifier.float()"
        )
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if path.suffix == ".onnx" and size > ONE_FILE:
        raise InputError(
            f"expected weights below 2 GB, the limit of one ONNX file, got {size / 1e9:.1f} GB"
        )
    if opset is not None and not OPSETS[0] <= opset <= OPSETS[1]:
        raise InputError(
            "opset: expected a version of ONNX's operators "
            f"from {OPSETS[0]} to {OPSETS[1]}, got {opset}"
        )
    if network is None:
        if any(isinstance(part, NumpyModel) for part in module.modules()):
            raise InputError(
                "expected a network of torch or ONNX: a function cannot become part of a graph"
            )
        return
    if path.suffix != ".onnx":
        raise InputError(
            "expected a file that ends in .onnx, because the network is an ONNX file, got "
            f"{path.suffix}"
        )
    if isinstance(network.shape[0], int):
        raise InputError(
            "expected a network with a free batch size, because it takes several views at once, "
            f"and {network.path.name} takes {network.shape[0]} at a time: export it with a dynamic "
            "batch axis"
        )
    if network.dtype != torch.float32:
        raise InputError(
            f"expected a network in float32, got {network.dtype} in {network.path.name}"
        )


def sample(n: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Images to try a graph on: noise and, in a batch of four or more, black, white and a ramp."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    if n > 3:
        images[0], images[1] = 0, 255
        images[2] = torch.linspace(0, 255, shape[-1]).to(torch.uint8)
    return images if dtype == torch.uint8 else images.to(dtype) / 255


@contextmanager
def _exporter(library: str) -> Iterator[None]:
    """Silence an exporter, and turn its failure into one sentence."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            _refused(f"the model cannot be exported: {library} says"),
        ):
            yield
    finally:
        logger.setLevel(level)


def _write_torch(
    program: torch.export.ExportedProgram, path: Path, about: Mapping[str, str]
) -> tuple[None, Run]:
    """Write the program and load it again."""
    with _exporter("torch.export"):
        content = io.BytesIO()  # given a file, torch ends the process when the disk is full
        torch.export.save(program, content, extra_files={ABOUT: json.dumps(dict(about))})
        path.write_bytes(content.getbuffer())
        content.seek(0)
        return None, torch.export.load(content).module()


def _write_onnx(
    program: torch.export.ExportedProgram,
    path: Path,
    opset: int | None,
    about: Mapping[str, str],
    network: OnnxModel | None,
) -> tuple[int, Run]:
    """Write the program as ONNX and load it again; return its opset."""
    with require("onnx", "export to ONNX"):
        import onnxscript  # noqa: F401
    with _exporter("torch.onnx"):
        written: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            verbose=False,
            input_names=["images"],
            output_names=list(OUTPUTS[: len(program.graph_signature.user_outputs)]),
        )
        graph = written.model.graph
        for value in (*graph.inputs, *graph.outputs):
            value.shape[0] = "batch"  # the exporter makes up a name for the free axis
        written.model.metadata_props.update(about)
        if network is None:
            written.save(path, external_data=False)
        else:
            path.write_bytes(_inlined(written.model_proto, network).SerializeToString())
    return int(written.model.opset_imports[""]), open_graph(path).run


def _difference(classifier: Exportable, run: Run, dtype: torch.dtype) -> float:
    """The largest difference between a classifier and its graph in any number of any output."""
    gaps = []
    for n in BATCHES:
        images = sample(n, classifier.image_shape, dtype)
        with torch.no_grad():
            expected = list(classifier.graph(images))
        # A graph may have a fixed batch size after all, or lack an operator.
        with _refused(f"the exported graph fails on a batch of {n}"):
            found = run(images)
        if promise := classifier.promise:  # rounding moves numbers over its threshold
            expected[3] = promise.answered(found[2], found[0].argmax(dim=1))
        for one, other in zip(expected, found, strict=True):
            alike = one.shape == other.shape
            gaps.append((one.double() - other.double()).abs().max().item() if alike else inf)
    return torch.tensor(gaps, dtype=torch.float64).max().item()  # nan if any of them is


# ---- an ONNX network inside the graph


def _inlined(model: Any, network: OnnxModel) -> Any:
    """Replace the stand-in of the network in an ONNX model by the graph in its file."""
    import onnx
    from onnx import inliner

    inner, (domain, name) = onnx.load(str(network.path)), STAND_IN.split("::")
    graph = inner.graph
    if graph.sparse_initializer:
        raise InputError(
            f"expected a network without sparse weights, found some in {network.path.name}"
        )
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]
    weights = {tensor.name for tensor in graph.initializer}  # older files also list them as inputs
    inputs = [value.name for value in graph.input if value.name not in weights]
    body = onnx.helper.make_function(
        domain, name, inputs, [network.output], [*constants, *graph.node], inner.opset_import
    )
    model.functions.extend([body, *inner.functions])
    known = {opset.domain for opset in model.opset_import}
    model.opset_import.extend(opset for opset in inner.opset_import if opset.domain not in known)
    found = inliner.inline_local_functions(model, convert_version=True)
    kept = [opset for opset in found.opset_import if opset.domain != domain]
    del found.opset_import[:]
    found.opset_import.extend(kept)
    return found
