"""An exported graph answers as the classifier does and keeps the class, or is not written."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import atta
from atta._base.errors import InputError
from atta.calibrators.risk import Promise
from atta.classifier import export as graphs
from atta.classifier.export import open_graph
from atta.classifier.predict import open_predictor
from atta.data.views import Policy, from_kornia
from atta.networks.adapters import NumpyModel
from atta.networks.resnet import _BasicBlock
from scenarios import SHAPE, blend, linear, pixels, vit

pytestmark = pytest.mark.xdist_group("graphs")  # one worker makes what all of them look at
GREY = (1, 6, 6)


def tying():
    """A multi-layer perceptron on grey images, two of whose classes are nearly the same."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        network[3].weight *= 8
        network[3].bias.zero_()
        network[3].weight[1] = network[3].weight[0] * (1 + 1e-6)
    return network


def residual():
    """A small network for images of any size, with a shortcut."""
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), _BasicBlock(4, 8, stride=2), *head).eval()


# One of each kind of network and of input; exporting to ONNX takes seconds.
CASES = {
    "grey.onnx": (tying, "flip + 2 crop", GREY, 4, "float32"),
    "any-size.pt2": (residual, "native-crop + brightness", SHAPE, 3, "uint8"),
    "vit.onnx": (vit, "flip", SHAPE, 3, "float32"),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each case, exported when it is first asked for."""
    root, done = tmp_path_factory.mktemp("exported"), {}

    def export(name):
        if name not in done:
            build, policy, shape, classes, given = CASES[name]
            classifier = blend(build(), policy, shape=shape, classes=classes)
            with torch.autocast("cpu", torch.bfloat16):  # which must not reach the graph
                done[name] = classifier, classifier.export(root / name, pixels=given)
        return done[name]

    return export


def run(path, images):
    if path.suffix == ".onnx":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        assert [node.name for node in session.get_inputs()] == ["images"]
        names = [node.name for node in session.get_outputs()]
        return dict(zip(names, session.run(names, {"images": images.numpy()}), strict=True))
    with torch.no_grad():
        found = torch.export.load(path).module()(images)
    return {name: each.numpy() for name, each in zip(graphs.OUTPUTS, found, strict=False)}


@pytest.mark.parametrize(
    "method",
    [atta.SelectiveVATTA(passes=1.7), atta.SequentialVATTA(passes=1.7)],
    ids=lambda m: m.name,
)
def test_a_method_with_stages_exports_to_a_graph(method, tmp_path):
    images, network = pixels(60), linear()
    labels = network(images / 255).argmax(dim=1).roll(1)
    record = atta.collect(
        network,
        images,
        labels,
        policy="flip + 2 crop",
        draws="stratified",
        progress=False,
        checks=False,
    )
    calibrator = method.fit(record.predictions, labels)
    classifier = atta.CalibratedClassifier(network, calibrator, "flip + 2 crop", image_shape=SHAPE)
    path = classifier.export(tmp_path / "graph.pt2", pixels="uint8").path
    assert np.allclose(run(path, images)["probs"], classifier(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_the_graph_answers_batches_of_any_size_as_the_classifier_does(exported, name):
    classifier, written = exported(name)
    for n in (1, 3, 64):
        images = pixels(n, classifier.image_shape, seed=n)
        given = images if CASES[name][4] == "uint8" else images / 255
        found, expected = run(written.path, given), classifier.details(images)
        assert found["probs"].shape == (n, CASES[name][3])
        assert np.allclose(found["base"], expected.base, atol=1e-5, rtol=0)
        assert np.allclose(found["probs"], expected.probs, atol=1e-5, rtol=0)
        assert np.allclose(found["confidence"], expected.confidence, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("thresholds", "ending"), [((0.4,), "pt2"), ((0.35, 0.45), "onnx")])
def test_a_stated_risk_is_an_output_of_the_graph(thresholds, ending, tmp_path):
    promise = Promise(risk=0.1, delta=0.05, thresholds=thresholds, coverage=0.5, images=100)
    plain = blend(linear(), "flip", shape=SHAPE, classes=3)
    classifier = plain._with(promise=promise)
    path = classifier.export(tmp_path / f"graph.{ending}", pixels="uint8").path
    images = pixels(200, seed=7)
    found, expected = run(path, images), classifier.answered(images.numpy())
    near = np.abs(found["confidence"][:, None] - thresholds).min(1) < 1e-5
    assert 10 < expected.sum() < 190
    assert (found["answered"] == expected)[~near].all()
    if ending == "onnx":
        assert open_predictor(path).promise == promise
        with pytest.raises(InputError, match=r"state its risk or its classes, and export that"):
            open_predictor(path, risk=0.01)


def test_the_class_is_kept_over_ten_thousand_images_in_onnx_runtime(exported):
    _, written = exported("grey.onnx")
    found = run(written.path, torch.rand(10_000, *GREY, generator=torch.Generator().manual_seed(1)))
    first, second = torch.from_numpy(found["base"]).topk(2).values.unbind(1)
    assert (first == second).any()
    assert ((first - second) < 1e-6).sum() > 100
    assert (found["probs"] != found["base"]).any(1).sum() > 1000
    assert np.array_equal(found["probs"].argmax(1), found["base"].argmax(1))


def test_it_says_what_was_written(exported):
    _, written = exported("any-size.pt2")
    assert written.size == written.path.stat().st_size
    assert written.difference <= graphs.TOLERANCE
    assert "torch.export" in str(written)
    _, written = exported("grey.onnx")
    assert f"ONNX, opset {written.opset}" in str(written)
    assert {path.suffix for path in written.path.parent.iterdir()} <= {
        ".onnx",
        ".pt2",
    }  # nothing beside them


# ---- what is refused


class Two(nn.Module):
    """Something else in a graph than in Python."""

    def __init__(self, forward):
        super().__init__()
        self.inner, self.how = linear(), forward

    def forward(self, images):
        return self.how(self.inner(images))


def differs(logits):
    return logits * 2 if torch.compiler.is_compiling() else logits


def branches(logits):
    return logits if bool(logits.sum() > 0) else -logits


def nan(logits):
    return logits / 0 * 0 if torch.compiler.is_compiling() else logits


@pytest.mark.parametrize(
    ("model", "policy", "name", "settings", "message"),
    [
        (
            linear(),
            "flip",
            "x.pt",
            {},
            r"expected a file that ends in .pt2 \(torch.export\) or .onnx, got 'x.pt'",
        ),
        (
            linear(),
            "flip",
            "x.onnx",
            {"pixels": "int64"},
            "pixels: expected 'float32' or 'uint8', got 'int64'",
        ),
        (
            linear().half(),
            "flip",
            "x.onnx",
            {},
            r"expected a classifier in float32, got torch.float16",
        ),
        (
            linear().double(),
            "flip",
            "x.onnx",
            {},
            r"expected a classifier in float32, got torch.float64",
        ),
        (
            NumpyModel(lambda images: images[:, :3, 0, 0]),
            "flip",
            "x.pt2",
            {},
            "expected a network of torch or ONNX",
        ),
        (
            Two(differs),
            "flip",
            "x.pt2",
            {},
            "the exported graph differs from the model by .*nothing was written",
        ),
        (Two(nan), "flip", "x.pt2", {}, "the exported graph differs from the model by nan"),
        (Two(branches), "flip", "x.pt2", {}, "the model cannot be exported: torch.export says"),
        (
            linear(),
            Policy(((from_kornia("shuffle", lambda images: images + torch.rand(())), 1),)),
            "x.pt2",
            {},
            "the model cannot be exported: torch.export says",
        ),
    ],
)
def test_what_cannot_be_a_graph_is_refused_and_nothing_is_left_behind(
    model, policy, name, settings, message, tmp_path
):
    (tmp_path / name).write_text("earlier")
    with pytest.raises(InputError, match=message):
        blend(model, policy).export(tmp_path / name, **settings)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "earlier"


def test_weights_beyond_what_one_onnx_file_holds_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(graphs, "ONE_FILE", 1000)
    with pytest.raises(InputError, match="expected weights below 2 GB, the limit of one ONNX file"):
        blend(linear()).export(tmp_path / "x.onnx")


def test_the_trial_images_are_noise_black_white_and_a_ramp():
    images = graphs.sample(8, SHAPE, torch.float32)
    assert images[0].max() == 0
    assert images[1].min() == 1
    assert (images[2, 0, 0].diff() > 0).all()
    assert torch.equal(images, graphs.sample(8, SHAPE, torch.uint8) / 255)


# ---- graphs that were not exported here


def write_graph(path: Path, *, base: str = "base", pixels: int = onnx.TensorProto.UINT8) -> Path:
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
        [
            make.make_tensor_value_info(name, floats, ["n", 3]) for name in (base, "probs")
        ],  # found by name, not place
        [onnx.numpy_helper.from_array(np.array([2, 3]), "axes")],
    )
    onnx.save(
        make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10), path
    )
    return path


@pytest.mark.parametrize(
    ("pixels", "dtype"),
    [(onnx.TensorProto.UINT8, torch.uint8), (onnx.TensorProto.FLOAT, torch.float32)],
)
def test_a_graph_in_onnx_says_what_it_takes_and_answers_by_name(
    pixels: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    graph = open_graph(write_graph(tmp_path / "graph.onnx", pixels=pixels))
    assert (graph.image_shape, graph.dtype, graph.classes) == ((3, 4, 5), dtype, 3)
    images = torch.randint(0, 3, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    probs, base = graph.run(images)
    means = images.float().mean(dim=(2, 3))
    assert torch.allclose(probs, means.softmax(dim=1), atol=1e-6)
    assert torch.allclose(base, (2 * means).softmax(dim=1), atol=1e-6)


def test_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="returns logits, probs and not probs and base"):
        open_graph(write_graph(tmp_path / "graph.onnx", base="logits"))
    with pytest.raises(
        InputError, match=r"torch\.export\.load reads .* to \.onnx for `atta predict`"
    ):
        open_graph(tmp_path / "graph.pt2")
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(InputError, match="to be an ONNX model"):
        open_graph(tmp_path / "noise.onnx")


def onnx_network(path: Path, *, batch: bool = True, softmax: bool = False) -> Path:
    """An ONNX network in an older version of the operators than torch writes."""
    floats, make, generator = onnx.TensorProto.FLOAT, onnx.helper, np.random.default_rng(0)
    weights = {
        "w": generator.normal(size=(4, 3, 3, 3)).astype("f"),
        "head": generator.normal(size=(4, 5)).astype("f"),
    }
    nodes = [
        make.make_node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["conv"], ["relu"]),
        make.make_node("ReduceMean", ["relu"], ["mean"], axes=[2, 3], keepdims=0),
        make.make_node("MatMul", ["mean", "head"], ["logits"]),
        *([make.make_node("Softmax", ["logits"], ["y"], axis=1)] if softmax else []),
    ]
    shapes = [
        ("x", ["n" if batch else 2, 3, 8, 8]),
        ("y" if softmax else "logits", ["n" if batch else 2, 5]),
    ]
    (x, y) = (make.make_tensor_value_info(name, floats, shape) for name, shape in shapes)
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = make.make_graph(nodes, "network", [x], [y], tensors)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.mark.parametrize("softmax", [False, True])
def test_an_onnx_network_becomes_part_of_the_graph(tmp_path: Path, softmax: bool) -> None:
    path = onnx_network(tmp_path / "network.onnx", softmax=softmax)
    model = atta.FromProbabilities(str(path)) if softmax else str(path)
    labels = torch.arange(60) % 5
    normalise = atta.Preprocess(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3))
    classifier = atta.calibrate(
        model, pixels(60), labels, policy="flip + 2 crop", preprocess=normalise, progress=False
    )
    written = classifier.export(tmp_path / "out.onnx")
    graph = onnx.load(written.path)
    assert {node.domain for node in graph.graph.node} <= {""}
    assert not graph.functions
    path.unlink()  # nothing of it is needed any more
    found = open_graph(written.path).run(pixels(9, seed=3).float() / 255)[0]
    torch.testing.assert_close(found, classifier(pixels(9, seed=3)), atol=1e-5, rtol=0)


def test_an_onnx_network_that_cannot_become_part_of_a_graph_says_why(tmp_path: Path) -> None:
    fixed = onnx_network(tmp_path / "fixed.onnx", batch=False)
    free = onnx_network(tmp_path / "free.onnx")
    tried = [
        (fixed, "x.onnx", "takes 2 at a time"),
        (free, "x.pt2", r"ends in \.onnx, because the network is an ONNX file"),
    ]
    for path, output, message in tried:
        classifier = atta.calibrate(
            str(path), pixels(60), torch.arange(60) % 5, policy="flip", progress=False
        )
        with pytest.raises(atta.InputError, match=message):
            classifier.export(tmp_path / output)
