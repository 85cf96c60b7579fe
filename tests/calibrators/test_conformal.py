"""Conformal sets keep their promise, and hold what their scores say."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import atta
from atta.calibrators.conformal import (
    SCORES,
    Conformal,
    ConformityScores,
    cross_checked,
)


def made(n: int, k: int = 5, seed: int = 0, sharp: float = 2.0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels that were drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = (sharp * torch.randn(n, k, generator=generator)).softmax(dim=1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def covered(sets: Tensor, labels: Tensor) -> float:
    """How often a set holds the label."""
    return sets.gather(1, labels[:, None]).double().mean().item()


def mean_size(sets: Tensor) -> float:
    return sets.sum(dim=1).double().mean().item()


def slow_score(how: Conformal, row: list[float], j: int) -> float:
    if how.score == "threshold":
        return 1 - row[j]
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    rank = order.index(j) + 1
    extra = how.penalty * max(0, rank - how.allowed) if how.score == "raps" else 0.0
    return sum(row[i] for i in order[: rank - 1]) + extra


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_those_of_the_definition(score: str) -> None:
    how = Conformal(score=score, penalty=0.1, allowed=2)
    probs, _ = made(20)
    probs[0] = 0.2  # ties go by the number of the class
    expected = [[slow_score(how, row, j) for j in range(5)] for row in probs.double().tolist()]
    torch.testing.assert_close(how.scores(probs), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_new_images_are_covered_as_promised(score: str, coverage: float) -> None:
    how = Conformal(coverage=coverage, score=score)
    found = []
    for seed in range(60):
        probs, labels = made(600, seed=seed)
        found.append(covered(how.fit(probs[:200], labels[:200])(probs[200:]), labels[200:]))
    error = np.std(found) / math.sqrt(len(found))
    assert np.mean(found) > coverage - 3 * error
    assert np.mean(found) < coverage + 0.08, "sets that hold everything promise nothing"


def test_the_promise_does_not_depend_on_the_probabilities_being_right() -> None:
    found = []
    for seed in range(40):
        probs, labels = made(600, seed=seed)
        wrong = probs.pow(4) / probs.pow(4).sum(dim=1, keepdim=True)  # far too sure
        found.append(
            covered(
                Conformal(coverage=0.9).fit(wrong[:200], labels[:200])(wrong[200:]), labels[200:]
            )
        )
    assert np.mean(found) > 0.9 - 3 * np.std(found) / math.sqrt(len(found))


def test_the_threshold_is_the_order_statistic_of_the_definition() -> None:
    probs, labels = made(99)
    own = np.sort(1 - probs.double()[torch.arange(99), labels].numpy())
    assert Conformal(coverage=0.9).fit(probs, labels).threshold == own[math.ceil(100 * 0.9) - 1]


@given(st.sampled_from(SCORES), st.integers(0, 1000))
def test_a_set_holds_the_predicted_class_and_grows_with_the_coverage(score: str, seed: int) -> None:
    probs, labels = made(60, seed=seed)
    small, large = (
        Conformal(coverage=c, score=score).fit(probs, labels)(probs) for c in (0.6, 0.9)
    )
    assert small.gather(1, probs.argmax(dim=1, keepdim=True)).all()
    assert (small <= large).all()


def test_several_coverages_are_found_at_once():
    probs, labels = made(600)
    found = Conformal(coverage=[0.8, 0.9], score="aps").fit(probs, labels)
    assert found == {c: Conformal(coverage=c, score="aps").fit(probs, labels) for c in (0.8, 0.9)}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("coverage", [0.95, 0.97, 0.99])
def test_on_a_real_network_coverage_is_what_was_promised_and_sets_are_smaller_than_randomised_ones(
    score, coverage
):
    record = atta.find_record("cifar10-resnet50")
    fit, find, test = record[:1000], record[1000:3000], record[3000:]
    calibrator = atta.CATTA(views=["flip"]).fit(fit.predictions, fit.require_labels())
    known, new = calibrator(find.predictions).double(), calibrator(test.predictions).double()
    sets = Conformal(coverage=coverage, score=score).fit(known, find.labels)(new)
    assert covered(sets, test.require_labels()) == pytest.approx(coverage, abs=0.01)
    assert (
        mean_size(sets) <= mean_size(randomised(known, find.require_labels(), new, coverage)) + 1e-9
    )


def randomised(known, labels, new, coverage):
    """APS as Romano et al. have it: a random part of the class's own probability counts."""
    g = torch.Generator().manual_seed(0)
    how = Conformal(score="aps")
    scores = [how.scores(p) + torch.rand(len(p), 1, generator=g).double() * p for p in (known, new)]
    own = scores[0].gather(1, labels[:, None])[:, 0].sort().values
    inside = scores[1] <= own[math.ceil((len(own) + 1) * coverage) - 1]
    return inside.scatter(1, new.argmax(1, keepdim=True), True)


def test_raps_with_a_penalty_has_no_long_tail() -> None:
    probs, labels = made(2000, k=20, sharp=1.0)
    sizes = {
        how.score: how.fit(probs, labels)(probs).sum(dim=1).max().item()
        for how in (Conformal(score="aps"), Conformal(score="raps", penalty=0.5, allowed=3))
    }
    assert sizes["raps"] < sizes["aps"]


def test_coverage_is_checked_on_images_the_threshold_was_not_found_on() -> None:
    probs, labels = made(4000)
    coverage, size = cross_checked(Conformal(coverage=0.9), probs, labels)
    assert abs(coverage - 0.9) < 0.02
    assert 1 <= size <= 5
    assert (coverage, size) == cross_checked(Conformal(coverage=0.9), probs, labels)


def test_sets_work_on_top_of_any_calibrator() -> None:
    record = atta.find_record("cifar10-resnet50")[:3000]
    probs = atta.VATTA(views=["flip"]).fit(record[:1000].predictions, record[:1000].labels)(
        record.predictions
    )
    sets = atta.Conformal(coverage=0.98).fit(probs[1000:2000], record[1000:2000].labels)(
        probs[2000:]
    )
    assert covered(sets, record[2000:].require_labels()) > 0.96
    assert 1 < mean_size(sets) < 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coverage": 1.0}, "coverage must be a number > 0 and < 1 or a list, got 1.0"),
        ({"coverage": [0.9, 1.0]}, "coverage must be a number > 0 and < 1, got 1.0"),
        ({"penalty": -1.0}, "penalty must be a number ≥ 0, got -1.0"),
        ({"allowed": 0}, "allowed must be a whole number ≥ 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(atta.InputError, match=message):
        Conformal(**settings)


def test_too_few_images_for_the_promise_are_refused() -> None:
    probs, labels = made(18)
    with pytest.raises(
        atta.InputError, match=r"a coverage of 0.95 needs at least 19 labelled images, got 18"
    ):
        Conformal().fit(probs, labels)
    Conformal().fit(*made(19))


def test_logits_are_refused() -> None:
    with pytest.raises(atta.InputError, match="if they are logits, take their softmax first"):
        Conformal().fit(torch.randn(30, 5), torch.zeros(30, dtype=torch.int64))


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (None, "probs: expected an array of numbers, got NoneType"),
        ("probs", "probs: expected an array of numbers, got str"),
        (torch.full((30, 2), 0.4), "probs: expected rows that sum to 1"),
        (torch.ones(30, 1), "probs: expected at least two classes"),
        (torch.ones(30), "probs: expected images × classes"),
        (torch.ones(30, 2, dtype=torch.int64), "probs: expected floating point numbers"),
        (torch.full((30, 2), float("nan")), "probs: expected"),
        ([[0.5, 0.5], [1.0]], "probs: expected an array of numbers"),
    ],
)
def test_what_is_no_probabilities_is_refused_at_the_door(probs, message):
    with pytest.raises(atta.InputError, match=message):
        Conformal().fit(probs, [0] * 30)
    with pytest.raises(atta.InputError, match=message):
        Conformal().fit(*made(30))(probs)


def test_arrays_of_any_layout_give_the_same_sets():
    probs, labels = made(30)
    sets = Conformal().fit(probs, labels)
    array = probs.double().numpy()
    for same in (array.astype(">f8"), array[::-1].copy()[::-1], array.tolist()):
        again = Conformal().fit(same, labels.numpy().astype(">u2"))
        assert again.threshold == pytest.approx(sets.threshold)
        assert torch.equal(again(same), sets(probs))


def test_rows_left_unnormalised_are_taken_if_that_is_said():
    probs, labels = made(30)
    sets = Conformal().fit(probs * 0.9, labels, simplex=False)
    assert sets(probs * 0.9).any(1).all()


def scored(probs: Tensor, labels: Tensor) -> ConformityScores:
    """Conformity scores that were written to a file and read again."""
    return ConformityScores.read(json.loads(json.dumps(asdict(ConformityScores.of(probs, labels)))))


@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("coverage", [0.8, 0.95, 0.99])
def test_conformity_scores_give_the_sets_of_every_coverage(n: int, coverage: float) -> None:
    probs, labels = made(n)
    known = scored(probs, labels)
    found = known.sets(coverage)
    exact = Conformal(coverage=coverage, score="aps").fit(probs, labels).threshold
    assert known.score == "aps"
    assert len(known.scores) == min(n, 2000)
    assert 0 <= found.threshold - max(exact, coverage) < (1e-12 if n <= 2000 else 0.01)
    others, truth = made(20000, seed=1)
    assert covered(found(others), truth) > coverage - 0.04


def test_the_scores_of_older_files_give_the_sets_that_they_gave() -> None:
    probs, labels = made(300)
    own = (1 - probs.double()[torch.arange(300), labels]).sort().values.tolist()
    found = ConformityScores.read({"images": 300, "scores": own}).sets(0.9)
    assert found.threshold == Conformal(coverage=0.9).fit(probs, labels).threshold
    assert torch.equal(found(probs), Conformal(coverage=0.9).fit(probs, labels)(probs))


def test_a_set_is_large_where_the_classifier_is_lost() -> None:
    probs, _ = made(500, k=50, sharp=9.0)
    labels = probs.argmax(dim=1)
    labels[::20] = probs[::20].argsort(dim=1)[:, -2]  # right in 95 % of the images
    sets = scored(probs, labels).sets(0.9)
    lost = torch.full((1, 50), 0.95 / 49)
    lost[0, 7] = 0.05  # a threshold gives it one class
    assert Conformal(coverage=0.9).fit(probs, labels)(lost).sum() == 1
    assert sets(lost).all()  # less confident than every validation image
    found = sets(probs)
    assert (found.double() * probs).sum(dim=1).min() >= 0.9
    assert found[probs.amax(dim=1) > 0.9].sum(dim=1).max() == 1
    by_confidence = found.sum(dim=1)[probs.amax(dim=1).argsort()].double()
    assert by_confidence[:100].mean() > by_confidence[-100:].mean()


def test_rows_that_do_not_sum_to_one_keep_the_threshold() -> None:
    probs, labels = made(300)
    assert scored(0.9 * probs, labels).score == "threshold"


@pytest.mark.parametrize("scores", [[], [0.2, 0.1], [-0.1], [0.5, 1.5], ["x"], [float("nan")]])
def test_forged_conformity_scores_are_refused(scores: list[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"conformity scores: expected numbers between 0 and 1|could not convert"
    ):
        ConformityScores.read({"images": 10, "scores": scores})


def test_more_coverage_than_images_can_promise_is_refused() -> None:
    with pytest.raises(
        atta.InputError, match=r"a coverage of 0\.99 needs at least 99 labelled images, got 50"
    ):
        ConformityScores.of(*made(50)).sets(0.99)


@pytest.mark.parametrize("nothing", ["", [], {}])
def test_no_coverage_is_refused(nothing: object) -> None:
    with pytest.raises(atta.InputError, match="expected a number or several, got none"):
        Conformal(coverage=nothing)  # type: ignore[arg-type]
