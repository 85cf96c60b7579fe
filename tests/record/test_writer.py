"""A folder of shards, from which a killed run goes on to the same bits."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta._base.errors import InputError
from atta.networks.adapters import NumpyModel
from atta.networks.resnet import small_cnn
from atta._base import tensors
from atta.record import writer as shards_module
from scenarios import LABELS, Angry, Items, Stream, run, same, small_network, twenty


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
atta.collect(model, images, policy="flip + 2 crop", batch_size=8, progress=False, output=sys.argv[1] + "/shards")
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_run_that_was_killed_goes_on_and_its_file_is_the_same_to_the_last_bit(tmp_path):
    images, settings = twenty(50), {"policy": "flip + 2 crop", "batch_size": 8}
    torch.save(images, tmp_path / "images.pt")
    environment = os.environ | {
        "PYTHONPATH": str(Path(atta.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 3
    resumed, fewer_calls = calls(images, **settings, output=tmp_path / "shards")
    whole, all_calls = calls(images, **settings)
    assert (all_calls, fewer_calls) == (25, 13)
    files = [
        record.save(tmp_path / name).read_bytes()
        for name, record in (("resumed", resumed), ("whole", whole))
    ]
    assert files[0] == files[1]


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


def test_a_broken_description_is_said(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="to describe a run, but it cannot be read"):
        run(twenty(), output=tmp_path)


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
