"""The attack itself, in little: a few attempts of each section that hold, and what is done with those that do not."""

import io
import os
import signal
from pathlib import Path

import pytest
import torch
from benchmarks.attack import (
    children,
    files,
    forged,
    inputs,
    known,
    page,
    rows,
    runner,
    serving,
    toys,
    writers,
)
from benchmarks.attack.tally import Attack, Effort, Tally, refusal
from PIL import Image

import atta
from atta._base.errors import InputError
from atta.lab.workers import machine

LITTLE = Effort(scale=0.0005)


def test_every_section_has_attacks_and_no_two_have_one_name() -> None:
    names = [attack.name for section in runner.SECTIONS for attack in runner.attacks(section)]
    assert len(names) == len(set(names)) > 20
    assert set(known.KNOWN) <= set(names)
    assert [attack.name for attack in runner.attacks("rows", "formula")] == ["class: formula"]


def test_the_class_is_kept_in_a_few_thousand_hard_rows() -> None:
    tally = Tally()
    rows.through_the_formula(tally, LITTLE)
    assert tally.tried > 1000
    assert not tally.failures


def test_a_class_that_changes_is_found() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert rows.changes(logits.softmax(1), logits) == 0
    assert rows.changes(logits.softmax(1).flip(1), logits) == 2
    assert rows.changes(logits * float("nan"), logits) == 2


def test_wrong_arrays_are_refused_and_odd_ones_answered_alike() -> None:
    tally, (some, _) = Tally(), toys.plain()
    for given in inputs.matrices(some.logits.numpy()):
        if given.name not in ("a tensor on no device", "a sparse tensor"):
            inputs.attempt(
                tally, "Predictions", given, atta.Predictions, some.logits.numpy().ravel()
            )
    assert tally.tried > 40
    assert not tally.failures


def test_any_other_error_and_any_answer_to_what_is_wrong_are_failures() -> None:
    def breaks(_: object) -> None:
        raise KeyError("inside")

    tally = Tally()
    inputs.attempt(tally, "f", inputs.Given("x", 1), breaks)
    inputs.attempt(tally, "f", inputs.Given("x", 1), float)
    inputs.attempt(
        tally, "f", inputs.Given("x", 2.0, "same"), torch.tensor, torch.tensor(1.0).numpy()
    )
    assert (tally.tried, tally.passed) == (3, 0)
    assert refusal(InputError("expected a number, got none")) == ""
    assert "lines" in refusal(InputError("one\n" * 50))
    assert "KeyError" in tally.failures[0]


def test_wrong_words_on_the_command_line_end_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    toys.record().save("record.safetensors")
    lines = (
        ["nope"],
        ["fit", "record.safetensors"],
        ["fit", "record.safetensors", "-o", "x", "--method", "nope"],
    )
    assert [inputs.typed(line) for line in lines] == [""] * 3
    assert len(list(inputs.command_lines())) > 400


def test_damage_to_a_classifier_is_noticed(tmp_path: Path) -> None:
    path = toys.classifier().save(tmp_path / "classifier.safetensors")
    whole, expected, tally = path.read_bytes(), files.known_by(files.read_classifier(path)), Tally()
    for what, content in files.damaged(whole, Effort(), "test", 3, 12):
        path.write_bytes(content)
        files.try_to_read(tally, what, path, files.read_classifier, expected)
    assert tally.tried > 15
    assert not tally.failures


def test_a_pickle_that_would_run_is_refused_by_every_loader(tmp_path: Path) -> None:
    sentinel = tmp_path / "it-ran"
    for kind, bomb in files.bombs(sentinel).items():
        for name, read in files.SEALED.items():
            path = toys.fresh(tmp_path / kind) / name
            path.write_bytes(bomb)
            assert forged.refused(lambda p=path, r=read: r(p), tmp_path / "log.txt") == ""
    assert not sentinel.exists()


def test_a_reader_that_crashes_takes_all_memory_or_reads_on_is_found(tmp_path: Path) -> None:
    def said(action: object) -> str:
        return forged.refused(action, tmp_path / "log.txt")  # type: ignore[arg-type]

    assert "signal 9" in said(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert "MemoryError" in said(lambda: bytes(forged.HUGE))
    assert said(lambda: 5) == "expected a refusal, it was read"


def test_forged_files_are_forged_and_images_are_slow(tmp_path: Path) -> None:
    assert len(dict(forged._cifar(tmp_path / "cifar"))) > 40
    assert len(dict(forged._indices(tmp_path))) > 40
    scans = serving.many_scans(64, 100)
    assert scans.count(b"\xff\xda") > 100
    assert Image.open(io.BytesIO(scans)).convert("RGB").size == (64, 64)


def test_the_log_of_a_stopped_prediction_is_damaged_and_noticed() -> None:
    tally = Tally()
    files.logs(tally, Effort(scale=0.05))
    assert tally.tried > 30
    assert not tally.failures


def test_children_are_killed_run_out_of_disk_and_report(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert children.answer(lambda: 2 + 2, log=log) == 4
    assert children.run(lambda: 1 / 0, log=log).code == children.CRASHED

    def write() -> None:
        children.little_disk(10)
        (tmp_path / "big").write_bytes(bytes(100))

    assert "OSError" in writers._piped(write, log).trouble
    child = children.Child(lambda: children.time.sleep(60), log=log)
    child.kill()
    assert child.wait().code == -9


def test_a_worker_writes_down_what_happened_and_the_page_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(tally: Tally, effort: Effort) -> None:
        tally.count(True, "")
        tally.count(False, "as expected")
        raise RuntimeError("broke off")

    monkeypatch.setattr(rows, "ATTACKS", (Attack("half", "nothing", half),))
    log = tmp_path / "log.jsonl"
    runner.work("rows", "", Effort(), 0, log)
    line = runner.json.loads(log.read_text().splitlines()[-1])
    outcome = runner.Outcome(
        "rows", "half", "nothing", **{**line, "failures": tuple(line["failures"])}
    )
    assert (outcome.tried, outcome.passed) == (3, 1)
    assert len(outcome.unknown) == 2
    monkeypatch.setitem(known.KNOWN, "half", {"as expected": "a reason.", "broke off": "another."})
    assert outcome.unknown == []
    text = page.page([outcome], seconds=60, command="the command")
    assert "| half | nothing | 3 | 1 | **2 failed** |" in text
    assert "Stays: a reason." in text
    assert f"on commit {machine()['commit']}" in text
