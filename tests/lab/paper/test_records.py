"""Every record of the paper is made from published data, and a stopped run resumes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets as hf
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from atta._base.errors import InputError
from atta.cli.app import commands
from atta.lab import recipe as trained_module
from atta.lab import training
from atta.lab.datasets import load
from atta.lab.paper.records import NETWORKS, RECORDINGS, UCMERCED_IN_AID, Making, make, obstacle
from atta.record import writer
from atta.record.predictions import Record
from atta.run import runner
from layouts_made import AID, CIFAR10, classic, flat, hub, labels, pickled, pixels, table

pytestmark = pytest.mark.xdist_group("recording")  # one worker makes what all of them look at

ROWS = {
    "cifar10": 14,
    "cifar10_nudged": 14,
    "cifar10_shift": 14,
    "cifar10_ood": 13,
    "cifar100": 14,
    "cifar100_nudged": 14,
    "aid": 18,
    "aid_shift": 20,
    "aid_ood": 9,
}
PASSES = {"cifar10_nudged": 20, "cifar100_nudged": 5}
CLASSES = {"cifar10": 10, "cifar100": 100, "aid": 30}


# ---- all of them, made once


MAKING = Making(
    model="small_cnn", steps=2, image_size=16, validation=5, device="cpu", progress=False
)


def settings(root: Path, out: Path) -> dict[str, Any]:
    return {
        "data": root,
        "records": out / "records",
        "networks": out / "networks",
        "making": MAKING,
    }


@pytest.fixture(autouse=True, scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No data of this machine's, and no hub."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"the hub was asked for {arguments}")

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTA_DATA", raising=False)
        patch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr("atta.lab.datasets.hub", refuse)
        patch.setattr("atta.lab.datasets.hub", refuse)
        yield


@pytest.fixture(scope="module", params=[classic, hub], ids=["classic", "hub"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[str]]:
    """The settings by which all records were made, and what was said."""
    root, said = tmp_path_factory.mktemp("data"), list[str]()
    request.param(root)
    chosen = settings(root, tmp_path_factory.mktemp("made"))
    for name in RECORDINGS:
        assert obstacle(name, root) is None
        assert make(name, say=said.append, **chosen) == chosen["records"] / f"{name}.safetensors"
    return chosen, said


def shuffled(images: int) -> torch.Tensor:
    """The order that `arrange` gives to images with seed 0."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(0))


def read(chosen: dict[str, Any], name: str) -> Record:
    return Record.load(chosen["records"] / f"{name}.safetensors")


def test_all_records_are_made(made):
    chosen, said = made
    assert sorted(path.name for path in chosen["records"].iterdir()) == sorted(
        f"{name}.safetensors" for name in ROWS
    )
    for name, rows in ROWS.items():
        record = read(chosen, name)
        policy = RECORDINGS[name].policy.replace(
            "aug8", "flip + 5 crop + 5 brightness + 5 contrast"
        )
        assert (len(record), record.predictions.passes) == (rows, PASSES.get(name, 17)), name
        assert record.predictions.classes == CLASSES[RECORDINGS[name].network]
        assert (record.labels is None) == name.endswith("_ood")
        assert record.origin["policy"] == policy
        assert record.origin["draws"] == RECORDINGS[name].draws
    assert [line for line in said if line.startswith("training")] == [
        "training small_cnn on 20 images of cifar10: 2 epochs",
        "training small_cnn on 20 images of cifar100: 2 epochs",
        "training small_cnn on 42 images of aid: 2 epochs",
    ]
    assert "recording 14 images x 17 passes: cifar10_shift" in said


def test_rows_are_the_test_images_in_one_shuffled_order(made):
    chosen, _ = made
    for name in CLASSES:
        images = load(name, "test", data=chosen["data"])
        order = shuffled(len(images))
        assert torch.equal(read(chosen, name).require_labels(), images.labels[order])


def test_the_shifted_images_are_the_same_in_the_same_order(made):
    plain, worse = (read(made[0], name) for name in ("cifar10", "cifar10_shift"))
    assert torch.equal(plain.require_labels(), worse.require_labels())
    assert not torch.equal(plain.predictions.logits, worse.predictions.logits)


def test_uc_merced_has_the_labels_of_aid(made):
    record = read(made[0], "aid_shift")
    counts = {
        AID[i]: n
        for i, n in enumerate(record.require_labels().bincount(minlength=30).tolist())
        if n
    }
    assert counts == dict.fromkeys(sorted(UCMERCED_IN_AID.values()), 2)


def test_the_strange_images_are_those_after_the_validation_images(made):
    chosen, _ = made
    for name, dataset, side in (("cifar10_ood", "aid", 32), ("aid_ood", "cifar10", 16)):
        network, _ = trained_module.load_trained(
            chosen["networks"] / RECORDINGS[name].network / "model.safetensors"
        )
        images = load(dataset, "test", data=chosen["data"], image_size=side)
        some = images.subset(shuffled(len(images))[5:]).tensors()
        with torch.no_grad():
            expected = network(some.float() / 255)
        torch.testing.assert_close(
            read(chosen, name).predictions.logits, expected, atol=1e-4, rtol=1e-4
        )


def test_the_origin_says_how_a_record_was_made(made):
    origins = {name: read(made[0], name).origin for name in RECORDINGS}
    for name, origin in origins.items():
        assert origin["trained_on"] == RECORDINGS[name].network
        assert (origin["model"], origin["shuffle"], origin["training_seed"]) == (
            "small_cnn",
            "0",
            "0",
        )
        assert ('"zoomed": 0.0' in origin["recipe"]) == (origin["trained_on"] != "aid")
        assert '"steps": 2' in origin["recipe"]
    assert [origins[name]["dataset"] for name in RECORDINGS] == [
        "cifar10",
        "cifar10",
        "cifar10*",
        "aid",
        "cifar100",
        "cifar100",
        "aid",
        "ucmerced",
        "cifar10",
    ]
    assert {name: origin.get("rows") for name, origin in origins.items() if "rows" in origin} == {
        "cifar10_ood": "5:",
        "aid_ood": "5:",
    }
    assert [name for name, origin in origins.items() if origin.get("shift") == "0"] == [
        "cifar10_shift"
    ]
    assert origins["aid_shift"]["split"] == "train"
    assert {origins[name]["image_shape"] for name in ("aid", "aid_shift", "aid_ood")} == {
        "3 x 16 x 16"
    }


@pytest.mark.parametrize(("name", "more"), [("cifar10", []), ("cifar10_shift", ["--shift", "0"])])
def test_the_command_collect_writes_the_same_file(made, tmp_path, name, more):
    chosen, _ = made
    network, output = str(chosen["networks"] / "cifar10"), tmp_path / "record.safetensors"
    arguments = [
        "collect",
        network,
        "cifar10",
        "--data",
        str(chosen["data"]),
        "--shuffle",
        "0",
        "-o",
        str(output),
    ]
    result = CliRunner().invoke(commands, arguments + more)
    assert result.exit_code == 0, result.output
    assert output.read_bytes() == (chosen["records"] / f"{name}.safetensors").read_bytes()
    assert list(tmp_path.iterdir()) == [output]


def test_a_second_call_does_nothing(made, monkeypatch):
    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("work was done again")

    for work in ("train", "collect", "load", "load_trained"):
        monkeypatch.setattr(f"atta.lab.paper.records.{work}", refuse)
    for name in RECORDINGS:
        path = made[0]["records"] / f"{name}.safetensors"
        before = path.stat()
        assert make(name, say=refuse, **made[0] | {"making": replace(MAKING, seed=5)}) == path
        assert path.stat() == before


# ---- what was stopped goes on


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classic")
    classic(folder)
    return folder


def stop_at(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, call: int) -> None:
    """Press Ctrl-C at the n-th call of a method, from now on."""
    whole, calls = getattr(owner, method), []

    def stopped(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return whole(*arguments, **settings)

    monkeypatch.setattr(owner, method, stopped)


def test_a_training_and_a_recording_that_were_stopped_end_with_the_same_bits(
    root, tmp_path, monkeypatch
):
    monkeypatch.setitem(runner.ROWS, "cpu", 4)
    monkeypatch.setattr(writer, "SECONDS", 0.0)
    whole, parts = settings(root, tmp_path / "whole"), settings(root, tmp_path / "parts")
    path = make("cifar10_shift", say=lambda line: None, **whole)
    said = list[str]()
    for owner, method, call in ((training._Run, "epoch", 2), (runner.Runner, "begin", 3)):
        with monkeypatch.context() as patch:
            stop_at(patch, owner, method, call)
            with pytest.raises(KeyboardInterrupt):
                make("cifar10_shift", say=said.append, **parts)
        assert not (parts["records"] / path.name).exists()
    shards = sorted((parts["records"] / f"{path.name}.shards").glob("0*.safetensors"))
    assert [shard.stem for shard in shards] == ["0000000000-0000000008"], "one shard that grows"
    again = make("cifar10_shift", say=said.append, **parts)
    assert again.read_bytes() == path.read_bytes()
    assert list(again.parent.iterdir()) == [again]
    networks = [
        load_file(chosen["networks"] / "cifar10" / "model.safetensors") for chosen in (whole, parts)
    ]
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    assert [line.split()[0] for line in said] == ["training", "training", "recording", "recording"]


# ---- what is in the way


@pytest.fixture(scope="module")
def trained(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings of a finished network on CIFAR-10; its record is put elsewhere."""
    chosen = settings(root, tmp_path_factory.mktemp("trained"))
    make("cifar10", say=lambda line: None, **chosen)
    return chosen


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"seed": 1},
            r"its seed is 0 and not 1; choose another folder, or delete this file to start again$",
        ),
        ({"steps": 4}, r"its recipe\.steps is 2 and not 4;"),
        ({"model": "resnet18"}, r"its architecture\.name is small_cnn and not resnet18;"),
    ],
)
def test_a_network_that_was_trained_otherwise_is_refused_in_one_sentence(
    trained, tmp_path, other, sentence
):
    with pytest.raises(
        InputError, match=r"^expected .*model.safetensors to belong to this run, but " + sentence
    ):
        make(
            "cifar10",
            say=print,
            **trained | {"making": replace(MAKING, **other), "records": tmp_path},
        )


def test_a_checkpoint_of_another_training_is_refused_too(root, tmp_path, monkeypatch):
    chosen = settings(root, tmp_path)
    with monkeypatch.context() as patch:
        stop_at(patch, training._Run, "epoch", 2)
        with pytest.raises(KeyboardInterrupt):
            make("aid", **chosen)
    with pytest.raises(
        InputError,
        match=r"checkpoint.pt to belong to this run, but its shape is \[3, 16, 16\] and not",
    ):
        make("aid", **chosen | {"making": replace(MAKING, image_size=20)})


def test_the_size_of_the_images_is_a_setting_where_they_are_resized(trained, tmp_path):
    for making, side in ((Making(image_size=96), 96), (Making(steps=7), 224)):
        assert [making.plan(name)[1] for name in NETWORKS] == [None, None, side]
    make("cifar10", **trained | {"records": tmp_path, "making": replace(MAKING, image_size=96)})
    assert Record.load(tmp_path / "cifar10.safetensors").origin["image_shape"] == "3 x 32 x 32"


def test_a_finished_network_needs_no_training_images(trained, tmp_path):
    ten = tmp_path / "cifar10" / "cifar-10-batches-py"
    pickled(ten / "test_batch", {b"data": flat(14, 6), b"labels": labels(14, 10, 6)})
    pickled(ten / "batches.meta", {b"label_names": [name.encode() for name in CIFAR10]})
    assert obstacle("cifar10", tmp_path) == f"cifar10: no train split of cifar10 under {tmp_path}"
    assert obstacle("cifar10", tmp_path, trained["networks"]) is None
    path = make("cifar10", **trained | {"data": tmp_path, "records": tmp_path / "records"})
    assert path.read_bytes() == (trained["records"] / "cifar10.safetensors").read_bytes()


def test_small_aerial_images_stand_in_for_aid(trained, tmp_path):
    table(tmp_path / "aid32" / "test-00000-of-00001.parquet", "image", pixels(7, 32, 0), {})
    assert obstacle("cifar10_ood", tmp_path, trained["networks"]) is None
    record = Record.load(make("cifar10_ood", **trained | {"data": tmp_path, "records": tmp_path}))
    assert (len(record), record.labels, record.origin["dataset"]) == (7, None, "aid32")
    assert "rows" not in record.origin


def test_an_obstacle_is_one_sentence(tmp_path, monkeypatch):
    nothing = f" under {tmp_path}"
    assert {name: obstacle(name, tmp_path) for name in RECORDINGS} == {
        "cifar10": f"cifar10: no train split of cifar10 and no test split of cifar10{nothing}",
        **{
            name: f"{name}: no train split of cifar10 and no test split of {test}{nothing}"
            for name, test in (
                ("cifar10_nudged", "cifar10"),
                ("cifar10_shift", "cifar10"),
                ("cifar10_ood", "aid or aid32"),
            )
        },
        "cifar100": f"cifar100: no train split of cifar100 and no test split of cifar100{nothing}",
        "cifar100_nudged": "cifar100_nudged: no train split of cifar100 and no test split of "
        f"cifar100{nothing}",
        "aid": f"aid: no train split of aid and no test split of aid{nothing}",
        "aid_shift": f"aid_shift: no train split of aid and no train split of ucmerced{nothing}",
        "aid_ood": f"aid_ood: no train split of aid and no test split of cifar10{nothing}",
    }
    assert (
        obstacle("aid", tmp_path / "none")
        == f"aid: expected a folder of data, found none at {tmp_path / 'none'}"
    )
    assert obstacle("aid") == (
        "aid: no train split of aid and no test split of aid: "
        "ATTA_DATA does not say where the data is"
    )
    with pytest.raises(
        InputError, match=r"^cifar100: no train split of cifar100 and no test split"
    ):
        make("cifar100", **settings(tmp_path, tmp_path))
    with pytest.raises(InputError, match=r"got 'cifar10_shft'. Did you mean 'cifar10_shift'\?"):
        obstacle("cifar10_shft", tmp_path)
    table(tmp_path / "cifar100" / "train-00000-of-00001.parquet", "img", pixels(1, 32, 0), {})
    monkeypatch.setenv("ATTA_DATA", str(tmp_path))
    assert obstacle("cifar100") == f"cifar100: no test split of cifar100{nothing}"


def test_too_few_images_to_leave_some_out_are_named_before_the_training(root, tmp_path):
    expected = (
        "^cifar10_ood: expected more than 18 images in the test split of aid, "
        "of which that many are for validation, found 18$"
    )
    with pytest.raises(InputError, match=expected):
        make("cifar10_ood", **settings(root, tmp_path) | {"making": replace(MAKING, validation=18)})
    assert list(tmp_path.iterdir()) == []
