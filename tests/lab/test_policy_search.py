"""Which policy: records as one, and searches of them."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import atta
from atta import POLICIES, VIEWS, Predictions, Record
from atta._base.errors import InputError
from atta.calibrators.crossval import held_out, losses, rank
from atta.lab.policy_search import Pass, Pool, Search, described, search

# ---- records as one


def recorded(repeats, *, draws="random", images=6, seed=0):
    """A record with so many repeats of these kinds; the seed changes the views only."""
    fixed, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    logits, labels = (
        torch.randn(images, 3, generator=fixed),
        torch.randint(3, (images,), generator=fixed),
    )
    views = {
        kind: torch.randn(images, count, 3, generator=drawn) for kind, count in repeats.items()
    }
    return Record(Predictions(logits, views), labels, {"draws": draws})


KINDS = (
    "flip",
    "shift",
    "flip-shift",
    "nudge",
    "vflip",
    "rot180",
    "gamma",
    "autocontrast",
    "sharpen",
)
some_repeats = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 8), min_size=1).map(
    lambda found: {kind: count if VIEWS[kind].random else 1 for kind, count in found.items()}
)


@settings(max_examples=30, deadline=None)
@given(repeats=some_repeats, draws=st.sampled_from(["random", "stratified"]))
def test_a_stratified_record_holds_a_random_view_with_all_of_its_repeats_or_not_at_all(
    repeats, draws
):
    record = recorded(repeats, draws=draws)
    for policy in POLICIES.values():
        held = all(
            repeats.get(kind, 0) == count or (draws == "random" and repeats.get(kind, 0) > count)
            for kind, count in policy.repeats.items()
        )
        passes = Pool.of(record).find(policy)
        assert (passes is not None) == held
        if passes is not None:
            expected, found = record.predictions.take(policy.repeats), Pool.of(record).pick(passes)
            assert found.kinds == policy.kinds
            assert all(
                torch.equal(found.views[kind], expected.views[kind]) for kind in policy.kinds
            )


def test_records_made_apart_are_searched_as_one_and_stratified_draws_come_first():
    two, four = (
        recorded({"shift": n, "flip-shift": n}, draws="stratified", seed=n) for n in (2, 4)
    )
    drawn = recorded({"shift": 8, "flip-shift": 8, "flip": 1}, seed=9)
    held, missing = Pool.of([drawn, two, four]).within(9)
    assert {one.record for one in held["shift-mix-5"]} == {1}
    assert {one.record for one in held["shift-mix-9"]} == {2}
    assert {one.record for one in held["shift-mix-4"]} == {0}
    assert "nudge-4" in missing
    assert {*held, *missing} == {name for name, policy in POLICIES.items() if policy.passes <= 9}


def test_a_look_that_several_records_have_is_one_pass():
    one = recorded({"flip": 1, "shift": 2}, seed=1)
    rounded = Record(one.predictions.to(torch.float16), one.labels)
    other = recorded({"shift": 2}, seed=2)
    found = Pool.of([one, rounded, other]).passes()
    assert found == [Pass(0, "flip", 0), *(Pass(i, "shift", j) for i in (0, 2) for j in (0, 1))]
    assert described(found) == "flip + 4 shift"


def test_labels_come_from_any_of_the_records_or_are_given():
    record = recorded({"flip": 1})
    bare = Record(record.predictions)
    assert torch.equal(Pool.of([bare, record]).labels, record.labels)
    assert torch.equal(Pool.of(bare, record.labels.tolist())[2:4].labels, record.labels[2:4])


FLIP = recorded({"flip": 1})


@pytest.mark.parametrize(
    ("records", "how", "message"),
    [
        ([], {}, "expected at least one record to search, got none"),
        (
            [FLIP, FLIP[:5]],
            {},
            "expected records of the same images by the same network, got other logits in record 2",
        ),
        ([FLIP, FLIP[[1, 0, 2, 3, 4, 5]]], {}, "got other logits in record 2 than in record 1"),
        (
            [FLIP, Record(FLIP.predictions, (FLIP.labels + 1) % 3)],
            {},
            "got different labels for the same logits",
        ),
        (Record(FLIP.predictions), {}, "expected a record with labels, got 1 without"),
        (FLIP, {"folds": 0}, "folds must be a whole number ≥ 2, got 0"),
        (
            FLIP,
            {"budget": 1},
            "budget must be a whole number ≥ 2, got 1",
        ),
        (
            FLIP,
            {"method": atta.TemperatureScaling()},
            "expected a method that uses views, such as c-atta, got temperature",
        ),
        (
            recorded({"nudge": 2}, draws="stratified"),
            {"budget": 2},
            r"within 2 passes, flip-2, .*; got the views 2 nudge \(stratified\)\. "
            r"Record one: atta collect .* --policy flip-2",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(records, how, message):
    with pytest.raises(InputError, match=message):
        search(records, **how)


def test_greedy_without_views_is_refused():
    with pytest.raises(InputError, match="expected records with views, got none"):
        Search().greedy(Pool.of(recorded({})))


# ---- searches


def seen(n=200, *, seed=0, **noises):
    """A record whose kinds of view show the truth with their own noise, one number per repeat."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(3, (n,), generator=generator)
    clean = 2.0 * torch.nn.functional.one_hot(truth, 3)

    def look(noise):
        return clean + noise * torch.randn(n, 3, generator=generator)

    views = {
        kind.replace("_", "-"): torch.stack([look(noise) for noise in found], 1)
        for kind, found in noises.items()
    }
    return Record(Predictions(look(2.0), views), truth)


def test_the_search_is_the_ranking_of_held_out_answers():
    record = seen(flip=[1.5], vflip=[2.0], rot180=[2.5])
    taken = {"flip-2": ["flip"], "vflip-2": ["vflip"], "dihedral-4": ["flip", "vflip", "rot180"]}
    answers = {}
    for name, kinds in taken.items():
        probs = held_out(
            atta.CATTA(), record.predictions.select(kinds), record.labels, count=4, seed=3
        ).probs
        answers[name] = (1 + len(kinds), probs)
    assert search(record, folds=4, seed=3) == rank(answers, record.labels)


def test_useless_views_are_not_chosen_over_fewer_passes():
    chosen, *others = search(seen(flip=[1.0], vflip=[100.0], rot180=[100.0]))
    assert chosen.policy == "flip-2"
    assert others[-1].policy == "vflip-2"


def test_ties_go_to_fewer_passes():
    flip = seen(flip=[1.0])
    views = flip.predictions.views["flip"]
    same = Record(
        Predictions(flip.predictions.logits, dict.fromkeys(("flip", "vflip", "rot180"), views)),
        flip.labels,
    )
    chosen, *others = search(same)
    assert (chosen.passes, sorted(one.passes for one in others)) == (2, [2, 4])
    assert all(one.nll == pytest.approx(chosen.nll, abs=1e-6) for one in others)


def loss_of(record, passes):
    views = {}
    for kind in {kind: None for _, kind, _ in passes}:
        views[kind] = torch.stack(
            [record.predictions.views[kind][:, r] for _, k, r in passes if k == kind], 1
        )
    probs = held_out(
        atta.CATTA(), Predictions(record.predictions.logits, views), record.labels, count=3
    ).probs
    return losses(probs, record.labels).mean().item()


def test_greedy_is_the_best_of_all_pairs_where_views_add_up():
    record = seen(100, flip=[0.9], crop=[3.0, 1.2], vflip=[3.0])
    every = [Pass(0, "flip", 0), Pass(0, "crop", 0), Pass(0, "crop", 1), Pass(0, "vflip", 0)]
    scores = {
        frozenset(some): loss_of(record, some)
        for size in (1, 2)
        for some in combinations(every, size)
    }
    singles = {some: score for some, score in scores.items() if len(some) == 1}
    found = Search(budget=3, folds=3).greedy(Pool.of(record))
    assert frozenset(found[:1]) == min(singles, key=lambda some: singles[some])
    assert frozenset(found) == min(scores, key=lambda some: scores[some])


@pytest.mark.parametrize("seed", range(2))
def test_each_greedy_step_is_the_best_there_is_and_the_last_one_helps(seed):
    record = seen(60, seed=seed, flip=[2.0], crop=[2.0, 2.0], vflip=[2.0])
    pool = Pool.of(record)
    found, every = Search(budget=3, folds=3).greedy(pool), pool.passes()
    path = [loss_of(record, found[:size]) for size in range(1, len(found) + 1)]
    assert path == sorted(path, reverse=True)
    for size, score in enumerate(path):
        others = [loss_of(record, [*found[:size], one]) for one in every if one not in found[:size]]
        assert score == pytest.approx(min(others), abs=1e-9)
    if len(found) < 2:
        assert (
            min(loss_of(record, [*found, one]) for one in every if one not in found)
            > path[-1] - 1e-6
        )
    assert Search(budget=2, folds=3).greedy(pool) == found[:1]


def test_a_search_with_test_images_fits_on_all_of_its_own():
    whole = Pool.of(seen(flip=[1.0], vflip=[1.5], crop=[1.5, 1.0]))
    found = Search(budget=3, folds=3).explore(whole[:100], free=True, test=whole[100:])
    assert found.free is not None
    assert {*found.tested} == {"flip-2", "vflip-2", "crop-2", found.free.policy}
    record = whole.records[0]
    calibrator = atta.CATTA(views=["flip"]).fit(record[:100].predictions, record[:100].labels)
    expected = atta.evaluate(
        calibrator(record[100:].predictions), record[100:].labels, metrics=["brier", "nll"]
    )
    assert found.tested["flip-2"] == pytest.approx(expected)
    assert found.free.above == pytest.approx(
        found.free.nll - min(one.nll for one in found.candidates)
    )
