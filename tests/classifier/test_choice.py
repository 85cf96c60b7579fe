"""Views are recorded in rounds, each once; the choice is that of a search with all views."""

from collections import Counter
from functools import cache

import pytest
import torch

import atta
from atta.classifier.choice import RIVALS, Recorder, candidates, choose, most_passes, rounds
from atta.data.labels import Labelling
from atta.data.source import as_source
from atta.data.views import Policy
from atta.record.predictions import Predictions, Record
from atta.run.collect import Run, collect
from atta.run.runner import Execution
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
    return Recorder(run, run.record(Policy(()), False, first, checks=False), cache)


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
    assert rounds(500, POLICIES) == [100]
    assert rounds(1000, POLICIES) == [100, 200]
    assert rounds(9000, POLICIES) == [100, 200, 400]
    assert rounds(1000, {"temperature": Policy(()), "flip": Policy.parse("flip")}) == []
    assert most_passes(100, POLICIES) == 100 * (1 + 1 + 2 + 1 + 3 + 1 + 1 + 1 + 1)


@pytest.mark.parametrize(("images", "most"), [(160, 12), (200, 10), (500, 8), (1000, 8)])
@pytest.mark.parametrize("kind", RIVALS)
def test_the_default_budget_takes_few_passes_per_image_with_all_rehearsals(kind, images, most):
    assert most_passes(images, candidates("auto", 4, atta.CATTA(), kind), True) <= most * images


class Known(Recorder):
    """Answers from what is known, and counts what a network would have run."""

    def __init__(self, base):
        self.base, self.asked = base, Counter()

    def extend(self, policies, rows):
        self.asked.update({kind: len(rows) for policy in policies for kind in policy.kinds})

    def record(self, policy, rows=None):
        whole = Record(self.base.predictions.select(policy.kinds), self.base.labels, {})
        return whole if rows is None else whole[rows]


def chosen(*noise, n=820):
    """Choose if the image and its two views say the truth, each with some noise."""
    torch.manual_seed(0)
    truth = 3 * torch.randn(n, 3)
    labels = torch.distributions.Categorical(logits=truth).sample()
    own, flip, gamma = (truth + each * torch.randn(n, 3) for each in noise)
    known = Predictions(own, {"flip": flip[:, None], "gamma": gamma[:, None]})
    recorder = Known(Record(known, labels, {}))
    policies = {"flip": Policy.parse("flip"), "gamma": Policy.parse("gamma")}
    methods = dict.fromkeys(policies, atta.CATTA(shrink=True))
    policies["temperature"], methods["temperature"] = Policy(()), atta.TemperatureScaling()
    return choose(recorder, policies, methods), recorder.asked


def test_the_default_stays_unless_a_rival_is_clearly_better():
    alike, _ = chosen(1.0, 1.0, 0.95)
    better, asked = chosen(2.0, 6.0, 0.01)
    assert (alike.policy, better.policy) == ("flip", "gamma")
    assert asked == {"flip": 100, "gamma": 100 + 820}  # clear after the first round
    dropped = next(one for one in better.judged if one.policy == "flip")
    assert dropped.images == 100
    assert dropped.above > 2 * dropped.error


def test_rounds_run_fewer_passes_and_can_be_repeated():
    n, labels, model = 820, labelled(), Counting()
    how = {"images": pixels(n), "labels": labels, "batch_size": 128}
    found = choose(recorder(model, **how), POLICIES, METHODS)
    views = {(view.name, times) for one in POLICIES.values() for view, times in one.terms}
    assert model.seen < 0.6 * n * (1 + sum(times for _, times in views))
    assert model.seen <= most_passes(n, POLICIES)
    assert {one.images for one in found.judged} > {0}  # some were out before all images were seen
    assert found.judged[0].images == 0
    again = choose(recorder(Counting(), **how), POLICIES, METHODS)
    assert again.judged == found.judged
