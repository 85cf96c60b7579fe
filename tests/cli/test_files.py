"""`atta check`: what a file is, and whether it is whole."""

import zipfile
from io import BytesIO

import torch
from safetensors.torch import save_file

from atta import VATTA, Record, collect
from atta.lab.recipe import RunFolder
from atta.results.rows import Results
from scenarios import blend, command, linear, made_up, many, pixels, small_network

QUICK = {"policy": "flip", "progress": False, "checks": False}


def files(folder):
    """One of each kind, and what is said of it."""
    record = made_up(30)
    record.save(folder / "record.safetensors")
    VATTA().fit(record.predictions, record.require_labels()).save(folder / "calibrator.safetensors")
    blend(small_network()).save(folder / "classifier.safetensors")
    blend(linear()).save(folder / "classifier")
    Results(tuple(many(2))).save(folder / "results.json")
    blend(small_network(), "flip").export(folder / "graph.pt2")
    RunFolder(folder / "training", {}).finish(
        small_network(), {"architecture": {"name": "small_cnn"}}
    )
    collect(linear(), pixels(4), output=folder / "shards", **QUICK)
    (folder / "shards" / "record.json").unlink()
    return {
        "record.safetensors": "record (30 images, 5 classes; 1 flip, 3 crop, "
        "2 brightness, 2 contrast), whole",
        "calibrator.safetensors": "calibrator (v-atta, classes=5, "
        "views=flip+crop+brightness+contrast), whole",
        "classifier.safetensors": "classifier (v-atta, 3 classes, flip + 2 crop), whole",
        "classifier": "classifier (v-atta, 3 classes, flip + 2 crop), whole",
        "results.json": "results (6 rows), whole",
        "graph.pt2": "graph, .pt2 (not opened), whole",
        "training": "training (small_cnn, ",
        "shards": "unfinished record (1 shards), whole",
    }


def changed(whole):
    """Flip one bit of a file: of a zip in its largest part, because zips are padded."""
    place = len(whole) * 2 // 3
    if whole.startswith(b"PK"):
        with zipfile.ZipFile(BytesIO(whole)) as file:
            largest = max(file.infolist(), key=lambda part: part.compress_size)
        place = largest.header_offset + largest.compress_size * 2 // 3
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


def test_each_kind_of_file_is_known_and_a_damaged_one_found(tmp_path):
    said = files(tmp_path)
    result = command("check", *(str(tmp_path / name) for name in said))
    for line, (name, expected) in zip(result.output.splitlines(), said.items(), strict=True):
        assert line.startswith(f"{tmp_path / name}: {expected}")
    for name in said:
        path = tmp_path / name
        inside = (
            max(path.glob("*.safetensors"), key=lambda file: file.stat().st_size)
            if path.is_dir()
            else path
        )
        whole = inside.read_bytes()
        for damaged in (changed(whole), whole[: len(whole) * 2 // 3], b""):
            inside.write_bytes(damaged)
            result = command("check", str(path), ok=False)
            assert result.exit_code == 1, (name, result.output)
            assert result.exception.__class__ is SystemExit
            assert result.output.startswith(f"{path}: ")
            assert "whole\n" not in result.output
        inside.write_bytes(whole)


def test_a_record_that_says_which_atta_made_it_is_a_record(tmp_path):
    record = made_up(30)
    record = Record(
        record.predictions, record.labels, origin={"atta": "0.1.0", "model": "small_cnn"}
    )
    path = record.save(tmp_path / "record.safetensors")
    assert command("check", str(path)).output.startswith(f"{path}: record (30 images")


def test_what_is_none_of_them_and_what_cannot_be_told_is_said(tmp_path):
    save_file(dict(linear().state_dict()), tmp_path / "weights.safetensors")
    save_file({"logits": torch.ones(3, 2)}, tmp_path / "old.safetensors")
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    (tmp_path / "notes.txt").write_text("[notes]")
    (tmp_path / "empty").mkdir()
    for name, sentence in {
        "weights.safetensors": "record, is not a record: expected tensors logits",
        "pickle.pt": "nothing that atta writes, an archive that may hold pickles",
        "notes.txt": "nothing that atta writes, it begins with b'[notes]'",
        "empty": "nothing that atta writes, without classifier.json",
        "nowhere": "nothing that atta writes, there is no file or folder",
        "x" * 300: "nothing that atta writes, expected the name of a file, got",
    }.items():
        result = command("check", str(tmp_path / name), ok=False)
        assert result.exit_code == 1
        assert f"{tmp_path / name}: {sentence}" in result.output
    assert (
        "record (3 images, 2 classes; no views), readable; it has no checksum"
        in command("check", str(tmp_path / "old.safetensors")).output
    )


def test_records_are_listed_with_what_they_are_of_and_where_they_came_from(tmp_path, monkeypatch):
    made_up(30).save(tmp_path / "mine.safetensors")
    listed = command("records").output
    assert all(
        word in listed
        for word in (
            "cifar10-resnet50-shift",
            "CIFAR-10*",
            "resnet50, cifar100",
            "cifar100",
            "UC-Merced",
        )
    )
    assert all(len(line) <= 80 for line in listed.splitlines() if not line.startswith("in "))
    mine = command("records", "--folder", str(tmp_path)).output
    assert "mine  made up      30        5       9" in mine
    assert f"in {tmp_path}" in mine
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    mine = command("records", "--folder", str(tmp_path)).output
    assert "torn.safetensors is not a whole safetensors file" in " ".join(mine.split())
    assert "mine  made up" in mine
    origin = {"dataset": "made up, too"}
    collect(linear(), pixels(8), output=tmp_path / "large", origin=origin, **QUICK)
    assert (
        "large  made up, too       8        3       2"
        in command("records", "--folder", str(tmp_path)).output
    )
    known = command("records", "cifar10-resnet50-ood").output
    assert all(word in known for word in ("training_seed", "aid32", "recipe"))
    assert "cifar10-resnet50-shift" not in known
    refused = str(command("records", "cifar10-resnet50-odd", ok=False).exception)
    assert (
        "there is no record 'cifar10-resnet50-odd'. Did you mean 'cifar10-resnet50-ood'?" in refused
    )
    assert "--folder: there is no folder" in str(
        command("records", "--folder", str(tmp_path / "no"), ok=False).exception
    )
