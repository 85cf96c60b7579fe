"""benchmarks/choice.py: records replayed in the place of a network, on made-up ones."""

import torch
from benchmarks.choice import Replayed, compared, pooled

from atta import Predictions, Record
from atta.data.views import Policy


def made(n: int, **repeats: int) -> Record:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (n,), generator=generator)
    logits = 2 * torch.eye(4)[labels] + torch.randn(n, 4, generator=generator)
    views = {
        kind: logits[:, None] + torch.randn(n, r, 4, generator=generator)
        for kind, r in repeats.items()
    }
    return Record(Predictions(logits, views), labels, {})


def test_each_pass_is_counted_once():
    replayed = Replayed(made(40, flip=1, nudge=3))
    assert replayed.passes == 40
    for _ in range(2):
        replayed.extend([Policy.parse("flip"), Policy.parse("flip + 3 nudge")], torch.arange(10))
        assert replayed.passes == 40 + 10 * 4
    replayed.extend([Policy.parse("flip")], torch.arange(40))
    assert replayed.passes == 40 + 10 * 4 + 30
    assert replayed.record(Policy.parse("2 nudge"), torch.arange(5)).predictions.views[
        "nudge"
    ].shape == (5, 2, 4)


def test_of_few_images_all_views_are_recorded_and_the_choice_is_the_same(tmp_path):
    made(160, flip=1, vflip=1).save(tmp_path / "toy_rich.safetensors")
    made(160, nudge=3).save(tmp_path / "toy_nudge.safetensors")
    one = compared(pooled(tmp_path, "toy"), 120, seed=0)
    assert (one["policies"], one["part"], one["lost"]) == (5, 1.0, 0.0)
    assert one["rounds"] == one["all"]
