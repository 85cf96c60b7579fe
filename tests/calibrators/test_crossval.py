"""Held-out answers against a slow loop, and the one-standard-error rule."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import atta
from atta import InputError
from atta.calibrators.crossval import CLOSE, GAIN, held_out, losses, note_on_views, rank
from atta.calibrators.fitting import fold_splits


@pytest.mark.parametrize("method", ["mean-tta-temperature", "temperature", "isotonic"])
def test_each_image_is_answered_by_a_fit_that_did_not_see_its_fold(record, method):
    method = atta.find_method(method)
    predictions, labels = record.predictions[:100], record.labels[:100]
    found = held_out(method, predictions, labels, count=3).probs
    for rest, part in fold_splits(100, 3):
        assert sorted([*rest, *part]) == list(range(100))
        expected = method.fit(predictions[rest], labels[rest])(predictions[part])
        assert torch.allclose(found[part], expected, atol=1e-6)


def test_too_few_images_to_hold_any_out_are_refused(record):
    with pytest.raises(InputError, match="expected at least 10 labelled images for 5 folds, got 9"):
        held_out(atta.Vanilla(), record.predictions[:9], record.labels[:9])


def answer(losses_of):
    """Probabilities of two classes whose NLL for class 0 is as given."""
    own = torch.as_tensor(losses_of, dtype=torch.float64).neg().exp()
    return torch.stack([own, 1 - own], dim=1)


LABELS = torch.zeros(100, dtype=torch.int64)


NOISE = torch.linspace(
    -0.05, 0.05, 100, dtype=torch.float64
)  # mean 0, deviation 0.029, standard error 0.0029


def test_fewer_passes_win_only_where_they_are_as_good_as_the_best():
    best = torch.full((100,), 0.3, dtype=torch.float64)
    close, far = best + NOISE + 0.00028, best + NOISE + 0.0003
    ranked = rank(
        {"best": (9, answer(best)), "far": (2, answer(far)), "close": (5, answer(close))}, LABELS
    )
    assert [one.policy for one in ranked] == ["close", "best", "far"]
    assert ranked[0].above == pytest.approx(0.00028)
    assert ranked[0].error == pytest.approx(NOISE.std().item() / 10)
    assert (ranked[1].above, ranked[1].error) == (0, 0)


@pytest.mark.parametrize(("above", "choice"), [(0.0025, "none"), (0.0035, "best")])
def test_no_views_win_within_one_standard_error_of_the_best(above, choice):
    best = torch.full((100,), 0.3, dtype=torch.float64)
    assert (
        rank({"best": (9, answer(best)), "none": (1, answer(best + NOISE + above))}, LABELS)[
            0
        ].policy
        == choice
    )


def test_of_equal_passes_the_better_wins():
    best = torch.full((100,), 0.3, dtype=torch.float64)
    ranked = rank(
        {"near": (5, answer(best + NOISE + 0.002)), "nearer": (5, answer(best + NOISE + 0.001))},
        LABELS,
    )
    assert ranked[0].policy == "nearer"


def test_a_default_stays_unless_another_is_better_by_more_than_noise():
    torch.manual_seed(0)
    labels = torch.zeros(400, dtype=torch.long)

    def answers(gain, noise):
        own = (0.6 + gain + noise * torch.randn(400, dtype=torch.float64)).clamp(0.05, 0.95)
        return torch.stack([own, 1 - own], dim=1)

    plain = answers(0, 0.1)
    slightly, clearly, fewer = answers(0.002, 0.1), answers(0.1, 0.1), plain.clone()
    for other, choice in ((slightly, "default"), (clearly, "other")):
        found = rank({"default": (4, plain), "other": (2, other)}, labels, default="default")
        assert found[0].policy == choice
    same = {"default": (4, plain), "none": (1, fewer)}  # in every image: views say nothing
    assert rank(same, labels, default="default")[0].policy == "none"


@settings(max_examples=50, deadline=None)
@given(
    table=st.lists(
        st.tuples(st.integers(1, 20), st.floats(0.1, 0.2), st.integers(0, 9999)),
        min_size=1,
        max_size=6,
    )
)
def test_no_candidate_as_good_as_the_best_has_fewer_passes_than_the_choice(table):
    answers = {}
    for i, (passes, mean, seed) in enumerate(table):
        noise = (
            torch.rand(100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 10
        )
        answers[str(i)] = (passes, answer(mean + noise))
    chosen, *others = rank(answers, LABELS)
    assert sorted([chosen.policy, *(one.policy for one in others)]) == sorted(answers)
    assert min(one.nll for one in (chosen, *others)) == min(
        losses(p, LABELS).mean().item() for _, p in answers.values()
    )
    for one in others:
        errors = 1.0 if one.passes <= 1 else CLOSE
        if one.above <= max(errors * one.error, GAIN):
            assert (one.passes, one.nll) >= (chosen.passes, chosen.nll)
    assert [one.nll for one in others] == sorted(one.nll for one in others)


def test_a_probability_of_zero_has_a_finite_loss():
    assert losses(torch.tensor([[0.0, 1.0]]), torch.tensor([0])).isfinite().all()


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(InputError, match="expected at least one policy"):
        rank({}, LABELS)


@pytest.mark.parametrize(
    ("nll", "policy", "worse"),
    [(0.4048, "flip", "1.2%"), (0.4001, "flip", ""), (0.39, "flip", ""), (0.41, "", "")],
)
def test_views_that_are_worse_than_temperature_scaling_are_named(nll, policy, worse):
    rivals = [
        {"method": "vanilla", "policy": "", "passes": 1, "nll": 0.5},
        {"method": "temperature", "policy": "", "passes": 1, "nll": 0.4},
        {"method": "c-atta", "policy": policy, "passes": 2, "nll": nll},
    ]
    note = " ".join(note_on_views(rivals))
    assert note.startswith(f"cross-validated, flip is {worse} worse" if worse else "")
    assert bool(note) == bool(worse)
    assert "method='temperature'" in note or not worse


def test_a_summary_says_that_forced_views_are_worse():
    images = torch.rand(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weight = 3 * torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    weight[..., 4:] = 0  # it looks at the left half only: the mirror image has another class
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    network.load_state_dict({"1.weight": weight.flatten(1), "1.bias": torch.zeros(3)})
    labels = network(images).argmax(dim=1)
    labels[::5] = (labels[::5] + 1) % 3
    how = {"policy": "flip", "progress": False, "method": "mean-tta-temperature"}
    with warnings.catch_warnings(action="ignore"):
        summary = atta.calibrate(network, images, labels, **how).summary
    assert "flip is" in str(summary)
    assert "worse in NLL than temperature scaling: use method='temperature'" in str(summary)
