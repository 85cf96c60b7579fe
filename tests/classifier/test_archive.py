"""A saved classifier comes back with the same bits, and a changed file is refused."""

import hashlib
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import atta
from atta._base.errors import InputError
from atta.classifier import archive
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.summary import Summary
from atta.networks.adapters import NumpyModel, OnnxModel
from atta.networks.resnet import MODELS
from scenarios import POLICY, REBUILT, SHAPE, Own, blend, linear, pixels

FORMS = ["folder", "file.safetensors"]


class _Softmax(nn.Sequential):
    def forward(self, images):
        return super().forward(images).softmax(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier of a network of one's own, in both forms."""
    torch.manual_seed(0)
    classifier = blend(Own())
    classifier.summary = Summary(
        method="v-atta",
        policy=POLICY,
        passes=4.0,
        images=60,
        classes=3,
        before={"nll": 0.3},
        after={"nll": 0.1 + 0.2},
        accuracy=0.75,
        class_changes=0,
        bins={"before": [1 / 3]},
        candidates=[{"policy": "müßig"}],
    )
    classifier.class_names = ("Äpfel", "b", "c")
    root = tmp_path_factory.mktemp("saved")
    for form in FORMS:
        classifier.save(root / form)
    return classifier, root


def copied(saved, tmp_path, form):
    _, root = saved
    path = tmp_path / form
    tmp_path.mkdir(exist_ok=True)
    shutil.copytree(root / form, path) if (root / form).is_dir() else shutil.copy(root / form, path)
    return path


# ---- there and back


@pytest.mark.parametrize("name", REBUILT)
def test_a_network_that_can_be_described_is_built_again(name, tmp_path):
    torch.manual_seed(0)
    classifier = blend(REBUILT[name]())
    loaded = CalibratedClassifier.load(classifier.save(tmp_path / "c.safetensors"))
    assert torch.equal(loaded(pixels(9)), classifier(pixels(9)))
    assert str(loaded.policy) == POLICY
    if name == "vit, eager attention":
        assert loaded.model.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("form", FORMS)
def test_everything_comes_back(saved, form):
    classifier, root = saved
    loaded = CalibratedClassifier.load(root / form, Own())
    assert torch.equal(loaded(pixels(9)), classifier(pixels(9)))
    assert loaded.summary == classifier.summary
    assert loaded.class_names == ("Äpfel", "b", "c")
    assert loaded.image_shape == SHAPE
    assert {path.name for path in (root / "folder").iterdir()} == {
        "classifier.json",
        "calibrator.safetensors",
        "model.safetensors",
    }


def test_the_network_inside_or_the_wrapped_one_may_be_given(tmp_path):
    torch.manual_seed(0)
    classifier = blend(
        atta.FromProbabilities(atta.Normalized(_Softmax(linear()), [0.4] * 3, [0.2] * 3))
    )
    path = classifier.save(tmp_path / "c")
    expected = classifier(pixels(9))
    wrapped = atta.FromProbabilities(atta.Normalized(_Softmax(linear()), [0.0] * 3, [1.0] * 3))
    for model in (_Softmax(linear()), wrapped):
        assert torch.equal(CalibratedClassifier.load(path, model)(pixels(9)), expected)
    with pytest.raises(InputError, match=r"expected model=.*, of class .*_Softmax: its code"):
        CalibratedClassifier.load(path)


def test_a_function_and_an_onnx_file_are_given_again(tmp_path):
    weights = np.random.default_rng(0).normal(size=(192, 3)).astype(np.float32)
    model = NumpyModel(lambda images: images.reshape(len(images), -1) @ weights)
    classifier = blend(model)
    path = classifier.save(tmp_path / "c")
    assert not (path / "model.safetensors").exists()
    assert torch.equal(CalibratedClassifier.load(path, model)(pixels(9)), classifier(pixels(9)))
    with pytest.raises(
        InputError, match=r"expected model=.*, of class atta.networks.adapters.NumpyModel"
    ):
        CalibratedClassifier.load(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_precision_of_the_network_comes_back(dtype, tmp_path):
    classifier = blend(MODELS["small_cnn"](3)).to(dtype)
    loaded = CalibratedClassifier.load(classifier.save(tmp_path / "c.safetensors"))
    assert {name: value.dtype for name, value in loaded.state_dict().items()} == {
        name: value.dtype for name, value in classifier.state_dict().items()
    }
    assert torch.equal(loaded(pixels(9)), classifier(pixels(9)))


class Mixed(nn.Module):
    """A last layer in float64 behind one in float32."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(192, 4), nn.Linear(4, 3).double()

    def forward(self, images):
        return self.head(self.body(images.flatten(1)).double())


def test_a_network_of_several_precisions_comes_back_as_it_was(tmp_path):
    model = Mixed()
    model.head.weight.data += 1e-12  # which float32 does not hold
    path = blend(model).save(tmp_path / "c")
    loaded = CalibratedClassifier.load(path, Mixed())
    assert torch.equal(loaded.model.model.head.weight, model.head.weight)
    assert torch.equal(loaded(pixels(9)), blend(model)(pixels(9)))


@pytest.mark.parametrize("form", FORMS)
def test_saving_over_another_classifier_replaces_it(saved, form, tmp_path):
    path = copied(saved, tmp_path, form)
    other = blend(linear(4), classes=4)
    other.save(path)
    assert torch.equal(CalibratedClassifier.load(path, linear(4))(pixels(9)), other(pixels(9)))


def steps(monkeypatch, stop_at):
    """Count the files that are renamed or removed, and stop before the step `stop_at`."""
    taken = []

    def counted(name, step):
        def take(path, *rest, **options):
            if name != "unlink" or not path.name.endswith(
                ".part"
            ):  # what is thrown away is no step
                taken.append(path)
                if len(taken) == stop_at:
                    raise KeyboardInterrupt
            return step(path, *rest, **options)

        return take

    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(name, getattr(Path, name)))
    return taken


@pytest.mark.parametrize("form", [*FORMS, "folder that was saved over"])
def test_a_save_that_is_stopped_anywhere_leaves_the_old_classifier_or_the_new_one(
    saved, form, tmp_path
):
    old, new = saved[0], blend(Own(), limit=0.1)
    old_answer, new_answer = old(pixels(9)), new(pixels(9))
    for stop_at in range(1, 10):
        path = copied(saved, tmp_path / str(stop_at), form.partition(" ")[0])
        if form not in FORMS:
            old.save(path)
        with pytest.MonkeyPatch.context() as patch:
            taken = steps(patch, stop_at)
            with suppress(KeyboardInterrupt):
                new.save(path)
        answer = CalibratedClassifier.load(path, Own())(pixels(9))
        assert torch.equal(answer, old_answer) or torch.equal(answer, new_answer)
        new.save(path)
        assert torch.equal(CalibratedClassifier.load(path, Own())(pixels(9)), new_answer)
        assert path.is_file() or len(list(path.iterdir())) == 3, (
            "nothing is left of the one that was stopped"
        )
        if len(taken) < stop_at:
            break
    assert len(taken) == (1 if path.is_file() else 5)  # two parts, the description, two old parts


def test_a_save_of_a_new_folder_that_is_stopped_leaves_nothing(tmp_path):
    for stop_at in range(1, 5):
        with pytest.MonkeyPatch.context() as patch:
            steps(patch, stop_at)
            with pytest.raises(KeyboardInterrupt):
                blend(Own()).save(tmp_path / "c")
        assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are made by fork here")
@pytest.mark.filterwarnings(
    "ignore:This process"
)  # is multi-threaded: the child does nothing but write
def test_a_classifier_outlives_the_processes_that_write_it(tmp_path):
    path, network = tmp_path / "c", Own()
    both = [blend(network, limit=limit) for limit in (0.1, 0.8)]
    answers = [classifier(pixels(9)) for classifier in both]
    both[0].save(path)
    for delay in (0.01, 0.013, 0.017, 0.022, 0.03, 0.04):
        if not (child := os.fork()):
            while True:
                both[1].save(path)
                both[0].save(path)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = CalibratedClassifier.load(path, Own())(pixels(9))
        assert any(torch.equal(found, answer) for answer in answers)
    both[1].save(path)
    assert torch.equal(CalibratedClassifier.load(path, Own())(pixels(9)), answers[1])
    assert len(list(path.iterdir())) == 3, (
        "nothing stays of those that were killed, nor of what safetensors lays beside them"
    )
    assert list(tmp_path.iterdir()) == [path]


def test_what_lies_in_the_folder_besides_stays(saved, tmp_path):
    """A trained network and notes were there; the names of a forged description are not removed."""
    for name in ("model.safetensors", "README.md"):
        (tmp_path / name).write_text("mine")
    classifier = saved[0]
    for _ in range(2):
        classifier.save(tmp_path)
        assert (
            (tmp_path / "model.safetensors").read_text()
            == (tmp_path / "README.md").read_text()
            == "mine"
        )
        assert torch.equal(
            CalibratedClassifier.load(tmp_path, Own())(pixels(3)), classifier(pixels(3))
        )
    edit(tmp_path, lambda about: about | {"files": {"model": "README.md"}})
    with pytest.raises(
        InputError, match=r"says that model is in 'README.md', which is not a file name that atta"
    ):
        CalibratedClassifier.load(tmp_path, Own())
    classifier.save(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_folders_of_an_earlier_version_are_read(tmp_path):
    """Checks the bytes of the format, not a round trip: the digest is computed here."""
    classifier = blend(linear())
    path = classifier.save(tmp_path / "c")
    about = json.loads((path / "classifier.json").read_text())
    said = about.pop("digest")
    found = hashlib.sha256(json.dumps(about, sort_keys=True, ensure_ascii=False).encode())
    for part in ("calibrator", "model"):
        for name, tensor in sorted(load_file(path / f"{part}.safetensors").items()):
            found.update(
                f"\n{part}.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
                + tensor.numpy().tobytes()
            )
    assert said == found.hexdigest()
    for part in ("calibrator", "model"):
        save_file(
            load_file(path / f"{part}.safetensors"), path / f"{part}.safetensors"
        )  # without a digest of its own
    assert torch.equal(CalibratedClassifier.load(path, linear())(pixels(3)), classifier(pixels(3)))


@pytest.mark.parametrize("length", range(16))
def test_a_file_is_read_whatever_the_length_of_its_header(length, tmp_path):
    """The length is in front, and 0x80 is also how a pickle begins."""
    classifier = blend(linear())
    classifier.class_names = ("x" * 8 * length, "b", "c")
    path = classifier.save(tmp_path / "c.safetensors")
    assert CalibratedClassifier.load(path, linear()).class_names == classifier.class_names


# ---- what is refused


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Own(classes=4), "expected a model of 3 classes, as the calibrator has, got one of 4"),
        (
            Own(features=48),
            r"expected a model that takes images of \(3, 8, 8\), but this one fails",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
            "to fit the model: .* missing in the model",
        ),
        (None, r"expected model=.*, of class scenarios.Own: its code"),
        ("model.pt", "expected a torch module or the path of an .onnx file, got the path model.pt"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(saved, model, message):
    with pytest.raises(InputError, match=message):
        CalibratedClassifier.load(saved[1] / "folder", model)


def edit(path, change):
    """Change the description in a folder or in a file."""
    if path.is_dir():
        about = json.loads((path / "classifier.json").read_text())
        (path / "classifier.json").write_text(json.dumps(change(about)))
        return
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        header = file.metadata()
    save_file(
        load_file(path), path, {**header, "about": json.dumps(change(json.loads(header["about"])))}
    )


EDITS = {
    "policy": (lambda about: about | {"policy": "flip + 3 crop"}, "was changed after it was saved"),
    "shape": (lambda about: about | {"image_shape": [3, 9, 9]}, "was changed after it was saved"),
    "summary": (lambda about: about | {"summary": None}, "was changed after it was saved"),
    "no digest": (
        lambda about: {k: v for k, v in about.items() if k != "digest"},
        "was changed after it was saved",
    ),
    "version": (
        lambda about: about | {"format_version": 2},
        "has format version 2, this atta reads up to 1: install",
    ),
    "no version": (
        lambda about: {k: v for k, v in about.items() if k != "format_version"},
        "description cannot be read",
    ),
    "text version": (lambda about: about | {"format_version": "1"}, "is not a classifier"),
    "format": (
        lambda about: about | {"format": "other"},
        "is not a classifier: expected format 'atta.classifier'",
    ),
    "no parts": (lambda about: about | {"parts": {}}, "was changed after it was saved"),
    "a list of files": (lambda about: about | {"files": [1]}, "description cannot be read"),
    "a list of parts": (
        lambda about: about | {"parts": ["model", "calibrator"]},
        "description cannot be read",
    ),
    "a part outside": (
        lambda about: about | {"parts": {"../other": {}}},
        "description cannot be read",
    ),
    "a list": (lambda about: [about], "description cannot be read"),
    "a number": (lambda about: 3, "description cannot be read"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_description_is_refused(saved, tmp_path, form, name):
    path = copied(saved, tmp_path, form)
    change, message = EDITS[name]
    edit(path, change)
    with pytest.raises(InputError, match=message):
        CalibratedClassifier.load(path, Own())


def test_a_description_in_another_order_and_layout_is_the_same(saved, tmp_path):
    path = copied(saved, tmp_path, "folder")
    edit(path, lambda about: dict(reversed(about.items())))
    assert torch.equal(CalibratedClassifier.load(path, Own())(pixels(3)), saved[0](pixels(3)))


@pytest.mark.parametrize("file", ["model.safetensors", "calibrator.safetensors"])
def test_edited_weights_are_refused(saved, tmp_path, file):
    path = copied(saved, tmp_path, "folder")
    tensors = load_file(path / file)
    name = next(iter(tensors))
    tensors[name].flatten()[0] += 1e-6
    save_file(tensors, path / file)
    with pytest.raises(InputError, match="was changed after it was saved"):
        CalibratedClassifier.load(path, Own())


def test_a_calibrator_of_another_classifier_is_refused(saved, tmp_path):
    path = copied(saved, tmp_path, "folder")
    other = blend(Own(), limit=0.3).save(tmp_path / "other")
    shutil.copy(other / "calibrator.safetensors", path)
    with pytest.raises(InputError, match="was changed after it was saved"):
        CalibratedClassifier.load(path, Own())


@pytest.mark.parametrize(
    "file", ["folder/model.safetensors", "folder/classifier.json", "file.safetensors"]
)
@pytest.mark.parametrize("part", [0, 0.02, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused(saved, tmp_path, file, part):
    path = copied(saved, tmp_path, Path(file).parts[0])
    text = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(text[: int(part * len(text))])
    with pytest.raises(
        InputError, match=r"not a whole safetensors file|description cannot be read|was changed"
    ):
        CalibratedClassifier.load(path, Own())


def test_a_description_cut_inside_a_letter_is_refused(saved, tmp_path):
    path = copied(saved, tmp_path, "folder") / "classifier.json"
    text = path.read_bytes()
    path.write_bytes(text[: text.index("Ä".encode()) + 1])
    with pytest.raises(InputError, match="description cannot be read"):
        CalibratedClassifier.load(path.parent, Own())


def test_a_missing_file_is_named(saved, tmp_path):
    path = copied(saved, tmp_path, "folder")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"there is no file .*model.safetensors"):
        CalibratedClassifier.load(path, Own())
    (path / "classifier.json").unlink()
    with pytest.raises(
        InputError, match=r"expected classifier.json in it, found calibrator.safetensors"
    ):
        CalibratedClassifier.load(path, Own())
    with pytest.raises(InputError, match="there is no file or folder"):
        CalibratedClassifier.load(tmp_path / "nowhere")


def test_what_is_no_classifier_is_refused(saved, tmp_path):
    (tmp_path / "empty").mkdir()
    torch.save(saved[0].state_dict(), tmp_path / "pickled.safetensors")
    torch.save({"a": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file({"a": torch.ones(1)}, tmp_path / "plain.safetensors")
    saved[0].calibrator.save(tmp_path / "calibrator.safetensors")
    (tmp_path / "text").write_text("no")
    for name, message in {
        "empty": "expected classifier.json in it, found nothing",
        "pickled.safetensors": "is a pickle or an archive of them, and reading one can run code",
        "old.pt": "is a pickle or an archive of them, and reading one can run code",
        "plain.safetensors": "expected format 'atta.classifier', got None",
        "calibrator.safetensors": "expected format 'atta.classifier', got 'atta.calibrator'",
        "text": "is not a whole safetensors file",
    }.items():
        with pytest.raises(InputError, match=message):
            CalibratedClassifier.load(tmp_path / name)
    with pytest.raises(
        InputError, match=r"expected a folder, or a file that ends in .safetensors, got the file"
    ):
        saved[0].save(tmp_path / "text")


def test_nothing_saved_is_a_pickle(saved):
    for path in (saved[1] / "folder").iterdir():
        assert path.name == "classifier.json" or load_file(path)
    assert load_file(saved[1] / "file.safetensors")


def test_an_onnx_model_is_asked_for(tmp_path):
    class Session(OnnxModel):
        def __init__(self):
            nn.Module.__init__(self)

        def forward(self, images):
            return images.flatten(1)[:, :3]

    with pytest.raises(InputError, match=r"expected model=.*, .*test_archive.*Session"):
        CalibratedClassifier.load(blend(Session()).save(tmp_path / "c"))
    Session.__module__, Session.__qualname__ = OnnxModel.__module__, OnnxModel.__qualname__
    with pytest.raises(
        InputError, match=r"--model network\.onnx on the command line\), the ONNX file"
    ):
        CalibratedClassifier.load(blend(Session()).save(tmp_path / "d"))


# ---- forged: whoever can rewrite a file can rewrite its digest


def forge(classifier, path, change, parts=None):
    """Save a classifier with a changed description and a valid digest, with these `parts`."""
    calibrator = classifier.calibrator
    kept = {
        "calibrator": (calibrator.state_dict(), calibrator.header()),
        "model": (classifier.model.state_dict(), {}),
    }
    about = classifier.about()
    change(about)
    return archive.write(path, about, {name: kept[name] for name in parts or kept})


FORGED = {
    "dtype": (lambda about: about.update(dtype="load"), "is damaged: TypeError"),
    "dtypes": (lambda about: about.update(dtype=["float32"]), "is damaged: TypeError"),
    "shape": (
        lambda about: about.update(image_shape="abc"),
        r"image_shape: expected \[channels, height, width\].*'abc'",
    ),
    "sides": (lambda about: about.update(image_shape=["a", 8, 8]), "image_shape: expected"),
    "large": (lambda about: about.update(image_shape=[3, 10**9, 10**9]), "image_shape: expected"),
    "many": (lambda about: about.update(image_shape=[3, 65536, 65536]), "image_shape: expected"),
    "names": (lambda about: about.update(class_names=5), "is damaged: TypeError"),
    "policy": (lambda about: about.update(policy=[7]), "."),
    "summary": (lambda about: about.update(summary=[1]), "is damaged"),
    "model": (
        lambda about: about.update(model="small_cnn"),
        "is damaged",
    ),
    "no model": (lambda about: about.pop("model"), "is damaged: KeyError 'model'"),
    "kind": (lambda about: about["model"]["model"].update(kind=[1]), "builds none"),
    "an unknown network": (lambda about: about["model"]["model"].update(name="os"), "builds none"),
    "classes": (
        lambda about: about["model"]["model"].update(num_classes=10**12),
        "num_classes must be a whole number ≥ 1 and ≤ 100000",
    ),
    "channels": (
        lambda about: about["model"]["model"].update(in_channels="x"),
        "builds none|in_channels must be a whole number",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_description_is_refused_in_a_sentence(tmp_path, name):
    change, message = FORGED[name]
    path = forge(blend(MODELS["small_cnn"](3)), tmp_path / "c.safetensors", change)
    with pytest.raises(InputError, match=message):
        CalibratedClassifier.load(path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", [None, MODELS["small_cnn"](3)], ids=["built", "given"])
def test_a_file_without_its_weights_is_refused(tmp_path, form, model):
    path = forge(
        blend(MODELS["small_cnn"](3)), tmp_path / form, lambda about: None, parts=["calibrator"]
    )
    with pytest.raises(InputError, match="expected the weights of its network, found none"):
        CalibratedClassifier.load(path, model)


@pytest.mark.parametrize(
    "rest",
    ['"parts": [5]', '"parts": {"model": 5}', '"parts": {"model": {"a": 5}}', '"note": "\\ud800"'],
)
def test_a_description_of_odd_values_is_refused(saved, tmp_path, rest):
    path = copied(saved, tmp_path, "folder")
    (path / "classifier.json").write_text(
        f'{{"format": "atta.classifier", "format_version": 1, {rest}}}'
    )
    with pytest.raises(
        InputError, match=r"description cannot be read|was changed after it was saved"
    ):
        CalibratedClassifier.load(path, Own())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 900])
def test_a_description_of_another_form_is_refused(saved, tmp_path, text):
    path = copied(saved, tmp_path, "folder")
    (path / "classifier.json").write_text(text)
    with pytest.raises(InputError, match="description cannot be read"):
        CalibratedClassifier.load(path, Own())
