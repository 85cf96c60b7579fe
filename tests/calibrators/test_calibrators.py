"""One contract for every method, then each method against a slow version of itself."""

import copy
import dataclasses
import functools
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy import optimize
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn import functional as F

import atta
import reference
from atta import METHODS, InputError, Predictions, calibrators, functional
from atta.calibrators import (
    CATTA,
    MATTA,
    VATTA,
    AdaptiveTTA,
    Calibrator,
    Dirichlet,
    Histogram,
    Isotonic,
    MeanTTA,
    MeanTTATemperature,
    Method,
    SelectiveVATTA,
    SequentialVATTA,
    ShrunkMATTA,
    TemperatureScaling,
    Vanilla,
    base,
    find_method,
    load,
)
from atta.calibrators.binning import carry_class
from atta.calibrators.fitting import folds, nll
from atta.calibrators.selective import allocate
from atta.functional import blend, fuse, largest_share

KINDS = {"flip": 1, "crop": 3, "brightness": 2}
seeds = st.integers(0, 2**32 - 1)


def toy(
    n: int = 60,
    k: int = 4,
    seed: int = 0,
    *,
    confidence: float = 3.0,
    signal: float = 2.0,
    dtype=torch.float32,
    kinds=KINDS,
) -> tuple[Predictions, Tensor]:
    """An over-confident network: views that know as much as the image, and each something else."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    truth = signal * torch.nn.functional.one_hot(labels, k) + torch.randn(n, k, generator=g, dtype=torch.float64)
    views = {
        kind: confidence * (truth[:, None] + (1 + i / 2) * torch.randn(n, r, k, generator=g, dtype=torch.float64))
        for i, (kind, r) in enumerate(kinds.items())
    }
    return Predictions((confidence * truth).to(dtype), {kind: view.to(dtype) for kind, view in views.items()}), labels


SETTINGS: dict[str, Method] = {
    "vanilla": Vanilla(),
    "temperature": TemperatureScaling(),
    "isotonic": Isotonic(),
    "isotonic, one-vs-rest": Isotonic(pooled=False),
    "isotonic, raw": Isotonic(normalize=False),
    "histogram": Histogram(),
    "histogram, one-vs-rest": Histogram(pooled=False),
    "histogram, raw": Histogram(normalize=False, bins=7),
    "dirichlet": Dirichlet(grid=[(1e-2, 1e-2)]),
    "dirichlet, cross-validated": Dirichlet(grid=[(1e-2, 1e-2), (1.0, 1.0)], folds=3),
    "adaptive-tta": AdaptiveTTA(),
    "adaptive-tta, nll": AdaptiveTTA(objective="nll", views=["crop", "flip"]),
    "adaptive-tta, ece": AdaptiveTTA(objective="ece", step=0.01),
    "mean-tta": MeanTTA(),
    "mean-tta, views alone": MeanTTA(original=False),
    "mean-tta-temperature": MeanTTATemperature(),
    "m-atta": MATTA(epochs=8, batch=32),
    "m-atta, lbfgs": MATTA(optimizer="lbfgs", views=("flip", "crop")),
    "m-atta, paper": dataclasses.replace(MATTA.paper(), epochs=8),
    "m-atta, probabilities": MATTA(space="probabilities", epochs=8, start=1.0),
    "v-atta": VATTA(),
    "v-atta, paper": dataclasses.replace(VATTA.paper(), epochs=8),
    "v-atta, probabilities": VATTA(space="probabilities"),
    "c-atta": CATTA(),
    "selective-v-atta": SelectiveVATTA(views=["crop"]),
    "sequential-v-atta": SequentialVATTA(views=["crop", "flip"], passes=3, blend="v-atta"),
    "shrunk-m-atta": ShrunkMATTA(strengths=[1.0], folds=2),
}
EVERY = pytest.mark.parametrize("name", SETTINGS)
KEEPING = pytest.mark.parametrize("name", [name for name, method in SETTINGS.items() if method.keeps_class])


@functools.cache
def fitted(name: str, dtype: torch.dtype = torch.float32) -> Calibrator:
    return SETTINGS[name].fit(*toy(dtype=dtype))


def check_answer(probs: Tensor, predictions: Predictions, method: Method) -> None:
    """What every answer of every method must be."""
    assert probs.shape == predictions.logits.shape
    assert probs.dtype == predictions.logits.dtype
    assert torch.isfinite(probs).all()
    assert (probs >= 0).all()
    assert (probs <= 1).all()
    if method.on_simplex:
        torch.testing.assert_close(probs.sum(-1), torch.ones(len(probs), dtype=probs.dtype), rtol=0, atol=1e-5)
    if method.keeps_class:
        assert torch.equal(probs.argmax(-1), predictions.logits.softmax(-1).argmax(-1))


# --- The contract -----------------------------------------------------------------------------------------------------


def test_every_method_is_under_the_contract():
    assert {method.name for method in SETTINGS.values()} == set(METHODS)
    assert all(METHODS[method.name] is type(method) for method in SETTINGS.values())


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_answers_lie_on_the_simplex_in_the_dtype_of_the_predictions(name, dtype):
    test, _ = toy(200, seed=1, dtype=dtype)
    check_answer(fitted(name, dtype)(test), test, SETTINGS[name])


@EVERY
def test_a_calibrator_fitted_in_float32_serves_float64_and_the_other_way_round(name):
    for fit_dtype, dtype in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        test, _ = toy(50, seed=1, dtype=dtype)
        check_answer(fitted(name, fit_dtype)(test), test, SETTINGS[name])


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_answered_in_float32(name, dtype):
    half = toy(200, seed=1)[0].to(dtype)
    probs = fitted(name)(half)
    assert probs.dtype == torch.float32
    check_answer(probs, half.to(torch.float32), SETTINGS[name])


HARD = {
    "random": lambda z: 5 * z,
    "tied": lambda z: z.round(),
    "all equal": lambda z: 0 * z,
    "extreme": lambda z: 1e4 * z.sign(),
    "nearly tied": lambda z: 3 + 1e-6 * z,
    "beyond reason": lambda z: 3e37 * z.sign(),
}


@KEEPING
@given(seed=seeds, image=st.sampled_from(list(HARD)), view=st.sampled_from(list(HARD)))
@settings(max_examples=7, deadline=None)
def test_never_changes_the_predicted_class(name, seed, image, view):
    g = torch.Generator().manual_seed(seed)
    for dtype in (torch.float32, torch.float64):
        test = Predictions(
            HARD[image](torch.randn(80, 4, generator=g, dtype=torch.float64)).to(dtype),
            {
                kind: HARD[view](torch.randn(80, r, 4, generator=g, dtype=torch.float64)).to(dtype)
                for kind, r in KINDS.items()
            },
        )
        check_answer(fitted(name, dtype)(test), test, SETTINGS[name])


def test_who_says_it_changes_the_class_does():
    test, _ = toy(2000, seed=1)
    first = test.logits.argmax(-1)
    for name in ("dirichlet", "mean-tta", "mean-tta-temperature", "histogram, raw"):
        assert not SETTINGS[name].keeps_class
        assert (fitted(name)(test).argmax(-1) != first).any()


@EVERY
def test_comes_back_from_its_file_bit_for_bit(name, tmp_path):
    test, _ = toy(50, seed=1)
    before = fitted(name)
    after = load(before.save(tmp_path / "new folder" / "calibrator.safetensors"))
    assert torch.equal(before(test), after(test))
    assert after.method == before.method
    assert (after.classes, after.kinds, after.options) == (before.classes, before.kinds, before.options)
    assert type(after) is type(before)
    assert all(torch.equal(x, after.state_dict()[key]) for key, x in before.state_dict().items())
    assert repr(after) == repr(before)


@EVERY
def test_all_that_was_learned_is_in_the_buffers(name):
    test, _ = toy(50, seed=1)
    calibrator = fitted(name)
    assert not list(calibrator.parameters())
    assert not [key for key, value in vars(calibrator).items() if isinstance(value, Tensor | np.ndarray)]
    assert set(calibrator.state_dict()) == {key for key, _ in calibrator.named_buffers()}
    other = copy.deepcopy(calibrator)
    for buffer in other.buffers():
        buffer.mul_(0.5).add_(0.1)
    other.load_state_dict(calibrator.state_dict())
    assert torch.equal(other(test), calibrator(test))


@EVERY
def test_moves_and_copies_as_modules_do(name):
    test, _ = toy(50, seed=1)
    calibrator = fitted(name)
    expected = calibrator(test)
    copied = copy.deepcopy(calibrator)
    assert torch.equal(copied(test), expected)
    assert torch.equal(copied.to("cpu")(test), expected)
    torch.testing.assert_close(copied.to(torch.float64)(test), expected)
    assert copied.method is not None
    assert torch.equal(calibrator(test), expected)


@EVERY
def test_the_same_fit_twice_is_the_same_and_leaves_what_it_was_given_untouched(name):
    predictions, labels = toy()
    again = SETTINGS[name].fit(predictions, labels.numpy().astype(np.int32))
    again(predictions)
    for key, value in fitted(name).state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    untouched, _ = toy()
    assert torch.equal(predictions.logits, untouched.logits)
    assert all(torch.equal(predictions.views[kind], untouched.views[kind]) for kind in KINDS)


@EVERY
def test_pieces_do_not_show_in_the_answer(name, monkeypatch):
    test, _ = toy(50, seed=1)
    whole = fitted(name)(test)
    monkeypatch.setattr(base, "CHUNK", 4 * 7)
    torch.testing.assert_close(fitted(name)(test), whole, rtol=1e-6, atol=1e-7)
    alone = torch.cat([fitted(name)(test[[i]]) for i in range(10)])
    torch.testing.assert_close(alone, whole[:10], rtol=1e-6, atol=1e-7)


@EVERY
def test_the_order_in_which_views_are_listed_does_not_matter(name):
    test, _ = toy(50, seed=1)
    shuffled = Predictions(test.logits, {kind: test.views[kind] for kind in reversed(test.views)})
    assert torch.equal(fitted(name)(shuffled), fitted(name)(test))


@pytest.mark.parametrize("name", [name for name, m in SETTINGS.items() if getattr(m, "optimizer", "lbfgs") == "lbfgs"])
def test_the_order_of_the_images_does_not_matter_to_the_fit(name):
    if name in ("dirichlet, cross-validated", "adaptive-tta, ece"):
        pytest.skip("folds are dealt by row, and ECE jumps")
    predictions, labels = toy(dtype=torch.float64)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    shuffled = SETTINGS[name].fit(predictions[order], labels[order])
    test, _ = toy(50, seed=1, dtype=torch.float64)
    # Flat minima: what is one to the optimiser is one to the eye.
    tolerance = 5e-2 if name == "m-atta, lbfgs" else 2e-3
    torch.testing.assert_close(shuffled(test), fitted(name, torch.float64)(test), rtol=0, atol=tolerance)


@EVERY
def test_classes_without_an_image_are_fine(name):
    predictions, labels = toy()
    only_two = labels % 2
    calibrator = SETTINGS[name].fit(predictions, only_two)
    check_answer(calibrator(predictions), predictions, SETTINGS[name])


@EVERY
def test_one_image_is_enough(name):
    predictions, labels = toy(1)
    calibrator = SETTINGS[name].fit(predictions, labels)
    test, _ = toy(30, seed=1)
    check_answer(calibrator(test), test, SETTINGS[name])


@EVERY
def test_two_classes_are_enough(name):
    calibrator = SETTINGS[name].fit(*toy(k=2))
    test, _ = toy(30, k=2, seed=1)
    check_answer(calibrator(test), test, SETTINGS[name])


@EVERY
def test_a_thousand_classes_are_not_too_many(name):
    if name == "dirichlet, cross-validated":
        pytest.skip("a million parameters a pair: one pair is tried below the name dirichlet")
    method = SETTINGS[name]
    if getattr(method, "optimizer", None) == "adam":
        method = dataclasses.replace(method, epochs=2)
    calibrator = method.fit(*toy(12, k=1000, signal=20.0))
    test, _ = toy(12, k=1000, seed=1, signal=6.0)
    check_answer(calibrator(test), test, method)


# --- What a deployed calibrator costs -------------------------------------------------------------------------------------


@EVERY
def test_an_image_costs_the_views_that_it_asks_for_and_others_do_not_show(name):
    """One image after the other, as a deployed classifier takes it: views that were not asked for are not a number."""
    test, _ = toy(30, seed=1)
    calibrator = fitted(name)
    expected, passes = calibrator(test), calibrator.passes(test)
    assert (passes.dtype, passes.shape) == (torch.int64, (30,))
    for i in range(30):
        shown = {kind: view[i : i + 1] for kind, view in test.views.items()}
        seen: dict[str, Tensor] = {}
        for stage in calibrator.stages:
            if not calibrator.goes_on(test.logits[i : i + 1], seen):
                break
            seen |= {kind: shown[kind] for kind in stage}
        assert passes[i] == 1 + sum(KINDS[kind] for kind in seen)
        answer = calibrator.calibrate(
            test.logits[i : i + 1],
            {kind: seen.get(kind, torch.full_like(view, math.nan)) for kind, view in shown.items()},
        )
        torch.testing.assert_close(answer[0], expected[i], rtol=1e-6, atol=1e-7)


@EVERY
def test_the_stages_are_the_kinds_of_view_each_once(name):
    assert tuple(kind for stage in fitted(name).stages for kind in stage) == fitted(name).kinds


def test_pieces_do_not_show_in_the_passes(monkeypatch):
    test, _ = toy(50, seed=1)
    whole = fitted("sequential-v-atta").passes(test)
    assert len(whole.unique()) > 2
    monkeypatch.setattr(base, "CHUNK", 4 * 7)
    assert torch.equal(fitted("sequential-v-atta").passes(test), whole)
    with pytest.raises(InputError, match=r"expected predictions with the views .*, got: none"):
        fitted("sequential-v-atta").passes(Predictions(torch.zeros(3, 4)))


def test_c_atta_is_the_logistic_regression_on_the_image_and_its_views():
    """Against a plain Newton iteration: the problem is convex, so whoever gets to the minimum gets to this one."""
    predictions, labels = toy(200)
    rows = torch.cat([predictions.logits[:, None], predictions.view_logits(list(KINDS))], dim=1).double()
    weights = torch.zeros(rows.shape[1], dtype=torch.float64)

    def loss(w):
        return F.cross_entropy(torch.einsum("m,nmk->nk", w, rows), labels)

    for _ in range(30):
        slope = torch.autograd.functional.jacobian(loss, weights)
        weights = weights - torch.linalg.solve(torch.autograd.functional.hessian(loss, weights), slope)
    calibrator = CATTA().fit(predictions, labels)
    torch.testing.assert_close(calibrator.weights[:, 0].double(), weights, rtol=1e-4, atol=1e-5)
    assert calibrator.limit == 1
    assert torch.equal(CATTA(views=list(KINDS)).fit(predictions, labels).weights, calibrator.weights)


def test_c_atta_with_views_that_say_nothing_is_temperature_scaling():
    predictions, labels = toy(200)
    silent = Predictions(predictions.logits, {"dark": torch.zeros(200, 1, 4)})
    probs, scaled = (method.fit(silent, labels)(silent) for method in (CATTA(), TemperatureScaling()))
    torch.testing.assert_close(probs, scaled, rtol=1e-5, atol=1e-6)


def test_c_atta_without_a_mistake_stays_finite():
    predictions, _ = toy(60)
    sure = CATTA().fit(predictions, predictions.logits.argmax(dim=1))
    assert sure.weights.abs().sum() < 20


STAGED = pytest.mark.parametrize("method", [SelectiveVATTA, SequentialVATTA])


@STAGED
@pytest.mark.parametrize("budget", [1.2, 1.7, 4.9])
def test_the_budget_is_kept_on_the_fitted_images_and_nearly_spent(method, budget):
    predictions, labels = toy(300)
    calibrator = method(passes=budget, views=["flip", "crop"]).fit(predictions, labels)
    spent = calibrator.passes(predictions).double().mean().item()
    assert spent == pytest.approx(calibrator.expected_passes, abs=1e-6)
    assert budget - 0.05 < spent <= budget
    assert f"expected_passes={spent:.2f}" in repr(calibrator)


@STAGED
@pytest.mark.parametrize("blend", ["c-atta", "v-atta"])
def test_no_budget_is_temperature_scaling_and_all_of_it_is_the_blend(method, blend):
    (predictions, labels), (test, _) = toy(), toy(200, seed=1)
    least = method(passes=1, views=["flip"], blend=blend).fit(predictions, labels)
    assert torch.equal(least(test), fitted("temperature")(test))
    assert (least.passes(test) == 1).all()
    most = method(passes=7, views=list(KINDS), blend=blend).fit(predictions, labels)
    assert torch.equal(most(test), fitted(blend)(test))
    assert (most.passes(test) == 7).all()
    assert method(passes=8, views=["flip"]).fit(predictions, labels).expected_passes == 2


def test_a_selective_answer_is_one_of_two_by_the_confidence_alone():
    (predictions, labels), (test, _) = toy(300), toy(200, seed=1)
    calibrator = SelectiveVATTA(passes=2.5, blend="v-atta").fit(predictions, labels)
    confidence = predictions.logits.softmax(-1).amax(-1).sort().values
    assert calibrator.gates[0] == confidence[int(300 * 1.5 / 6)]
    unsure = test.logits.softmax(-1).amax(-1) < calibrator.gates[0]
    assert 0 < unsure.sum() < 200
    views, scaled = (method.fit(predictions, labels)(test) for method in (VATTA(), TemperatureScaling()))
    torch.testing.assert_close(calibrator(test), torch.where(unsure[:, None], views, scaled), rtol=1e-6, atol=1e-7)
    assert torch.equal(calibrator.passes(test), torch.where(unsure, 7, 1))


def test_a_sequential_answer_is_the_one_by_the_views_it_has_asked_for():
    (predictions, labels), (test, _) = toy(300), toy(200, seed=1)
    calibrator = SequentialVATTA(passes=3, views=["crop", "flip"], blend="v-atta").fit(predictions, labels)
    assert calibrator.stages == (("crop",), ("flip",))
    answers = [TemperatureScaling().fit(predictions, labels)(test)]
    for kinds, weights, limit in zip((1, 2), calibrator.weights, calibrator.limits, strict=True):
        assert (weights[kinds:] == 0).all()
        shown = test.view_logits(["crop", "flip"][:kinds])
        answers.append(functional.atta(test.logits, shown, weights[:kinds, None], limit))
    for passes, answer in zip((1, 4, 5), answers, strict=True):
        rows = calibrator.passes(test) == passes
        assert rows.any()
        torch.testing.assert_close(calibrator(test)[rows], answer[rows], rtol=1e-5, atol=1e-6)


def test_each_stage_is_a_v_atta_of_all_images():
    predictions, labels = toy(300)
    calibrator = SequentialVATTA(passes=3, views=["crop", "flip"], blend="v-atta").fit(predictions, labels)
    for kinds, weights, limit in zip((["crop"], ["crop", "flip"]), calibrator.weights, calibrator.limits, strict=True):
        probs = functional.atta(predictions.logits, predictions.view_logits(kinds), weights[: len(kinds), None], limit)
        best = nll(VATTA(views=kinds).fit(predictions, labels)(predictions), labels)
        assert nll(probs, labels) == pytest.approx(float(best), abs=1e-3)


def test_the_kind_that_says_most_a_pass_comes_first():
    g = torch.Generator().manual_seed(0)
    predictions, labels = toy(100, kinds={"bright": 1})
    shown = Predictions(
        predictions.logits, {"dull": torch.randn(100, 1, 4, generator=g), "bright": predictions.views["bright"]}
    )
    assert SequentialVATTA().fit(shown, labels).kinds == ("bright", "dull")
    assert SequentialVATTA(views=["dull", "bright"]).fit(shown, labels).kinds == ("dull", "bright")


@given(
    losses=st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=1, max_size=3),
    costs=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    budget=st.integers(0, 40),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_dealt_out_as_trying_everything_would(losses, costs, budget):
    costs = costs[: len(losses)]
    levels = allocate(torch.tensor(losses, dtype=torch.float64), costs, budget)

    def total(chosen):
        return sum(row[level] for row, level in zip(losses, chosen, strict=True))

    allowed = [
        chosen
        for chosen in itertools.product(range(4), repeat=len(losses))
        if list(chosen) == sorted(chosen, reverse=True)
        and sum(c * level for c, level in zip(costs, chosen, strict=True)) <= budget
    ]
    assert tuple(levels) in allowed
    assert total(levels) == min(map(total, allowed))


# --- Many fits at once --------------------------------------------------------------------------------------------------


def check_same(together: list[Calibrator], alone: list[Calibrator]) -> None:
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        assert (one.classes, one.kinds, one.options, one.method) == (
            other.classes,
            other.kinds,
            other.options,
            other.method,
        )
        assert one.state_dict().keys() == other.state_dict().keys()
        for key, value in one.state_dict().items():
            assert value.dtype == other.state_dict()[key].dtype
            assert torch.equal(value, other.state_dict()[key])


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@EVERY
def test_fitting_many_is_fitting_each_bit_for_bit(name):
    sets = [toy(20, seed=0), toy(15, k=3, seed=1), toy(20, seed=2)]
    check_same(SETTINGS[name].fit_many(sets), [SETTINGS[name].fit(*one) for one in sets])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("space", ["logits", "probabilities"])
@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("method", [MATTA, VATTA])
def test_adam_gives_the_same_bits_in_whatever_company(method, step, space, dtype, monkeypatch):
    """Kinds, classes and sizes of all sorts, in any order and in chunks of any length."""
    adam = method(optimizer="adam", start="1/k", epochs=2, batch=50, lr=0.05, step=step, space=space)
    many = {"flip": 1, "crop": 2, "brightness": 1, "contrast": 1, "blur": 3, "noise": 1}
    shapes = [(80, 7, 4), (80, 10, 4), (81, 10, 4), (80, 10, 6), (60, 30, 3), (55, 100, 2)] * 3
    sets = [
        toy(n, k, seed=i, dtype=dtype, signal=1.0, kinds=dict(list(many.items())[:m]))
        for i, (n, k, m) in enumerate(shapes)
    ]
    alone = [adam.fit(*one) for one in sets]
    check_same(adam.fit_many(sets), alone)
    check_same(adam.fit_many(sets[::-1]), alone[::-1])
    monkeypatch.setattr(calibrators.atta, "TOGETHER", 2 * 50 * 4 * 10)
    check_same(adam.fit_many(sets), alone)


@pytest.mark.parametrize("step", [None, 0.01])
@pytest.mark.parametrize("method", [MATTA, VATTA])
def test_adam_gives_the_same_bits_on_any_number_of_threads(method, step, threads):
    """Twelve fits are enough numbers for torch to call a second thread, one is not."""
    adam = method(optimizer="adam", start="1/k", epochs=2, batch=400, lr=0.05, step=step)
    sets = [toy(500, 10, seed=seed, signal=1.0) for seed in range(12)]
    together = adam.fit_many(sets)
    check_same(together, [adam.fit(*one) for one in sets])
    torch.set_num_threads(3 - threads)
    check_same(together, adam.fit_many(sets))


@given(st.lists(st.integers(0, 7), max_size=12), st.sampled_from([None, 0.01]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_sets_may_be_fitted_together_some_of_them_twice(chosen, step, wide):
    sets = [toy(33, 10, seed=seed, signal=1.0) for seed in range(8)]
    adam = (MATTA if wide else VATTA)(optimizer="adam", start=0.5, epochs=2, batch=20, lr=0.05, step=step)
    check_same(adam.fit_many([sets[i] for i in chosen]), [adam.fit(*sets[i]) for i in chosen])


def test_only_the_weights_that_ran_away_are_fitted_again(monkeypatch):
    timid = {"signal": 8.0, "confidence": 0.1}  # right throughout, and not sure of it: ever larger weights are better
    sets = [toy(40, seed=seed, **kind) for seed, kind in enumerate(({}, timid, {}, timid))]
    for method in (MATTA(epochs=40, lr=0.3), VATTA(optimizer="adam", epochs=40, lr=0.3)):
        together = method.fit_many(sets)
        check_same(together, [method.fit(*one) for one in sets])
        monkeypatch.setattr(calibrators.atta, "RUNAWAY", math.inf)
        untamed = method.fit_many(sets)
        monkeypatch.undo()
        again = [not torch.equal(a.weights, b.weights) for a, b in zip(together, untamed, strict=True)]
        assert again == [False, True, False, True]


def test_fitting_none_gives_none():
    for method in SETTINGS.values():
        assert method.fit_many([]) == []


def test_what_is_wrong_with_one_of_many_sets_is_said_as_for_one():
    good = toy(3)
    for name in ("temperature", "m-atta", "v-atta"):
        for labels, sentence in (([0, 1], "expected 3 labels"), ([0, 1, 4], "got 4 in row 2")):
            with pytest.raises(InputError, match=sentence):
                SETTINGS[name].fit_many([good, (good[0], labels), good])
    with pytest.raises(InputError, match="needs the logits of views"):
        SETTINGS["m-atta"].fit_many([good, (Predictions(torch.zeros(3, 4)), [0, 1, 2])])


def test_calibrators_fitted_together_share_no_memory(tmp_path):
    first, second = MATTA(epochs=2).fit_many([toy(seed=0), toy(seed=1)])
    before = second.weights.clone()
    first.weights.zero_()
    assert torch.equal(second.weights, before)
    assert torch.equal(load(second.save(tmp_path / "second.safetensors")).weights, before)


def test_labels_come_as_lists_arrays_and_tensors():
    predictions, labels = toy()
    for same in (labels.tolist(), labels.numpy(), labels.to(torch.int32), labels.to(torch.uint8)):
        other = TemperatureScaling().fit(predictions, same)
        assert torch.equal(other.temperature, fitted("temperature").temperature)


@EVERY
def test_extreme_logits_at_fit_time_leave_finite_numbers(name):
    predictions, labels = toy()
    if name == "dirichlet, cross-validated":
        pytest.skip("many slow fits of what is tried under the name dirichlet")
    wild = Predictions(
        1e4 * predictions.logits.sign(), {kind: 1e4 * view.sign() for kind, view in predictions.views.items()}
    )
    calibrator = SETTINGS[name].fit(wild, labels)
    assert all(torch.isfinite(buffer).all() for buffer in calibrator.buffers())
    for test in (wild, toy(30, seed=1)[0]):
        check_answer(calibrator(test), test, SETTINGS[name])


@EVERY
def test_settings_are_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        SETTINGS[name].name = "other"


@EVERY
def test_predictions_of_other_classes_or_without_the_views_are_refused(name):
    with pytest.raises(InputError, match="fitted on 4 classes, got predictions of 5"):
        fitted(name)(toy(5, k=5)[0])
    if fitted(name).kinds:
        with pytest.raises(InputError, match=r"expected predictions with the views .*, got: none"):
            fitted(name)(Predictions(torch.zeros(3, 4)))
        with pytest.raises(InputError, match=r"needs the logits of views|expected predictions with the views"):
            SETTINGS[name].fit(Predictions(torch.zeros(3, 4)), [0, 1, 2])


@EVERY
def test_bad_labels_are_refused_at_the_door(name):
    predictions, _ = toy(3)
    for labels, sentence in (
        ([0, 1], "expected 3 labels"),
        ([0, 1, 4], "got 4 in row 2"),
        ([0.0, 1.0, 2.0], "must be integers"),
    ):
        with pytest.raises(InputError, match=sentence):
            SETTINGS[name].fit(predictions, labels)


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "isotonic",
        "histogram, one-vs-rest",
        "dirichlet",
        "adaptive-tta",
        "mean-tta",
        "m-atta",
        "v-atta, paper",
        "c-atta",
        "selective-v-atta",
        "sequential-v-atta",
    ],
)
def test_torch_export_gives_the_same_answer(name):
    """`calibrate` is what gets deployed: tensors in, tensors out, any batch."""

    class Deployed(torch.nn.Module):
        def __init__(self, calibrator: Calibrator) -> None:
            super().__init__()
            self.calibrator = calibrator

        def forward(self, logits: Tensor, views: dict[str, Tensor]) -> Tensor:
            return self.calibrator.calibrate(logits, views)

    example, _ = toy(3)
    batch = torch.export.Dim("batch", min=1)
    shapes = ({0: batch}, {kind: {0: batch} for kind in KINDS})
    program = torch.export.export(Deployed(fitted(name)), (example.logits, dict(example.views)), dynamic_shapes=shapes)
    test, _ = toy(50, seed=1)
    probs = program.module()(test.logits, dict(test.views))
    torch.testing.assert_close(probs, fitted(name)(test), rtol=0, atol=1e-6)
    check_answer(probs, test, SETTINGS[name])


# --- Names, settings, files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"), [("vatta", "v-atta"), ("V-ATTA", None), ("temprature", "temperature"), ("xyzzy", None)]
)
def test_an_unknown_method_is_answered_with_the_nearest_name(name, near):
    hint = re.escape(f" Did you mean '{near}'?") if near else ""
    with pytest.raises(InputError, match=rf"^unknown method '{name}'\.{hint}.*Known: vanilla, "):
        find_method(name)


def test_an_unknown_setting_is_answered_with_the_nearest_name():
    with pytest.raises(
        InputError, match=r"v-atta has no setting 'optimiser'\. Did you mean 'optimizer'\? It has: views,"
    ):
        find_method("v-atta", optimiser="adam")
    with pytest.raises(InputError, match=r"vanilla has no setting 'bins'\. It has: none"):
        find_method("vanilla", bins=3)


def test_methods_are_found_by_name_with_settings():
    assert find_method("v-atta", views=["flip", "crop"]) == VATTA(views=("flip", "crop"))
    assert find_method("histogram", bins=10) == Histogram(bins=10)
    assert all(find_method(name) == method() for name, method in METHODS.items())


def test_the_papers_recipe_has_the_papers_settings():
    for method in (MATTA.paper(), VATTA.paper()):
        assert dataclasses.asdict(method) == {
            "views": None,
            "optimizer": "adam",
            "start": "1/k",
            "epochs": 500,
            "batch": 500,
            "lr": 1e-3,
            "decay": 1e-5,
            "step": 0.01,
            "space": "logits",
            "seed": 0,
        }
    assert MATTA.paper(views=["crop"], seed=3) == MATTA(views=("crop",), seed=3, step=0.01)
    assert (VATTA().optimizer, VATTA().start, MATTA().optimizer, MATTA().start) == ("lbfgs", "1/m", "adam", "1/k")


BAD = {
    "VATTA(optimizer='sgd')": "optimizer must be one of lbfgs, adam, got 'sgd'",
    "MATTA(space='odds')": "space must be one of logits, probabilities, got 'odds'",
    "VATTA(start='1/n')": "start must be one of 1/m, 1/k, got '1/n'",
    "VATTA(start=float('nan'))": "start must be '1/m', '1/k' or a finite number, got nan",
    "MATTA(epochs=0)": "epochs must be positive, got 0",
    "MATTA(batch=-1)": "batch must be positive, got -1",
    "MATTA(lr=0.0)": "lr must be positive, got 0.0",
    "MATTA(decay=-1.0)": "decay must not be negative, got -1.0",
    "VATTA(step=0)": "step must lie in (0, 1] or be None for the closed form, got 0",
    "VATTA(step=1.5)": "step must lie in (0, 1] or be None for the closed form, got 1.5",
    "VATTA(views='flip')": "views must be a list of kinds, such as ['flip'], got the text 'flip'",
    "MeanTTA(views='flip')": "views must be a list of kinds, such as ['flip'], got the text 'flip'",
    "AdaptiveTTA(objective='accuracy')": "objective must be one of brier, nll, ece, got 'accuracy'",
    "AdaptiveTTA(step=-0.1)": "step must lie in (0, 1] or be None for the closed form, got -0.1",
    "Histogram(bins=0)": "bins must be at least 1, got 0",
    "Dirichlet(grid='fine')": "grid must be 'coarse', 'authors' or pairs of (λ, μ), got 'fine'",
    "Dirichlet(grid=[])": "grid must hold pairs (λ, μ), finite and neither negative, got []",
    "Dirichlet(grid=[(1.0, -1.0)])": "grid must hold pairs (λ, μ), finite and neither negative, got [(1.0, -1.0)]",
    "Dirichlet(grid=[1.0, 2.0])": "grid must hold pairs (λ, μ), finite and neither negative, got [1.0, 2.0]",
    "Dirichlet(folds=1)": "folds must be at least 2, got 1",
    "SelectiveVATTA(blend='m-atta')": "blend must be one of c-atta, v-atta, got 'm-atta'",
    "SelectiveVATTA(passes=0.5)": "passes must be how many an image may take on average, at least 1, got 0.5",
    "SequentialVATTA(passes='few')": "passes must be how many an image may take on average, at least 1, got 'few'",
    "ShrunkMATTA(strengths=[])": "strengths must be numbers, positive and finite (∞ is always tried), got []",
    "ShrunkMATTA(strengths=[0.0])": "strengths must be numbers, positive and finite (∞ is always tried), got [0.0]",
    "ShrunkMATTA(strengths=5.0)": "strengths must be numbers, positive and finite (∞ is always tried), got 5.0",
    "ShrunkMATTA(folds=1)": "folds must be at least 2, got 1",
    "ShrunkMATTA(views='flip')": "views must be a list of kinds, such as ['flip'], got the text 'flip'",
    "ShrunkMATTA(step=2)": "step must lie in (0, 1] or be None for the closed form, got 2",
    "VATTA().fit(torch.zeros(3, 4), [0, 1, 2])": "v-atta fits atta.Predictions, got Tensor",
    "MATTA().fit_many([(torch.zeros(3, 4), [0, 1, 2])])": "m-atta fits atta.Predictions, got Tensor",
}


@pytest.fixture(scope="module")
def sentences() -> dict[str, str]:
    """What a user reads, whose annotations nobody checks: another Python, without the hook of these tests."""
    script = """
import json, sys, torch
from atta.calibrators import *
from atta.types import InputError
answers = {}
for expression in json.load(sys.stdin):
    try:
        eval(expression)
    except Exception as error:
        answers[expression] = f"{type(error).__name__}: {error}"
json.dump(answers, sys.stdout)
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, input=json.dumps(list(BAD)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("expression", BAD)
def test_a_bad_setting_is_refused_with_a_sentence(expression, sentences):
    assert sentences.get(expression) == f"InputError: {BAD[expression]}"


@pytest.mark.parametrize(
    "method",
    [VATTA, MATTA, ShrunkMATTA, CATTA, AdaptiveTTA, MeanTTA, MeanTTATemperature, SelectiveVATTA, SequentialVATTA],
)
def test_an_empty_list_of_views_is_no_choice(method):
    with pytest.raises(InputError, match="needs at least one kind of view, got an empty list"):
        method(views=()).fit(*toy(5))


def edit(source: Path, target: Path, *, tensors: dict | None = None, about: dict | None = None, **header: str) -> Path:
    """Write a calibrator's file anew with some of it changed."""
    with calibrators.base.Path(source).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata = json.loads(file.read(size))["__metadata__"]
    metadata["about"] = json.dumps(json.loads(metadata["about"]) | (about or {}))
    content = {name: value for name, value in (load_file(source) | (tensors or {})).items() if value is not None}
    save_file(content, target, metadata | header)
    return target


DAMAGE = {
    "newer format": ({"format_version": "2"}, r"has format version 2, this atta reads up to 1: install a newer one"),
    "foreign format": ({"format": "other"}, r"is not a calibrator: expected format 'atta.calibrator', got 'other'"),
    "not JSON": ({"about_text": "{"}, r"is damaged"),
    "tensor missing": ({"tensors": {"limit": None}}, r"is damaged.*limit"),
    "tensor too many": ({"tensors": {"extra": torch.zeros(1)}}, r"is damaged.*extra"),
    "weights of other kinds": ({"tensors": {"weights": torch.zeros(2, 1)}}, r"is damaged"),
    "weights of other classes": ({"tensors": {"weights": torch.zeros(3, 5)}}, r"is damaged"),
    "weights that are not numbers": (
        {"tensors": {"weights": torch.full((3, 1), math.nan)}},
        r"is damaged.*its numbers must be finite",
    ),
    "unknown calibrator": ({"about": {"calibrator": "Oracle"}}, r"is damaged: KeyError 'Oracle'"),
    "unknown method": ({"about": {"method": "oracle"}}, r"is damaged.*unknown method 'oracle'"),
    "unknown setting": ({"about": {"settings": {"power": 3}}}, r"is damaged.*no setting 'power'"),
    "no classes": ({"about": {"classes": 0}}, r"is damaged"),
    "classes that are no number": ({"about": {"classes": "many"}}, r"is damaged"),
    "options that are none": ({"about": {"options": None}}, r"is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_edited_file_is_refused_with_a_sentence(damage, tmp_path):
    change, sentence = DAMAGE[damage]
    change = dict(change)
    text = change.pop("about_text", None)
    good = fitted("v-atta").save(tmp_path / "good.safetensors")
    bad = edit(good, tmp_path / "bad.safetensors", **change)
    if text is not None:
        save_file(load_file(good), bad, {"format": base.FORMAT, "format_version": "1", "about": text})
    with pytest.raises(InputError, match=r"bad\.safetensors " + sentence):
        load(bad)


def test_truncated_foreign_and_missing_files_are_refused_with_a_sentence(tmp_path):
    good = fitted("v-atta").save(tmp_path / "good.safetensors")
    short, record, text = (tmp_path / name for name in ("short.safetensors", "record.safetensors", "text.safetensors"))
    short.write_bytes(good.read_bytes()[:-3])
    atta.Record(toy(3)[0]).save(record)
    text.write_text("not tensors")
    for path, sentence in (
        (short, "is not a whole safetensors file"),
        (text, "is not a whole safetensors file"),
        (record, "is not a calibrator: expected format 'atta.calibrator', got None"),
        (tmp_path / "none", "there is no file"),
        (tmp_path, "expected a file, got the folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            load(path)


def test_nothing_in_the_calibrators_can_run_code_from_a_file():
    files = [Path(atta.__file__).parent / "predictions.py", *Path(calibrators.__file__).parent.glob("*.py")]
    assert len(files) >= 5
    for path in files:
        assert not re.search(r"pickle|torch\.(load|save)\b|\beval\(|\bexec\(", path.read_text()), path


# --- Scaling ----------------------------------------------------------------------------------------------------------


def test_vanilla_is_the_softmax_bit_for_bit():
    test, _ = toy(200, seed=1)
    assert torch.equal(fitted("vanilla")(test), test.logits.softmax(-1))


@given(seeds, st.sampled_from([0.05, 0.5, 3.0, 40.0, 1e4]), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_the_temperature_is_at_the_minimum_that_golden_section_finds(seed, confidence, dtype):
    predictions, labels = toy(80, seed=seed, confidence=confidence, signal=1.0, dtype=dtype)
    slow = confidence * reference.temperature(predictions.logits.double().numpy() / confidence, labels.tolist())
    found = TemperatureScaling().fit(predictions, labels).temperature
    assert found.dtype == dtype
    assert found.item() == pytest.approx(slow, rel=1e-4)


def test_where_every_image_is_right_the_temperature_stays_finite_and_positive():
    logits = torch.tensor([[3.0, 0.0], [0.0, 2.0], [5.0, -1.0]])
    found = TemperatureScaling().fit(Predictions(logits), [0, 1, 0]).temperature
    confidence = (logits / found).softmax(dim=-1).amax(dim=-1).mean()
    assert 0.5 < confidence < 1, "three right answers out of three do not make the next one certain"
    wrong = TemperatureScaling().fit(Predictions(logits), [1, 0, 1])
    assert 0 < wrong.temperature.item() < math.inf
    assert (wrong(Predictions(logits)) - 0.5).abs().max() < 1e-3


def odir(log_probs: np.ndarray, labels: list[int], lam: float, mu: float) -> np.ndarray:
    """Fit (W | b) with scipy's BFGS on finite differences of the written-out loss."""
    k = log_probs.shape[1]

    def loss(flat: np.ndarray) -> float:
        return reference.odir_loss(flat[: k * k].reshape(k, k), flat[k * k :], log_probs, labels, lam, mu)

    return optimize.minimize(loss, np.r_[np.eye(k).ravel(), np.zeros(k)], method="BFGS", options={"gtol": 1e-6}).x


@pytest.mark.parametrize(("lam", "mu"), [(1e-2, 1e-2), (1.0, 1e-1)])
def test_dirichlet_is_at_the_minimum_of_its_written_out_loss(lam, mu):
    predictions, labels = toy(30, k=3, dtype=torch.float64, confidence=1.5)
    log_probs = predictions.logits.log_softmax(-1).numpy()
    slow = odir(log_probs, labels.tolist(), lam, mu)
    found = Dirichlet(grid=[(lam, mu)]).fit(predictions, labels)
    ours = np.r_[found.weight.numpy().ravel(), found.bias.numpy()]
    np.testing.assert_allclose(ours, slow, atol=2e-3)
    probs = np.stack([reference.softmax(found.weight.numpy() @ x + found.bias.numpy()) for x in log_probs])
    np.testing.assert_allclose(found(predictions).numpy(), probs, atol=1e-9)


def test_dirichlet_chooses_the_pair_that_a_fit_a_fold_and_a_pair_chooses():
    predictions, labels = toy(40, k=3, dtype=torch.float64, confidence=1.5)
    log_probs, grid = predictions.logits.log_softmax(-1), [(1e-3, 1e-3), (1e-1, 1e-1), (10.0, 10.0)]
    slow = {}
    for pair in grid:
        total = 0.0
        for held_out in folds(40, 4, seed=2):
            kept = [i for i in range(40) if i not in held_out.tolist()]
            part = Dirichlet(grid=[pair]).fit(predictions[kept], labels[kept])
            probs = [
                reference.softmax(part.weight.numpy() @ x + part.bias.numpy()) for x in log_probs[held_out].numpy()
            ]
            total += reference.nll(probs, labels[held_out].tolist()) * len(held_out)
        slow[pair] = total
    best = min(slow, key=slow.__getitem__)
    chosen = Dirichlet(grid=grid, folds=4, seed=2).fit(predictions, labels)
    expected = Dirichlet(grid=[best]).fit(predictions, labels)
    torch.testing.assert_close(chosen.weight, expected.weight, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(chosen.bias, expected.bias, atol=1e-5, rtol=1e-3)


def test_the_authors_grid_is_theirs():
    authors = Dirichlet(grid="authors")
    assert len(set(authors.pairs(10))) == 432
    assert len(set(authors.pairs(100))) == 243
    assert {mu for _, mu in authors.pairs(10)} == {10.0**i for i in range(-5, 7)}
    assert {lam for lam, _ in authors.pairs(100)} == {c * 10.0**i for i in range(-2, 7) for c in (1, 0.25, 0.5)}
    assert len(Dirichlet().pairs(10)) == 15


def test_a_stiff_dirichlet_is_the_softmax():
    predictions, labels = toy(dtype=torch.float64)
    stiff = Dirichlet(grid=[(1e8, 1e8)]).fit(predictions, labels)
    off_diagonal = stiff.weight - torch.diag(stiff.weight.diagonal())
    assert off_diagonal.abs().max() < 1e-6
    assert stiff.bias.abs().max() < 1e-6


# --- Binning ----------------------------------------------------------------------------------------------------------


def pairs(predictions: Predictions, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    probs = predictions.logits.double().softmax(-1)
    return probs.numpy().ravel(), torch.nn.functional.one_hot(labels, probs.shape[1]).numpy().ravel()


@given(seeds, st.integers(2, 40))
@settings(max_examples=25, deadline=None)
def test_raw_isotonic_is_pool_adjacent_violators_and_scikit_learns_line_between(seed, n):
    predictions, labels = toy(n, k=3, seed=seed, dtype=torch.float64)
    test, _ = toy(20, k=3, seed=seed + 1, dtype=torch.float64)
    x, y = pairs(predictions, labels)
    queries = test.logits.softmax(-1).numpy().ravel()
    ours = Isotonic(normalize=False).fit(predictions, labels)(test).numpy().ravel()
    knots, values = reference.pool_adjacent_violators(x, y)
    np.testing.assert_allclose(ours, [reference.interpolate(q, knots, values) for q in queries], atol=1e-9)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(queries)
    # scikit-learn takes probabilities closer than 1e-15 to be one.
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_one_vs_rest_isotonic_is_an_isotonic_map_a_class():
    predictions, labels = toy(dtype=torch.float64)
    test, _ = toy(30, seed=1, dtype=torch.float64)
    ours = Isotonic(normalize=False, pooled=False).fit(predictions, labels)(test)
    probs, queries = predictions.logits.softmax(-1).numpy(), test.logits.softmax(-1).numpy()
    for c in range(4):
        knots, values = reference.pool_adjacent_violators(probs[:, c], (labels == c).double().numpy())
        slow = [reference.interpolate(q, knots, values) for q in queries[:, c]]
        np.testing.assert_allclose(ours[:, c].numpy(), slow, atol=1e-9)


def test_isotonic_is_monotone_and_undisturbed_by_its_own_scale():
    predictions, labels = toy(300)
    raw = Isotonic(normalize=False).fit(predictions, labels)
    line = torch.linspace(0, 1, 1001).reshape(-1, 1)
    values = raw.map(torch.cat([line, 1 - line], dim=1))[:, 0]
    assert (values.diff() >= 0).all()
    assert 0 <= values.min() <= values.max() <= 1


def test_isotonic_copes_with_probabilities_that_are_all_alike():
    predictions = Predictions(torch.zeros(5, 4))
    probs = Isotonic(normalize=False).fit(predictions, [0, 0, 1, 2, 3])(predictions)
    torch.testing.assert_close(probs, torch.full((5, 4), 0.25))


@given(seeds, st.integers(1, 20), st.booleans())
@settings(max_examples=25, deadline=None)
def test_raw_histogram_is_the_accuracy_of_the_bin(seed, bins, pooled):
    predictions, labels = toy(40, k=3, seed=seed, dtype=torch.float64)
    test, _ = toy(20, k=3, seed=seed + 1, dtype=torch.float64)
    ours = Histogram(normalize=False, bins=bins, pooled=pooled).fit(predictions, labels)(test).numpy()
    probs, queries = predictions.logits.softmax(-1).numpy(), test.logits.softmax(-1).numpy()
    hits = torch.nn.functional.one_hot(labels, 3).numpy()
    for c in range(3):
        rows = slice(None) if pooled else (slice(None), c)
        values = reference.histogram(probs[rows].ravel(), hits[rows].ravel(), bins)
        np.testing.assert_allclose(ours[:, c], [values[reference.bin_of(q, bins)] for q in queries[:, c]], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("k", [3, 5, 15])
def test_a_probability_on_an_edge_is_looked_up_in_the_bin_it_was_counted_in(dtype, k):
    predictions = Predictions(torch.zeros(k, k, dtype=dtype))
    probs = Histogram(normalize=False).fit(predictions, list(range(k)))(predictions)
    torch.testing.assert_close(probs, torch.full((k, k), 1 / k, dtype=dtype))


def test_a_raw_histogram_changes_classes_and_ours_does_not():
    predictions, labels = toy(400, k=4, confidence=1.0, signal=1.0)
    test, _ = toy(2000, k=4, confidence=1.0, signal=1.0, seed=1)
    first = test.logits.argmax(-1)
    raw = Histogram(normalize=False).fit(predictions, labels)(test)
    ahead = raw.amax(-1) > raw.gather(1, first[:, None])[:, 0]
    assert ahead.any()
    assert torch.equal(Histogram().fit(predictions, labels)(test).argmax(-1), first)


@pytest.mark.parametrize("method", [Isotonic, Histogram])
def test_the_original_class_has_its_mapped_confidence_wherever_that_keeps_it_in_front(method):
    predictions, labels = toy(300, dtype=torch.float64)
    test, _ = toy(500, seed=1, dtype=torch.float64)
    mapped = method(normalize=False).fit(predictions, labels)(test).numpy()
    ours = method().fit(predictions, labels)(test).numpy()
    floor, possible = 1 / (300 * 4), 0
    for row, answer, c in zip(mapped, ours, test.logits.argmax(-1).tolist(), strict=True):
        plain = reference.carried(row, c, floor)
        if plain[c] > max(x for j, x in enumerate(plain) if j != c) * 1.001:
            np.testing.assert_allclose(answer, plain, atol=1e-9)
            possible += 1
        else:
            rivals = [x for j, x in enumerate(answer) if j != c]
            assert max(rivals) < answer[c] < max(rivals) * 1.001 + 1e-9
    assert possible > 400


@given(seeds, st.integers(2, 6), st.floats(1e-6, 0.1))
@settings(max_examples=40, deadline=None)
def test_carrying_the_class_keeps_it_for_any_mapped_values(seed, k, floor):
    g = torch.Generator().manual_seed(seed)
    probs = torch.rand(30, k, generator=g).mul(3).round().softmax(-1)
    mapped = torch.rand(30, k, generator=g).mul(4).round().div(4)
    answer = carry_class(mapped, probs, torch.tensor(floor))
    assert torch.equal(answer.argmax(-1), probs.argmax(-1))
    torch.testing.assert_close(answer.sum(-1), torch.ones(30))


# --- Views ------------------------------------------------------------------------------------------------------------


def blended(predictions: Predictions, kinds: tuple[str, ...], weights: np.ndarray, limit: float) -> list[np.ndarray]:
    """The paper's formula image by image, the share in closed form."""
    answer = []
    for i in range(len(predictions)):
        views = np.stack([predictions.views[kind][i].double().mean(dim=0).numpy() for kind in kinds])
        p0 = reference.softmax(predictions.logits[i].double().numpy())
        f = reference.fused(views, weights)
        share = reference.largest_share(p0, f, limit)
        answer.append((1 - share) * p0 + share * f)
    return answer


@pytest.mark.parametrize("name", ["v-atta", "m-atta", "m-atta, lbfgs"])
def test_a_fitted_calibrator_answers_with_the_papers_formula(name):
    test, _ = toy(40, seed=1, dtype=torch.float64)
    found = fitted(name, torch.float64)
    slow = blended(test, found.kinds, found.weights.numpy(), found.limit.item())
    np.testing.assert_allclose(found(test).numpy(), slow, atol=1e-4)


@pytest.mark.parametrize("name", ["adaptive-tta", "adaptive-tta, nll"])
def test_adaptive_tta_averages_probabilities_image_by_image(name):
    test, _ = toy(40, seed=1, dtype=torch.float64)
    found = fitted(name, torch.float64)
    slow = [
        reference.adaptive_tta(
            reference.softmax(test.logits[i].numpy()),
            [test.views[kind][i].numpy() for kind in found.kinds],
            found.weights.tolist(),
            found.limit.item(),
        )
        for i in range(len(test))
    ]
    np.testing.assert_allclose(found(test).numpy(), slow, atol=1e-4)


def test_adaptive_tta_uses_its_own_kinds_where_they_are_and_all_others_else():
    predictions, labels = toy(20, kinds={"contrast": 1, "brightness": 2, "flip": 1})
    assert AdaptiveTTA().fit(predictions, labels).kinds == ("flip", "brightness")
    predictions, labels = toy(20, kinds={"contrast": 1, "blur": 2})
    assert AdaptiveTTA().fit(predictions, labels).kinds == ("contrast", "blur")


def validation_loss(predictions: Predictions, labels: Tensor, width: int):
    """The loss that M-ATTA and V-ATTA minimise, of a flat vector: weights, then the limit."""
    base_probs, views = predictions.logits.softmax(-1), predictions.view_logits(predictions.kinds)

    def loss(flat: np.ndarray) -> float:
        weights = torch.from_numpy(flat[:-1]).reshape(-1, width)
        fused = fuse(views, weights)
        share = largest_share(base_probs, fused, float(np.clip(flat[-1], 0, 1)))
        return nll(blend(base_probs, fused, share), labels).item()

    return loss


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 12])  # 12: L-BFGS alone stops in a kink
def test_v_atta_on_an_over_confident_network_is_at_the_optimum_that_a_global_search_finds(seed):
    """Not a theorem: the loss is not convex. Seed 4 has a second minimum, 1e-4 lower, that a local search does not see, and
    under-confident networks (confidence=0.5) have many, 1e-2 apart and less. There V-ATTA's is one of them."""
    predictions, labels = toy(120, seed=seed, signal=1.0, dtype=torch.float64, kinds={"flip": 1, "crop": 3})
    loss = validation_loss(predictions, labels, 1)
    found = VATTA().fit(predictions, labels)
    ours = loss(np.r_[found.weights.numpy().ravel(), found.limit.item()])
    box = [(-1, 2), (-1, 2), (0, 1)]
    searched = optimize.differential_evolution(loss, box, seed=0, maxiter=25, popsize=8, polish=False)
    settled = optimize.minimize(loss, searched.x, method="Nelder-Mead", bounds=box, options={"fatol": 1e-11})
    assert ours <= settled.fun + 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_no_small_change_of_the_weights_betters_a_converged_fit(seed):
    predictions, labels = toy(120, seed=seed, signal=1.0, dtype=torch.float64)
    rng = np.random.default_rng(0)
    # A line search can stop in one of M-ATTA's many kinks; V-ATTA's few weights are settled.
    for method, width, tolerance in ((VATTA(), 1, 1e-8), (MATTA(optimizer="lbfgs"), 4, 1e-3)):
        found = method.fit(predictions, labels)
        loss = validation_loss(predictions, labels, width)
        best = np.r_[found.weights.numpy().ravel(), found.limit.item()]
        here = loss(best)
        for size in (1e-2, 1e-3, 1e-5):
            gains = [here - loss(best + size * rng.standard_normal(best.shape)) for _ in range(40)]
            assert max(gains) < tolerance


@pytest.mark.parametrize("objective", ["brier", "nll"])
@pytest.mark.parametrize("seed", range(3))
def test_adaptive_tta_is_at_the_optimum_that_a_global_search_finds(seed, objective):
    predictions, labels = toy(120, seed=seed, signal=1.0, dtype=torch.float64, kinds={"flip": 1, "crop": 3})
    base_probs = predictions.logits.softmax(-1)
    flip, crop = (view.softmax(-1).mean(dim=1) for view in predictions.views.values())
    right = (base_probs.argmax(-1) == labels).double()

    def loss(flat: np.ndarray) -> float:
        fused = flat[0] * flip + (1 - flat[0]) * crop
        probs = blend(base_probs, fused, largest_share(base_probs, fused, float(flat[1])))
        return nll(probs, labels).item() if objective == "nll" else (probs.amax(-1) - right).square().mean().item()

    found = AdaptiveTTA(objective=objective).fit(predictions, labels)
    weights = found.weights.abs() / found.weights.abs().sum()
    searched = optimize.differential_evolution(loss, [(0, 1), (0, 1)], seed=0, maxiter=25, popsize=8, polish=False)
    assert loss(np.array([weights[0].item(), found.limit.item()])) <= searched.fun + 1e-6


def test_the_adam_path_is_a_loop_over_the_formula():
    """torch.optim.Adam on the paper's formula, image by image, with the shuffles of the seed."""
    predictions, labels = toy(23, k=3, dtype=torch.float64)
    found = MATTA(epochs=3, batch=10, lr=0.05, decay=0.01, seed=4, start=0.7).fit(predictions, labels)
    base_probs = predictions.logits.softmax(-1)
    views = torch.stack([view.mean(dim=1) for view in predictions.views.values()], dim=1)
    weights = torch.full((3, 3), 0.7, dtype=torch.float64, requires_grad=True)
    limit = torch.ones((), dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights, limit], lr=0.05, weight_decay=0.01)
    shuffle = torch.Generator().manual_seed(4)
    for _ in range(3):
        for rows in torch.randperm(23, generator=shuffle).split(10):
            losses = []
            for i in rows.tolist():
                p0, f = base_probs[i], sum(w * z for w, z in zip(weights, views[i], strict=True)).softmax(-1)
                c, share = int(p0.argmax()), limit
                for j in range(3):
                    if j != c and f[j] > f[c]:
                        bound = (1 - 1e-4) * (p0[c] - p0[j]) / (p0[c] - p0[j] + f[j] - f[c])
                        share = torch.minimum(share, bound)
                losses.append(-((1 - share) * p0 + share * f)[labels[i]].log())
            adam.zero_grad()
            torch.stack(losses).mean().backward()
            adam.step()
            limit.data.clamp_(0, 1)
    torch.testing.assert_close(found.weights, weights.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.limit, limit.detach(), rtol=1e-6, atol=1e-6)


def test_the_shuffles_follow_the_seed():
    predictions, labels = toy()
    first, second = (MATTA(epochs=3, batch=20, seed=seed).fit(predictions, labels).weights for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("start", "value"), [("1/m", 1 / 3), ("1/k", 1 / 4), (0.9, 0.9)])
def test_the_weights_start_where_they_are_told_to(start, value):
    found = VATTA(optimizer="adam", start=start, epochs=1, lr=1e-9, decay=0.0).fit(*toy())
    torch.testing.assert_close(found.weights, torch.full((3, 1), value))
    assert found.limit.item() == pytest.approx(1.0)


def test_mean_tta_is_the_mean_over_every_pass():
    test, _ = toy(20, seed=1, dtype=torch.float64)
    for original in (True, False):
        found = MeanTTA(original=original).fit(*toy(dtype=torch.float64))
        for i, answer in enumerate(found(test).numpy()):
            passes = [test.logits[i].numpy()] if original else []
            passes += [z for view in test.views.values() for z in view[i].numpy()]
            np.testing.assert_allclose(answer, np.mean([reference.softmax(z) for z in passes], axis=0), atol=1e-12)


@pytest.mark.parametrize("original", [True, False])
def test_mean_tta_temperature_is_temperature_scaling_of_the_mean(original):
    predictions, labels = toy(dtype=torch.float64)
    mean = MeanTTA(original=original).fit(predictions, labels)(predictions).log()
    slow = reference.temperature(mean.numpy(), labels.tolist())
    found = MeanTTATemperature(original=original).fit(predictions, labels)
    assert found.temperature.item() == pytest.approx(slow, rel=1e-4)
    torch.testing.assert_close(found(predictions), (mean / found.temperature).softmax(-1))


def test_more_kinds_of_view_never_fit_worse():
    predictions, labels = toy(80, signal=1.0, dtype=torch.float64)
    losses = []
    for kinds in (("flip",), ("flip", "crop"), ("flip", "crop", "brightness")):
        found = VATTA(views=kinds).fit(predictions, labels)
        assert found.kinds == kinds
        losses.append(nll(found(predictions), labels).item())
    assert losses[0] >= losses[1] - 1e-6 >= losses[2] - 2e-6


def test_a_calibrator_says_that_it_takes_predictions():
    # In a process of its own, without the shape checks of these tests, which would answer first.
    script = "import atta, torch; p = atta.Predictions(torch.eye(3)); atta.Vanilla().fit(p, [0, 1, 2])(p.logits)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "InputError: a calibrator takes atta.Predictions" in done.stderr
