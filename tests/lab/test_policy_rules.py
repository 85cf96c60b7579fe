"""The rules that choose a policy of views."""

import torch

from atta import MATTA, VATTA, Predictions, Record
from atta.lab.fits import RULES, Fit, Fits, Rows, choose, score
from atta.metrics.scores import METRICS
from scenarios import made_up

QUICK = VATTA(optimizer="adam", start="1/k", epochs=3)
POLICIES = ("flip", "flip + crop", "flip + 2 crop + brightness")


def candidates(method: MATTA | VATTA, validation: int = 100) -> list[Fit]:
    return [Fit("a", Rows(300, validation), method, policy) for policy in POLICIES]


def test_the_papers_rule_takes_the_best_brier_on_the_fitted_images(record: Record) -> None:
    fits, scores = Fits({"a": record}), {}
    for fit in candidates(QUICK):
        part = fits.seen(fit)[fit.rows.folded()[0]]
        scores[fit] = METRICS["brier"](
            QUICK.fit(part.predictions, part.labels)(part.predictions), part.labels
        )
    assert choose(fits, candidates(QUICK), "paper") == min(scores, key=scores.__getitem__)


def test_the_cross_validated_score_is_that_of_images_not_fitted_on(record: Record) -> None:
    fits, fit = Fits({"a": record}), candidates(QUICK)[1]
    seen = fits.seen(fit)
    assert seen.labels is not None
    squares = []
    for part in fit.parted():
        rows, held = part.rows.folded()
        probs = QUICK.fit(seen.predictions[rows], seen.labels[rows])(seen.predictions[held])
        confidence, prediction = probs.max(dim=1)
        squares.append((confidence - (prediction == seen.labels[held]).float()).double().square())
    assert torch.allclose(
        torch.tensor(score(fits, fit, "cross-validated")).double(), torch.cat(squares).mean()
    )


def test_a_rule_makes_no_other_fits_than_those_of_the_folds(record: Record) -> None:
    for rule in RULES:
        fits = Fits({"a": record})
        fit = candidates(QUICK)[0]
        fits.make([fit, *fit.parted()])
        before = len(fits._done)
        score(fits, fit, rule)
        assert len(fits._done) == before


def test_cross_validation_is_not_taken_in_by_over_fitting() -> None:
    """Weights per class on pure noise look good on fitted images; held-out images tell."""
    honest = made_up(400, 5, seed=3)
    noise = {"noise": 6 * torch.randn(400, 1, 5, generator=torch.Generator().manual_seed(0))}
    record = Record(
        Predictions(honest.predictions.logits, {**honest.predictions.views, **noise}), honest.labels
    )
    fits = Fits({"a": record})
    wild = MATTA(epochs=200, lr=0.05, start=0.0)
    fit = Fit("a", Rows(400, 40), wild, "recorded")
    assert score(fits, fit, "paper") < score(fits, fit, "cross-validated")


def test_of_equal_policies_the_first_is_taken(record: Record) -> None:
    twins = [Fit("a", Rows(300, 100), QUICK, policy) for policy in ("flip + crop", "flip + 1 crop")]
    assert choose(Fits({"a": record}), twins, "paper") is twins[0]
