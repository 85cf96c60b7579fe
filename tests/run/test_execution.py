"""How a network is run: the same names at every entry point, and a suggestion for wrong ones."""

from dataclasses import fields

import pytest
import torch

import atta
from atta import Execution, InputError
from atta.classifier.calibrate import CalibrateOptions
from atta.run.collect import CollectOptions
from atta.run.runner import ExecutionOptions, split_options
from scenarios import Counting, blend, linear, pixels

LABELS = torch.arange(60) % 3
NAMES = {each.name for each in fields(Execution)}
ENTRIES = {
    "collect": lambda **how: atta.collect(Counting(), pixels(), LABELS, policy="flip", **how),
    "calibrate": lambda **how: atta.calibrate(Counting(), pixels(), LABELS, policy="flip", **how),
    "record": lambda **how: blend(linear()).record(pixels(), LABELS, **how),
    "evaluate": lambda **how: blend(linear()).evaluate(pixels(), LABELS, **how),
    "fit": lambda **how: blend(linear()).fit(pixels(), LABELS, **how),
}


def test_every_field_of_an_execution_is_a_keyword_of_every_entry_point():
    for options in (ExecutionOptions, CollectOptions, CalibrateOptions):
        assert set(options.__annotations__) >= NAMES
    assert set(ExecutionOptions.__annotations__) == NAMES
    given = {"device": "cpu", "batch_size": 7, "workers": 2, "autocast": True, "compile": False}
    execution, rest = split_options(
        "collect", {**given, "shuffle": 3}, atta.collect, CollectOptions
    )
    assert execution == Execution(**given)
    assert rest == {"shuffle": 3}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_unknown_keyword_is_refused_with_the_nearest_one(entry):
    with pytest.raises(
        InputError, match=f"{entry} takes no 'batch_sise'. Did you mean 'batch_size'"
    ) as refused:
        ENTRIES[entry](batch_sise=3)
    for field in NAMES:
        assert field in str(refused.value).partition("It takes: ")[2]


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_point_runs_as_it_is_told(entry):
    told = []
    ENTRIES[entry](device="cpu", batch_size=7, workers=2, channels_last=True, progress=told.append)
    assert sum(told) >= 60
    assert told[0] % 7 == 0, "passes are told batch by batch"
    with pytest.raises(InputError, match="actors: expected engine ray"):
        ENTRIES[entry](actors=2)


def test_what_changes_bits_is_what_shards_are_compared_by(tmp_path):
    def written(**how):
        folder = tmp_path / str(how)
        atta.collect(linear(), pixels(8), **{"progress": False, **how}, output=folder)
        return (folder / "run.json").read_text()

    assert written() == written(device="cpu", workers=2, checks=False)
    for change in ({"batch_size": 3}, {"autocast": True}, {"channels_last": True}):
        assert written(**change) != written()
    plain = Execution()
    assert Execution(autocast=True).half == torch.bfloat16
    assert Execution(autocast=torch.float16).half == torch.float16
    assert plain.half is None
