"""Images without labels: a classifier says whether they drifted, and is adapted to their domain, and back."""

import copy
import csv
import json

import pytest
import torch

import atta
from atta import InputError
from atta.calibrators.shift import Reference
from atta.classifier.archive import Kept
from atta.classifier.classifier import CalibratedClassifier
from atta.classifier.export import open_graph
from atta.classifier.predict import open_predictor, predict
from atta.data.folder import find_images
from scenarios import linear, pixels


@pytest.fixture(scope="module")
def classifier() -> CalibratedClassifier:
    network = linear(scale=20.0)
    with torch.no_grad():  # what has no contrast says nothing
        network[1].weight -= network[1].weight.mean(1, keepdim=True)
        network[1].bias.zero_()
    chances = network(pixels(400) / 255).softmax(1)  # as sure as it is right
    labels = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    return atta.calibrate(
        network, pixels(400), labels, policy="flip", method="temperature", progress=False
    )


def faded(n: int = 200, seed: int = 5) -> torch.Tensor:
    """Images with nearly nothing to see in them, of which the network is as sure as of others only by its bias."""
    return (pixels(n, seed=seed).float() / 255 - 0.5) * 0.25 + 0.5


@pytest.fixture(scope="module")
def adapted(classifier: CalibratedClassifier) -> CalibratedClassifier:
    return classifier.adapt(faded())


def test_calibration_leaves_a_reference_behind(classifier):
    reference = classifier.reference
    assert reference.images == 400
    assert 0.7 < reference.accuracy < 1
    assert 0 < reference.slope < 2
    assert Reference.read(classifier.about()["reference"]) == reference


def test_images_like_the_validation_images_have_not_drifted(classifier):
    found = classifier.drift(pixels(200, seed=7))
    assert not found.drifted
    assert found.low < classifier.reference.accuracy < found.high
    assert "no drift seen" in found.sentence
    assert str(found) == found.sentence


def test_faded_images_have_drifted_and_one_sentence_says_so(classifier):
    found = classifier.drift(faded())
    assert found.drifted
    assert found.accuracy < found.expected_accuracy
    assert found.seen_confidence < found.expected_confidence
    assert json.loads(json.dumps(found.json()))["sentence"].startswith(
        "200 images, drifted (p < 0.0001)"
    )


def test_drift_and_adapt_tell_how_far_they_are(classifier):
    for ask in (classifier.drift, classifier.adapt):
        told = []
        ask(faded(), progress=told.append, batch_size=50)
        assert sum(told) == 200 * classifier.passes
        assert len(told) == 4


def test_an_adapted_classifier_is_less_sure_of_the_same_classes(classifier, adapted):
    before, after = classifier(faded()), adapted(faded())
    assert adapted.adapted.changed
    assert after.amax(1).mean() < before.amax(1).mean()
    assert torch.equal(after.argmax(1), before.argmax(1))
    assert after.amax(1).mean() == pytest.approx(adapted.adapted.confidence, abs=1e-5)
    assert adapted.model is classifier.model
    assert classifier.adapted is None


def test_adapting_can_be_undone_also_after_a_journey_to_disk(classifier, adapted, tmp_path):
    assert torch.equal(adapted.unadapted()(faded()), classifier(faded()))
    assert classifier.unadapted() is classifier
    there = CalibratedClassifier.load(adapted.save(tmp_path / "there"), linear())
    assert there.adapted == adapted.adapted
    assert there.reference == adapted.reference
    assert torch.equal(there(faded()), adapted(faded()))
    assert torch.equal(there.unadapted()(faded()), classifier(faded()))


def test_adapting_again_begins_at_the_classifier_as_it_was(classifier, adapted):
    assert torch.equal(adapted.adapt(faded())(faded()), adapted(faded()))
    assert adapted.adapt(pixels(64, seed=8)).adapted.softness == 1


def test_an_exported_graph_carries_it_as_numbers(adapted, tmp_path):
    adapted.export(tmp_path / "graph.onnx")
    probs, *_ = open_graph(tmp_path / "graph.onnx").run(faded(8))
    torch.testing.assert_close(probs, adapted(faded(8)))


def test_too_few_images_are_refused(classifier):
    for what in (classifier.adapt, classifier.drift):
        with pytest.raises(InputError, match=r"at least 32 images.*got 31"):
            what(pixels(31))


def test_a_classifier_of_before_there_were_references_loads_and_says_what_is_missing(
    classifier, tmp_path, monkeypatch
):
    about = classifier.about()
    del about["reference"], about["adapted"]
    monkeypatch.setattr(CalibratedClassifier, "about", lambda self: about)
    old = CalibratedClassifier.load(classifier.save(tmp_path / "old"), linear())
    with pytest.raises(InputError, match="calibrate it again"):
        old.drift(faded())


def test_without_rehearsals_nothing_is_adapted_and_drift_says_so():
    network = linear()
    own = network(pixels() / 255).argmax(1)
    bare = atta.calibrate(
        network, pixels(), own, policy="flip", method="temperature", rehearse=False, progress=False
    )
    with pytest.raises(InputError, match=r"calibrate it again on more images, .* with rehearsals"):
        bare.adapt(faded())
    assert "roughly: no rehearsal lowered it" in bare.drift(faded()).sentence


@pytest.mark.parametrize("size", [(8, 8), (10, 12)])
def test_files_of_images_are_read_as_the_classifier_expects_them(classifier, tmp_path, size):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for i, one in enumerate(pixels(40, (3, *size))):
        image.fromarray(one.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:02}.png")
    files = find_images([tmp_path])
    if size == (8, 8):
        assert classifier.drift(files) == classifier.drift(pixels(40))
        return
    for ask in (classifier.drift, classifier.adapt, classifier.predict_proba):
        with pytest.raises(InputError, match=r"got \(3, 10, 12\) in .*00\.png; .*preprocessing"):
            ask(files)
    wanted = copy.copy(classifier)
    wanted.preprocess = atta.Preprocess(resize=8, crop=8)
    assert wanted.drift(files).images == 40


def test_sets_hold_the_true_class_as_often_as_promised_and_always_the_predicted_one(
    classifier, tmp_path
):
    images = pixels(4000, seed=11)
    labels = torch.multinomial(
        classifier.model(images / 255).softmax(1), 1, generator=torch.Generator().manual_seed(2)
    )[:, 0]
    for coverage in (0.9, 0.95):
        sets = torch.from_numpy(classifier.predict_set(images, coverage=coverage))
        assert float(sets.gather(1, labels[:, None]).double().mean()) > coverage - 0.04
        assert sets.gather(1, torch.from_numpy(classifier.predict(images))[:, None]).all()
    classifier.save(tmp_path / "classifier")
    again = CalibratedClassifier.load(tmp_path / "classifier", model=linear())
    assert again.conformity == classifier.conformity
    bare = copy.copy(again)
    bare.conformity = None
    with pytest.raises(InputError, match="expected a classifier with conformity scores"):
        bare.predict_set(images[:3])


def test_an_adapted_classifier_promises_no_sets_by_answers_that_are_no_longer_its_own(
    classifier, adapted, tmp_path
):
    with pytest.raises(
        InputError, match=r"coverage: expected a classifier as it was calibrated.*unadapted\(\)"
    ):
        adapted.predict_set(pixels(3))
    assert (adapted.unadapted().predict_set(pixels(9)) == classifier.predict_set(pixels(9))).all()
    adapted.save(tmp_path / "adapted")
    with pytest.raises(InputError, match="that was adapted to other images"):
        predict(
            open_predictor(tmp_path / "adapted", linear()),
            [tmp_path / "no.png"],
            tmp_path / "out.csv",
            coverage=0.9,
        )
    assert "strangeness" not in adapted._metadata("uint8")
    assert classifier.adapt(pixels(200, seed=7)).predict_set(pixels(3)).any(), (
        "where nothing has drifted, nothing has changed"
    )


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_set_is_a_text_in_every_kind_of_table(classifier, tmp_path, ending):
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    for i, image in enumerate(pixels(4)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
    files = find_images([tmp_path])
    path = predict(classifier, files, tmp_path / f"out.{ending}", coverage=0.9, probs=True).path
    if ending == "parquet":
        rows = parquet.read_table(path).to_pylist()
    elif ending == "csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    expected = classifier.predict_set(files, coverage=0.9)
    assert [sorted(map(int, row["set"].split("|"))) for row in rows] == [
        one.nonzero()[0].tolist() for one in expected
    ]


@pytest.mark.parametrize("kind", ["classifier", "classifier.onnx"])
def test_a_table_of_predictions_holds_sets_and_strangers_and_ends_with_the_drift(
    classifier, tmp_path, kind
):
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (tmp_path / "in").mkdir()
    for i, image in enumerate((faded(40) * 255).round().byte()):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "in" / f"{i:02}.png")
    files = find_images([tmp_path / "in"])
    (classifier.export if "." in kind else classifier.save)(tmp_path / kind)
    predictor = open_predictor(tmp_path / kind, None if "." in kind else linear())
    done = predict(predictor, files, tmp_path / "out.jsonl", coverage=0.9)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = classifier.predict_set(files, coverage=0.9)
    assert [sorted(map(int, row["set"].split("|"))) for row in rows] == [
        one.nonzero()[0].tolist() for one in expected
    ]
    assert all(row["set"].split("|")[0] == str(row["class"]) for row in rows)
    assert (
        sum(row["ood"] > 0.9 for row in rows) > 20
    )  # one in ten of images like the validation images
    assert done.drift.accuracy == pytest.approx(classifier.drift(files).accuracy, abs=0.03)
    if "." in kind:
        with pytest.raises(InputError, match="is a graph, which has its network inside"):
            open_predictor(tmp_path / kind, adapt_to=files)
    else:
        softer = predict(
            open_predictor(tmp_path / kind, linear(), adapt_to=files),
            files,
            tmp_path / "adapted.csv",
        )
        assert softer.confidence < done.confidence


def photographs(folder, n: int = 40):
    """Files in folders by day, as a camera leaves them, and one that is broken."""
    from PIL import Image

    for i, image in enumerate(pixels(n)):
        place = folder / ("monday", "tuesday")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")
    (folder / "monday" / "broken.png").write_bytes(b"no image")
    return folder


def test_broken_files_are_left_out_and_named_and_folders_need_no_names_of_classes(
    classifier, tmp_path
):
    named = atta.CalibratedClassifier(
        classifier.model,
        classifier.calibrator,
        image_shape=classifier.image_shape,
        class_names=("a", "b", "c"),
        reference=classifier.reference,
    )
    folder = photographs(tmp_path)
    for images in (folder, str(folder), find_images([folder])):
        with pytest.warns(atta.Advice, match=r"left out: .*broken\.png") as caught:
            assert named.drift(images).images == 40
        assert len(caught) == 1
        with pytest.warns(atta.Advice, match=r"left out: .*broken\.png"):
            named.adapt(images)
    for file in find_images([folder]):
        file.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"expected at least one image, found 41 faults: .*monday"):
        named.drift(folder)


def test_a_hedged_calibrator_with_fewer_views_can_be_adapted_again_and_undone(classifier, tmp_path):
    labels = classifier.predict(pixels(400))
    record = atta.collect(classifier.model, pixels(400), labels, policy="flip + shift")
    fitted, hedged = (
        atta.VATTA(views=kinds).fit(record.predictions, labels)
        for kinds in (["flip", "shift"], ["flip"])
    )
    wide = atta.CalibratedClassifier(
        classifier.model,
        fitted,
        "flip + shift",
        image_shape=classifier.image_shape,
        reference=classifier.reference,
        kept=Kept(hedged=hedged),
    )
    adapted = wide.adapt(faded())
    assert adapted.adapted.drifted
    assert (wide.passes, adapted.passes) == (3, 2)
    adapted.save(tmp_path / "adapted")
    loaded = CalibratedClassifier.load(tmp_path / "adapted", model=linear())
    for one in (adapted, loaded):
        assert torch.equal(one(faded()), adapted(faded()))
        assert torch.equal(one.unadapted()(faded()), wide(faded()))
    assert torch.equal(adapted.adapt(faded())(faded()), adapted(faded()))


def test_a_stream_is_adapted_to_once_the_alarm_is_raised(classifier):
    watch = classifier.watch(window=100)
    for start in range(0, 200, 20):
        seen = watch.update(pixels(20, seed=50 + start))
    assert not seen.alarm
    assert watch.classifier is classifier
    assert seen.drift == classifier.drift(
        torch.cat([pixels(20, seed=50 + s) for s in range(100, 200, 20)])
    )
    shifted = faded(200)
    for start in range(0, 200, 20):
        seen = watch.update(shifted[start : start + 20])
    assert seen.alarm
    assert 200 < seen.raised <= 400
    assert f"alarm after {seen.raised} images" in str(seen)
    expected = classifier.adapt(shifted[100:])
    assert watch.classifier.adapted == expected.adapted
    assert torch.equal(watch.classifier(faded(8)), expected(faded(8)))
