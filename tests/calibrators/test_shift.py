"""Images without labels: how often the network is right on them, and calibrators softened to that."""

import json

import pytest
import torch

from atta import InputError, Predictions
from atta.calibrators import CATTA, TemperatureScaling, restore
from atta.calibrators.atta import ViewBlend
from atta.calibrators.hedged import hedge
from atta.calibrators.shift import LEVEL, Reference, adapt, balanced, estimate
from scenarios import rehearsed

FIT, LABELS = rehearsed(1000, seed=0)
CALIBRATOR = CATTA(views=["flip"]).fit(FIT, LABELS)
REFERENCE = Reference.of(CALIBRATOR, FIT, LABELS)
HEDGED = hedge(CALIBRATOR, FIT, LABELS)


def test_the_reference_says_what_the_validation_images_were_like():
    right = (FIT.logits.argmax(1) == LABELS).double().mean()
    assert REFERENCE.accuracy == pytest.approx(float(right))
    assert estimate(REFERENCE, FIT.logits).accuracy == pytest.approx(float(right), abs=0.002)
    assert 0.5 < REFERENCE.slope < 1.5
    assert 0 < REFERENCE.skew < 2
    assert sum(REFERENCE.answers) == 1000
    assert Reference.read(json.loads(json.dumps(REFERENCE.json()))) == REFERENCE


@pytest.mark.parametrize("fade", [0.2, 0.4, 0.6])
def test_accuracy_on_images_without_labels_is_estimated(fade):
    shifted, truth = rehearsed(2000, seed=3, fade=fade)
    found, right = (
        estimate(REFERENCE, shifted.logits),
        float((shifted.logits.argmax(1) == truth).double().mean()),
    )
    assert found.accuracy == pytest.approx(right, abs=0.08)
    assert found.low < right < found.high
    assert found.drifted


def test_samples_that_did_not_shift_are_called_drifted_no_more_often_than_stated():
    pool, _ = rehearsed(20_000, seed=4)
    generator = torch.Generator().manual_seed(0)
    alarms = []
    for seed in range(8):  # other validation images each: their luck is a part of the rate
        fit, labels = rehearsed(1000, seed=100 + seed)
        reference = Reference.of(CALIBRATOR, fit, labels)
        samples = (torch.randperm(len(pool), generator=generator)[:100] for _ in range(100))
        alarms += [estimate(reference, pool.logits[rows]).drifted for rows in samples]
    assert sum(alarms) / len(alarms) <= LEVEL + 3 * (LEVEL / len(alarms)) ** 0.5


def test_a_calibrator_is_softened_to_the_accuracy_of_the_domain():
    shifted, truth = rehearsed(2000, seed=3, fade=0.5)
    there, done = adapt(CALIBRATOR, HEDGED, REFERENCE, shifted[:500])
    right = (shifted.logits.argmax(1) == truth).double()
    before, after = CALIBRATOR(shifted).amax(1), there(shifted).amax(1)
    assert abs(after.mean() - right.mean()) < 0.75 * abs(before.mean() - right.mean())
    assert ((after - right) ** 2).mean() < ((before - right) ** 2).mean()
    assert torch.equal(there(shifted).argmax(1), shifted.logits.argmax(1))
    assert done.softness < 1
    assert "Adapted" in str(done)


def test_nothing_is_changed_where_nothing_has_drifted():
    there, done = adapt(CALIBRATOR, HEDGED, REFERENCE, rehearsed(64, seed=9)[0])
    assert there is CALIBRATOR
    assert done.softness == 1
    assert "Not adapted" in str(done)


def test_a_hedge_that_is_not_too_sure_of_images_that_drifted_takes_over_as_it_is():
    soft = CALIBRATOR.softened(0.05)
    there, done = adapt(CALIBRATOR, soft, REFERENCE, rehearsed(500, seed=9, fade=0.5)[0])
    assert torch.equal(there.weights, soft.weights)
    assert done.softness == 1
    assert done.p_value < LEVEL
    assert done.changed
    assert "Adapted" in str(done)


def test_answers_that_collapse_onto_few_classes_lower_the_estimate():
    faded, _ = rehearsed(1000, seed=5, fade=0.4)
    fair = estimate(REFERENCE, faded.logits)
    collapsed = faded.logits.clone()
    collapsed[:, 0] += 2.0  # as sure as before or surer, of one class
    assert estimate(REFERENCE, collapsed).accuracy < fair.accuracy
    g = REFERENCE.skewness(torch.bincount(collapsed.argmax(1), minlength=6).numpy())
    assert 0.05 < g <= 1
    assert REFERENCE.skewness(torch.tensor(REFERENCE.answers).numpy()) < 0.01
    assert REFERENCE.skewness(torch.tensor([500, 0, 0, 0, 0, 0]).numpy()) > 0.9


def test_classes_that_do_not_occur_are_not_taken_for_a_collapse():
    faded, truth = rehearsed(4000, seed=6, fade=0.15)
    half = faded.logits[truth < 3]
    right = float((half.argmax(1) == truth[truth < 3]).double().mean())
    assert estimate(REFERENCE, half).accuracy == pytest.approx(right, abs=0.08)


def test_a_reference_of_an_older_version_estimates_by_what_it_knows():
    old = {
        name: value for name, value in REFERENCE.json().items() if name not in ("answers", "skew")
    }
    known = Reference.read({**old, "slope": 1.2, "slope_error": 0.1})
    shifted, truth = rehearsed(2000, seed=3, fade=0.4)
    right = float((shifted.logits.argmax(1) == truth).double().mean())
    assert estimate(known, shifted.logits).accuracy == pytest.approx(right, abs=0.1)


def test_too_few_images_are_refused():
    with pytest.raises(InputError, match=r"at least 32 images.*got 31"):
        adapt(CALIBRATOR, HEDGED, REFERENCE, FIT[:31])


def test_without_rehearsals_the_slope_is_unknown_and_there_is_no_hedge():
    bare = Reference.of(
        TemperatureScaling().fit(FIT, LABELS), FIT.select(FIT.kinds, rehearsals=False), LABELS
    )
    assert bare.slope is None
    assert (
        hedge(CALIBRATOR, FIT.select(FIT.kinds, rehearsals=False), LABELS) is None
    )  # flips do not lower the accuracy
    assert estimate(bare, FIT.logits).accuracy == pytest.approx(REFERENCE.accuracy, abs=0.002)


def test_a_network_that_is_never_right_has_a_reference_too():
    wrong = (FIT.logits.argmax(1) + 1) % FIT.classes
    reference = Reference.of(CALIBRATOR, FIT, wrong)
    assert reference.accuracy == 0
    assert 0 <= estimate(reference, FIT.logits).accuracy <= 1
    assert json.loads(json.dumps(reference.json(), allow_nan=False))


def collapsed(n: int = 500) -> Predictions:
    """Images on which the network is lost: it answers class 0 more often than it occurs, and is sure of it."""
    images, _ = rehearsed(n, seed=9, fade=0.6)
    lean = 3.0 * torch.nn.functional.one_hot(torch.zeros(1, dtype=torch.long), 6)
    return Predictions(images.logits + lean, {"flip": images.views["flip"] + lean})


@pytest.mark.parametrize("method", [CATTA(views=["flip"]), TemperatureScaling()])
def test_a_class_that_is_answered_too_often_is_trusted_less(method):
    calibrator = method.fit(FIT, LABELS)
    images = collapsed()
    soft = hedge(calibrator, FIT, LABELS)
    there = balanced(soft, REFERENCE, images)
    assert there.odds[0] < 0.8
    assert (there.odds[1:] > 1).all()
    before, after = soft(images), there(images)
    assert torch.equal(after.argmax(1), images.logits.argmax(1))
    assert after[:, 0].mean() < before[:, 0].mean() - 0.02
    again = restore(there.state_dict(), there.header(), path="memory")
    assert isinstance(again, ViewBlend)
    assert torch.equal(again(images), after)


def test_other_shares_of_the_classes_alone_change_nothing():
    images, labels = rehearsed(2000, seed=9, fade=0.2)
    few = images[torch.where(labels < 3)[0]]
    assert balanced(HEDGED, REFERENCE, few) is HEDGED
