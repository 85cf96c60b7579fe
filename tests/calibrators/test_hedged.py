"""Hedged methods: softer by what rehearsals ask for, never beyond what costs nothing sure."""

import pytest
import torch

from atta import Advice, InputError, Predictions
from atta.calibrators import (
    CATTA,
    HedgedCATTA,
    HedgedTemperature,
    Isotonic,
    Temperature,
    TemperatureScaling,
    ViewBlend,
)
from atta.calibrators.hedged import rehearsing
from scenarios import rehearsed


def nll(probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -probs.double().gather(1, labels[:, None])[:, 0].log()


def test_a_hedged_method_is_softer_and_better_under_a_shift():
    (fit, labels), (shifted, truth) = rehearsed(seed=0), rehearsed(seed=1, fade=0.5)
    for hedged, plain in (
        (HedgedTemperature(), TemperatureScaling()),
        (HedgedCATTA(), CATTA(views=["flip"])),
    ):
        soft, hard = hedged.fit(fit, labels), plain.fit(fit, labels)
        assert soft(shifted).amax(1).mean() < hard(shifted).amax(1).mean()
        assert nll(soft(shifted), truth).mean() < nll(hard(shifted), truth).mean()
        assert torch.equal(soft(shifted).argmax(1), shifted.logits.argmax(1))


def test_what_a_hedge_costs_in_distribution_is_within_a_standard_error():
    fit, labels = rehearsed(seed=0)
    more = nll(HedgedTemperature().fit(fit, labels)(fit), labels) - nll(
        TemperatureScaling().fit(fit, labels)(fit), labels
    )
    assert 0 < more.mean() <= 1.01 * more.std() / len(more) ** 0.5


def test_rehearsals_are_not_blended_and_hurtful_views_neither():
    fit, labels = rehearsed(seed=0)
    blind = Predictions(fit.logits, {**fit.views, "crop": fit.views["rehearse-3"]})
    fitted = HedgedCATTA().fit(blind, labels)
    assert isinstance(fitted, ViewBlend)
    assert fitted.kinds == ("flip",)
    assert rehearsing(blind, labels) == ("rehearse-3", "rehearse-5")


def test_in_a_record_without_rehearsals_views_that_hurt_stand_in_for_them():
    fit, labels = rehearsed(seed=0)
    old = Predictions(fit.logits, {"flip": fit.views["flip"], "crop": fit.views["rehearse-3"]})
    assert rehearsing(old, labels) == ("crop",)
    fitted = HedgedCATTA().fit(old, labels)
    assert fitted.kinds == ("flip",)
    assert fitted.temperature > CATTA(views=["flip"]).fit(old, labels).temperature
    named = HedgedCATTA(views=["flip"]).fit(
        old, labels
    )  # the others of the record stand in all the same
    assert torch.equal(named.weights, fitted.weights)


def test_where_no_view_is_as_good_as_the_image_a_temperature_is_left():
    fit, labels = rehearsed(seed=0)
    assert isinstance(
        HedgedCATTA().fit(Predictions(fit.logits, {"crop": fit.views["rehearse-3"]}), labels),
        Temperature,
    )


def test_without_anything_that_hurts_it_is_the_plain_method_and_says_so():
    fit, labels = rehearsed(seed=0)
    with pytest.warns(Advice, match="rehearse=True"):
        fitted = HedgedTemperature().fit(fit.select(fit.kinds, rehearsals=False), labels)
    assert torch.equal(fitted.temperature, TemperatureScaling().fit(fit, labels).temperature)


def test_softening_folds_into_what_was_learned_and_keeps_the_class():
    fit, labels = rehearsed(seed=0)
    for method in (TemperatureScaling(), CATTA(views=["flip"])):
        hard = method.fit(fit, labels)
        soft = hard.softened(0.5)
        assert type(soft) is type(hard)
        assert soft.method == hard.method
        assert (soft(fit).amax(1) <= hard(fit).amax(1) + 1e-6).all()
        assert torch.equal(soft(fit).argmax(1), fit.logits.argmax(1))
    with pytest.raises(InputError, match=r"can be softened.*got isotonic"):
        Isotonic().fit(fit, labels).softened(0.5)
