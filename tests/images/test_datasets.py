"""A dataset is found by its name in any layout it is published in, and an error says which file is at fault."""

import gzip
import io
import os
import pickle
import struct
from pathlib import Path

import datasets as hf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from atta.images.datasets import NAMES, load, paper_split, present, resize, split_indices
from atta.images.sets import ImageSet
from atta.types import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]
EXPECTED = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path_factory):
    """No data of this machine's, and a cache of the tests' own."""
    monkeypatch.delenv("ATTA_DATA", raising=False)
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(path: Path, columns=("img", "label"), names=("ant", "bee", "cat"), pixels=PIXELS, labels=LABELS):
    cells = [{"bytes": p if isinstance(p, bytes) else encoded(p), "path": None} for p in pixels]
    content, features = {columns[0]: cells}, {columns[0]: hf.Image(decode=False)}
    if columns[1] is not None:
        content[columns[1]] = labels
        features[columns[1]] = hf.ClassLabel(names=list(names)) if names else hf.Value("int64")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = hf.Dataset.from_dict(content, features=hf.Features(features)).cast_column(columns[0], hf.Image())
    table.to_parquet(str(path))


def write_images(folder: Path, classes=("ant", "bee", "cat"), suffix="png"):
    for i, pixels in enumerate(PIXELS):
        path = folder / classes[LABELS[i]] / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


# ---- parquet


@pytest.mark.parametrize("place", ["insects", ".", "insects/data"])
def test_hugging_face_parquet_is_read_in_order(tmp_path, place):
    write_parquet(tmp_path / place / "test-00000-of-00002.parquet", pixels=PIXELS[:4], labels=LABELS[:4])
    write_parquet(tmp_path / place / "test-00001-of-00002.parquet", pixels=PIXELS[4:], labels=LABELS[4:])
    found = load("insects", "test", data=tmp_path)
    assert len(found) == 6
    assert found.classes == ("ant", "bee", "cat")
    assert found.labels is not None
    assert found.labels.tolist() == LABELS
    assert torch.equal(found.tensors(), EXPECTED)
    assert torch.equal(found[2][0], EXPECTED[2])
    assert found[2][1] == 2
    assert found.shape == (3, 8, 8)


def test_the_environment_says_where_the_data_is(tmp_path, monkeypatch):
    write_parquet(tmp_path / "insects" / "test-00000-of-00001.parquet")
    monkeypatch.setenv("ATTA_DATA", str(tmp_path))
    assert len(load("insects", "test")) == 6


def test_a_table_without_labels_is_an_unlabelled_set(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", None))
    found = load("clouds", "test", data=tmp_path)
    assert found.labels is None
    assert found[0][1] == -1
    assert found.classes == ()


def test_hidden_labels_count_as_none(tmp_path):
    write_parquet(tmp_path / "test.parquet", labels=[-1] * 6)
    assert load("insects", "test", data=tmp_path).labels is None


def test_columns_can_be_named(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", "kind"), names=None)
    found = load("insects", "test", data=tmp_path, columns=("picture", "kind"))
    assert found.classes == ("0", "1", "2")
    assert load("insects", "test", data=tmp_path, columns=("picture", None)).labels is None
    with pytest.raises(InputError, match="expected the columns species in insects, found picture, kind"):
        load("insects", "test", data=tmp_path, columns=("picture", "species"))


def test_columns_of_another_type_are_refused(tmp_path):
    write_parquet(tmp_path / "test.parquet")
    with pytest.raises(InputError, match=r"expected images in the column label of insects, found ClassLabel"):
        load("insects", "test", data=tmp_path, columns=("label", None))
    with pytest.raises(InputError, match="expected whole numbers in the column img"):
        load("insects", "test", data=tmp_path, columns=("img", "img"))


def test_columns_of_a_known_dataset_must_be_there(tmp_path):
    write_parquet(tmp_path / "test.parquet", columns=("picture", "label"))
    with pytest.raises(InputError, match=r"expected the columns img in cifar10, found picture, label; name them"):
        load("cifar10", "test", data=tmp_path)


def test_a_table_with_two_columns_of_images_needs_their_names(tmp_path):
    table = hf.Dataset.from_dict({"a": [1], "b": [2]})
    table.to_parquet(str(tmp_path / "test.parquet"))
    with pytest.raises(InputError, match=r"expected one column of images .* found the columns a, b"):
        load("pairs", "test", data=tmp_path)


def test_a_corrupt_image_is_named_by_its_row(tmp_path):
    good = encoded(PIXELS[0])
    write_parquet(tmp_path / "test.parquet", pixels=[good, good[:60], b"no image"], labels=[0, 1, 2])
    found = load("insects", "test", data=tmp_path)
    for row in (1, 2):
        with pytest.raises(InputError, match=f"expected an image in row {row} of insects/test, but it cannot"):
            found[row]


def test_a_parquet_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "test.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="expected parquet files in"):
        load("insects", "test", data=tmp_path)


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
    with pytest.raises(InputError, match=r"could not be fetched \(ConnectionError: no network\).*\$ATTA_DATA/aid"):
        load("aid", "train")


# ---- folders of images


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_a_folder_of_class_folders_is_one_split(tmp_path, suffix):
    write_images(tmp_path / "insects", suffix=suffix)
    found = load("insects", "train", data=tmp_path)
    assert found.classes == ("ant", "bee", "cat")
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(found.tensors(), EXPECTED[[0, 3, 1, 4, 2, 5]])
    with pytest.raises(InputError, match=r"expected the split 'test' of insects in .* found ant, bee, cat"):
        load("insects", "test", data=tmp_path / "insects")


def test_a_class_that_the_test_split_lacks_keeps_its_number(tmp_path):
    write_images(tmp_path / "train")
    write_images(tmp_path / "test")
    for path in (tmp_path / "test" / "ant").iterdir():
        path.unlink()
    (tmp_path / "test" / "ant").rmdir()
    found = load("insects", "test", data=tmp_path)
    assert found.classes == ("ant", "bee", "cat")
    assert found.labels is not None
    assert found.labels.tolist() == [1, 1, 2, 2]


def test_a_class_folder_that_training_does_not_know_is_refused(tmp_path):
    write_images(tmp_path / "train")
    write_images(tmp_path / "test", classes=("ant", "bee", "kat"))
    with pytest.raises(InputError, match=r"expected the classes of .*train in .*test, found kat as well"):
        load("insects", "test", data=tmp_path)


def test_an_empty_class_folder_is_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(InputError, match=r"expected images in every class folder of .* found none in dog"):
        load("insects", "train", data=tmp_path)


def test_a_known_dataset_has_its_number_of_classes(tmp_path):
    write_images(tmp_path)
    with pytest.raises(InputError, match="expected the 30 classes of aid, found 3: ant, bee, cat"):
        load("aid", "train", data=tmp_path)


def test_a_corrupt_file_is_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "bee" / "1.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"expected an image in .*bee/1.png, but it cannot be decoded"):
        load("insects", "train", data=tmp_path).tensors()


def test_images_of_different_sizes_need_a_size(tmp_path):
    write_images(tmp_path)
    Image.fromarray(PIXELS[1][:4]).save(tmp_path / "bee" / "1.png")
    found = load("insects", "train", data=tmp_path)
    with pytest.raises(InputError, match=r"to be \(3, 8, 8\) as the first is, image 2 is \(3, 4, 8\); give an"):
        found.tensors()
    assert found.tensors(size=5).shape == (6, 3, 5, 5)
    assert load("insects", "train", data=tmp_path, image_size=5)[2][0].shape == (3, 5, 5)


def save_modes(folder: Path, modes: list[str]) -> ImageSet:
    (folder / "one").mkdir()
    for i, mode in enumerate(modes):
        Image.fromarray(PIXELS[i]).convert(mode).save(folder / "one" / f"{i}.png")
    return load("modes", "train", data=folder)


def test_colour_comes_as_rgb_whatever_the_file_holds(tmp_path):
    assert save_modes(tmp_path, ["RGB", "RGBA", "L", "P"]).tensors().shape == (4, 3, 8, 8)


def test_a_grey_set_is_grey(tmp_path):
    found = save_modes(tmp_path, ["L", "L"])
    assert found.tensors().shape == (2, 1, 8, 8)
    assert torch.equal(found[0][0][0], torch.from_numpy(np.asarray(Image.fromarray(PIXELS[0]).convert("L")).copy()))


def test_colour_in_a_grey_set_is_refused_in_a_subset_too(tmp_path):
    found = save_modes(tmp_path, ["L", "RGB"])
    for images in (found, found.subset([1])):
        with pytest.raises(InputError, match=r"got colour in .*1.png"):
            images.tensors()


def test_more_than_8_bits_are_refused(tmp_path):
    (tmp_path / "one").mkdir()
    Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16)).save(tmp_path / "one" / "0.png")
    with pytest.raises(InputError, match=r"expected 8 bits a channel in .* found the mode I"):
        load("deep", "train", data=tmp_path).tensors()


def test_a_photograph_is_turned_upright(tmp_path):
    (tmp_path / "one").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    Image.fromarray(PIXELS[0][:, :4]).save(tmp_path / "one" / "0.jpg", exif=exif)
    assert load("photos", "train", data=tmp_path).shape == (3, 4, 8)


# ---- the folders of archives and hub repositories


def write_classes(folder: Path, classes: int = 21) -> None:
    for i in range(classes):
        (folder / f"class{i:02}").mkdir(parents=True)
        Image.fromarray(PIXELS[i % 6]).save(folder / f"class{i:02}" / "0.tif")


@pytest.mark.parametrize("inside", ["", "Images", "UCMerced_LandUse/Images", "train", "test", "UCM/validation", "all"])
def test_uc_merced_is_one_split_in_whatever_folder_it_comes(tmp_path, inside):
    write_classes(tmp_path / "ucmerced" / inside)
    (tmp_path / "ucmerced" / "readme.txt").write_text("twenty-one classes")
    (tmp_path / "ucmerced" / "__MACOSX").mkdir()
    found = load("ucmerced", "train", data=tmp_path)
    assert (len(found), found.classes[20]) == (21, "class20")
    assert present("ucmerced", "train", tmp_path)


@pytest.mark.parametrize("file", ["train-00000-of-00001", "data/train-00000-of-00001-4c1b", "test", "data/all-0"])
def test_uc_merced_is_one_split_in_tables_of_any_name(tmp_path, file):
    names = [f"class{i}" for i in range(21)]
    write_parquet(tmp_path / "ucmerced" / f"{file}.parquet", columns=("image", "label"), names=names)
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
        "atta.images.datasets.hub",
        "atta.images.layouts._library",
        "atta.images.layouts._unpickled",
        "atta.images.layouts._read_idx",
    ):
        monkeypatch.setattr(what, refuse)
    assert not present("cifar100", "test")
    write_parquet(tmp_path / "insects" / "test.parquet")
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "fashion-mnist").mkdir()
    write_idx(tmp_path / "fashion-mnist", packed=True)
    there = [("insects", "test"), ("cifar10", "train"), ("cifar10", "test"), ("fashion-mnist", "test")]
    absent = [("insects", "train"), ("cifar100", "train"), ("fashion-mnist", "train"), ("ucmerced", "train")]
    for name, split in there:
        assert present(name, split, tmp_path)
    for name, split in absent:
        assert not present(name, split, tmp_path)
    monkeypatch.setenv("ATTA_DATA", str(tmp_path))
    assert present("insects", "test")
    assert present("digits", "test")


# ---- CIFAR's own files


def write_cifar10(folder: Path, protocol: int = 4) -> torch.Tensor:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(1).integers(0, 256, (12, 3072), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {b"data": pixels[2 * i : 2 * i + 2], b"labels": [i, 9], b"batch_label": b"made up"}
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"class %d" % i for i in range(10)]}))
    return torch.from_numpy(pixels).reshape(12, 3, 32, 32)


def test_cifar_10_is_read_from_its_own_files(tmp_path):
    pixels = write_cifar10(tmp_path / "cifar-10-batches-py")
    train, test = (load("cifar10", split, data=tmp_path) for split in ("train", "test"))
    assert torch.equal(train.tensors(), pixels[:10])
    assert torch.equal(test.tensors(), pixels[10:])
    assert train.labels is not None
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert test.classes[3] == "class 3"


def test_cifar_100_takes_the_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    content = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [7, 99], b"coarse_labels": [1, 2]}
    (folder / "test").write_bytes(pickle.dumps(content, 4))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"c%d" % i for i in range(100)]}))
    found = load("cifar100", "test", data=tmp_path)
    assert found.labels is not None
    assert found.labels.tolist() == [7, 99]


def test_files_from_python_2_are_read(tmp_path):
    """The published files: protocol 2, byte strings, and an array's function under its old name."""
    write_cifar10(tmp_path)
    raw = bytes(range(256)) * 24
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    array = empty + b"(K\x01(K\x02M\x00\x0ct" + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    (tmp_path / "test_batch").write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x03K\x04eu.")
    found = load("cifar10", "test", data=tmp_path)
    assert found.labels is not None
    assert found.labels.tolist() == [3, 4]
    assert found.tensors().flatten()[:300].tolist() == [i % 256 for i in range(300)]


class Dangerous:
    def __reduce__(self):
        return os.system, ("echo this must never be printed",)


@pytest.mark.parametrize("content", [Dangerous(), {b"data": Dangerous()}, {b"data": np.array([Dangerous()])}])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, capfd, content):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=r"expected nothing but arrays, lists and text in .*test_batch: it asks for"):
        load("cifar10", "test", data=tmp_path)
    assert capfd.readouterr().out == ""


def test_a_broken_cifar_file_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"pixels": []}))
    with pytest.raises(InputError, match=r"expected data, labels in .*test_batch, as CIFAR's files have"):
        load("cifar10", "test", data=tmp_path)
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(InputError, match="expected nothing but arrays"):
        load("cifar10", "test", data=tmp_path)


# ---- idx files, digits, one file a split


def write_idx(folder: Path, packed: bool) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    files = {
        "t10k-images-idx3-ubyte": bytes([0, 0, 8, 3]) + struct.pack(">3I", 3, 28, 28) + pixels.tobytes(),
        "t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes([9, 0, 4]),
    }
    for name, content in files.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return pixels


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_read_from_its_own_files(tmp_path, packed):
    pixels = write_idx(tmp_path, packed)
    found = load("fashion-mnist", "test", data=tmp_path)
    assert torch.equal(found.tensors()[:, 0], torch.from_numpy(pixels))
    assert found.labels is not None
    assert [found.classes[i] for i in found.labels] == ["Ankle boot", "T-shirt/top", "Coat"]


def test_a_cut_idx_file_is_named(tmp_path):
    write_idx(tmp_path, packed=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    for content in (path.read_bytes()[:-1], b"\0\0", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"expected 3 axes of bytes in the idx file .*t10k-images"):
            load("fashion-mnist", "test", data=tmp_path)


def test_a_broken_packed_idx_file_is_named(tmp_path):
    write_idx(tmp_path, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"not packed")
    with pytest.raises(InputError, match=r"expected an idx file at .*labels.*gz, but it cannot be read"):
        load("fashion-mnist", "test", data=tmp_path)


def test_the_digits_are_always_split_alike():
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1078, 719)
    assert train.shape == (1, 8, 8)
    assert train.tensors().max() == 255
    assert set(train.indices.tolist()).isdisjoint(test.indices.tolist())
    assert torch.equal(train.tensors(), load("digits", "train").tensors())
    with pytest.raises(InputError, match="expected the split train or test of digits, got 'validation'"):
        load("digits", "validation")


def test_a_set_saved_to_one_file_is_found_again(tmp_path):
    whole = ImageSet("insects", EXPECTED, torch.tensor(LABELS), ("ant", "bee", "cat")).subset([4, 2])
    whole.save(tmp_path / "insects" / "test.safetensors")
    found = load("insects", "test", data=tmp_path)
    assert torch.equal(found.tensors(), EXPECTED[[4, 2]])
    assert found.labels is not None
    assert found.labels.tolist() == [1, 2]
    assert found.indices.tolist() == [4, 2]
    assert (found.name, found.classes) == ("insects", ("ant", "bee", "cat"))


def test_an_unlabelled_set_can_be_saved(tmp_path):
    ImageSet("clouds", EXPECTED).save(tmp_path / "clouds.safetensors")
    assert ImageSet.load_file(tmp_path / "clouds.safetensors").labels is None


def test_a_file_that_holds_no_set_is_refused(tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(InputError, match="found no file at"):
        ImageSet.load_file(tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read"):
        ImageSet.load_file(tmp_path / "broken.safetensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"expected images, a name and classes in .* found weight"):
        ImageSet.load_file(tmp_path / "weights.safetensors")


# ---- names


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(InputError, match=r"got 'cifr10'; did you mean cifar10\?"):
        load("cifr10", "test")
    with pytest.raises(InputError, match=f"expected one of {', '.join(NAMES)} or a folder"):
        load("xyz", "test")


def test_a_folder_or_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="expected a folder of data, found none at"):
        load("cifar10", "test", data=tmp_path / "none")
    with pytest.raises(InputError, match=r"expected the split 'test' of cifar10 in .* found nothing"):
        load("cifar10", "test", data=tmp_path)
    write_parquet(tmp_path / "insects" / "test-00000-of-00001.parquet")
    with pytest.raises(InputError, match=r"expected the split 'train' of insects in .* test-00000-of-00001.parquet"):
        load("insects", "train", data=tmp_path)


# ---- the set itself


def test_a_set_is_a_torch_dataset():
    images = ImageSet("insects", EXPECTED, torch.tensor(LABELS), ("ant", "bee", "cat"))
    batch, labels = next(iter(DataLoader(images, batch_size=6)))
    assert torch.equal(batch, EXPECTED)
    assert labels.tolist() == LABELS
    assert len(list(images)) == 6


def test_a_subset_remembers_where_its_images_stood():
    images = ImageSet("insects", EXPECTED, torch.tensor(LABELS), ("ant", "bee", "cat"))
    some = images.subset([5, 3, 1]).subset(torch.tensor([2, 0]))
    assert some.indices.tolist() == [1, 5]
    assert torch.equal(some.tensors(), EXPECTED[[1, 5]])
    with pytest.raises(InputError, match="expected positions from 0 to 5 in insects, got 2 to 6"):
        images.subset([2, 6])


def test_a_set_checks_what_it_is_made_of():
    with pytest.raises(InputError, match=r"as uint8 of shape \(n, c, h, w\), got torch.float32 of shape \(2, 3"):
        ImageSet("x", torch.zeros(2, 3, 4, 4))
    with pytest.raises(InputError, match=r"expected 6 labels in x, got shape \(5,\)"):
        ImageSet("x", EXPECTED, torch.zeros(5), ("a",))
    with pytest.raises(InputError, match="expected labels from 0 to 1 in x, which has 2 classes, got 0 to 2"):
        ImageSet("x", EXPECTED, torch.tensor(LABELS), ("a", "b"))
    with pytest.raises(InputError, match="expected at least one image in x"):
        ImageSet("x", EXPECTED[:0]).tensors()


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_resizing_keeps_the_mean_and_agrees_with_pillow(before, after):
    pixels = np.random.default_rng(before).integers(0, 256, (before, before, 3), dtype=np.uint8)
    ours = resize(torch.from_numpy(pixels).permute(2, 0, 1)[None], after)[0].permute(1, 2, 0)
    theirs = np.asarray(Image.fromarray(pixels).resize((after, after), Image.Resampling.BILINEAR))
    assert np.abs(ours.numpy().astype(int) - theirs).max() <= 1
    with pytest.raises(InputError, match="at least 1 pixel"):
        resize(EXPECTED, 0)


# ---- the paper's splits


@given(st.integers(2, 300), st.integers(0, 5), st.data())
@settings(max_examples=30, deadline=None)
def test_splits_are_disjoint_complete_and_repeatable(n, seed, data):
    validation = data.draw(st.integers(1, n - 1))
    first, rest = paper_split(n, validation, seed)
    assert (len(first), len(rest)) == (validation, n - validation)
    assert sorted(torch.cat([first, rest]).tolist()) == list(range(n))
    assert torch.equal(first, paper_split(n, validation, seed)[0])


def test_aid_is_divided_into_three():
    assert [len(part) for part in split_indices(10_000, (7000, 1000, 2000))] == [7000, 1000, 2000]
    with pytest.raises(InputError, match=r"at most 10 images, got \(7, 4\)"):
        split_indices(10, (7, 4))
    with pytest.raises(InputError, match="some of the 10 images for validation"):
        paper_split(10, 10)


# ---- the real thing

REAL = Path(os.environ.get("ATTA_DATA", "nowhere"))


@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="ATTA_DATA does not say where CIFAR-10 is")
def test_the_real_cifar_10_is_read():
    from atta.networks.augment import symmetries

    found = load("cifar10", "test", data=REAL)
    assert len(found) == 10_000
    assert found.classes[:3] == ("airplane", "automobile", "bird")
    assert found.labels is not None
    assert found.labels.bincount().tolist() == [1000] * 10
    some = found.subset(range(0, 10_000, 10)).decoded()
    assert some.shape == (3, 32, 32)
    assert some.labels is not None
    assert symmetries(some.tensors(), some.labels) == ("left-right",)


@pytest.mark.skipif(not (REAL / "aid32").is_dir(), reason="ATTA_DATA does not say where the aerial images are")
def test_aerial_images_look_the_same_in_every_direction():
    from atta.networks.augment import MIRRORS, symmetries

    found = load("aid32", "test", data=REAL)
    assert found.labels is None
    images = found.tensors()
    assert symmetries(images, torch.zeros(len(found), dtype=torch.long)) == MIRRORS


def test_digits_look_the_same_in_no_mirror():
    from atta.networks.augment import symmetries

    digits = load("digits", "train")
    assert digits.labels is not None
    assert symmetries(digits.tensors(), digits.labels) == ()
