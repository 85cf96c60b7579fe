"""Preprocessing travels with the classifier: through its file, its card, its graph, and to every photograph it is shown."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

import atta
from atta._base.errors import InputError
from atta.calibrators import TemperatureScaling
from atta.classifier import hub
from atta.classifier.predict import open_predictor, predict
from scenarios import command

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
WANTED = atta.Preprocess(
    resize=20, crop=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1), interpolation="bicubic"
)
SIZES = [(40, 31), (16, 16), (25, 90), (33, 34)]
NAMES = ("ant", "bee", "cat")


class Network(nn.Module):
    """Sees where things are, so that a squashed photograph is answered otherwise than a cropped one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(3 * 16 * 16, 3)

    def forward(self, images):
        return self.linear(images.flatten(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs in the folders of what the network says of them, one in six in another: it knows something, not all."""
    place, made, network = (
        tmp_path_factory.mktemp("photographs"),
        np.random.default_rng(0),
        Network().eval(),
    )
    for i in range(48):
        image = Image.fromarray(made.integers(0, 256, (*SIZES[i % 4], 3), dtype=np.uint8))
        with torch.no_grad():
            answer = int(network(WANTED.normalise(WANTED(image)[None].float() / 255)).argmax())
        path = place / NAMES[(answer + (i % 6 == 0)) % 3] / f"{i:02}.png"
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    return place


@pytest.fixture(scope="module")
def classifier(folder):
    return atta.calibrate(
        Network().eval(), folder, preprocess=WANTED, method="temperature", progress=False
    )


def by_hand(classifier, files):
    """What the network answers to its own transform, and what the temperature makes of it."""
    network = Network().eval()
    seen = torch.stack(
        [WANTED.normalise(WANTED(Image.open(file))[None].float() / 255)[0] for file in files]
    )
    with torch.no_grad():
        expected = classifier.calibrator(atta.Predictions(network(seen))).numpy()
    assert np.abs(expected - expected.mean(axis=0)).max() > 0.1  # or any pixels would do
    return expected


def files_of(folder):
    return sorted(folder.rglob("*.png"))


def test_files_are_answered_as_the_network_s_own_transform_would_be(classifier, folder, tmp_path):
    files = files_of(folder)
    expected = by_hand(classifier, files)
    loaded = atta.CalibratedClassifier.load(classifier.save(tmp_path / "saved"), Network())
    assert loaded.preprocess == WANTED
    for images in (folder, files, [Image.open(file) for file in files]):
        np.testing.assert_allclose(loaded.predict_proba(images), expected, atol=1e-5)


def test_predicting_files_crops_and_does_not_squash(classifier, folder, tmp_path):
    files, expected = files_of(folder), by_hand(classifier, files_of(folder))

    done = predict(classifier, files, tmp_path / "out.csv", probs=True)
    with done.path.open(newline="") as file:
        found = [[float(row[f"p_{name}"]) for name in NAMES] for row in csv.DictReader(file)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not done.unreadable


def test_a_graph_says_how_photographs_come_to_it_and_predicts_them(classifier, folder, tmp_path):
    pytest.importorskip("onnxscript")
    path = classifier.export(tmp_path / "graph.onnx").path
    predictor = open_predictor(path)
    assert predictor.preprocess == WANTED
    assert predictor.class_names == NAMES
    files = files_of(folder)
    predict(predictor, files, tmp_path / "out.csv", probs=True)
    with (tmp_path / "out.csv").open(newline="") as file:
        found = [[float(row[f"p_{name}"]) for name in NAMES] for row in csv.DictReader(file)]
    np.testing.assert_allclose(found, by_hand(classifier, files), atol=1e-5)


def test_onnx_names_its_batch_and_holds_what_one_has_to_know(classifier, folder, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = runtime.InferenceSession(str(classifier.export(tmp_path / "graph.onnx").path))
    assert session.get_inputs()[0].shape == ["batch", 3, 16, 16]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == list(NAMES)
    assert about["policy"] == str(classifier.policy)
    assert float(about["mean_passes"]) == 1
    wanted = atta.Preprocess.of(json.loads(about["preprocess"]))
    files = files_of(folder)
    cropped = torch.stack([wanted(Image.open(file)) for file in files]).float() / 255
    np.testing.assert_allclose(
        session.run(["probs"], {"images": cropped.numpy()})[0],
        by_hand(classifier, files),
        atol=1e-5,
    )


def test_summary_and_card_say_it(classifier):
    assert (
        "photographs: shortest edge to 20 (bicubic), centre crop 16 x 16, RGB, mean 0.4 0.5 0.6"
        in str(classifier.summary)
    )
    assert "centre crop 16 x 16" in hub.card_text(classifier.about())


def test_a_file_from_before_loads_without_it(classifier, tmp_path):
    from atta.classifier import archive

    about, parts = archive.read(classifier.save(tmp_path / "new"))
    for key in ("preprocess", "format", "format_version", "parts"):
        about.pop(key)
    about["summary"].pop("preprocess")
    old = archive.write(tmp_path / "old", about, parts)
    assert atta.CalibratedClassifier.load(old, Network()).preprocess is None


def test_a_model_that_normalises_otherwise_is_refused_and_one_that_does_the_same_is_not_normalised_twice(
    classifier,
):
    how = {"image_shape": (3, 16, 16), "preprocess": WANTED}
    same = atta.Normalized(Network(), WANTED.mean, WANTED.std)
    images = torch.rand(4, 3, 16, 16)
    built = atta.CalibratedClassifier(same, classifier.calibrator, **how)
    assert torch.equal(built(images), classifier(images))
    with pytest.raises(InputError, match="normalises already"):
        atta.CalibratedClassifier(
            atta.Normalized(Network(), [0.0] * 3, [1.0] * 3), classifier.calibrator, **how
        )


def test_a_network_of_bgr_sees_the_views_in_rgb_and_comes_back_from_its_file(tmp_path):
    preprocess = atta.Preprocess(channels="BGR")
    calibrator = TemperatureScaling().fit(
        atta.Predictions(torch.randn(30, 3)), torch.arange(30) % 3
    )
    classifier = atta.CalibratedClassifier(
        Network(), calibrator, image_shape=(3, 16, 16), preprocess=preprocess
    )
    images = torch.rand(4, 3, 16, 16)
    expected = calibrator(atta.Predictions(Network()(images.flip(1)).detach()))
    torch.testing.assert_close(classifier(images), expected)
    loaded = atta.CalibratedClassifier.load(classifier.save(tmp_path / "bgr"), Network())
    assert torch.equal(loaded(images), classifier(images))


def test_the_command_line_takes_it(folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval()\n"
    )
    told = [
        "--resize",
        "20",
        "--crop",
        "16",
        "--mean",
        "0.4,0.5,0.6",
        "--std",
        "0.2,0.3,0.1",
        "--interpolation",
        "bicubic",
    ]
    command(
        "calibrate",
        "mine:net",
        str(folder),
        "-o",
        str(tmp_path / "c"),
        "--method",
        "temperature",
        *told,
    )
    assert (
        atta.Preprocess.of(
            json.loads((tmp_path / "c" / "classifier.json").read_text())["preprocess"]
        )
        == WANTED
    )
    command(
        "collect",
        "mine:net",
        str(folder),
        "-o",
        str(tmp_path / "r.safetensors"),
        "--policy",
        "flip",
        *told,
    )
    assert (
        atta.Preprocess.of(
            json.loads(atta.Record.load(tmp_path / "r.safetensors").origin["preprocess"])
        )
        == WANTED
    )
    wrong = command(
        "calibrate", "mine:net", str(folder), "-o", str(tmp_path / "d"), "--crop", "big", ok=False
    )
    assert "--crop: expected 224 or 224x320 pixels" in str(wrong.exception)


# ---- networks and transforms of others


@pytest.fixture
def timm_network(torchvision):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", pretrained=False, num_classes=len(NAMES)).eval()
    with torch.no_grad():
        network.get_classifier().weight.mul_(300)  # random weights are sure of nothing
    return network, timm.data.create_transform(
        **timm.data.resolve_model_data_config(network), is_training=False
    )


def same_as_its_own_transform(network, transform, preprocess, files, tmp_path):
    """Saved and loaded, and as a graph with the preprocessing that it names: what the network makes of its own transform."""
    runtime = pytest.importorskip("onnxruntime")
    with torch.no_grad():
        seen = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
        logits, mirrored = network(seen), network(seen.flip(-1))
    labels = (logits.argmax(dim=1) + (torch.arange(len(files)) % 6 == 0)) % len(
        NAMES
    )  # it knows something, not all
    how = {"preprocess": preprocess, "policy": "flip", "rehearse": False, "progress": False}
    classifier = atta.calibrate(network, files, labels, **how)
    expected = classifier.calibrator(atta.Predictions(logits, {"flip": mirrored[:, None]})).numpy()
    assert np.abs(expected - expected.mean(axis=0)).max() > 0.02  # or any pixels would do
    loaded = atta.CalibratedClassifier.load(classifier.save(tmp_path / "saved"), network)
    np.testing.assert_allclose(loaded.predict_proba(files), expected, atol=1e-5)
    session = runtime.InferenceSession(str(loaded.export(tmp_path / "graph.onnx").path))
    wanted = atta.Preprocess.of(
        json.loads(session.get_modelmeta().custom_metadata_map["preprocess"])
    )
    cropped = (
        np.stack([wanted(Image.open(file)).numpy() for file in files]).astype(np.float32) / 255
    )
    np.testing.assert_allclose(session.run(["probs"], {"images": cropped})[0], expected, atol=1e-5)


def test_a_timm_network_answers_files_as_its_own_transform(timm_network, folder, tmp_path):
    same_as_its_own_transform(*timm_network, timm_network[0], files_of(folder), tmp_path)


def test_photographs_of_all_sizes_are_answered_as_by_the_network_s_own_transform(
    timm_network, data_root, tmp_path
):
    if not (data_root / "photos").is_dir():
        pytest.skip("there are no photographs in ATTA_DATA")
    files = sorted((data_root / "photos").glob("*.JPEG"))[::8]
    same_as_its_own_transform(
        *timm_network, timm_network[1], files, tmp_path
    )  # a Compose states it as well


def test_the_classes_of_torchvision_s_image_folder_are_found_by_name(torchvision, folder):
    images = torchvision.datasets.ImageFolder(str(folder))
    how = {
        "policy": "flip",
        "preprocess": WANTED,
        "progress": False,
        "shuffle": False,
        "class_names": NAMES[::-1],
    }
    expected, found = (
        atta.collect(Network().eval(), folder, **how),
        atta.collect(Network().eval(), images, **how),
    )
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.predictions.logits, expected.predictions.logits)


def test_a_lightning_module_is_a_network_like_any_other(torchvision):
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network()

        def forward(self, images):
            return self.network(images)

    images = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels, how = torch.arange(40) % 3, {"policy": "flip", "rehearse": False, "progress": False}
    expected, found = (
        atta.calibrate(network.eval(), images, labels, **how) for network in (Network(), Lit())
    )
    assert torch.equal(found(images), expected(images))
