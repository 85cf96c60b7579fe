"""Files with bytes flipped, cut, inserted or repeated are read, or refused in one sentence."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atta import Record, Results, calibrators
from atta._base.errors import InputError
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import open_graph
from atta.lab.experiment import Experiment
from atta.networks.resnet import MODELS
from scenarios import blend, made_up, rows

pytestmark = pytest.mark.xdist_group("graphs")
TOML = """
title = "A test"
dataset = "toy"
fit = "toy"
policies = ["aug1"]
validation = 10
splits = 2

[methods.vanilla]

[methods.temperature]
"""


def onnx_graph(path):
    onnx = pytest.importorskip("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", number, [4, 3], [0.1] * 12)
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["base"]),
        helper.make_node("Softmax", ["base"], ["probs"]),
    ]
    given = [helper.make_tensor_value_info("images", number, ["n", 1, 2, 2])]
    answers = [helper.make_tensor_value_info(name, number, ["n", 3]) for name in ("probs", "base")]
    graph = helper.make_graph(nodes, "g", given, answers, [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of each kind, and what reads it."""
    root = tmp_path_factory.mktemp("hostile")
    record = made_up(12)
    record.save(root / "record.safetensors")
    calibrators.METHODS["v-atta"]().fit(record.predictions, record.labels).save(
        root / "calibrator.safetensors"
    )
    classifier = blend(MODELS["small_cnn"](3))
    classifier.save(root / "folder")
    classifier.save(root / "classifier.safetensors")
    rows(brier=[0.1, 0.2]).save(root / "results.json")
    (root / "experiment.toml").write_text(TOML)
    onnx_graph(root / "graph.onnx")
    return root


KINDS = {
    "record.safetensors": (Record.load, 30),
    "calibrator.safetensors": (calibrators.load, 30),
    "classifier.safetensors": (CalibratedClassifier.load, 20),
    "folder/classifier.json": (lambda path: CalibratedClassifier.load(path.parent), 20),
    "folder/calibrator.safetensors": (lambda path: CalibratedClassifier.load(path.parent), 10),
    "results.json": (Results.load, 40),
    "experiment.toml": (Experiment.read, 40),
    "graph.onnx": (open_graph, 20),
}


def changed(content, how, place, byte):
    """The content with a byte flipped, put in or set, cut short, or with a piece of it repeated."""
    at = int(place * (len(content) - 1))
    match how:
        case "flip":
            return content[:at] + bytes([content[at] ^ (1 << byte % 8)]) + content[at + 1 :]
        case "set":
            return content[:at] + bytes([byte]) + content[at + 1 :]
        case "insert":
            return content[:at] + bytes([byte]) + content[at:]
        case "cut":
            return content[:at]
    return content[:at] + content[max(0, at - byte) :]


# Descriptions lie at the beginning of most files: half of the places are there.
places = st.one_of(st.floats(0, 1), st.floats(0, 0.05))
hows = st.sampled_from(["flip", "set", "insert", "cut", "repeat"])


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_file_is_read_or_refused_in_a_sentence(files, name):
    load, examples = KINDS[name]
    path: Path = files / name
    whole = path.read_bytes()
    load(path)

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(how=hows, place=places, byte=st.integers(0, 255))
    def attack(how, place, byte):
        path.write_bytes(changed(whole, how, place, byte))
        with suppress(InputError):  # any other kind ends the test
            load(path)

    try:
        attack()
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["results.json", "experiment.toml", "folder/classifier.json"])
def test_a_file_nested_too_deeply_is_refused_in_a_sentence(files, name):
    path: Path = files / name
    whole = path.read_bytes()
    deep = "a = " + "[" * 50_000 if name.endswith("toml") else '{"format":' + "[" * 50_000
    try:
        path.write_text(deep)
        with pytest.raises(InputError):
            KINDS[name][0](path)
    finally:
        path.write_bytes(whole)


def test_a_record_of_a_forged_header_is_refused(tmp_path):
    for dtype, shape in (("F8_E4M3", [2, 4]), ("BOOL", [2, 4]), ("F32", [2**40, 4])):
        entry = {"dtype": dtype, "shape": shape}
        header = json.dumps({"logits": {**entry, "data_offsets": [0, 8]}}).encode()
        path = tmp_path / "forged.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(InputError):
            Record.load(path)
