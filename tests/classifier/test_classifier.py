"""The classifier: the views of the fit, the class kept in every precision, and clear refusals."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import atta
from atta._base.errors import InputError
from atta.calibrators import AverageBlend
from atta.classifier.classifier import CalibratedClassifier
from atta.networks.adapters import NumpyModel
from scenarios import (
    POLICY,
    SHAPE,
    Counting,
    Doubtful,
    blend,
    counted,
    linear,
    made_classifier,
    pixels,
)

# ---- what is answered


def test_the_answer_to_an_image_depends_on_nothing_but_the_image(fitted):
    images = pixels(40, seed=2)
    probs = fitted(images)
    assert torch.equal(probs, fitted(images))
    for other in (
        torch.cat([fitted(image[None]) for image in images]),
        fitted(images.flip(0)).flip(0),
    ):
        assert torch.allclose(probs, other, atol=1e-5, rtol=0)


def test_bytes_and_floats_of_one_image_get_the_same_answer(fitted):
    images = pixels(20, seed=3)
    assert torch.equal(fitted(images), fitted(images / 255))


def test_details_add_up_to_the_answer(fitted):
    images = pixels(20, seed=4)
    found = fitted.details(images)
    share = found.share[:, None]
    assert torch.equal(found.probs, fitted(images))
    assert torch.allclose(found.probs, (1 - share) * found.start + share * found.fused, atol=1e-5)
    assert torch.allclose(found.base, fitted.model(images / 255).softmax(1), atol=1e-5)
    assert torch.equal(found.start.argmax(1), found.base.argmax(1))
    assert {kind: tuple(view.shape) for kind, view in found.views.items()} == {
        "flip": (20, 1, 3),
        "crop": (20, 2, 3),
    }
    assert torch.allclose(
        found.views["flip"][:, 0], fitted.model(images.flip(-1) / 255).softmax(1), atol=1e-5
    )
    assert found.passes.tolist() == [4] * 20


def test_details_of_a_method_without_views_have_no_fused_and_no_share(network, labels):
    classifier = atta.calibrate(network, pixels(), labels, method="temperature", progress=False)
    found = classifier.details(pixels(5))
    assert (found.fused, found.share, found.views) == (None, None, {})
    assert classifier.policy.terms == ()
    assert classifier.mean_passes == 1


# ---- the class is kept


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [8.0, 1e-3, 1e-7, 0.0])
def test_the_class_is_that_of_the_network_in_every_precision(dtype, scale):
    """Down to exact ties: with weights of zero all logits are the same."""
    model = linear(scale=scale)
    with torch.no_grad():
        model[1].bias.zero_()
    classifier = blend(model.to(dtype))
    found = classifier.details(pixels(200))
    assert found.probs.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(classifier(pixels(200)).argmax(1), found.base.argmax(1))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), bits=st.integers(0, 6), limit=st.floats(0, 1))
def test_the_class_is_kept_over_logits_with_many_ties(seed, bits, limit):
    class Coarse(nn.Module):
        """Rounds, so that several classes are in front."""

        def __init__(self):
            super().__init__()
            self.inner = linear(4, scale=3.0)

        def forward(self, images):
            return (self.inner(images) * bits).round()

    classifier = blend(Coarse(), classes=4, limit=limit)
    images = pixels(30, seed=seed)
    assert torch.equal(classifier(images).argmax(1), classifier.details(images).base.argmax(1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_no_gradient_is_kept_whatever_surrounds_it(fitted, mode):
    with mode():
        probs = fitted(pixels(5))
    assert not probs.requires_grad
    assert torch.equal(probs, fitted(pixels(5)))


def averaging(network):
    """As `blend`, by an average of probabilities, which autocast would compute in half precision."""
    calibrator = AverageBlend(
        weights=torch.tensor([0.3, 0.6]), limit=torch.tensor(0.8), kinds=("flip", "crop")
    )
    calibrator.classes, calibrator.method = 3, atta.AdaptiveTTA()
    return CalibratedClassifier(network, calibrator, POLICY, image_shape=SHAPE)


def test_autocast_reaches_the_network_alone(fitted, network):
    images = pixels(30, seed=5)
    for classifier in (fitted, averaging(network)):
        with torch.autocast("cpu", torch.bfloat16):
            probs, found = classifier(images), classifier.details(images)
        assert probs.dtype == torch.float32
        assert torch.equal(probs.argmax(1), found.base.argmax(1))
        assert torch.allclose(probs, classifier(images), atol=0.05)
        assert not torch.equal(probs, classifier(images))  # it did reach the network


NEW_PROCESS = """
import sys
import torch
from torch import nn
from atta import CalibratedClassifier

for name in ("c-atta", "adaptive-tta"):
    saved = torch.load(f"{sys.argv[1]}/{name}.pt", weights_only=True)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    classifier = CalibratedClassifier.load(f"{sys.argv[1]}/{name}", network)
    images, probs = saved["images"], classifier(saved["images"])
    assert torch.equal(probs, saved["probs"])
compiled = torch.compile(classifier, backend="eager", fullgraph=True)
assert torch.allclose(compiled(images), probs, atol=1e-5)
with torch.autocast("cpu", torch.bfloat16):
    assert torch.allclose(compiled(images), classifier(images), atol=1e-5)
    assert compiled(images).dtype == torch.float32
"""


def test_a_new_process_gives_the_same_bits_and_compiles_to_the_same_answers(
    fitted, network, tmp_path
):
    """By itself: torch.compile cannot look through the type checks that the tests switch on."""
    images = pixels(9, seed=6)
    for classifier in (fitted, averaging(network)):
        name = classifier.calibrator.method.name
        classifier.save(tmp_path / name)
        torch.save({"images": images, "probs": classifier(images)}, tmp_path / f"{name}.pt")
    command = [sys.executable, "-c", NEW_PROCESS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_data_parallel_answers_the_same(fitted):
    assert torch.equal(nn.DataParallel(fitted)(pixels(9)), fitted(pixels(9)))


def test_distributed_data_parallel_answers_the_same(tmp_path):
    classifier = blend(linear())
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        probs = nn.parallel.DistributedDataParallel(classifier)(pixels(5))
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(probs, classifier(pixels(5)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_answers_as_the_cpu_does(labels, tmp_path):
    images = pixels(20, seed=7)
    classifier = atta.calibrate(linear().cuda(), pixels(), labels, policy=POLICY, progress=False)
    probs = classifier(images.cuda())
    assert torch.equal(probs.argmax(1), classifier.details(images.cuda()).base.argmax(1))
    assert np.allclose(classifier.predict_proba(images), probs.cpu().numpy(), atol=1e-5)
    classifier.save(tmp_path / "c")
    assert torch.allclose(
        CalibratedClassifier.load(tmp_path / "c", linear(), device="cuda")(images.cuda()), probs
    )
    with pytest.raises(InputError, match="expected images on cuda:0, where the model is, got cpu"):
        classifier(images)
    with torch.autocast("cuda"):
        half, base = classifier(images.cuda()), classifier.details(images.cuda()).base
    assert torch.equal(half.argmax(1), base.argmax(1))
    assert torch.allclose(classifier.cpu()(images), probs.cpu(), atol=1e-4)


# ---- what a GPU is asked for, and how often it is waited for: a small batch is over before a hundred kernels have been started


@pytest.mark.parametrize(
    ("policy", "most"), [("shift-mix-4", 42), ("flip + 3 crop", 48), ("aug8", 70), ("3 gamma", 60)]
)
def test_views_and_calibrator_are_few_operations_whatever_the_policy(policy, most):
    classifier, images = blend(linear(), policy), pixels(1)
    classifier.rows_on_cpu = 32  # all views in one pass, as on a GPU
    classifier(images)
    work = counted(lambda: classifier(images))
    assert sum(work.values()) - work["addmm"] <= most, work
    assert work["addmm"] == 1
    assert (
        work["_local_scalar_dense"] == 1
    )  # the only number that is waited for: whether all logits are finite
    assert "lift_fresh" not in work  # no number is sent


def test_floats_are_looked_at_once_more(fitted):
    images = pixels(4) / 255
    assert counted(lambda: fitted(images))["_local_scalar_dense"] <= 2


def test_views_made_together_give_the_answer_of_views_made_one_by_one():
    classifier, images = (
        blend(linear(), "flip + 4 crop + shift + flip-shift + 3 brightness + 2 jpeg"),
        pixels(5),
    )
    one_by_one = classifier.policy.render(images / 255, draws="stratified")
    views: dict[str, list[torch.Tensor]] = {}
    for kind, _, shown in one_by_one:
        views.setdefault(kind, []).append(classifier.model(shown))
    record = atta.Predictions(
        classifier.model(images / 255),
        {kind: torch.stack(found, 1) for kind, found in views.items()},
    )
    assert torch.allclose(classifier(images), classifier.calibrator(record), atol=1e-6, rtol=0)


# ---- a module among modules


def test_casts_reach_the_network_and_leave_what_was_learned():
    classifier = blend(linear(), "2 crop")
    learned = (classifier.calibrator, classifier.views)
    before = [tensor.dtype for part in learned for tensor in part.buffers()]
    classifier.half()
    assert {tensor.dtype for tensor in classifier.model.parameters()} == {torch.float16}
    assert [tensor.dtype for part in learned for tensor in part.buffers()] == before
    again = classifier.to("cpu", torch.float32)
    assert again is classifier
    assert torch.allclose(classifier(pixels(9)), blend(linear(), "2 crop")(pixels(9)), atol=1e-2)


def test_a_copy_and_a_state_dict_give_the_same_answers(fitted):
    twin = copy.deepcopy(fitted)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.zero_()
    assert not torch.equal(twin(pixels(5)), fitted(pixels(5)))
    twin.load_state_dict(fitted.state_dict())
    assert torch.equal(twin(pixels(5)), fitted(pixels(5)))


def test_wrapped_networks_are_taken_as_what_they_wrap(network):
    for wrapped in (torch.compile(network, backend="eager"), nn.DataParallel(network)):
        assert blend(wrapped).model.model is network


def test_train_leaves_it_in_evaluation_mode_and_a_network_put_into_training_mode_is_refused(
    tmp_path,
):
    network = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 3))
    classifier = blend(atta.Normalized(network, [0.5] * 3, [0.2] * 3))
    assert not nn.Sequential(classifier).train()[0].model.training
    network[1].train()
    for use in (classifier, classifier.details, lambda _: classifier.export(tmp_path / "x.onnx")):
        with pytest.raises(InputError, match="expected the model in evaluation mode"):
            use(pixels(2))
    assert torch.equal(classifier.eval()(pixels(2)), classifier(pixels(2)))


# ---- what it is given


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.full((2, *SHAPE), float("nan")),
            r"expected floating point pixels in \[0, 1\], got nan in image 0 of the batch",
        ),
        (
            torch.cat([torch.zeros(1, *SHAPE), torch.full((1, *SHAPE), 1.5)]),
            "got 0 to 1.5, first in image 1",
        ),
        (torch.full((1, *SHAPE), -0.1), "got -0.1 to -0.1"),
        (
            torch.zeros(2, 1, 8, 8),
            r"expected images of shape \(n, 3, 8, 8\), as it was fitted on, got \(2, 1, 8, 8\)",
        ),
        (torch.zeros(2, 3, 9, 8), r"got \(2, 3, 9, 8\)"),
        (torch.zeros(SHAPE), r"got \(3, 8, 8\): write images\[None\]"),
        (
            torch.zeros(2, *SHAPE, dtype=torch.int64),
            "expected images as uint8 or floats in .*, got torch.int64",
        ),
        (np.zeros((2, *SHAPE)), "as a tensor, got ndarray; predict_proba takes files, folders"),
        (
            torch.zeros(2, *SHAPE, device="meta"),
            "expected images on cpu, where the model is, got meta",
        ),
    ],
)
def test_images_that_it_cannot_answer_are_refused_with_what_is_wrong(fitted, images, message):
    for use in (fitted, fitted.details):
        with pytest.raises(InputError, match=message):
            use(images)


def test_rounding_outside_of_the_range_is_forgiven(fitted):
    assert torch.equal(fitted(torch.full((1, *SHAPE), 1 + 1e-6)), fitted(torch.ones(1, *SHAPE)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_batch_gets_an_empty_answer(dtype):
    classifier = blend(linear().to(dtype))
    probs, found = classifier(pixels(0)), classifier.details(pixels(0))
    assert probs.shape == found.base.shape == found.fused.shape == (0, 3)
    assert probs.dtype == dtype
    assert found.views["crop"].shape == (0, 2, 3)
    assert found.share.shape == found.passes.shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image_shape": (3, 8)},
            r"image_shape: expected \(channels, height, width\), got \(3, 8\)",
        ),
        ({"class_names": ["a", "b"]}, "expected 3 class names, one for each class, got 2"),
        ({"policy": None}, "expected the policy of the views flip, crop, got none"),
        ({"policy": "flip"}, "expected a policy with the views crop, got 'flip'"),
        (
            {"image_shape": (1, 8, 8)},
            r"expected a model that takes images of \(1, 8, 8\), but this one fails",
        ),
        (
            {"model": linear(5)},
            "expected a model of 3 classes, as the calibrator has, got one of 5",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(fitted, change, message):
    given = {"model": fitted.model, "policy": POLICY, "image_shape": SHAPE} | change
    with pytest.raises(InputError, match=message):
        CalibratedClassifier(
            given.pop("model"), fitted.calibrator, given.pop("policy"), **given
        ).check()


def test_logits_that_are_not_finite_are_refused():
    class Fragile(nn.Module):
        def forward(self, images):
            return 1 / (images.flatten(1)[:, :3] - 1)

    with pytest.raises(
        InputError, match="the model returns logits that are not finite for image 1 of the batch"
    ):
        blend(Fragile())(torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE)]))


# ---- gated calibrators


@pytest.mark.parametrize("n", [1, 7, 100])
def test_a_gated_classifier_shows_only_the_images_that_go_on(n):
    model, images = Counting(), pixels(n, seed=8)
    classifier = CalibratedClassifier(model, Doubtful(), POLICY, image_shape=SHAPE)
    assert classifier.mean_passes == 4  # before any image, the most
    base, flip = (
        model.inner(shown / 255).softmax(1).amax(1) for shown in (images, images.flip(-1))
    )
    expected = 1 + (base < 0.8).int() + 2 * ((base < 0.8) & (flip < 0.8)).int()
    model.seen = 0
    found = classifier.details(images)
    assert model.seen == expected.sum()
    assert torch.equal(found.passes, expected.long())
    assert classifier.mean_passes == expected.double().mean().item()
    assert torch.equal(found.views["crop"].isnan().all(2).all(1), expected < 4)
    assert torch.allclose(classifier(images), classifier.graph(images)[0], atol=1e-5)
    if n == 100:
        assert len(set(expected.tolist())) == 3


def test_a_gated_classifier_takes_an_empty_batch_and_one_that_nobody_doubts():
    classifier = CalibratedClassifier(linear(scale=1e3), Doubtful(), POLICY, image_shape=SHAPE)
    assert classifier(pixels(0)).shape == (0, 3)
    assert classifier.details(pixels(5)).passes.tolist() == [1] * 5


def test_a_function_on_arrays_is_a_model_too():
    weights = np.random.default_rng(0).normal(size=(192, 3)).astype(np.float32)
    classifier = blend(NumpyModel(lambda images: images.reshape(len(images), -1) @ weights))
    assert torch.equal(
        classifier(pixels(9)).argmax(1), classifier.details(pixels(9)).base.argmax(1)
    )


def test_it_says_what_it_is(fitted):
    assert repr(fitted) == (
        "CalibratedClassifier(Sequential, c-atta, classes=3, views=flip+crop, 'flip + 2 crop', images 3 × 8 × 8)"
    )


def test_a_notebook_shows_network_method_views_and_what_calibration_gained():
    classifier = made_classifier()
    html = classifier._repr_html_()
    for words in ("Sequential", "v-atta", "flip + 2 brightness", "NLL", "passes per image"):
        assert words in html, words
    assert "<table>" not in made_classifier(summary=False)._repr_html_()
