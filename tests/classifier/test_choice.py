"""Views are recorded in rounds, each once; the choice is that of a search with all views."""

from functools import cache

import pytest
import torch

import atta
from atta.calibrators.crossval import held_out, rank
from atta.classifier.choice import Recorder, choose, most_passes, rounds
from atta.data.labels import Labelling
from atta.data.source import as_source
from atta.data.views import Policy
from atta.run.collect import Run, collect
from atta.run.execution import Execution
from scenarios import Counting, Items, linear, pixels

NAMES = (
    "flip",
    "flip + 2 crop",
    "flip + 2 crop + brightness",
    "3 crop",
    "vflip",
    "vflip + rot180",
    "gamma + sharpen",
)
POLICIES = {"temperature": Policy(())} | {name: Policy.parse(name) for name in NAMES}
METHODS = {
    name: atta.MeanTTA() if policy.terms else atta.TemperatureScaling()
    for name, policy in POLICIES.items()
}


@cache
def labelled(n=820):
    """Labels that the network and its flipped view know about equally well."""
    torch.manual_seed(0)
    images = pixels(n) / 255
    logits = linear()(images) + linear()(images.flip(-1))
    return torch.distributions.Categorical(logits=logits.detach()).sample()


def recorder(model=None, images=None, labels=None, cache=None, **how):
    """What has run over the images themselves, and not over any view of them."""
    images = pixels() if images is None else images
    source = as_source(images)
    labels = torch.arange(source.count) % 3 if labels is None else labels
    execution = Execution(**{"batch_size": 64, "progress": False, **how})
    run = Run(model or linear(), source, Labelling(labels), execution, 0, "stratified")
    first = None if cache is None else cache / "0"
    return Recorder(run, run.record(Policy(()), False, {}, first, checks=False), cache)


def test_each_view_is_run_once_for_all_policies_that_share_it():
    model = Counting()
    once = recorder(model)
    policies = [Policy.parse(name) for name in NAMES[:4]]
    once.extend(policies, torch.arange(60))
    assert model.seen == 60 * (1 + 1 + 2 + 1 + 3)  # three crops are other crops than two
    once.extend(policies, torch.arange(60))
    assert model.seen == 60 * 8
    for policy in policies:
        found, alone = (
            once.record(policy),
            collect(model, pixels(), policy=policy, draws="stratified", progress=False),
        )
        assert found.predictions.kinds == policy.kinds
        assert found.origin["policy"] == str(policy)
        for kind, view in found.predictions.views.items():
            assert torch.allclose(view, alone.predictions.views[kind], atol=1e-5)


@pytest.mark.parametrize(
    "hold", [lambda images: images, lambda images: Items(images, [i % 3 for i in range(60)])]
)
def test_views_of_some_rows_are_those_of_all_rows(hold):
    policy, rows = Policy.parse("flip + 2 crop"), torch.tensor([0, 3, 4, 31, 59])
    whole, part = (recorder(images=hold(pixels()), batch_size=7, workers=2) for _ in "ab")
    whole.extend([policy], torch.arange(60))
    part.extend([policy], rows)
    for kind, view in whole.record(policy, rows).predictions.views.items():
        assert torch.allclose(part.record(policy, rows).predictions.views[kind], view, atol=1e-5)


def test_what_is_recorded_apart_is_cached_apart(tmp_path):
    crops = [Policy.parse("2 crop"), Policy.parse("3 crop")]
    for calls in (60 * 6, 0):  # the second time from the cache
        model = Counting()
        recorder(model, cache=tmp_path).extend(crops, torch.arange(60))
        assert model.seen == calls
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"0", "1", "2"}


def test_few_images_are_recorded_in_all_views():
    assert rounds(199, POLICIES) == []
    assert rounds(400, POLICIES) == [(100, 4), (200, 2)]
    assert rounds(1000, POLICIES) == [(125, 4), (250, 2), (500, 1)]
    assert rounds(1000, {"temperature": Policy(()), "flip": Policy.parse("flip")}) == []
    assert most_passes(100, POLICIES) == 100 * (1 + 1 + 2 + 1 + 3 + 1 + 1 + 1 + 1)


def test_rounds_choose_what_all_views_of_all_images_choose_in_fewer_passes():
    n, labels, model, every = 820, labelled(), Counting(), Counting()
    how = {"images": pixels(n), "labels": labels, "batch_size": 128}
    found = choose(recorder(model, **how), POLICIES, METHODS)
    whole = recorder(every, **how)
    whole.extend(POLICIES.values(), torch.arange(n))
    answers = {
        name: held_out(METHODS[name], whole.record(policy).predictions, labels)
        for name, policy in POLICIES.items()
    }
    full = rank({name: (POLICIES[name].passes, probs) for name, probs in answers.items()}, labels)
    assert found.policy == full[0].policy
    assert model.seen < 0.6 * every.seen
    assert model.seen <= most_passes(n, POLICIES)
    assert {one.policy for one in found.judged} == set(POLICIES)
    assert {one.images for one in found.judged[1:]} > {
        0
    }  # some were out before all images were seen
    assert found.judged[0].images == 0
    again = choose(recorder(Counting(), **how), POLICIES, METHODS)
    assert again.judged == found.judged
