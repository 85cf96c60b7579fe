"""Budgets of passes: what is spent, who is shown again, and who answers."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import InputError, Predictions, functional
from atta.calibrators import (
    VATTA,
    SelectiveVATTA,
    SequentialVATTA,
    TemperatureScaling,
    base,
    find_method,
)
from atta.calibrators.fitting import nll
from atta.calibrators.selective import allocate
from scenarios import KINDS, toy


def test_pieces_do_not_show_in_the_passes(monkeypatch):
    test, _ = toy(50, seed=1)
    calibrator = SequentialVATTA(views=["crop", "flip"], passes=3, blend="v-atta").fit(*toy())
    whole = calibrator.passes(test)
    assert len(whole.unique()) > 2
    monkeypatch.setattr(base, "CHUNK_LOGITS", 4 * 7)
    assert torch.equal(calibrator.passes(test), whole)
    with pytest.raises(InputError, match=r"expected predictions with the views .*, got: none"):
        calibrator.passes(Predictions(torch.zeros(3, 4)))


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
    assert torch.equal(least(test), TemperatureScaling().fit(predictions, labels)(test))
    assert (least.passes(test) == 1).all()
    most = method(passes=7, views=list(KINDS), blend=blend).fit(predictions, labels)
    assert torch.equal(most(test), find_method(blend).fit(predictions, labels)(test))
    assert (most.passes(test) == 7).all()
    assert method(passes=8, views=["flip"]).fit(predictions, labels).expected_passes == 2


def test_a_selective_answer_is_one_of_two_by_the_confidence_alone():
    (predictions, labels), (test, _) = toy(300), toy(200, seed=1)
    calibrator = SelectiveVATTA(passes=2.5, blend="v-atta").fit(predictions, labels)
    confidence = predictions.logits.softmax(-1).amax(-1).sort().values
    assert calibrator.gates[0] == confidence[int(300 * 1.5 / 6)]
    unsure = test.logits.softmax(-1).amax(-1) < calibrator.gates[0]
    assert 0 < unsure.sum() < 200
    views, scaled = (
        method.fit(predictions, labels)(test) for method in (VATTA(), TemperatureScaling())
    )
    torch.testing.assert_close(
        calibrator(test), torch.where(unsure[:, None], views, scaled), rtol=1e-6, atol=1e-7
    )
    assert torch.equal(calibrator.passes(test), torch.where(unsure, 7, 1))


def test_a_sequential_answer_is_the_one_by_the_views_it_has_asked_for():
    (predictions, labels), (test, _) = toy(300), toy(200, seed=1)
    calibrator = SequentialVATTA(passes=3, views=["crop", "flip"], blend="v-atta").fit(
        predictions, labels
    )
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
    calibrator = SequentialVATTA(passes=3, views=["crop", "flip"], blend="v-atta").fit(
        predictions, labels
    )
    for kinds, weights, limit in zip(
        (["crop"], ["crop", "flip"]), calibrator.weights, calibrator.limits, strict=True
    ):
        probs = functional.atta(
            predictions.logits, predictions.view_logits(kinds), weights[: len(kinds), None], limit
        )
        best = nll(VATTA(views=kinds).fit(predictions, labels)(predictions), labels)
        assert nll(probs, labels) == pytest.approx(float(best), abs=1e-3)


def test_the_kind_that_says_most_a_pass_comes_first():
    g = torch.Generator().manual_seed(0)
    predictions, labels = toy(100, kinds={"bright": 1})
    shown = Predictions(
        predictions.logits,
        {"dull": torch.randn(100, 1, 4, generator=g), "bright": predictions.views["bright"]},
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
