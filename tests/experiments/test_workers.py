"""Fits in other processes: the same bits, and errors that come back."""

from pathlib import Path

import pytest
import torch

from atta import MATTA, VATTA, InputError, Record, TemperatureScaling
from atta.experiments.fits import Fit, Fits, Rows
from atta.experiments.workers import Task, one_thread, run


def test_fits_in_other_processes_have_the_same_bits(record: Record, tmp_path: Path) -> None:
    methods = (MATTA(epochs=3), VATTA(), TemperatureScaling())
    wanted = [
        Fit("a", Rows(300, 100, split), method, "flip + 2 crop" if method.needs_views else "")
        for split in range(3)
        for method in methods
    ]
    here, there = Fits({"a": record}), Fits({"a": record}, tmp_path, workers=2)
    told: list[str] = []
    there.make(wanted, told.append)
    assert sorted(told) == sorted(fit.method.name for fit in wanted)
    assert len(list(tmp_path.rglob("*.safetensors"))) == len(wanted)
    for fit in wanted:
        a, b = here[fit].state_dict(), there[fit].state_dict()
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_goes_wrong_in_another_process_is_said_in_this_one(record: Record, tmp_path: Path) -> None:
    assert record.labels is not None
    wrong = Task(VATTA(views=["zoom"]), [(record.predictions, record.labels)], [tmp_path / "a.safetensors"])
    with pytest.raises(InputError, match="expected predictions with the views zoom, got: flip, crop"):
        list(run([wrong], 2))


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
