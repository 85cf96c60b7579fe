"""An ONNX network inside of a calibrated graph: not traced again, but put in node by node where torch left a stand-in.

classifier of an OnnxModel ─ torch.onnx ─► images ─ views ─ [atta::Network] ─ calibration ─► probs, base
the network's own file ─► a function of that name ─ onnx's inliner ─► one graph of plain operators
"""

from typing import Any

from torch import nn

from atta._base.errors import InputError, require
from atta.networks.adapters import STAND_IN, OnnxModel


def network_of(module: nn.Module) -> OnnxModel | None:
    """The ONNX network inside of a module, if there is one."""
    return next((part for part in module.modules() if isinstance(part, OnnxModel)), None)


def check_inlines(network: OnnxModel, ending: str) -> None:
    """Refuse what cannot become part of a graph."""
    if ending != ".onnx":
        raise InputError(
            f"expected a file that ends in .onnx, for the network is one itself, got {ending}"
        )
    if isinstance(network.shape[0], int):
        raise InputError(
            f"expected a network whose batch size is free, to put several views through it at once, and {network.path.name} "
            f"takes {network.shape[0]} at a time: export it with a dynamic batch axis"
        )
    if network.dtype != "float32":
        raise InputError(
            f"expected a network in float32, got {network.dtype} in {network.path.name}"
        )


def inlined(model: Any, network: OnnxModel) -> Any:
    """Replace the stand-in of the network in an ONNX model by what its file holds."""
    with require("onnx", "export to ONNX"):
        import onnx
        from onnx import inliner
    inner, (domain, name) = onnx.load(str(network.path)), STAND_IN.split("::")
    graph = inner.graph
    if graph.sparse_initializer:
        raise InputError(
            f"expected a network without sparse weights, found some in {network.path.name}"
        )
    weights = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]
    known = {
        tensor.name for tensor in graph.initializer
    }  # which older files also list among the inputs
    inputs = [value.name for value in graph.input if value.name not in known]
    body = onnx.helper.make_function(
        domain, name, inputs, [network.output], [*weights, *graph.node], inner.opset_import
    )
    model.functions.extend([body, *inner.functions])
    there = {opset.domain for opset in model.opset_import}
    model.opset_import.extend(opset for opset in inner.opset_import if opset.domain not in there)
    found = inliner.inline_local_functions(model, convert_version=True)
    kept = [opset for opset in found.opset_import if opset.domain != domain]
    del found.opset_import[:]
    found.opset_import.extend(kept)
    return found
