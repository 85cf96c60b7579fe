"""Views of the photograph in every entry point: the same pixels, and the same answers."""

import csv

import numpy as np
import pytest
import torch
from torch import nn

import atta
from atta._base.errors import InputError
from atta.classifier.predict import open_predictor, predict
from atta.classifier.serve import Explainer

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
WANTED = atta.Preprocess(resize=120, crop=96, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
POLICY = "flip + larger + 2 corner + whole"


class Network(nn.Module):
    """Takes any size, and sees colours at several scales."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Conv2d(3, 12, 5, stride=3), nn.Linear(12, 3)

    def forward(self, images):
        return 3 * self.last(self.first(images).relu().mean(dim=(2, 3)))


class Normed(Network):
    """Has batch normalisation, whose input calibration looks at."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(12)
        self.norm.running_var.fill_(0.1)

    def forward(self, images):
        return 3 * self.last(self.norm(self.first(images)).relu().mean(dim=(2, 3)))


class Fixed(Network):
    """Takes its own size only."""

    def forward(self, images):
        if images.shape[-1] != 96:
            raise ValueError("expected 96 x 96")
        return super().forward(images)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for i in range(36):
        height, width = [(150, 231), (192, 192), (270, 123)][i % 3]
        small = made.integers(0, 256, (height // 24, width // 24, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height), 3).save(folder / f"{i:02}.png")
    return sorted(folder.iterdir())


LABELS = [i % 3 for i in range(36)]


@pytest.fixture(scope="module")
def classifier(files):
    return atta.calibrate(
        Network().eval(), files, LABELS, policy=POLICY, preprocess=WANTED, progress=False
    )


def test_collect_runs_the_network_on_the_views_that_pillow_makes(files):
    record = atta.collect(
        *(Network().eval(), files, LABELS),
        **{"policy": POLICY, "preprocess": WANTED, "batch_size": 7, "progress": False},
    )
    assert record.origin["image_shape"] == "3 x 96 x 96"
    assert atta.Preprocess.of(eval(record.origin["preprocess"].replace("true", "True"))) == WANTED
    whole = torch.stack(
        [
            torch.from_numpy(np.array(Image.open(file).resize((96, 96), 2))).permute(2, 0, 1)
            for file in files
        ]
    )
    with torch.no_grad():
        expected = Network().eval()(WANTED.normalise(whole.float() / 255))
    torch.testing.assert_close(record.predictions.views["whole"][:, 0], expected)
    assert record.predictions.views["corner"].shape == (36, 2, 3)


def test_every_entry_point_gives_the_same_answers(classifier, files, tmp_path):
    probs = torch.from_numpy(classifier.predict_proba(files, batch_size=9))
    one = classifier.predict_proba(files, batch_size=1)
    torch.testing.assert_close(torch.from_numpy(one), probs)
    record = classifier.record(files, LABELS)
    torch.testing.assert_close(classifier.calibrator(record.predictions), probs)
    sheets = torch.stack([classifier.preprocess(Image.open(file)) for file in files])
    torch.testing.assert_close(classifier(sheets), probs)
    assert torch.equal(probs.argmax(dim=1), record.predictions.logits.argmax(dim=1))
    classifier.save(tmp_path / "saved")
    again = atta.CalibratedClassifier.load(tmp_path / "saved", model=Network())
    assert np.array_equal(again.predict_proba(files), classifier.predict_proba(files))
    table = predict(again, files, tmp_path / "table.csv", probs=True)
    with table.path.open() as rows:
        found = [[float(row[f"p_{i}"]) for i in range(3)] for row in csv.DictReader(rows)]
    torch.testing.assert_close(torch.tensor(found), probs)
    assert classifier.evaluate(files, LABELS, checks=False)["c-atta"]["nll"] > 0
    assert classifier.drift(files).images == 36
    assert classifier.adapt(files).image_shape == classifier.image_shape


def test_a_graph_reads_the_same_files(classifier, files, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    exported = classifier.export(tmp_path / "classifier.onnx")
    assert exported.difference <= 1e-5
    stated = runtime.InferenceSession(exported.path).get_modelmeta().custom_metadata_map["input"]
    assert (
        'crop (96, 96) on top, below it (top, height, width) {"larger": [[96, 110, 110]]' in stated
    )
    predict(open_predictor(exported.path), files, tmp_path / "table.csv", probs=True)
    with (tmp_path / "table.csv").open() as rows:
        found = [[float(row[f"p_{i}"]) for i in range(3)] for row in csv.DictReader(rows)]
    probs = torch.from_numpy(classifier.predict_proba(files))
    torch.testing.assert_close(torch.tensor(found), probs, atol=1e-5, rtol=0)


def test_the_page_of_serve_shows_the_photograph_and_its_views(classifier, files):
    said = Explainer(classifier, views=True)(files[0].read_bytes())
    assert [one["view"] for one in said["views"]] == [
        *("the image itself", "flip", "larger", "corner", "corner", "whole")
    ]
    shown = classifier.shown(classifier.preprocess(Image.open(files[0]))[None])
    assert [tuple(one.shape[2:]) for *_, one in shown] == [
        *([(96, 96)] * 2 + [(110, 110)] + [(96, 96)] * 3)
    ]


def test_an_adapted_classifier_with_fewer_views_still_reads_photographs(classifier, files):
    seen = classifier.record(files, LABELS, checks=False).predictions
    hedged = atta.CATTA(views=["larger"]).fit(seen, LABELS)
    adapted = classifier._with(hedged, before=classifier.calibrator)
    assert adapted.passes == 2
    assert (adapted.predict(files) == classifier.predict(files)).all()
    undone = adapted.unadapted()
    assert (undone.predict_proba(files) == classifier.predict_proba(files)).all()


def test_pixels_that_are_cropped_already_are_refused_with_what_to_do(classifier):
    crops = torch.zeros(4, 3, 96, 96)
    for answer in (classifier, classifier.predict_proba):
        with pytest.raises(InputError, match=r"expected .* got .*96.* give"):
            answer(crops)
    with pytest.raises(
        InputError, match=r"views of the photograph \(larger\): expected preprocess"
    ):
        atta.collect(Network().eval(), crops, [0, 1, 2, 0], policy="larger")


def test_a_network_of_one_size_cannot_show_larger_views(files):
    given = {"preprocess": WANTED, "progress": False}
    for run in (atta.calibrate, atta.collect):
        with pytest.raises(
            InputError, match="'larger': expected a network that also takes 110 x 11"
        ):
            run(Fixed().eval(), files, LABELS, policy="flip + larger", **given)


def test_calibrate_tries_views_of_photographs_and_says_so(files):
    given = {"preprocess": WANTED, "progress": False, "rehearse": False}
    photographs = {"corner-larger-4", "scales-4", "corner-3"}
    found = atta.calibrate(Network().eval(), files, LABELS, **given)
    assert {one["policy"] for one in found.summary.candidates} >= photographs
    with pytest.warns(match="the view 'larger': expected a network that also takes"):
        found = atta.calibrate(Fixed().eval(), files, LABELS, **given)
    tried = {one["policy"] for one in found.summary.candidates}
    assert tried & photographs == {"corner-3"}


def test_larger_views_suit_a_network_with_batch_normalisation(files):
    given = {"preprocess": WANTED, "progress": False, "rehearse": False}
    found = atta.calibrate(Normed().eval(), files, LABELS, policy="flip + larger", **given)
    assert {"flip", "larger"} <= set(found.policy.repeats)


def test_calibrate_says_that_files_would_give_more():
    images, labels = torch.rand(36, 3, 96, 96), LABELS
    with pytest.warns(match="views of the photograph were not tried"):
        found = atta.calibrate(
            *(Network().eval(), images, labels),
            **{"preprocess": atta.Preprocess(100, 96), "progress": False, "rehearse": False},
        )
    assert found.preprocess.sheet is None
