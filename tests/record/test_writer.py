"""A folder of shards, from which a killed run goes on to the same bits."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta import InputError, Record, RecordWriter
from atta._base import tensors
from atta.networks.adapters import NumpyModel
from atta.networks.resnet import small_cnn
from atta.record import writer as shards_module
from atta.record.store import FolderPredictions
from scenarios import LABELS, Angry, Items, Stream, made_up, run, same, small_network, twenty


@pytest.fixture
def eager(monkeypatch):
    """A shard after every batch."""
    monkeypatch.setattr(shards_module, "SECONDS", 0.0)


KILLED = """
import os, signal, sys, torch
from torch import nn
import atta
from atta.record import writer as shards
from atta.networks.resnet import small_cnn

shards.SECONDS = 0.0


class Angry(nn.Module):
    calls = 0

    def forward(self, answer):
        Angry.calls += 1
        if Angry.calls == 15:  # in the middle of the fourth batch
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


torch.manual_seed(0)
model, images = nn.Sequential(small_cnn(3), Angry()), torch.load(sys.argv[1] + "/images.pt")
settings = {"policy": "flip + 2 crop", "batch_size": 8, "progress": False}
for output in sys.argv[2:]:
    child = os.fork()  # torch is imported once
    if not child:
        atta.collect(model, images, **settings, output=output)
    status = os.waitpid(child, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGKILL, status
"""


def shard_rows(folder):
    """The rows that the shards of a folder hold together, as stretches without a gap."""
    found = []
    for path in sorted(folder.glob(shards_module.SHARDS)):
        start, stop = map(int, path.stem.split("-"))
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def files_of(folder):
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")
    }


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_run_that_was_killed_resumes_and_its_file_is_the_same_to_the_last_bit(tmp_path):
    folder, file = tmp_path / "record", tmp_path / "record.safetensors"
    images, settings = twenty(50), {"policy": "flip + 2 crop", "batch_size": 8}
    torch.save(images, tmp_path / "images.pt")
    environment = os.environ | {
        "PYTHONPATH": str(Path(atta.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", KILLED, *map(str, (tmp_path, folder, file))]
    killed = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert killed.returncode == 0, killed.stderr
    whole, all_calls = calls(images, **settings)
    expected = whole.save(tmp_path / "whole.safetensors").read_bytes()
    beside = tmp_path / "record.safetensors.shards"
    assert not file.exists()
    for output, shards in ((folder, folder), (file, beside)):
        assert shard_rows(shards) == [(0, 24)], "three batches, and the fourth was lost"
        resumed, fewer_calls = calls(images, **settings, output=output)
        assert (all_calls, fewer_calls) == (25, 13)
        assert resumed.save(tmp_path / "resumed.safetensors").read_bytes() == expected
    assert file.read_bytes() == expected
    assert not beside.exists()
    calls(images, **settings, output=tmp_path / "undisturbed")
    assert files_of(folder) == files_of(tmp_path / "undisturbed"), "the same files as well"


def interrupted(images, at, **settings):
    with pytest.raises(KeyboardInterrupt):
        run(
            images, model=nn.Sequential(small_network(), Angry(at, KeyboardInterrupt())), **settings
        )


def calls(images, **settings):
    model = nn.Sequential(small_network(), Angry(0))
    record = run(images, model=model, **settings)
    return record, model[1].calls


@pytest.mark.parametrize(
    "images",
    [
        twenty,
        lambda: TensorDataset(twenty(), LABELS),
        lambda: DataLoader(TensorDataset(twenty(), LABELS), batch_size=6),
        lambda: Stream(twenty()),
    ],
)
def test_ctrl_c_keeps_what_was_done_whatever_the_images_come_from(tmp_path, images):
    whole, all_calls = calls(images(), batch_size=4)
    interrupted(images(), 16, batch_size=4, output=tmp_path)  # in the third batch of seven passes
    resumed, fewer_calls = calls(images(), batch_size=4, output=tmp_path)
    assert same(whole, resumed)
    assert (all_calls, fewer_calls) == (35, 21)
    again, no_calls = calls(images(), batch_size=4, output=tmp_path)
    assert same(whole, again)
    assert no_calls == 0


def test_a_full_disk_is_said_and_what_was_done_is_kept(tmp_path, monkeypatch, eager):
    save, writes = tensors.save_file, []

    def full(*arguments):
        writes.append(arguments)
        if len(writes) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full)
        with pytest.raises(
            InputError, match=r"no space left on device; the 8 images before it are kept, run again"
        ):
            calls(twenty(), batch_size=4, output=tmp_path)
    resumed, fewer_calls = calls(twenty(), batch_size=4, output=tmp_path)
    assert same(resumed, calls(twenty(), batch_size=4)[0])
    assert fewer_calls == 21


def test_a_full_shard_is_written_while_the_network_runs_on(tmp_path, monkeypatch):
    appended, write = Event(), shards_module.write_tensors

    def slow(*args, **kwargs):
        assert appended.wait(60), "the writer waits for the disk"
        return write(*args, **kwargs)

    monkeypatch.setattr(shards_module, "write_tensors", slow)
    writer = shards_module.ShardWriter(tmp_path, {}, {"": shards_module.PASSES // 8})
    writer.begin(8)
    answers = torch.rand(8, shards_module.PASSES // 8, 2)
    writer.append(0, answers, None, answers[:1], answers[-1:])  # a full shard
    appended.set()
    writer.flush()
    assert torch.equal(writer.read(writer.paths()[0])[0]["answers"], answers)


def test_an_image_that_cannot_be_read_leaves_what_was_done(folder, tmp_path):
    image = (folder / "c" / "17.png").read_bytes()
    (folder / "c" / "17.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"c/17\.png"):
        calls(folder, batch_size=4, shuffle=False, output=tmp_path / "shards")
    (folder / "c" / "17.png").write_bytes(image)
    assert calls(folder, batch_size=4, shuffle=False, output=tmp_path / "shards")[1] == 7


@pytest.mark.parametrize(
    ("images", "more", "sentence"),
    [
        (
            lambda: twenty(seed=1),
            {},
            "expected the images from image 0 of the images on to be those whose shards are in",
        ),
        (lambda: twenty().flip(0), {}, "got others; choose another folder"),
        (lambda: twenty().float() / 255, {}, "got others"),
        (lambda: twenty(21), {}, "their images is 20 and not 21"),
        (
            twenty,
            {"seed": 1},
            "their seed is 0 and not 1; choose another folder, or delete this one",
        ),
        (twenty, {"policy": "flip"}, "their policy is 'flip .* and not 'flip'"),
        (twenty, {"batch_size": 5}, "their batch_size is 4 and not 5"),
        (twenty, {"autocast": True}, "their autocast is 'None' and not 'torch.bfloat16'"),
        (twenty, {"model": small_cnn(3)}, "their model is "),
    ],
)
def test_shards_of_another_run_are_refused(tmp_path, images, more, sentence):
    interrupted(twenty(), 16, batch_size=4, output=tmp_path)
    settings = {
        "model": nn.Sequential(small_network(), Angry(0)),
        "batch_size": 4,
        "output": tmp_path,
    } | more
    with pytest.raises(InputError, match=sentence):
        run(images(), **settings)


def test_shards_whose_labels_were_found_by_other_names_are_refused(tmp_path):
    images = Items(twenty(), LABELS.tolist())
    images.classes = ["a", "b", "c"]
    run(images, class_names=("a", "b", "c"), output=tmp_path)
    with pytest.raises(
        InputError, match=r"their classes is \['a', 'b', 'c'\] and not \['c', 'b', 'a'\]"
    ):
        run(images, class_names=("c", "b", "a"), output=tmp_path)


def test_a_folder_of_other_things_is_not_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(
        InputError, match=r"expected an empty folder, or one of shards, found thesis\.tex"
    ):
        run(twenty(), output=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        *(f'{{"batch": {size}, "rows": 8}}' for size in ("0", "-1", "0.5", "Infinity", "[8]")),
        '{"batch": 8, "rows": 1e400}',
    ],
)
def test_a_broken_description_is_said(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match="to describe a run, but it cannot be read"):
        run(twenty(), output=tmp_path)


@pytest.mark.parametrize("name", ["0abc-1x", "1-2-3", "0-5"])
def test_files_that_are_not_named_like_shards_are_left_alone(tmp_path, name):
    whole, other = run(twenty(), output=tmp_path), tmp_path / f"{name}.safetensors"
    other.touch()
    assert same(run(twenty(), output=tmp_path), whole)
    assert other.exists()


def test_other_models_than_torch_s_are_recognised_by_what_can_be_known(tmp_path):
    model = NumpyModel(lambda images: images.mean(axis=(2, 3)))
    assert same(
        run(twenty(), model=model, output=tmp_path), run(twenty(), model=model, output=tmp_path)
    )


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path):
    said = []

    class Twinned(nn.Module):
        def forward(self, answer):
            if not said:
                with pytest.raises(InputError) as refused:
                    run(twenty(), output=tmp_path / "shards")
                said.append(str(refused.value))
            return answer

    record = run(
        twenty(), model=nn.Sequential(small_network(), Twinned()), output=tmp_path / "shards"
    )
    assert same(record, run(twenty(), model=small_network()))
    assert said[0].startswith(f"another run is writing {tmp_path / 'shards' / 'run.json'}")


def test_a_run_whose_folder_is_removed_goes_on_and_so_does_the_next(tmp_path, eager):
    class Removes(nn.Module):
        calls = 0

        def forward(self, answer):
            self.calls += 1
            if self.calls == 16:  # in the third batch
                shutil.rmtree(tmp_path / "shards")
            if self.calls == 30:
                raise KeyboardInterrupt
            return answer

    whole, _ = calls(twenty(), batch_size=4)
    settings = {"batch_size": 4, "output": tmp_path / "shards"}
    with pytest.raises(KeyboardInterrupt):
        run(twenty(), model=nn.Sequential(small_network(), Removes()), **settings)
    model = nn.Sequential(small_network(), Removes())
    model[1].calls = 100
    assert same(whole, run(twenty(), model=model, **settings))


def test_a_run_that_failed_before_it_had_something_to_keep_does_not_stand_in_the_way_of_another(
    tmp_path,
):
    angry = nn.Sequential(small_network(), Angry(1))
    with pytest.raises(InputError, match="the model"):
        run(twenty(), model=angry, output=tmp_path / "out.safetensors")
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    with pytest.raises(InputError, match="the model"):
        run(twenty(), model=nn.Sequential(small_network(), Angry(1)), output=tmp_path)
    assert len(run(twenty(), seed=1, output=tmp_path)) == 20


def test_shards_that_were_kept_stay_where_the_run_fails(tmp_path, eager):
    angry, file = nn.Sequential(small_network(), Angry(16)), tmp_path / "out.safetensors"
    with pytest.raises(InputError, match="no more"):
        run(twenty(), model=angry, batch_size=4, output=file)
    kept = (tmp_path / "out.safetensors.shards").glob(shards_module.SHARDS)
    assert [path.stem for path in kept] == ["0000000000-0000000008"]
    assert not file.exists()


@pytest.mark.parametrize("name", ["out.safetensors", "out.shards.safetensors"])
def test_a_file_is_resumed_from_the_shards_that_lie_next_to_it_while_it_is_recorded(tmp_path, name):
    file, settings = tmp_path / name, {"batch_size": 4}
    whole, all_calls = calls(twenty(), **settings)
    interrupted(twenty(), 16, **settings, output=file)
    assert not file.exists()
    assert shard_rows(tmp_path / f"{name}.shards") == [(0, 8)]
    resumed, fewer_calls = calls(twenty(), **settings, output=file)
    assert (all_calls, fewer_calls) == (35, 21)
    assert same(whole, resumed)
    assert same(whole, Record.load(file))
    assert [path.name for path in tmp_path.iterdir()] == [name], "no shards and no lock are left"
    assert not isinstance(resumed.predictions, FolderPredictions)
    assert file.read_bytes() == whole.save(tmp_path / "whole").read_bytes()


# ---- records of one's own logits


def appended(folder, record, sizes, **settings):
    """Write a record in pieces of these sizes, and read it."""
    with RecordWriter(folder, **settings) as writer:
        start = 0
        for size in sizes:
            part = record[start : start + size]
            writer.append(part.predictions.logits, part.predictions.views, part.labels)
            start += size
            assert writer.images == start
    return Record.load(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_logits_appended_in_uneven_pieces_become_one_record_of_several_shards(
    tmp_path, monkeypatch, dtype
):
    record = made_up(300)
    monkeypatch.setattr(shards_module, "PASSES", 64 * record.predictions.passes)
    found = appended(tmp_path / "a", record, (1, 7, 200, 64, 28), dtype=dtype, origin={"by": "me"})
    assert shard_rows(tmp_path / "a") == [(0, 300)]
    assert len(list((tmp_path / "a").glob(shards_module.SHARDS))) == 5
    kept = record if dtype == "float32" else Record(record.predictions.to(torch.float16))
    for one, other in zip(
        (found.predictions.logits, *found.predictions.views.values()),
        (kept.predictions.logits, *kept.predictions.views.values()),
        strict=True,
    ):
        assert torch.equal(one.float(), other.float())
    assert torch.equal(found.labels, record.labels)
    assert found.origin == {"by": "me"}
    appended(tmp_path / "b", record, (300,), dtype=dtype, origin={"by": "me"})
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b"), "however it was cut"
    if dtype == "float16":
        sizes = [
            sum(path.stat().st_size for path in folder.glob(shards_module.SHARDS))
            for folder in (tmp_path / "a", tmp_path / "c")
            if folder.exists() or appended(folder, record, (300,))
        ]
        assert sizes[0] < 0.6 * sizes[1]


def test_a_record_without_views_and_labels_is_written_as_well(tmp_path):
    logits = torch.randn(9, 4)
    with RecordWriter(tmp_path / "record") as writer:
        writer.append(logits[:5].numpy())
        writer.append(logits[5:].tolist())
    found = Record.load(tmp_path / "record")
    assert torch.equal(found.predictions.logits, logits)
    assert (found.labels, found.predictions.kinds) == (None, ())


@pytest.mark.parametrize(
    ("logits", "views", "labels", "sentence"),
    [
        ((4, 5), {}, [0] * 4, "expected logits as before, .*flip.*got"),
        ((4, 5), {"flip": 1, "crop": 3}, [0] * 4, "expected logits as before, .*flip.*got"),
        ((4, 5), {"crop": 2, "flip": 1}, [0] * 4, "expected logits as before, .*flip.*got"),
        (
            (4, 6),
            {"flip": 1, "crop": 2},
            [0] * 4,
            "expected logits as before, .*'classes': 5.*got .*'classes': 6",
        ),
        ((4, 5), {"flip": 1, "crop": 2}, None, "expected labels with every append or with none"),
        ((4, 5), {"flip": 1, "crop": 2}, [0] * 3, "expected 4 labels, one for each image, got 3"),
        ((4, 5), {"flip": 1, "crop": 2}, [5] * 4, "labels must lie in 0 … 4, got 5"),
        ((0, 5), {"flip": 1, "crop": 2}, [], "must hold at least one image"),
    ],
)
def test_what_does_not_fit_to_what_was_appended_is_refused_and_the_rest_is_kept(
    tmp_path, logits, views, labels, sentence
):
    writer = RecordWriter(tmp_path / "record")
    first = torch.randn(3, 5)
    writer.append(first, {"flip": torch.randn(3, 1, 5), "crop": torch.randn(3, 2, 5)}, [0, 1, 2])
    n, k = logits
    with pytest.raises(InputError, match=sentence):
        writer.append(
            torch.randn(n, k), {kind: torch.randn(n, r, k) for kind, r in views.items()}, labels
        )
    record = writer.close()
    assert torch.equal(record.predictions.logits, first)
    assert record.labels.tolist() == [0, 1, 2]


def test_labels_that_come_later_are_refused(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    writer.append(torch.randn(3, 5))
    with pytest.raises(InputError, match="expected labels with every append or with none"):
        writer.append(torch.randn(3, 5), labels=[0, 1, 2])


def test_a_writer_takes_a_folder_of_its_own(tmp_path):
    with pytest.raises(InputError, match=r"expected at least one image for .*, got none"):
        RecordWriter(tmp_path / "none").close()
    assert not list(tmp_path.iterdir())
    appended(tmp_path / "record", made_up(10), (10,))
    before = files_of(tmp_path / "record")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    for name, sentence in (
        ("record", "expected an empty folder, found shards in"),
        ("thesis", r"expected an empty folder, or one of shards, found thesis\.tex"),
    ):
        writer = RecordWriter(tmp_path / name)
        for _ in range(2):  # also the second time
            with pytest.raises(InputError, match=sentence):
                writer.append(torch.randn(3, 5))
    assert files_of(tmp_path / "record") == before
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


def test_logits_that_float16_cannot_hold_are_refused_before_they_are_written(tmp_path):
    writer = RecordWriter(tmp_path / "record", dtype="float16")
    with pytest.raises(InputError, match="float16 holds logits up to 65504, got larger ones"):
        writer.append(torch.full((2, 3), 70000.0))
    writer.append(torch.full((2, 3), 65504.0))
    assert len(writer.close()) == 2


def broken(writer):
    with writer:
        writer.append(torch.randn(3, 5))
        writer.append(torch.full((3, 5), torch.nan))


def test_an_error_in_the_block_leaves_a_folder_that_no_one_takes_for_a_record(tmp_path):
    with pytest.raises(InputError, match="must be finite"):
        broken(RecordWriter(tmp_path / "record"))
    with pytest.raises(InputError, match="its recording has not ended"):
        Record.load(tmp_path / "record")
