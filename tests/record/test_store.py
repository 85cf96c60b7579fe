"""Records in folders: the numbers of one file, read when needed, and faults named by their shard."""

import functools
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch

import atta
from atta import InputError, Record
from atta._base import tensors as tensors_module
from atta._base.files import digest
from atta.calibrators import atta as blends
from atta.calibrators import base, fitting, scaling
from atta.classifier.check import check
from atta.lab.fits import fingerprint
from atta.record import writer as shards_module
from atta.record.store import FolderPredictions, Store
from scenarios import command, linear, mostly_right, pixels, same, toy

SETTINGS = {"policy": "flip + 2 crop", "batch_size": 8, "progress": False, "checks": False}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """A shard of every batch."""
    monkeypatch.setattr(shards_module, "PASSES", 1)


@pytest.fixture
def network():
    return linear()


@pytest.fixture
def made(network, tmp_path):
    """A record in memory, and the same in a folder of eight shards."""
    images = pixels(60)
    labels = mostly_right(network)
    kept = atta.collect(network, images, labels, **SETTINGS)
    return (
        kept,
        atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "record"),
        (network, images, labels),
    )


def shards_of(record: Record) -> list[Path]:
    assert isinstance(record.predictions, FolderPredictions)
    return sorted(record.predictions.store.folder.glob("0*.safetensors"))


def test_a_folder_holds_the_record_of_one_file_bit_for_bit(made, tmp_path):
    kept, folder, _ = made
    assert isinstance(folder.predictions, FolderPredictions)
    assert len(shards_of(folder)) == 8
    for found in (folder, Record.load(tmp_path / "record"), atta.find_record(tmp_path / "record")):
        assert same(kept, found)
        assert found.origin == kept.origin
        assert repr(found) == repr(kept)
    folder.save(tmp_path / "one.safetensors")
    assert same(kept, Record.load(tmp_path / "one.safetensors"))
    assert fingerprint(folder) == fingerprint(kept)


@pytest.mark.parametrize(
    "rows",
    [
        slice(3, 30),
        slice(8, 16),
        slice(0, 60, 7),
        slice(59, 2, -3),
        [31, 2, 2, 59],
        [5],
        torch.arange(7, 41),
    ],
)
def test_rows_of_a_folder_are_rows_of_the_record(made, rows):
    kept, folder, _ = made
    assert same(kept[rows], folder[rows])
    assert same(kept[rows][:1], folder[rows][:1])
    assert same(kept[5:50][[0, 44, 3]], folder[5:50][[0, 44, 3]])


def test_kinds_and_repeats_are_chosen_without_reading(made, monkeypatch):
    kept, folder, _ = made
    opened = []
    answers = Store.answers
    monkeypatch.setattr(
        Store,
        "answers",
        lambda self, group, part: opened.append(part.file) or answers(self, group, part),
    )
    fresh = Record.load(folder.predictions.store.folder).predictions
    chosen = fresh[20:30].take({"crop": 1})
    assert (len(chosen), chosen.kinds, chosen.repeats, chosen.passes) == (
        10,
        ("crop",),
        {"crop": 1},
        2,
    )
    assert (fresh.select(["crop"]).kinds, fresh.select(fresh.kinds, rehearsals=False).kinds) == (
        ("crop",),
        ("flip", "crop"),
    )
    assert not opened, "opening and choosing read the index alone"
    assert torch.equal(
        chosen.views["crop"], kept.predictions.take({"crop": 1}).views["crop"][20:30]
    )
    # The type checker of the tests reads an item of the views, too.
    assert set(opened) == {path.name for path in shards_of(folder)[2:4]}, (
        "and only the shards with these rows are read"
    )
    with pytest.raises(InputError, match="expected predictions with 3 crop views an image, got 2"):
        fresh.take({"crop": 3})
    with pytest.raises(KeyError):
        fresh.views["shear"]


def test_what_learns_nothing_reads_no_more_than_the_first_rows(made, monkeypatch):
    _, folder, _ = made
    monkeypatch.setattr(base, "EXAMINED_IMAGES", 8)
    opened, answers = set(), Store.answers
    monkeypatch.setattr(
        Store,
        "answers",
        lambda self, group, part: opened.add(part.file) or answers(self, group, part),
    )
    for method in (atta.Vanilla(), atta.MeanTTA()):
        method.fit(Record.load(folder.predictions.store.folder).predictions, folder.labels)
    assert opened == {shards_of(folder)[0].name}


@pytest.mark.parametrize(
    "method",
    ["temperature", "v-atta", "c-atta", "selective-v-atta", "m-atta", "isotonic", "mean-tta"],
)
def test_methods_learn_and_answer_the_same_from_a_folder(made, method):
    kept, folder, _ = made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            atta.find_method(method).fit(one.predictions, one.labels) for one in (kept, folder)
        ]
    for ours, theirs in zip(
        found[0].state_dict().values(), found[1].state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert torch.equal(found[0](kept.predictions), found[0](folder.predictions))
    assert torch.equal(found[0].passes(kept.predictions), found[0].passes(folder.predictions))


@pytest.mark.parametrize("method", ["temperature", "c-atta", "selective-v-atta", "v-atta"])
def test_more_images_than_memory_should_hold_are_fitted_in_pieces_to_the_same_numbers(
    method, tmp_path, monkeypatch
):
    predictions, labels = toy(600, k=5, seed=3, confidence=3.0, signal=1.0)
    passes = 1 + sum(predictions.counts.values())
    monkeypatch.setattr(shards_module, "PASSES", 130 * passes)
    with atta.RecordWriter(tmp_path) as writer:
        writer.append(predictions.logits, predictions.views, labels)
    folder = Record.load(tmp_path)
    assert len(shards_of(folder)) == 5
    whole = atta.find_method(method).fit(predictions, labels)

    sizes: list[int] = []
    chunks = FolderPredictions.chunks
    monkeypatch.setattr(
        FolderPredictions,
        "chunks",
        lambda self, rows: sizes.append(min(rows, len(self))) or chunks(self, rows),
    )
    sizes_of_fits = {"PIECE": 625, "KEPT": 3000, "SAMPLE": 2500}
    for name, value in sizes_of_fits.items():
        monkeypatch.setattr(fitting, f"{name}_LOGITS", value)
    monkeypatch.setattr(base, "CHUNK_LOGITS", 250)
    monkeypatch.setattr(blends, "EXACT_LOGITS", 2000)
    monkeypatch.setattr(scaling, "PIECE_LOGITS", 250)
    in_pieces, from_folder = (
        atta.find_method(method).fit(one.predictions, one.labels)
        for one in (Record(predictions, labels), folder)
    )
    assert max(sizes) <= 2500 // (5 * 4), "no more rows at once than a fit begins with"
    close = (
        1e-6 if method != "v-atta" else 0.1
    )  # whose loss has kinks, and several points as low as one another
    for one, other, third in zip(
        *(c.state_dict().values() for c in (whole, in_pieces, from_folder)), strict=True
    ):
        assert torch.equal(other, third)
        torch.testing.assert_close(one, other, rtol=close, atol=close)
    nll = [atta.METRICS["nll"](one(predictions), labels) for one in (whole, in_pieces)]
    assert nll[1] == pytest.approx(nll[0], abs=1e-6 if method != "v-atta" else 1e-3)


def cut(path: Path, others: list[Path], foreign: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def missing(path: Path, others: list[Path], foreign: Path) -> None:
    path.unlink()


def moved(path: Path, others: list[Path], foreign: Path) -> None:
    shutil.copy(others[0], path)


def strange(path: Path, others: list[Path], foreign: Path) -> None:
    shutil.copy(foreign / path.name, path)


def flipped(path: Path, others: list[Path], foreign: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(bytes(content))


FAULTS = {
    cut: "is not a whole safetensors file .*; the same collect records images 16 to 23 again",
    missing: "; the same collect records images 16 to 23 again",
    moved: "holds the rows 0000000000-0000000008 instead",
    strange: "was recorded by another run: another network, other views or draws",
    flipped: "was changed after it was saved, or is damaged",
}


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_a_shard_that_is_not_as_it_was_is_named_found_by_a_check_and_mended(made, damage, tmp_path):
    kept, folder, (network, images, labels) = made
    other = linear(scale=3.0)
    atta.collect(other, images, labels, **SETTINGS, output=tmp_path / "other")
    files = shards_of(folder)
    before = {path.name: path.read_bytes() for path in files}
    damage(files[2], files, tmp_path / "other")

    fresh = Record.load(tmp_path / "record")
    assert torch.equal(fresh[:16].predictions.logits, kept[:16].predictions.logits), (
        "the other shards are as good as before"
    )
    with pytest.raises(InputError, match=f"0000000016-0000000024.safetensors ?{FAULTS[damage]}"):
        _ = fresh.predictions.logits
    found = check(tmp_path / "record")
    assert not found.whole
    assert re.search(f"0000000016-0000000024.safetensors ?{FAULTS[damage]}", str(found))

    told = (
        pytest.warns(atta.Advice, match="it is recorded again")
        if damage is not missing
        else warnings.catch_warnings()
    )
    with told:
        mended = atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "record")
    assert same(kept, mended)
    assert {path.name: path.read_bytes() for path in shards_of(mended)} == before
    assert check(tmp_path / "record").whole


def test_only_what_is_missing_is_run_again(made, tmp_path):
    _, folder, (network, images, labels) = made
    shards_of(folder)[3].unlink()
    shown: list[int] = []
    network.register_forward_hook(lambda module, inputs, logits: shown.append(len(logits)))
    atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "record")
    assert sum(shown) == 8 * 4
    before = {path: path.stat().st_mtime_ns for path in shards_of(folder)}
    atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "record")
    assert {path: path.stat().st_mtime_ns for path in shards_of(folder)} == before


def test_a_run_that_was_stopped_goes_on_and_its_folder_is_that_of_an_undisturbed_one(
    made, tmp_path
):
    kept, folder, (network, images, labels) = made
    before = {path.name: path.read_bytes() for path in shards_of(folder)}
    shown = []

    def stop(module, inputs, logits):
        shown.append(len(logits))
        if len(shown) == 15:  # in the middle of the fourth batch
            raise KeyboardInterrupt

    hook = network.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "again")
    hook.remove()
    with pytest.raises(
        InputError, match="its recording has not ended; the same collect resumes it"
    ):
        Record.load(tmp_path / "again")
    found = atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "again")
    assert same(kept, found)
    assert {path.name: path.read_bytes() for path in shards_of(found)} == before


@pytest.mark.parametrize(
    "seconds", [0.0, 10.0], ids=["written now and then", "written on the way out"]
)
def test_a_shard_that_was_not_full_goes_on_and_ends_where_it_would_have(
    network, tmp_path, monkeypatch, seconds
):
    monkeypatch.setattr(shards_module, "PASSES", 4 * 8 * 3)
    monkeypatch.setattr(shards_module, "SECONDS", seconds)
    images, labels = pixels(60), torch.arange(60) % 3
    atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "whole")
    shown = []

    def stop(module, inputs, logits):
        shown.append(len(logits))
        if len(shown) in (
            7,
            30,
        ):  # in the second batch of the first shard, then in one of the second
            raise KeyboardInterrupt

    hook = network.register_forward_hook(stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "again")
    (tmp_path / "again" / "0000000000-0000000008.safetensors").write_bytes(
        b"what a kill left of the first shard"
    )
    hook.remove()
    atta.collect(network, images, labels, **SETTINGS, output=tmp_path / "again")
    whole, again = (
        {path.name: path.read_bytes() for path in (tmp_path / n).glob("*.s*")}
        for n in ("whole", "again")
    )
    assert whole == again
    assert len([name for name in whole if name.startswith("0")]) == 3
    assert sum(shown) <= 4 * 60 + 2 * 4 * 8, "no more than the batches that were stopped ran twice"


def test_another_network_and_other_images_do_not_write_over_a_record(made, tmp_path):
    kept, _, (network, images, labels) = made
    with pytest.raises(
        InputError, match=r"expected .* to hold shards of this run, but their model is"
    ):
        atta.collect(linear(scale=2.0), images, labels, **SETTINGS, output=tmp_path / "record")
    with pytest.raises(
        InputError, match=r"expected the images from .* on to be those whose shards are in"
    ):
        atta.collect(network, pixels(60, seed=9), labels, **SETTINGS, output=tmp_path / "record")
    assert same(kept, Record.load(tmp_path / "record"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda index: index.pop("groups"), "was changed after it was saved, or is damaged"),
        (lambda index: index.update(version=99), "has version 99, this atta reads up to 1"),
        (lambda index: index.clear(), "is damaged: it is not an index"),
    ],
)
def test_an_index_that_was_changed_is_refused(made, tmp_path, change, sentence):
    path = tmp_path / "record" / "record.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match=sentence):
        Record.load(tmp_path / "record")
    assert not check(tmp_path / "record").whole


def places(value, path=()):
    """Yield the path of every value inside of JSON."""
    yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from places(inside, (*path, key))


def forged(index: dict, path: tuple, value: object) -> str:
    """Put a value into an index, or remove the one that is there, and seal it again."""
    index = json.loads(json.dumps(index))
    *outer, last = path
    inside = functools.reduce(lambda part, key: part[key], outer, index)
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    return json.dumps(index | {"digest": digest(index)})


GONE = object()
DEEP = functools.reduce(lambda inside, _: [inside], range(300), [])
EVIL = [GONE, None, True, -1, 3, 10**30, 0.5, float("nan"), float("inf"), "", "save", "nul\0",
        "\ud800", [[0, 1]], {"": [0, 2]}, DEEP]  # fmt: skip


def test_a_forged_index_is_refused_in_a_sentence_or_says_the_same(tmp_path):
    folder = tmp_path / "record"
    logits = torch.tensor([[0.5, 1.5, -2.0]])
    with atta.RecordWriter(folder, origin={"dataset": "toy"}) as writer:
        writer.append(logits, {"flip": logits[:, None] * 2}, [2])
    kept, path = Record.load(folder), folder / "record.json"
    index = json.loads(path.read_text())
    del index["digest"]
    expected = kept.predictions.to("cpu")
    sentences = []
    for place in list(places(index))[1:]:
        for value in EVIL:
            path.write_text(forged(index, place, value))
            try:
                found = Record.load(folder)
                numbers = found.predictions.to("cpu")
            except InputError as error:
                sentences.append(str(error))
                continue
            assert torch.equal(numbers.logits, expected.logits), (place, value)
            assert list(numbers.views) == list(expected.views), (place, value)
            assert all(map(torch.equal, numbers.views.values(), expected.views.values()))
            assert place[0] in ("labelled", "origin") or found.labels.tolist() == [2]
    assert len(sentences) > 200
    assert all(map(str.isprintable, sentences))


@pytest.mark.parametrize("how", ["above", "absolute", "link"])
def test_files_outside_of_the_folder_of_a_record_are_not_read(made, tmp_path, how):
    _, folder, _ = made
    path, shard = tmp_path / "record" / "record.json", shards_of(folder)[0]
    outside = tmp_path / shard.name
    shutil.move(shard, outside)
    index = json.loads(path.read_text())
    del index["digest"]
    names = {"above": f"../{shard.name}", "absolute": str(outside), "link": shard.name}
    if how == "link":
        shard.symlink_to(outside)
    path.write_text(forged(index, ("groups", 0, "parts", 0, "file"), names[how]))
    with pytest.raises(InputError, match="leads out of it: copy the file into the folder"):
        Record.load(tmp_path / "record").predictions.to("cpu")


def test_a_folder_without_an_index_is_said_to_be_unfinished(made, tmp_path):
    (tmp_path / "record" / "record.json").unlink()
    with pytest.raises(InputError, match=r"which has no record\.json: its recording has not ended"):
        Record.load(tmp_path / "record")


def test_logits_that_are_not_finite_are_found_when_their_shard_is_read(made, tmp_path):
    _, folder, _ = made
    path = shards_of(folder)[1]
    tensors, text = tensors_module.read_tensors(path)
    tensors["answers"] = tensors["answers"].clone()
    tensors["answers"][2, 1, 0] = torch.inf
    tensors_module.write_tensors(path, tensors, text)
    index = json.loads((tmp_path / "record" / "record.json").read_text())
    index["groups"][0]["parts"][1]["digest"] = tensors_module.read_header(path)[
        tensors_module.DIGEST
    ]
    index.pop("digest")
    (tmp_path / "record" / "record.json").write_text(
        json.dumps(index | {"digest": atta._base.files.digest(index)})
    )
    fresh = Record.load(tmp_path / "record")
    assert torch.isfinite(fresh.predictions[:8].logits).all()
    with pytest.raises(
        InputError, match=r"0000000008-0000000016\.safetensors must be finite, got inf in row 2"
    ):
        _ = fresh.predictions[10:11].logits


def test_labels_come_from_the_images_or_are_absent(network, tmp_path):
    images, labels = pixels(20), torch.arange(20) % 3
    pairs = torch.utils.data.TensorDataset(images, labels)
    record = atta.collect(network, pairs, **SETTINGS, output=tmp_path / "a")
    assert torch.equal(record.labels, labels)
    shards_of(record)[1].unlink()
    assert torch.equal(
        atta.collect(network, pairs, **SETTINGS, output=tmp_path / "a").labels, labels
    )
    assert atta.collect(network, images, **SETTINGS, output=tmp_path / "b").labels is None


def test_rehearsals_lie_in_shards_of_their_own(network, tmp_path):
    images, labels = pixels(40), torch.arange(40) % 3
    kept = atta.collect(network, images, labels, **SETTINGS, rehearse=True)
    folder = atta.collect(
        network, images, labels, **SETTINGS, rehearse=True, output=tmp_path / "record"
    )
    assert folder.predictions.rehearsals == kept.predictions.rehearsals
    assert folder.predictions.rehearsals
    assert same(kept, folder)
    assert check(tmp_path / "record").whole


def test_there_is_one_argument_for_where_a_record_lies(network, tmp_path):
    with pytest.raises(InputError, match=r"collect takes no 'shards'.*It takes: .*output"):
        atta.collect(network, pixels(8), **SETTINGS, shards=tmp_path / "b")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("few_resamples")
def test_the_commands_take_a_folder_as_they_take_a_file(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, _, _ = made
    kept.save("file.safetensors")
    for record in ("record", "file.safetensors"):
        command(
            "fit", record, "--method", "temperature", "-o", f"{Path(record).stem}-t.safetensors"
        )
        command(
            "evaluate",
            record,
            "--calibrator",
            f"{Path(record).stem}-t.safetensors",
            "--json",
            f"{Path(record).stem}.json",
        )
        arguments = (
            "--methods",
            "vanilla,mean-tta",
            "--validation",
            "30",
            "--json",
            f"{Path(record).stem}-c.json",
        )
        command("compare", record, *arguments, "--report", f"{Path(record).stem}.html")
        assert "whole" in command("check", record).output
    for kind in ("", "-c"):
        rows = [
            [row.value for row in atta.Results.load(f"{name}{kind}.json")]
            for name in ("record", "file")
        ]
        assert rows[0] == pytest.approx(rows[1], rel=1e-6, nan_ok=True)
