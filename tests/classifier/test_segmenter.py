"""The calibrated segmenter: no pixel changes its label, and all else is that of a classifier."""

import pytest
import torch
from torch import nn

import atta
from atta import CalibratedSegmenter, InputError
from atta.calibrators.crossval import held_out
from atta.classifier import segmenter as module
from atta.networks.adapters import Dense, as_dense
from atta.run.pixels import passes
from segmenters_made import Shaped, data, fitted


@pytest.fixture(scope="module")
def segmenter():
    return fitted(rehearse=True)


@pytest.mark.parametrize(
    ("form", "method"),
    [
        *((form, "c-atta") for form in ("tensor", "out", "logits", "multiple")),
        *(("tensor", one) for one in (atta.MATTA(epochs=3), "isotonic", "mean-tta-temperature")),
    ],
)
def test_no_pixel_changes_its_label(form, method):
    network = Shaped(form)
    images, masks = data()
    policy = "flip + scale-125 + nudge"
    found = fitted(network, images, masks, method=method, policy=policy, pixels=20)
    if not found.calibrator.keeps_class:
        return
    probs = found(images)
    logits = as_dense(network) if form != "multiple" else found.model
    with torch.no_grad():
        own = logits(images)
    assert probs.shape == own.shape
    assert torch.equal(probs.argmax(1), own.argmax(1))
    assert torch.equal(torch.from_numpy(found.predict(images)), own.argmax(1))
    torch.testing.assert_close(probs.sum(1), torch.ones_like(probs[:, 0]), atol=1e-5, rtol=0)


def test_calibration_gains_on_images_that_were_left_out(segmenter):
    images, masks = data(48)
    scores = fitted(images=images[:24], masks=masks[:24]).evaluate(
        images[24:], masks[24:], pixels=200
    )
    before, after = scores["vanilla"], scores["c-atta"]
    assert after["nll"] < before["nll"]
    assert after["miou"] == before["miou"]
    assert after["accuracy"] == before["accuracy"]
    assert after["error_auroc"] > 0.5


def test_streamed_views_give_what_the_record_gives(segmenter):
    """The sum of views that is streamed and the fit of rows of a record are the same method."""
    images, _ = data(2)
    every = list(passes(segmenter.model, images, segmenter.policy))
    rows = [one.logits.movedim(1, -1).flatten(0, 2) for one in every]
    views = {one.view: row[:, None] for one, row in zip(every[1:], rows[1:], strict=True)}
    with torch.no_grad():
        wanted = segmenter.calibrator(
            atta.Predictions(rows[0].detach(), {k: v.detach() for k, v in views.items()})
        )
    found = segmenter(images).movedim(1, -1).flatten(0, 2)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_tiles_change_nothing(segmenter, monkeypatch):
    images, _ = data(2)
    whole = segmenter(images)
    monkeypatch.setattr(module, "TILES", {"cpu": 37})
    assert torch.allclose(segmenter(images), whole, atol=1e-6)


def test_images_may_have_any_size(segmenter):
    assert segmenter(torch.rand(1, 3, 11, 40)).shape == (1, 4, 11, 40)
    with pytest.raises(InputError, match=r"expected images of shape \(n, 3, h, w\)"):
        segmenter(torch.rand(1, 1, 11, 40))


def test_ignored_pixels_are_not_in_the_record_and_are_answered(segmenter):
    images, masks = data()
    record = segmenter.record(images, masks, pixels=30)
    assert len(record) == 24 * 30
    assert int(record.labels.max()) < 4
    with pytest.raises(InputError, match="pass ignore_index=255"):
        segmenter.record(images, masks, ignore_index=9)
    assert segmenter.predict(images).shape == masks.shape


def test_folds_errors_and_intervals_go_by_image(segmenter):
    images, masks = data()
    record = segmenter.record(images, masks)
    predictions, labels = record.predictions, record.labels
    assert predictions.image_count == 24
    probs = held_out(atta.CATTA(), predictions, labels).probs
    by_image = atta.bootstrap(probs, labels, metrics=["accuracy"], images=predictions.images)
    by_row = atta.bootstrap(probs, labels, metrics=["accuracy"])
    width = [high - low for low, high in (*by_image.values(), *by_row.values())]
    assert width[0] > 1.3 * width[1]  # rows of an image are alike


def test_saved_and_loaded_it_gives_the_same_bits(segmenter, tmp_path):
    images, _ = data(2)
    for name in ("folder", "file.safetensors"):
        path = segmenter.save(tmp_path / name)
        for cls in (CalibratedSegmenter, atta.CalibratedClassifier):
            again = cls.load(path, model=Shaped(seed=5))
            assert type(again) is CalibratedSegmenter
            assert torch.equal(again(images), segmenter(images))
            assert again.reference == segmenter.reference


def test_export_is_one_graph(segmenter, tmp_path):
    pytest.importorskip("onnxruntime")
    written = segmenter.export(tmp_path / "graph.onnx")
    assert written.difference <= 1e-5


def test_drift_and_adapt_go_by_image(segmenter):
    images, _ = data(40)
    same = segmenter.drift(images)
    assert same.images == 40
    assert not same.drifted
    worse = (images * 0.4 + 0.25).clamp(0, 1)
    found = segmenter.drift(worse)
    assert found.seen_confidence < same.seen_confidence
    adapted = segmenter.adapt(worse)
    assert isinstance(adapted, CalibratedSegmenter)
    assert torch.equal(adapted(worse).argmax(1), segmenter(worse).argmax(1))
    with pytest.raises(InputError, match="expected at least 8 images"):
        segmenter.drift(images[:3])


def test_the_summary_counts_pixels_and_images(segmenter):
    text = str(segmenter.summary)
    assert "1,200 pixels of 24 images" in text
    assert "class changes: 0" in text


def test_auto_chooses_by_images_left_out(monkeypatch):
    tried = [one["policy"] for one in fitted(policy="auto").summary.candidates]
    assert len(tried) == 9
    assert any("scale-200" in policy for policy in tried)
    assert fitted(policy="auto", budget=1).policy.passes == 1
    monkeypatch.setattr("atta.classifier.segmenter.SMALL", 16 * 20 - 1)
    large = [one["policy"] for one in fitted(policy="auto").summary.candidates]
    assert set(large) == {policy for policy in tried if "scale-200" not in policy}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"policy": "flip + crop"}, "View 'crop': expected a view with an inverse"),
        ({"preprocess": atta.Preprocess(resize=8)}, "expected only mean and std for segmentation"),
        ({"pixels": 0}, "pixels"),
    ],
)
def test_what_cannot_be_used_is_refused(how, expected):
    with pytest.raises(InputError, match=expected):
        fitted(**how)


def test_a_classifier_given_masks_is_refused():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 20, 4))
    with pytest.raises(
        InputError, match=r"expected the model to return logits of shape \(1, k, h, w\)"
    ):
        fitted(network)


def test_one_logit_for_each_pixel_is_that_of_class_1():
    network = Shaped(classes=1)
    images, _ = data()
    masks = (torch.rand(24, 16, 20) < 0.5).long()
    found = fitted(network, images, masks)
    assert found(images[:1]).shape == (1, 2, 16, 20)


def test_padding_is_found_and_cut_off():
    images, masks = data(size=(32, 64))  # which the network takes, but not their views
    found = fitted(Shaped("multiple"), images, masks)
    assert isinstance(found.model, Dense)
    assert found.model.multiple == 32


@pytest.mark.parametrize("multiple", [2, 8, 16, 32])
@pytest.mark.parametrize("size", [(32, 64), (48, 80), (17, 33)])
def test_an_image_that_the_network_takes_is_not_padded(multiple, size):
    """Padding more than the network needs would change labels."""
    network = Shaped("multiple", multiple=multiple)
    images, masks = data(size=size)
    assert fitted(network, images, masks).model.multiple == multiple


def test_what_is_for_classifiers_of_images_refuses_a_segmenter(segmenter):
    images, _ = data(1)
    for refused in (
        segmenter.details,
        segmenter.changed,
        segmenter.predict_set,
        lambda x: segmenter.decide(x, torch.eye(4)),
    ):
        with pytest.raises(InputError, match="expected a classifier of images, got a segmenter"):
            refused(images)


def test_networks_that_would_be_misread_are_refused():
    class Last(nn.Module):
        def forward(self, x):
            return x.movedim(1, -1)

    with pytest.raises(InputError, match="move the classes to dimension 1"):
        fitted(Last())
    with pytest.raises(InputError, match="return the logarithm of its probabilities"):
        fitted(atta.FromProbabilities(Shaped()))


def test_forgotten_masks_are_named():
    for form in ("tensor", "out"):
        with pytest.raises(InputError, match="masks"):
            atta.calibrate(Shaped(form), data()[0], torch.arange(24) % 4, progress=False)
