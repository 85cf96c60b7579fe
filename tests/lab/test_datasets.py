"""A dataset is found by its name, wherever it lies, and cut where it comes in one piece."""

import os
from pathlib import Path

import datasets as hf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from atta._base.errors import InputError
from atta.data.image_set import ImageSet
from atta.lab.datasets import NAMES, _train_or_test, load, present
from layouts_made import (
    EXPECTED,
    LABELS,
    PIXELS,
    encoded,
    write_cifar10,
    write_images,
    write_parquet,
)

pytestmark = pytest.mark.usefixtures("apart")


def test_the_environment_says_where_the_data_is(tmp_path, monkeypatch):
    write_parquet(tmp_path / "insects" / "test-00000-of-00001.parquet")
    monkeypatch.setenv("ATTA_DATA", str(tmp_path))
    assert len(load("insects", "test")) == 6


def test_columns_of_a_known_dataset_must_be_there(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", "label"))
    with pytest.raises(
        InputError, match=r"expected the columns img in cifar10, found picture, label; name them"
    ):
        load("cifar10", "test", data=tmp_path)


def test_the_hub_is_asked_when_nothing_is_local(monkeypatch):
    asked = []

    def load_dataset(repository, split):
        asked.append((repository, split))
        names = [f"class {i}" for i in range(100)]
        features = hf.Features({"img": hf.Image(), "fine_label": hf.ClassLabel(names=names)})
        cells = [{"bytes": encoded(p), "path": None} for p in PIXELS]
        return hf.Dataset.from_dict({"img": cells, "fine_label": LABELS}, features=features)

    monkeypatch.setattr(hf, "load_dataset", load_dataset)
    found = load("cifar100", "test")
    assert asked == [("uoft-cs/cifar100", "test")]
    assert len(found.classes) == 100
    assert torch.equal(found.tensors(), EXPECTED)


def test_a_hub_out_of_reach_says_where_a_local_copy_goes(monkeypatch):
    def load_dataset(repository, split):
        raise ConnectionError("no network")

    monkeypatch.setattr(hf, "load_dataset", load_dataset)
    with pytest.raises(
        InputError, match=r"could not be fetched \(ConnectionError: no network\).*\$ATTA_DATA/aid"
    ):
        load("aid", "train")


def test_a_known_dataset_has_its_number_of_classes(tmp_path):
    write_images(tmp_path)
    with pytest.raises(InputError, match="expected the 30 classes of aid, found 3: ant, bee, cat"):
        load("aid", "train", data=tmp_path)


def write_classes(folder: Path, classes: int = 21) -> None:
    for i in range(classes):
        (folder / f"class{i:02}").mkdir(parents=True)
        Image.fromarray(PIXELS[i % 6]).save(folder / f"class{i:02}" / "0.tif")


@pytest.mark.parametrize(
    "inside", ["", "Images", "UCMerced_LandUse/Images", "train", "test", "UCM/validation", "all"]
)
def test_uc_merced_is_one_split_in_whatever_folder_it_comes(tmp_path, inside):
    write_classes(tmp_path / "ucmerced" / inside)
    (tmp_path / "ucmerced" / "readme.txt").write_text("twenty-one classes")
    (tmp_path / "ucmerced" / "__MACOSX").mkdir()
    found = load("ucmerced", "train", data=tmp_path)
    assert (len(found), found.classes[20]) == (21, "class20")
    assert present("ucmerced", "train", tmp_path)


@pytest.mark.parametrize(
    "file", ["train-00000-of-00001", "data/train-00000-of-00001-4c1b", "test", "data/all-0"]
)
def test_uc_merced_is_one_split_in_tables_of_any_name(tmp_path, file):
    names = [f"class{i}" for i in range(21)]
    write_parquet(
        tmp_path / "ucmerced" / f"{file}.parquet", columns=("image", "label"), names=names
    )
    assert len(load("ucmerced", "train", data=tmp_path)) == 6


def test_the_test_images_of_another_dataset_are_not_taken_for_its_training_images(tmp_path):
    write_classes(tmp_path / "aid" / "test", 30)
    assert present("aid", "test", tmp_path)
    assert not present("aid", "train", tmp_path)


def test_aid_is_cut_where_it_comes_in_one_piece(tmp_path):
    write_classes(tmp_path / "aid" / "AID", 30)
    train, test = (load("aid", split, data=tmp_path) for split in ("train", "test"))
    assert sorted(train.indices.tolist() + test.indices.tolist()) == list(range(30))
    assert (len(train), len(test)) == (21, 9)


def test_tables_are_found_in_the_folder_that_the_hub_has_them_in(tmp_path):
    names = [str(i) for i in range(10)]
    write_parquet(tmp_path / "cifar10" / "plain_text" / "test-00000-of-00001.parquet", names=names)
    assert len(load("cifar10", "test", data=tmp_path)) == 6


def test_whether_a_split_is_there_is_told_without_reading_it(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("something was read or fetched")

    for what in (
        "atta.lab.datasets.hub",
        "atta.lab.datasets.library",
        "atta.lab.datasets._unpickled",
    ):
        monkeypatch.setattr(what, refuse)
    assert not present("cifar100", "test")
    write_parquet(tmp_path / "insects" / "test.parquet")
    write_cifar10(tmp_path / "cifar-10-batches-py")
    there = [("insects", "test"), ("cifar10", "train"), ("cifar10", "test")]
    absent = [
        ("insects", "train"),
        ("cifar100", "train"),
        ("fashion-mnist", "train"),
        ("ucmerced", "train"),
    ]
    for name, split in there:
        assert present(name, split, tmp_path)
    for name, split in absent:
        assert not present(name, split, tmp_path)
    monkeypatch.setenv("ATTA_DATA", str(tmp_path))
    assert present("insects", "test")
    assert present("digits", "test")


def test_the_digits_are_always_split_alike():
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1078, 719)
    assert train.shape == (1, 8, 8)
    assert train.tensors().max() == 255
    assert set(train.indices.tolist()).isdisjoint(test.indices.tolist())
    assert torch.equal(train.tensors(), load("digits", "train").tensors())
    with pytest.raises(
        InputError, match="expected the split train or test of digits, got 'validation'"
    ):
        load("digits", "validation")


def test_a_set_saved_to_one_file_is_found_again(tmp_path):
    whole = ImageSet("insects", EXPECTED, torch.tensor(LABELS), ("ant", "bee", "cat")).subset(
        [4, 2]
    )
    whole.save(tmp_path / "insects" / "test.safetensors")
    found = load("insects", "test", data=tmp_path)
    assert torch.equal(found.tensors(), EXPECTED[[4, 2]])
    assert found.labels is not None
    assert found.labels.tolist() == [1, 2]
    assert found.indices.tolist() == [4, 2]
    assert (found.name, found.classes) == ("insects", ("ant", "bee", "cat"))


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(InputError, match=r"there is no folder cifr10: .* Did you mean 'cifar10'\?"):
        load("cifr10", "test")
    with pytest.raises(InputError, match=f"one of {', '.join(NAMES)}, or the name of a folder"):
        load("xyz", "test")


def test_a_folder_or_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="expected a folder of data, found none at"):
        load("cifar10", "test", data=tmp_path / "none")
    with pytest.raises(
        InputError, match=r"expected the split 'test' of cifar10 in .* found nothing"
    ):
        load("cifar10", "test", data=tmp_path)
    write_parquet(tmp_path / "insects" / "test-00000-of-00001.parquet")
    with pytest.raises(
        InputError, match=r"expected the split 'train' of insects in .* test-00000-of-00001.parquet"
    ):
        load("insects", "train", data=tmp_path)


@given(st.integers(2, 300))
@settings(max_examples=30, deadline=None)
def test_the_splits_of_one_piece_are_disjoint_complete_and_repeatable(n):
    whole = ImageSet("aid", torch.zeros(n, 1, 2, 2, dtype=torch.uint8))
    train, test = (_train_or_test(whole, 0.7, split).indices for split in ("train", "test"))
    assert len(train) == round(0.7 * n)
    assert sorted(torch.cat([train, test]).tolist()) == list(range(n))
    assert torch.equal(train, _train_or_test(whole, 0.7, "train").indices)


# ---- the real thing

REAL = Path(os.environ.get("ATTA_DATA", "nowhere"))


@pytest.mark.skipif(
    not (REAL / "cifar10").is_dir(), reason="ATTA_DATA does not say where CIFAR-10 is"
)
def test_the_real_cifar_10_is_read():
    from atta.lab.recipe import symmetries

    found = load("cifar10", "test", data=REAL)
    assert len(found) == 10_000
    assert found.classes[:3] == ("airplane", "automobile", "bird")
    assert found.labels is not None
    assert found.labels.bincount().tolist() == [1000] * 10
    some = found.subset(range(0, 10_000, 10)).decoded()
    assert some.shape == (3, 32, 32)
    assert some.labels is not None
    assert symmetries(some.tensors(), some.labels) == ("left-right",)


@pytest.mark.skipif(
    not (REAL / "aid32").is_dir(), reason="ATTA_DATA does not say where the aerial images are"
)
def test_aerial_images_look_the_same_in_every_direction():
    from atta.lab.recipe import MIRRORS, symmetries

    found = load("aid32", "test", data=REAL)
    assert found.labels is None
    images = found.tensors()
    assert symmetries(images, torch.zeros(len(found), dtype=torch.long)) == MIRRORS


def test_digits_look_the_same_in_no_mirror():
    from atta.lab.recipe import symmetries

    digits = load("digits", "train")
    assert digits.labels is not None
    assert symmetries(digits.tensors(), digits.labels) == ()
