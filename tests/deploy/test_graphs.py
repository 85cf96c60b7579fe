"""Graphs run without the classifier that they were exported from. Exported ones are tested where they are made."""

from pathlib import Path

import numpy as np
import pytest
import torch

import atta
from atta.deploy.graphs import open_graph

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


def write(path: Path, *, base: str = "base", pixels: int = onnx.TensorProto.UINT8) -> Path:
    """Probabilities from the sums of the channels; `base` is them, sharpened."""
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        make.make_node("Cast", ["images"], ["x"], to=floats),
        make.make_node("ReduceMean", ["x", "axes"], ["means"], keepdims=0),
        make.make_node("Softmax", ["means"], ["probs"]),
        make.make_node("Add", ["means", "means"], ["twice"]),
        make.make_node("Softmax", ["twice"], [base]),
    ]
    graph = make.make_graph(
        nodes,
        "graph",
        [make.make_tensor_value_info("images", pixels, ["n", 3, 4, 5])],
        [make.make_tensor_value_info(name, floats, ["n", 3]) for name in (base, "probs")],  # found by name, not place
        [onnx.numpy_helper.from_array(np.array([2, 3]), "axes")],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("pixels", "dtype"), [(onnx.TensorProto.UINT8, torch.uint8), (onnx.TensorProto.FLOAT, torch.float32)]
)
def test_a_graph_in_onnx_says_what_it_takes_and_answers_by_name(
    pixels: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    graph = open_graph(write(tmp_path / "graph.onnx", pixels=pixels))
    assert (graph.shape, graph.dtype, graph.classes) == ((3, 4, 5), dtype, 3)
    images = torch.randint(0, 3, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    probs, base = graph.run(images)
    means = images.float().mean(dim=(2, 3))
    assert torch.allclose(probs, means.softmax(dim=1), atol=1e-6)
    assert torch.allclose(base, (2 * means).softmax(dim=1), atol=1e-6)


def test_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(atta.InputError, match="to answer with probs and base, found logits, probs"):
        open_graph(write(tmp_path / "graph.onnx", base="logits"))
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(atta.InputError, match="expected a classifier that atta exported"):
        open_graph(tmp_path / "noise.onnx")
