"""A forged `.pt2` file: none of what torch would run when it reads one is run, and ours are read as before."""

import io
import json
import os
import pickle
import zipfile

import pytest
import torch
from torch import nn

from atta._base.errors import InputError
from atta.classifier.export import export, open_graph

pytestmark = pytest.mark.xdist_group("graphs")
SHAPE = (1, 2, 2)
MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
CONSTANTS, WEIGHTS = (
    "data/constants/model_constants_config.json",
    "data/weights/model_weights_config.json",
)


class Both(nn.Module):
    """A linear network, with a constant beside its weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.scale = nn.Linear(4, 3), torch.tensor([1.0, 2.0, 3.0])

    def forward(self, images):
        base = self.inner(images.flatten(1)) * self.scale
        return base.softmax(-1), base


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("pt2") / "ours.pt2"
    export(Both(), SHAPE, path)
    return path


@pytest.fixture
def forge(exported, tmp_path):
    """Write our file again with some entries changed, added or (None) left out."""

    def forge(entries, *, root="archive/", compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(exported) as file:
            old = {name.removeprefix("archive/"): file.read(name) for name in file.namelist()}
        path = tmp_path / "forged.pt2"
        with zipfile.ZipFile(path, "w", compression) as file:
            for name, content in {**old, **entries}.items():
                if content is not None:
                    file.writestr(root + name, content)
        return path

    return forge


def read(exported, name):
    with zipfile.ZipFile(exported) as file:
        return json.loads(file.read(f"archive/{name}"))


def pickled(mark):
    buffer = io.BytesIO()
    torch.save(Payload(mark), buffer)
    return buffer.getvalue()


def test_ours_answers_as_the_module_does(exported):
    images = torch.rand(5, *SHAPE)
    probs, _ = open_graph(exported).run(images)
    assert torch.allclose(probs, Both()(images)[0], atol=1e-6)


def test_a_pickle_in_place_of_a_tensor_does_not_run(exported, forge, tmp_path):
    mark = tmp_path / "it ran"
    for name, place in ((CONSTANTS, "data/constants/tensor_0"), (WEIGHTS, "data/weights/weight_0")):
        config = read(exported, name)
        first = next(one for one in config["config"].values() if place.endswith(one["path_name"]))
        first["use_pickle"] = True
        path = forge({name: json.dumps(config), place: pickled(mark)})
        with pytest.raises(InputError, match="is a pickle, which can run code"):
            open_graph(path)
        assert not mark.exists()
    with pytest.raises(Exception):  # noqa: B017, PT011
        torch.export.load(path)
    assert mark.exists()  # which is what torch does with it


def test_a_pickle_of_sample_inputs_is_not_opened(forge, tmp_path):
    mark = tmp_path / "it ran"
    path = forge({SAMPLES: pickled(mark)})
    assert open_graph(path).classes == 3
    assert not mark.exists()


@pytest.mark.parametrize(
    "place", ["opaque_obj_0", "custom_obj_0", "../weights/weight_0", "/etc/passwd", 5]
)
def test_constants_that_are_not_tensors_are_refused(exported, forge, tmp_path, place):
    config = read(exported, CONSTANTS)
    next(iter(config["config"].values()))["path_name"] = place
    path = forge({CONSTANTS: json.dumps(config)})
    with pytest.raises(InputError, match="expected tensors only among its constants"):
        open_graph(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/constants/opaque_obj_0", "which can run code"),
        ("data/constants/custom_obj_0", "which can run code"),
        ("data/weights/model.pt", "which can run code"),
        ("data/aotinductor/model/x.so", "which can run code"),
        ("models/other.json", "which can run code"),
        ("extra/notes", "which can run code"),
        ("../../outside", "which can run code"),
        ("/absolute", "which can run code"),
    ],
)
def test_other_entries_are_refused(forge, tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        open_graph(forge({name: pickle.dumps(Payload(tmp_path / "it ran"))}))
    assert not (tmp_path / "it ran").exists()


def test_the_layout_of_older_torch_is_refused(tmp_path):
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("version", "8.20")
        for part in ("state_dict", "constants", "example_inputs"):
            file.writestr(f"serialized_{part}.pt", pickled(tmp_path / "it ran"))
    with pytest.raises(
        InputError, match=r"expected tensors and a graph as torch\.export of 2.9 and later"
    ):
        open_graph(path)
    assert not (tmp_path / "it ran").exists()


def test_what_unfolds_or_lacks_a_part_is_refused(forge):
    with pytest.raises(InputError, match="not compressed"):
        open_graph(
            forge({"data/weights/weight_0": bytes(10_000_000)}, compression=zipfile.ZIP_DEFLATED)
        )
    with pytest.raises(InputError, match=r"lacks models/model\.json"):
        open_graph(forge({MODEL: None}))
    with pytest.raises(InputError, match=r"numbers of .* are not there"):
        open_graph(forge({"data/weights/weight_0": None}))
    with pytest.raises(InputError, match=r"numbers of .* are not there"):
        open_graph(forge({"data/weights/weight_0": b""}))
    with pytest.raises(InputError, match="no JSON"):
        open_graph(forge({MODEL: "[" * 100_000}))


def size(program, text):
    values = program["graph_module"]["graph"]["tensor_values"]
    next(one for one in values.values() if "as_expr" in one["sizes"][0])["sizes"][0]["as_expr"][
        "expr_str"
    ] = text


def call(program, target, *arguments):
    node = program["graph_module"]["graph"]["nodes"][0]
    node["target"] = target
    node["inputs"] = [{"name": "x", "arg": argument, "kind": 1} for argument in arguments] or node[
        "inputs"
    ]


def rename(program, name):
    text = json.dumps(program).replace('"name": "images"', f'"name": {json.dumps(name)}')
    program |= json.loads(text)


def batches(program, key, value):
    program["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {key: value}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: size(p, "__import__('os').mkdir('MARK')"), "its expr_str says"),
        (lambda p: size(p, "Symbol('s0').__class__"), "its expr_str says"),
        (lambda p: size(p, "(lambda: 5)()"), "its expr_str says"),
        (lambda p: size(p, "'s0' * 5"), "its expr_str says"),
        (lambda p: size(p, "(" * 500 + "1" + ")" * 500), "its expr_str says"),
        (lambda p: call(p, "torch.os.mkdir", {"as_string": "MARK"}), "its target says"),
        (lambda p: call(p, "torch.hub.load", {"as_string": "org"}), "its target says"),
        (lambda p: call(p, "torch.ops.aten.save.default"), "its target says"),
        (lambda p: call(p, "torch.ops.aten.from_file.default"), "its target says"),
        (lambda p: call(p, "torch.ops.aten.__class__.mro"), "its target says"),
        (lambda p: call(p, "torch.ops.load_library"), "its target says"),
        (lambda p: call(p, "_operator.attrgetter"), "its target says"),
        (lambda p: call(p, "#extension:op"), "its target says"),
        (lambda p: rename(p, "x=__import__('os').mkdir('MARK')"), "its name says"),
        (lambda p: rename(p, "x):\n    pass\n#"), "its name says"),
        (
            lambda p: batches(p, "as_custom_obj", {"name": "x", "class_fqn": "y"}),
            "objects that are not tensors",
        ),
        (lambda p: batches(p, "as_operator", "torch.os.mkdir"), "objects that are not tensors"),
        (lambda p: batches(p, "as_device", {"type": "meta", "index": None}), "its type says"),
        (lambda p: p.update(verifiers=["mine"]), "torch's own dialects"),
    ],
)
def test_a_graph_that_names_code_is_refused(
    exported, forge, tmp_path, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)
    program = read(exported, MODEL)
    change(program)
    with pytest.raises(InputError, match=f"refused before any of it could run: .*{message}"):
        open_graph(forge({MODEL: json.dumps(program)}))
    assert not (tmp_path / "MARK").exists()


def test_what_torch_would_write_as_python_or_import_is_left_out(
    exported, forge, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    program = read(exported, MODEL)
    program["guards_code"] = ["__import__('os').mkdir('MARK')"]
    bad = '[1, {"type": "collections.defaultdict", "context": "{\\"default_factory_module\\": \\"antigravity\\"}"}]'
    program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = bad
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {
            "stack_trace": "\n__import__('os').mkdir('MARK')\n",
            "source_fn_stack": "x,torch.os.mkdir",
        }
    found = open_graph(forge({MODEL: json.dumps(program)}))
    images = torch.rand(2, *SHAPE)
    assert torch.allclose(found.run(images)[0], Both()(images)[0], atol=1e-6)
    assert not (tmp_path / "MARK").exists()
