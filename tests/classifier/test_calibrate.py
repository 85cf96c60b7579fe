"""From a model and images to a classifier: the policy chosen by cross-validation, and a summary of held-out images."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta._base.errors import InputError
from atta.classifier.choice import NO_VIEWS, RIVALS, candidates, fitting, kind_of, rivals
from atta.classifier.classifier import CalibratedClassifier
from atta.data.image_set import ImageSet
from atta.data.views import POLICIES, Policy, View
from atta.networks.resnet import small_cnn
from atta.record.writer import settings_of
from atta.run.collect import collect
from scenarios import POLICY, Counting, Items, linear, pixels


def calibrate(model, images, labels=None, **settings):
    return atta.calibrate(model, images, labels, **{"policy": POLICY, "progress": False} | settings)


@pytest.mark.parametrize("method", atta.METHODS)
def test_every_method_becomes_a_classifier(network, labels, method, tmp_path):
    searches = {
        "dirichlet": {"grid": ((0.01, 0.01),)},
        "shrunk-m-atta": {"strengths": (1.0,), "folds": 2},
    }  # take seconds
    settings = searches.get(method, {})
    given = atta.find_method(method, **settings) if settings else method
    classifier = calibrate(network, pixels(), labels, method=given)
    images = pixels(20, seed=1)
    probs = classifier(images)
    assert classifier.calibrator.method == atta.find_method(method, **settings)
    record = collect(
        network, images, policy=POLICY, draws="stratified", progress=False
    )  # what a fit sees
    assert torch.allclose(probs, classifier.calibrator(record.predictions), atol=1e-5, rtol=0)
    assert (classifier.summary.class_changes == 0) or not classifier.calibrator.keeps_class
    if classifier.calibrator.keeps_class:
        assert torch.equal(probs.argmax(1), classifier.details(images).base.argmax(1))
    loaded = CalibratedClassifier.load(classifier.save(tmp_path / "one.safetensors"), linear())
    assert torch.equal(loaded(images), probs)
    assert loaded.summary == classifier.summary


def test_without_the_guard_the_summary_says_what_changed_and_graphs_answer_alike(
    network, labels, tmp_path
):
    classifier = calibrate(network, pixels(), labels, keep_class=False)
    assert not classifier.calibrator.keeps_class
    summary = classifier.summary
    assert (
        f"class changes: {summary.class_changes} of {len(labels)}, so that {summary.accuracy_after:.1%}"
        in str(summary)
    )
    images = pixels(20, seed=1).float() / 255
    details = classifier.details(images)
    assert torch.equal(details.probs, details.fused)
    assert not torch.equal(details.probs.argmax(1), details.base.argmax(1))
    loaded = CalibratedClassifier.load(classifier.save(tmp_path / "one.safetensors"), linear())
    assert torch.equal(loaded(images), details.probs)
    classifier.export(tmp_path / "one.pt2")
    probs, *_ = torch.export.load(tmp_path / "one.pt2").module()(images)
    assert torch.allclose(probs, details.probs, atol=1e-5)


def test_a_method_that_cannot_do_without_its_guard_says_so(network, labels):
    with pytest.raises(
        InputError, match=r"can do without its guard \(c-atta, hedged-c-atta\), got v-atta"
    ):
        calibrate(network, pixels(), labels, method="v-atta", keep_class=False)


def test_images_and_labels_come_from_whatever_holds_them(fitted, network, labels):
    images = pixels()
    holders = [
        (Items(images, labels.tolist()), None, {}),
        (DataLoader(TensorDataset(images, labels), batch_size=7), None, {}),
        (ImageSet("made up", images, labels, ("a", "b", "c")), None, {}),
        (images.numpy(), labels.numpy(), {"channels": "first"}),
        (images.permute(0, 2, 3, 1).numpy(), labels.tolist(), {"channels": "last"}),
    ]
    for holder, given, settings in holders:
        classifier = calibrate(network, holder, given, method="temperature", **settings)
        assert classifier.image_shape == (3, 8, 8)
        assert torch.equal(
            classifier.calibrator.temperature,
            calibrate(network, images, labels, method="temperature").calibrator.temperature,
        )
    assert calibrate(network, holders[2][0], method="vanilla").class_names == ("a", "b", "c")


def test_a_shuffled_loader_keeps_image_and_label_together(network, labels):
    """Though the network runs over it more than once."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(pixels(), labels), batch_size=7, shuffle=True)
    classifier = calibrate(network, loader, policy="auto", budget=7, method="mean-tta")
    ordered = calibrate(network, pixels(), labels, policy="auto", budget=7, method="mean-tta")
    assert classifier.summary.before == pytest.approx(ordered.summary.before)
    assert classifier.summary.after == pytest.approx(ordered.summary.after)


# ---- which policy


def test_where_no_view_is_clearly_better_one_pass_and_a_temperature_are_left(network, labels):
    noise = torch.randint(
        0, 3, (60,), generator=torch.Generator().manual_seed(0)
    )  # labels that no view can tell
    classifier = calibrate(network, pixels(), noise, policy=2)
    assert (classifier.summary.method, classifier.policy.passes, classifier.mean_passes) == (
        "temperature",
        1,
        1,
    )
    assert {one["policy"] for one in classifier.summary.candidates} == {"temperature", "flip-2"}
    assert calibrate(network, pixels(), labels, policy=1).summary.method == "temperature"


def test_a_network_that_ends_in_a_softmax_is_refused_with_what_to_do(network, labels):
    with pytest.raises(
        InputError, match=r"expected a model that returns logits.*atta.FromProbabilities\(model\)"
    ):
        calibrate(nn.Sequential(network, nn.Softmax(1)), pixels(), labels, policy="flip")
    calibrate(
        atta.FromProbabilities(nn.Sequential(network, nn.Softmax(1))),
        pixels(),
        labels,
        policy="flip",
    )


def test_auto_and_a_budget_choose_from_few_policies_within_the_budget(network, labels):
    classifier = calibrate(network, pixels(), labels, policy="auto", budget=7, method="mean-tta")
    allowed = {"nudge-4", "flip-2", "photometric-4"}
    assert {one["policy"] for one in classifier.summary.candidates} == allowed
    assert classifier.policy == POLICIES[classifier.summary.candidates[0]["policy"]]
    assert "chosen from 3 policies" in str(classifier.summary)
    assert (
        calibrate(network, pixels(), labels, policy=7, method="mean-tta").summary
        == classifier.summary
    )


@pytest.mark.parametrize(
    ("shape", "budget", "names"),
    [
        ((3, 224, 160), 4, ["flip-crop-4", "flip-2", "photometric-4"]),
        ((3, 224, 224), 9, ["crop-9", "flip-crop-4", "flip-2", "photometric-4"]),
        ((1, 224, 224), 2, ["flip-2"]),
        ((3, 32, 32), 4, ["nudge-4", "flip-2", "photometric-4"]),
        ((3, 32, 32), 3, ["flip-2"]),
        ((1, 28, 28), 4, ["shift-4", "photometric-4", "flip-2"]),
    ],
)
def test_candidates_depend_on_the_kind_of_image_and_the_budget(shape, budget, names):
    kind = kind_of(torch.zeros(1, *shape))
    assert list(rivals(kind, budget)) == names
    every = candidates("auto", budget, atta.CATTA(), kind)
    assert list(every) == [*names, NO_VIEWS]
    assert list(candidates("auto", budget, atta.CATTA(), kind, quick=True)) == [names[0], NO_VIEWS]
    terms = {(view.name, n): n for one in every.values() for view, n in one.terms}
    assert sum(terms.values()) <= 2 * budget


def test_policies_that_are_not_tried_are_used_if_they_or_their_views_are_named():
    tried = {name for names in RIVALS.values() for name in names}
    assert tried < set(POLICIES)
    turned = ("vflip", "rot90", "rot180", "rot270", "transpose", "antitranspose")
    assert not any(set(POLICIES[name].kinds) & set(turned) for name in tried)
    for name in set(POLICIES) - tried:
        assert [*candidates(name, 9, atta.CATTA())] == [name]
    assert "vflip-2" in candidates("auto", 2, atta.CATTA(views=["vflip"]))


def test_with_little_effort_the_default_is_compared_with_temperature_only(network, labels):
    model = Counting()
    classifier = calibrate(
        model, pixels(), labels, policy="auto", effort="quick", method="c-atta", rehearse=False
    )
    assert model.seen == 60 * 4 + 8
    assert {one["policy"] for one in classifier.summary.candidates} == {"nudge-4", NO_VIEWS}
    with pytest.raises(InputError, match="effort must be one of full, quick, got 'little'"):
        calibrate(network, pixels(), labels, effort="little")


def test_a_view_that_changes_the_size_or_fails_is_no_candidate(monkeypatch):
    def fails(images):
        raise InputError("expected larger images")

    monkeypatch.setitem(POLICIES, "native", Policy.parse("2 native-crop"))
    monkeypatch.setitem(POLICIES, "failing", Policy(((View.of("fails", fails), 1),)))
    monkeypatch.setitem(POLICIES, "taken", Policy.parse("flip"))
    monkeypatch.setitem(RIVALS, "small", ("native", "failing", "taken"))
    found = fitting(candidates("auto", 3, atta.CATTA()), pixels(1))
    assert "taken" in found
    assert not {"native", "failing"} & set(found)


def test_a_policy_of_own_views_needs_no_name_in_the_library(network, labels, tmp_path):
    view = View.of("upside-down", lambda images: images.flip(-2))
    classifier = calibrate(network, pixels(), labels, policy=Policy(((view, 1),)))
    assert str(classifier.policy) == "upside-down"
    classifier.save(tmp_path / "c")
    loaded = CalibratedClassifier.load(tmp_path / "c", linear(), views={"upside-down": view})
    assert torch.equal(loaded(pixels(9)), classifier(pixels(9)))
    with pytest.raises(InputError, match="got 'upside-down'"):
        CalibratedClassifier.load(tmp_path / "c", linear())


def test_views_that_the_method_leaves_out_are_not_run(network, labels):
    classifier = calibrate(network, pixels(), labels, method=atta.MeanTTA(views=["flip"]))
    assert (str(classifier.policy), classifier.summary.policy, classifier.summary.passes) == (
        "flip",
        "flip",
        2,
    )
    assert classifier.details(pixels(3)).passes.tolist() == [2, 2, 2]


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy": "auto", "budget": 0},
            "budget: expected enough passes for c-atta, 2 or more .*, got 0",
        ),
        (
            {"policy": 1, "method": "mean-tta"},
            "budget: expected enough passes for mean-tta, 2 or more .*, got 1",
        ),
        ({"classes": "abc"}, "calibrate takes no 'classes'. Did you mean 'class_names'"),
        ({"policy": "spin"}, "expected a known name, got 'spin'"),
        ({"policy": Policy(())}, "c-atta needs the logits of views, got predictions without any"),
        ({"method": "v-ata"}, "unknown method 'v-ata'. Did you mean"),
        (
            {"draws": "random"},
            "draws: a classifier shows every image in the same, stratified views",
        ),
        (
            {"class_names": ["a"], "method": "vanilla"},
            "class_names: expected 3 or more, one for each class, got 1",
        ),
        ({"labels": None}, "labels: expected a class number for every image, .* got none"),
        ({"labels": torch.arange(60)}, "labels must lie in 0 … 2"),
        (
            {"images": pixels(9), "labels": torch.zeros(9).long()},
            "expected at least 10 labelled images for 5 folds",
        ),
        (
            {"images": pixels().numpy()},
            "expected channels='first' or channels='last' with a NumPy array",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(labels, settings, message):
    given = {"images": pixels(), "labels": labels} | settings
    with pytest.raises(InputError, match=message):
        calibrate(linear(), given.pop("images"), given.pop("labels"), **given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "v-ata"}, "unknown method"),
        (
            {"method": 3},
            "method: expected a name, such as 'c-atta', or a method, such as atta.CATTA.., got 3",
        ),
        ({"policy": ["flip", "spin"]}, "got 'spin'"),
        ({"policy": Policy(())}, "c-atta needs the logits of views"),
        (
            {"policy": "flip", "method": atta.MeanTTA(views=["crop"])},
            "expected predictions with the views crop",
        ),
        ({"policy": 2.5}, "expected a name of atta.VIEWS"),
        ({"class_names": "abc"}, "class_names must be a list, got 'abc'"),
        (
            {"class_names": ["a", "b", "a"]},
            "class_names: expected a different name for each class, got 'a' twice",
        ),
        ({"class_names": ["a", "b"]}, "class_names: expected 3 or more, one for each class, got 2"),
        ({"device": "gpu"}, "device: expected cpu"),
        (
            {"images": pixels(9), "labels": torch.zeros(9).long()},
            "expected at least 10 labelled images",
        ),
    ],
)
def test_what_was_given_is_refused_before_the_first_pass(settings, message):
    model, given = (
        Counting(),
        {"images": pixels(), "labels": torch.arange(60) % 3, "policy": "auto"} | settings,
    )
    with pytest.raises(InputError, match=message):
        calibrate(model, given.pop("images"), given.pop("labels"), **given)
    assert model.seen == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": torch.arange(60) % 4}, "labels must lie in 0 … 2, got 3"),
        (
            {"class_names": "abcd", "labels": None},
            "class_names: expected 3, one for each class of the network, got 4",
        ),
        ({"labels": None}, "labels: expected a class number for every image"),
    ],
)
def test_what_the_network_tells_costs_eight_passes(settings, message):
    model, given = Counting(), {"labels": torch.arange(60) % 3, "policy": "auto"} | settings
    given["class_names"] = list(given.get("class_names", ()))
    with pytest.raises(InputError, match=message):
        calibrate(model, pixels(), given.pop("labels"), **given)
    assert model.seen == 8


def test_a_method_may_be_a_class_and_a_policy_a_list(network, labels):
    view = View.of("upside-down", lambda images: images.flip(-2))
    classifier = calibrate(
        network, pixels(), labels, policy=["flip", (2, "crop"), view], method=atta.MeanTTA
    )
    assert (str(classifier.policy), classifier.calibrator.method) == (
        "flip + 2 crop + upside-down",
        atta.MeanTTA(),
    )


def test_what_looks_wrong_is_said_once_whatever_is_recorded(network, labels):
    with pytest.warns(atta.Advice, match="60 images are few") as caught:
        calibrate(network, pixels(), labels, policy="auto", budget=4, method="mean-tta")
    assert len(caught) == 1


def test_the_model_is_kept_as_it_is(labels):
    model = small_cnn(3).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    classifier = calibrate(
        atta.Normalized(model, [0.5] * 3, [0.25] * 3), pixels(), labels, method="mean-tta"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert np.allclose(
        classifier.details(pixels(4)).base,
        model(pixels(4) / 255 * 4 - 2).softmax(1).detach(),
        atol=1e-5,
    )


def test_a_network_of_float64_is_calibrated_in_float64(labels):
    classifier = calibrate(nn.Sequential(linear().double()), pixels(), labels, method="temperature")
    assert classifier(pixels(4)).dtype == classifier.calibrator.temperature.dtype == torch.float64


@pytest.mark.parametrize("scale", [1, 10])
def test_pixels_on_another_scale_than_in_training_are_said(labels, scale):
    """The first batch normalisation remembers the variance of its input."""
    norm = nn.BatchNorm2d(3, momentum=1.0)
    norm.train()(pixels() / 255 * scale)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(192, 3))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calibrate(model, pixels(), labels, method="temperature")
    wrong = [one for one in said if "normalised as in training" in str(one.message)]
    assert len(wrong) == (scale > 1)


# ---- finished passes are kept


def test_calibration_that_was_stopped_resumes_from_its_cache(labels, tmp_path):
    settings = {"policy": "auto", "budget": 4, "batch_size": 16, "rehearse": [3]}
    plain, cached, again = Counting(), Counting(), Counting()
    expected = calibrate(plain, pixels(), labels, **settings)

    class Stops(nn.Module):
        """Stops in the middle of all passes."""

        def __init__(self):
            super().__init__()
            self.inner, self.seen = Counting(), 0

        def forward(self, images):
            self.seen += images.shape[0]
            if 2 * self.seen > plain.seen and not stopped:
                stopped.append(self.seen)
                raise KeyboardInterrupt
            return self.inner(images)

    stopped, cache = [], tmp_path / "cache"
    model = Stops()
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, pixels(), labels, cache=cache, **settings)
    model.seen = 0
    resumed = calibrate(model, pixels(), labels, cache=cache, **settings)
    assert resumed.summary == expected.summary
    assert resumed.policy == expected.policy
    views = sum(one.passes - 1 for one in rivals("small", 4).values())
    assert stopped[0] + model.seen <= plain.seen + 8 + 16 * views, (
        "only the trial and the batch that was stopped, in all of its views, run twice"
    )
    # The trial and the finished classifier look at a few images each time.
    for model, passes in ((cached, plain.seen), (again, plain.seen % 60)):
        found = calibrate(model, pixels(), labels, cache=tmp_path / "other", **settings)
        assert found.summary == expected.summary
        assert model.seen == passes
    with pytest.raises(InputError, match="hold shards of this run, but their seed is 0 and not 1"):
        calibrate(Counting(), pixels(), labels, cache=tmp_path / "other", seed=1, **settings)


def test_a_bad_first_file_is_left_out_and_the_others_keep_their_pixels(tmp_path, network, labels):
    from PIL import Image

    files = [tmp_path / f"{i:02}.png" for i in range(61)]
    files[0].write_bytes(b"no image")
    for path, image in zip(files[1:], pixels(), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    given = torch.cat([labels[:1], labels])
    found = calibrate(network, files, given, skip_bad=True, rehearse=False)
    expected = calibrate(network, pixels(), labels, rehearse=False)
    assert found.summary.before == pytest.approx(expected.summary.before)
    assert found.summary.after == pytest.approx(expected.summary.after, abs=1e-5)


def test_a_resumed_calibration_keeps_its_memory_layout(labels, tmp_path, monkeypatch):
    model, settings = small_cnn(3), {"cache": tmp_path, "rehearse": False}
    for faster in (True, False):  # another layout would be refused: other bits
        monkeypatch.setattr(
            "atta.classifier.calibrate.faster_layout", lambda *_, it=faster: (it, 0.1)
        )
        calibrate(model, pixels(), labels, **settings)
        assert settings_of(tmp_path / "0")["channels_last"] is True
