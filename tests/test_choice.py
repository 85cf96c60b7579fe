"""benchmarks/choice.py: records replayed in the place of a network, on made-up ones."""

import torch
from benchmarks.choice import Replayed, measure

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


def test_of_few_images_all_views_of_the_candidates_are_recorded(capsys):
    measure("toy", made(1160, flip=1, nudge=3), 160, draws=1)
    full, quick, search = capsys.readouterr().out.splitlines()
    assert full.startswith("| toy | 160 | full | 5.0 |")
    assert quick.startswith("| toy | 160 | quick | 4.0 |")
    assert search.startswith("| toy | 160 | search | 5.0 |")
