"""Methods by name and settings, and calibrators from files: what is wrong with either is said in a sentence."""

import json
import math
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import atta
from atta import METHODS, InputError, calibrators
from atta.calibrators import (
    VATTA,
    Dirichlet,
    Histogram,
    base,
    find_method,
    load,
)
from scenarios import notices_flipped_bits, said_to_users, toy


@pytest.mark.parametrize(
    ("name", "near"),
    [("vatta", "v-atta"), ("V-ATTA", None), ("temprature", "temperature"), ("xyzzy", None)],
)
def test_an_unknown_method_is_answered_with_the_nearest_name(name, near):
    hint = re.escape(f" Did you mean '{near}'?") if near else ""
    with pytest.raises(InputError, match=rf"^unknown method '{name}'\.{hint}.*Known: vanilla, "):
        find_method(name)


def test_an_unknown_setting_is_answered_with_the_nearest_name():
    with pytest.raises(
        InputError,
        match=r"v-atta has no setting 'optimiser'\. Did you mean 'optimizer'\? It has: views,",
    ):
        find_method("v-atta", optimiser="adam")
    with pytest.raises(InputError, match=r"vanilla has no setting 'bins'\. It has: none"):
        find_method("vanilla", bins=3)


def test_methods_are_found_by_name_with_settings():
    assert find_method("v-atta", views=["flip", "crop"]) == VATTA(views=("flip", "crop"))
    assert find_method("histogram", bins=10) == Histogram(bins=10)
    assert all(find_method(name) == method() for name, method in METHODS.items())


def test_entry_points_add_methods_that_are_imported_when_they_are_used(monkeypatch):
    class Foreign(Histogram):
        name = "foreign"

    loaded = []

    class Declared(EntryPoint):
        def load(self):
            loaded.append(self.name)
            return Foreign

    methods = type(METHODS)({"histogram": Histogram})
    methods.data["foreign"] = Declared("foreign", "foreign:Foreign", "atta.methods")
    monkeypatch.setattr(calibrators, "METHODS", methods)
    assert list(methods) == ["histogram", "foreign"]
    assert len(methods) == 2
    assert find_method("histogram") == Histogram()
    assert "foreign" in methods
    assert not loaded, "names are known without an import"
    assert find_method("foreign", bins=3) == Foreign(bins=3)
    assert methods["foreign"] is Foreign
    assert dict(methods) == {"histogram": Histogram, "foreign": Foreign}
    assert loaded == ["foreign"]
    assert "unknown" not in methods
    with pytest.raises(KeyError):
        methods["unknown"]


def test_shrunk_m_atta_is_found_by_its_entry_point_and_not_imported_by_others():
    code = """
import sys
from atta.calibrators import METHODS, find_method
find_method("c-atta")
assert "shrunk-m-atta" in list(METHODS)
assert "atta.lab.shrunk" not in sys.modules
assert type(find_method("shrunk-m-atta")).__module__ == "atta.lab.shrunk"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


BAD = {
    "Record(None)": "a record is made of atta.Predictions, got NoneType",
    "Record(torch.zeros(2, 3))": "a record is made of atta.Predictions, got Tensor",
    "Record(Predictions(torch.zeros(2, 3)), origin='x')": (
        "the origin of a record must be a mapping of text, got str"
    ),
    "Predictions(torch.zeros(2, 3), views=None)": (
        "views must be a mapping from names to logits, got NoneType"
    ),
    "VATTA(optimizer='sgd')": "optimizer must be one of lbfgs, adam, got 'sgd'",
    "MATTA(space='odds')": "space must be one of logits, probabilities, got 'odds'",
    "VATTA(start='1/n')": "start must be one of 1/m, 1/k or a number ≥ -1e9 and ≤ 1e9, got '1/n'",
    "VATTA(start=float('nan'))": "start must be one of 1/m, 1/k or a number ≥ -1e9 and ≤ 1e9, got nan",
    "MATTA(epochs=0)": "epochs must be a whole number ≥ 1, got 0",
    "MATTA(batch=-1)": "batch must be a whole number ≥ 1, got -1",
    "MATTA(lr=0.0)": "lr must be a number > 0 and ≤ 1e6, got 0.0",
    "MATTA(decay=-1.0)": "decay must be a number ≥ 0 and ≤ 1e6, got -1.0",
    "VATTA(step=0)": "step must be a number > 0 and ≤ 1 or None, got 0",
    "VATTA(step=1.5)": "step must be a number > 0 and ≤ 1 or None, got 1.5",
    "VATTA(views='flip')": "views must be a list or None, got 'flip'",
    "MeanTTA(views='flip')": "views must be a list or None, got 'flip'",
    "AdaptiveTTA(objective='accuracy')": "objective must be one of brier, nll, ece, got 'accuracy'",
    "AdaptiveTTA(step=-0.1)": "step must be a number > 0 and ≤ 1 or None, got -0.1",
    "Histogram(bins=0)": "bins must be a whole number ≥ 1 and ≤ 1000000, got 0",
    "Dirichlet(grid='fine')": "grid must be one of coarse, authors or a list, got 'fine'",
    "Dirichlet(diagonal=-1.0)": "diagonal must be a number ≥ 0, got -1.0",
    "Dirichlet(grid=[])": "grid must hold pairs (λ, μ), finite and neither negative, got []",
    "Dirichlet(grid=[(1.0, -1.0)])": "grid must hold pairs (λ, μ), finite and neither negative, got [(1.0, -1.0)]",
    "Dirichlet(grid=[1.0, 2.0])": "grid must hold pairs (λ, μ), finite and neither negative, got [1.0, 2.0]",
    "Dirichlet(folds=1)": "folds must be a whole number ≥ 2, got 1",
    "SelectiveVATTA(blend='m-atta')": "blend must be one of c-atta, v-atta, got 'm-atta'",
    "SelectiveVATTA(passes=0.5)": "passes must be a number ≥ 1 and ≤ 1e9, got 0.5",
    "SequentialVATTA(passes='few')": "passes must be a number ≥ 1 and ≤ 1e9, got 'few'",
    "ShrunkMATTA(strengths=[])": "strengths must be numbers, positive and finite (∞ is always tried), got []",
    "ShrunkMATTA(strengths=[0.0])": "strengths must be numbers, positive and finite (∞ is always tried), got [0.0]",
    "ShrunkMATTA(strengths=5.0)": "strengths must be numbers, positive and finite (∞ is always tried), got 5.0",
    "ShrunkMATTA(folds=1)": "folds must be a whole number ≥ 2, got 1",
    "ShrunkMATTA(views='flip')": "views must be a list or None, got 'flip'",
    "ShrunkMATTA(step=2)": "step must be a number > 0 and ≤ 1 or None, got 2",
    "MATTA(epochs=None)": "epochs must be a whole number ≥ 1, got None",
    "MATTA(seed=1.5)": "seed must be a whole number ≥ -9223372036854775808 and ≤ 9223372036854775807, got 1.5",
    "MATTA(space=['logits'])": "space must be one of logits, probabilities, got ['logits']",
    "VATTA(lr=True)": "lr must be a number > 0 and ≤ 1e6, got True",
    "VATTA(views=5)": "views must be a list or None, got 5",
    "Isotonic(pooled=torch.ones(2))": "pooled must be True or False, got tensor([1., 1.])",
    "MeanTTA(original='no')": "original must be True or False, got 'no'",
    "Conformal(score='best')": "score must be one of threshold, aps, raps, got 'best'",
    "Conformal(penalty='a')": "penalty must be a number ≥ 0, got 'a'",
    "find_method('v-atta', epochs=2.5)": "v-atta: epochs must be a whole number ≥ 1, got 2.5",
    "find_method('v-atta', step='abc')": "v-atta: step must be a number > 0 and ≤ 1 or None, got 'abc'",
    "find_method(['v-atta'])": f"unknown method ['v-atta']. Did you mean 'v-atta'? Known: {', '.join(METHODS)}",
    "evaluate(torch.full((2, 2), 0.5), [0, 1], metrics=5)": "metrics must be a list or None, got 5",
    "VATTA().fit(torch.zeros(3, 4), [0, 1, 2])": (
        "v-atta takes atta.Predictions (of logits and views, or a record's .predictions), got Tensor"
    ),
    "MATTA().fit_many([(torch.zeros(3, 4), [0, 1, 2])])": (
        "m-atta takes atta.Predictions (of logits and views, or a record's .predictions), got Tensor"
    ),
    "Vanilla().fit(Predictions(3 * torch.eye(3)), [0, 1, 2])('logits')": (
        "this calibrator takes atta.Predictions (of logits and views, or a record's .predictions), or an array or tensor of "
        "logits, got str"
    ),
}


def test_what_is_wrong_is_said_in_a_sentence():
    setup = """
import torch
from atta.calibrators import *
from atta import ShrunkMATTA
from atta.calibrators.conformal import Conformal
from atta import InputError, Predictions, Record, evaluate
"""
    assert said_to_users(setup, BAD) == {
        expression: f"InputError: {sentence}" for expression, sentence in BAD.items()
    }


def edit(
    source: Path,
    target: Path,
    *,
    tensors: dict | None = None,
    about: dict | None = None,
    **header: str,
) -> Path:
    """Write a calibrator's file anew with some of it changed, as one that has no digest."""
    with source.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata = json.loads(file.read(size))["__metadata__"]
    metadata = {key: value for key, value in metadata.items() if not key.startswith("atta.")}
    metadata["about"] = json.dumps(json.loads(metadata["about"]) | (about or {}))
    content = {
        name: value
        for name, value in (load_file(source) | (tensors or {})).items()
        if value is not None
    }
    save_file(content, target, metadata | header)
    return target


DAMAGE = {
    "a format of 5000 digits": (
        {"format_version": "9" * 5000},
        r"has format version 999999999, this atta reads up to 1",
    ),
    "newer format": (
        {"format_version": "2"},
        r"has format version 2, this atta reads up to 1: install a newer one",
    ),
    "foreign format": (
        {"format": "other"},
        r"is not a calibrator: expected format 'atta.calibrator', got 'other'",
    ),
    "not JSON": ({"about_text": "{"}, r"is damaged"),
    "tensor missing": ({"tensors": {"limit": None}}, r"is damaged.*limit"),
    "tensor too many": ({"tensors": {"extra": torch.zeros(1)}}, r"is damaged.*extra"),
    "weights of other kinds": ({"tensors": {"weights": torch.zeros(2, 1)}}, r"is damaged"),
    "weights of other classes": ({"tensors": {"weights": torch.zeros(3, 5)}}, r"is damaged"),
    "weights that are not numbers": (
        {"tensors": {"weights": torch.full((3, 1), math.nan)}},
        r"is damaged.*its numbers must be finite",
    ),
    "unknown calibrator": ({"about": {"calibrator": "Oracle"}}, r"is damaged: KeyError 'Oracle'"),
    "unknown method": ({"about": {"method": "oracle"}}, r"is damaged.*unknown method 'oracle'"),
    "unknown setting": ({"about": {"settings": {"power": 3}}}, r"is damaged.*no setting 'power'"),
    "no classes": ({"about": {"classes": 0}}, r"is damaged"),
    "classes that are no number": ({"about": {"classes": "many"}}, r"is damaged"),
    "options that are none": ({"about": {"options": None}}, r"is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_edited_file_is_refused_with_a_sentence(damage, tmp_path):
    change, sentence = DAMAGE[damage]
    change = dict(change)
    text = change.pop("about_text", None)
    good = VATTA().fit(*toy(20)).save(tmp_path / "good.safetensors")
    bad = edit(good, tmp_path / "bad.safetensors", **change)
    if text is not None:
        save_file(
            load_file(good), bad, {"format": base.FORMAT, "format_version": "1", "about": text}
        )
    with pytest.raises(InputError, match=r"bad\.safetensors " + sentence):
        load(bad)


def test_a_dirichlet_from_before_its_rein_says_that_it_had_none(tmp_path):
    fitted = Dirichlet(grid=[(1.0, 1.0)], diagonal=0.0).fit(*toy(20))
    settings = {"grid": [[1.0, 1.0]], "folds": 5, "seed": 0}
    old = edit(
        fitted.save(tmp_path / "c.safetensors"),
        tmp_path / "old.safetensors",
        about={"settings": settings},
    )
    assert load(old).method == fitted.method


def test_every_flipped_bit_of_a_calibrator_is_noticed(tmp_path):
    path = VATTA().fit(*toy(20)).save(tmp_path / "c.safetensors")
    notices_flipped_bits(path, load)


def test_truncated_foreign_and_missing_files_are_refused_with_a_sentence(tmp_path):
    good = VATTA().fit(*toy(20)).save(tmp_path / "good.safetensors")
    short, record, text = (
        tmp_path / name for name in ("short.safetensors", "record.safetensors", "text.safetensors")
    )
    short.write_bytes(good.read_bytes()[:-3])
    atta.Record(toy(3)[0]).save(record)
    text.write_text("not tensors")
    for path, sentence in (
        (short, "is not a whole safetensors file"),
        (text, "is not a whole safetensors file"),
        (record, "is not a calibrator: expected format 'atta.calibrator', got None"),
        (tmp_path / "none", "there is no file"),
        (tmp_path, "expected a file, got the folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            load(path)


def test_nothing_in_the_calibrators_can_run_code_from_a_file():
    files = [
        Path(atta.__file__).parent / "record" / "predictions.py",
        *Path(calibrators.__file__).parent.glob("*.py"),
    ]
    assert len(files) >= 5
    for path in files:
        assert not re.search(r"pickle|torch\.(load|save)\b|\beval\(|\bexec\(", path.read_text()), (
            path
        )
