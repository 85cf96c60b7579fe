"""Check first, run later: a mistake costs no pass, or eight."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import atta
from atta import Predictions, Record
from atta._base.errors import Advice, InputError, advise
from atta.data.views import Policy, View
from atta.run.checks import faster_layout, look_over
from atta.run.collect import collect
from atta.run.runner import Execution
from scenarios import Counting, Items, Scripted, made_up, pixels


def looks(images):
    return torch.stack(
        [images.mean((1, 2, 3)), images[:, 0].amax((1, 2)), images[:, 1].amin((1, 2))], 1
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": torch.rand(60)}, "labels must be integers"),
        ({"labels": torch.arange(60) % 3 - 1}, "labels must lie in 0 … 1, got -1 in row 0"),
        ({"labels": torch.zeros(60, 3).long()}, "labels must have shape"),
        ({"labels": torch.zeros(59).long()}, "expected 60 labels, one for each image, got"),
        ({"policy": "flip + spin"}, "expected a known name, got 'spin'"),
        ({"policy": 3.5}, "expected a name of atta.VIEWS, an atta.View, or a transform of kornia"),
        ({"device": "gpu"}, "device: expected cpu.*, got 'gpu'"),
        ({"device": "cuda:99"}, "device: expected cpu.*, got 'cuda:99'"),
        (
            {"policy": View.of("half", lambda images: images[:1])},
            "View 'half': expected images of shape",
        ),
        (
            {"policy": View.of("log", lambda images: images.log() * 0)},
            "View 'log': expected pixels .* not finite",
        ),
    ],
)
def test_what_was_given_is_refused_before_the_first_pass(settings, message):
    model = Counting()
    given = {"labels": torch.arange(60) % 3, "policy": "flip"} | settings
    with pytest.raises(InputError, match=message):
        collect(model, pixels(), given.pop("labels"), progress=False, **given)
    assert model.seen == 0


@pytest.mark.parametrize(
    "labels", [torch.arange(60) % 4, Items(pixels(), [i % 4 for i in range(60)])]
)
def test_labels_that_the_network_does_not_know_cost_eight_passes(labels):
    model = Counting()
    images, labels = (labels, None) if isinstance(labels, Items) else (pixels(), labels)
    with pytest.raises(InputError, match="labels must lie in 0 … 2, got 3"):
        collect(model, images, labels, policy="aug8", progress=False)
    assert model.seen == 8


def test_a_network_that_answers_nan_is_found_by_eight_images():
    model = Scripted(lambda images, _: looks(images) / 0)
    with pytest.raises(
        InputError, match=r"expected finite logits, got .* for image 0 of the images"
    ):
        collect(model, pixels(), policy="flip", progress=False)
    assert model.calls == 2


def test_the_images_of_a_trial_come_from_all_over_the_set_and_none_is_lost_of_a_stream():
    seen = []
    model = Scripted(lambda images, _: seen.append(images[:, 0, 0, 0] * 60) or looks(images))
    numbered = (torch.arange(60) / 60).view(60, 1, 1, 1).expand(60, 3, 8, 8)
    collect(model, numbered, policy="flip", progress=False)
    assert torch.cat(seen[:2]).round().tolist() == [0, 8, 17, 25, 34, 42, 51, 59]
    loader = DataLoader(numbered, batch_size=7)
    first = collect(
        Scripted(lambda images, _: looks(images)), loader, policy="flip", progress=False
    )
    again = collect(
        Scripted(lambda images, _: looks(images)), numbered, policy="flip", progress=False
    )
    assert torch.equal(first.predictions.logits, again.predictions.logits)


def test_images_that_occur_twice_are_counted():
    images, network = pixels(), Scripted(lambda images, _: looks(images))
    images[40:46] = images[:6]
    how = {"policy": "flip", "method": "temperature", "progress": False}
    for given, wanted in ((images, True), (pixels(), False), (Items(images), True)):
        with pytest.warns(Advice) as said:
            atta.calibrate(network, given, torch.arange(60) % 3, **how)
        sentences = [str(one.message) for one in said]
        assert any("12 of 60 images occur more than once" in one for one in sentences) == wanted


def test_files_that_occur_twice_are_counted_without_decoding_them(tmp_path):
    files = [tmp_path / f"{i}.png" for i in range(12)]
    for path, image in zip(files, pixels(12), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    for i in (3, 4):
        files[i].write_bytes(files[0].read_bytes())
    with pytest.warns(Advice, match="3 of 12 images occur more than once"):
        collect(Counting(), files, policy="flip", progress=False)


@pytest.mark.parametrize(
    ("each", "wrong", "said"), [(2, 0, True), (1, 0, True), (2, 30, False), (6, 30, True)]
)
def test_two_classes_that_are_exchanged_are_said(each, wrong, said):
    """Of few images, only if the network is seldom wrong."""
    truth = torch.arange(100) % 5 + 2
    answers = truth.clone()
    answers[:wrong] = (answers[:wrong] - 1) % 5 + 2
    pair = torch.tensor([0] * each + [1] * each)
    labels, answers = torch.cat([truth, pair]), torch.cat([answers, 1 - pair])
    predictions = Predictions(5 * torch.eye(7)[answers] + 0.1 * torch.rand(len(labels), 7))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        look_over(Record(predictions, labels, {}))
    sentence = "most images of class 0 are predicted as class 1, and most of that as class 0"
    assert any(sentence in str(one.message) for one in found) == said


def test_labels_of_one_class_only_are_said():
    with pytest.warns(
        Advice, match="all labels are class 2, counted from 0: calibration needs images of all"
    ):
        collect(Counting(), pixels(), torch.full((60,), 2), policy="flip", progress=False)


def test_a_view_that_leaves_the_range_is_clipped_and_said():
    bright = Policy(((View.of("bright", lambda images: images * 3 - 1), 1),))
    with pytest.warns(
        Advice, match=r"the view 'bright' leaves \[0, 1\] \(from -1 to 2\) and is clipped"
    ):
        collect(Counting(), pixels(), policy=bright, progress=False)
    (shown,) = (shown for *_, shown in bright.render(pixels() / 255, draws="stratified"))
    assert 0 <= shown.min() <= shown.max() <= 1


def test_the_network_is_given_back_as_it_was_and_runs_on_no_images_without_checks():
    model = Counting().train()
    collect(model, pixels(20), policy="flip", progress=False, checks=False)
    assert (model.seen, model.training) == (40, True)
    collect(model, pixels(20), policy="flip", progress=False)
    assert (model.seen, model.training) == (40 + 8 + 40, True)


def test_a_network_of_probabilities_is_said_by_collect_and_refused_by_calibrate():
    model = nn.Sequential(Counting(), nn.Softmax(1))
    with pytest.warns(Advice, match=r"atta.FromProbabilities\(model\)"):
        collect(model, pixels(), policy="flip", progress=False)
    model[0].seen = 0
    with pytest.raises(InputError, match="expected a model that returns logits"):
        atta.calibrate(model, pixels(), torch.arange(60) % 3, progress=False)
    assert model[0].seen == 8


class OneNumber(nn.Module):
    """Says of red images that they are of class 1, by one logit."""

    def forward(self, images):
        return 6 * (images[:, 0].mean((1, 2)) - images[:, 1].mean((1, 2)))[:, None]


@pytest.mark.parametrize(
    ("model", "more"),
    [(OneNumber(), "$"), (nn.Sequential(OneNumber(), nn.Sigmoid()), ".*FromProb")],
)
def test_a_network_of_one_output_is_one_of_two_classes_and_that_is_said(model, more):
    with pytest.warns(Advice, match=f"taken as the logit of class 1, with 0 for class 0{more}"):
        collect(model, pixels(), policy="flip", progress=False)


@pytest.mark.parametrize(
    "model", [OneNumber(), atta.FromProbabilities(nn.Sequential(OneNumber(), nn.Sigmoid()))]
)
def test_a_network_of_one_output_is_calibrated_and_keeps_its_class(model, tmp_path):
    images = pixels().float() / 255
    answers = OneNumber()(images)[:, 0]
    labels = ((answers > 0).long() + (torch.arange(60) % 5 == 0)) % 2
    how = {"policy": "flip", "class_names": ("green", "red"), "rehearse": False, "progress": False}
    classifier = atta.calibrate(model, images, labels, **how)
    classifier = atta.CalibratedClassifier.load(classifier.save(tmp_path / "saved"), model)
    assert classifier(images).shape == (60, 2)
    assert torch.equal(classifier(images).argmax(dim=1), (answers > 0).long())


def test_a_forgotten_normalisation_is_said_where_the_network_knows_it():
    model = nn.Sequential(Counting())
    model.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    with pytest.warns(
        Advice,
        match=r"wants photographs as 'shortest edge to 9 .*std 0.2 0.2 0.2'.*preprocess=model",
    ):
        collect(model, pixels(), policy="flip", progress=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the network states", Advice)
        collect(model, pixels(), policy="flip", preprocess=model, progress=False)
        model.pretrained_cfg |= {"mean": (0.0,) * 3, "std": (1.0,) * 3}
        collect(model, pixels(), policy="flip", progress=False)


def test_pixels_of_another_spread_than_in_training_are_said_by_calibrate_and_leave_no_hook_behind():
    torch.manual_seed(0)
    norm, images, labels = nn.BatchNorm2d(3), pixels(shape=(3, 8, 8)), torch.arange(60) % 3
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(3 * 8 * 8, 3)).eval()
    how = {"method": atta.TemperatureScaling(), "policy": "flip", "progress": False}

    def said() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            atta.calibrate(model, images, labels, **how)
        return [str(one.message) for one in caught if "normalis" in str(one.message)]

    assert not said()  # as it was made: it remembers nothing
    norm.running_var[:] = (images.double() / 255).var()
    assert not said()
    norm.running_var /= 0.05
    (sentence,) = said()
    assert "gets 0.05" in sentence
    assert "--mean, --std" in sentence
    assert not norm._forward_pre_hooks
    model.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    (sentence,) = said()  # once, by the surer of two signs
    assert sentence.startswith("the network states that it wants photographs")


# ---- after the run


def nearly_right(images, wrong, scale=9.0):
    """What a network says of its training images, and of a few that it did not learn."""
    labels = torch.arange(images) % 5
    answers = labels.clone()
    answers[:wrong] = (labels[:wrong] + 1) % 5
    return Record(Predictions(scale * torch.eye(5)[answers]), labels)


@pytest.mark.parametrize(
    "record", [made_up(300), nearly_right(300, wrong=9), nearly_right(300, wrong=3, scale=3.0)]
)
def test_a_record_like_any_other_is_silent(record):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look_over(record)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (made_up(199), "199 images are few"),
        (
            Record(made_up(300).predictions, (made_up(300).labels + 1) % 5),
            "would be if labels counted from 1: expected class numbers from 0",
        ),
        (
            Record(Predictions(9 * torch.eye(1000)[3:303]), torch.arange(4, 304)),
            "0.0% are right, and 100.0% would be if labels counted from 1",
        ),
        (
            Record(made_up(300).predictions, (made_up(300).labels + 2) % 5),
            "accuracy on 5 classes is no better than chance",
        ),
        (
            Record(made_up(300).predictions, torch.tensor([0, 2, 1, 3, 4])[made_up(300).labels]),
            "most images of class 1 are predicted as class 2, and most of that as class 1",
        ),
        (
            Record(made_up(300).predictions, made_up(300).predictions.logits.argmax(1)),
            "100.0% of these images are classified correctly: was the network trained on them",
        ),
        (
            nearly_right(300, wrong=3),
            "99.0% of these images are classified correctly: was the network trained on them",
        ),
        (
            Record(made_up(300).predictions, torch.zeros(300, dtype=torch.long)),
            "all labels are class 0, counted from 0: calibration needs images of all classes",
        ),
        (
            Record(Predictions(made_up(300).predictions.logits.sigmoid())),
            "if the network ends in a sigmoid, leave it out",
        ),
        (
            Record(Predictions(made_up(300).predictions.logits.softmax(1))),
            "if these are probabilities",
        ),
        (
            Record(Predictions(made_up(300).predictions.logits * 1e5)),
            "the confidence of every image is 1.0",
        ),
    ],
)
def test_what_looks_wrong_is_said_in_one_sentence(record, sentence):
    with pytest.warns(Advice, match=sentence) as caught:
        look_over(record)
    assert len(caught) == 1


def test_advice_points_at_the_line_of_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        look_over(made_up(50))
        advise("beware")
    assert {one.filename for one in caught} == {__file__}


class Stated(nn.Module):
    """A network that states its input as those of timm do, or as those of Hugging Face."""

    def __init__(self, side, **config):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, side, side), **config} if config else None
        self.config = SimpleNamespace(image_size=side)

    def forward(self, images):
        return looks(images) - 0.5  # below 0: not those of a sigmoid


@pytest.mark.parametrize(
    ("model", "images", "sentence"),
    [
        (Stated(224), pixels(), "states images of 224 x 224 pixels, and is given 8 x 8"),
        (
            atta.Normalized(Stated(8, mean=(0.5,) * 3, std=(0.5,) * 3), (0.1,) * 3, (0.9,) * 3),
            pixels(),
            "and is given another mean and std",
        ),
        (Stated(8), pixels().float() / 255**2, "above 0.0039: were they divided by 255 twice"),
        (Stated(10), pixels(), None),
        (
            atta.Normalized(Stated(8, mean=(0.48,) * 3, std=(0.23,) * 3), (0.5,) * 3, (0.25,) * 3),
            pixels(),
            None,
        ),
    ],
)
def test_images_that_contradict_what_the_network_states_are_said(model, images, sentence):
    with pytest.warns(Advice) as said:
        collect(model, images, policy="flip", progress=False)
    found = [str(one.message) for one in said if "images are few" not in str(one.message)]
    assert len(found) == (sentence is not None), found
    assert sentence is None or sentence in found[0]


class Slow(nn.Module):
    """A convolution that takes a second of its own clock, two in one memory layout."""

    def __init__(self, slow):
        super().__init__()
        self.convolution, self.slow, self.now = nn.Conv2d(3, 3, 3), slow, 0

    def forward(self, images):
        last = images.is_contiguous(memory_format=torch.channels_last)
        self.now += 2 if last == self.slow else 1
        return self.convolution(images).mean((2, 3))


@pytest.mark.parametrize("slow", [False, True])
def test_the_faster_memory_layout_is_used_on_a_cpu(monkeypatch, slow):
    model, how = Slow(slow), Execution(device="cpu")
    monkeypatch.setattr("atta.run.checks.time.perf_counter", lambda: model.now)
    assert faster_layout(model, pixels(8), how) == (not slow, 1 / 8)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    assert faster_layout(plain, pixels(8), how) is None
