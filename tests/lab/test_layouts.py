"""Every layout of published datasets is read, and an error names the file that is wrong."""

import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from atta._base.errors import InputError
from atta.lab.datasets import load
from layouts_made import EXPECTED, LABELS, PIXELS, write_cifar10, write_images, write_parquet

pytestmark = pytest.mark.usefixtures("apart")


@pytest.mark.parametrize("place", ["insects", ".", "insects/data"])
def test_hugging_face_parquet_is_read_in_order(tmp_path, place):
    write_parquet(
        tmp_path / place / "test-00000-of-00002.parquet", pixels=PIXELS[:4], labels=LABELS[:4]
    )
    write_parquet(
        tmp_path / place / "test-00001-of-00002.parquet", pixels=PIXELS[4:], labels=LABELS[4:]
    )
    found = load("insects", "test", data=tmp_path)
    assert len(found) == 6
    assert found.classes == ("ant", "bee", "cat")
    assert found.labels is not None
    assert found.labels.tolist() == LABELS
    assert torch.equal(found.tensors(), EXPECTED)
    assert torch.equal(found[2][0], EXPECTED[2])
    assert found[2][1] == 2
    assert found.shape == (3, 8, 8)


def test_a_parquet_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "test.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="expected parquet files in"):
        load("insects", "test", data=tmp_path)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_a_folder_of_class_folders_is_one_split(tmp_path, suffix):
    write_images(tmp_path / "insects", suffix=suffix)
    found = load("insects", "train", data=tmp_path)
    assert found.classes == ("ant", "bee", "cat")
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(found.tensors(), EXPECTED[[0, 3, 1, 4, 2, 5]])
    with pytest.raises(
        InputError, match=r"expected the split 'test' of insects in .* found ant, bee, cat"
    ):
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
    with pytest.raises(
        InputError, match=r"expected the classes of .*train in .*test, found kat as well"
    ):
        load("insects", "test", data=tmp_path)


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
    content = {
        b"data": np.zeros((2, 3072), np.uint8),
        b"fine_labels": [7, 99],
        b"coarse_labels": [1, 2],
    }
    (folder / "test").write_bytes(pickle.dumps(content, 4))
    (folder / "meta").write_bytes(
        pickle.dumps({b"fine_label_names": [b"c%d" % i for i in range(100)]})
    )
    found = load("cifar100", "test", data=tmp_path)
    assert found.labels is not None
    assert found.labels.tolist() == [7, 99]


def test_files_from_python_2_are_read(tmp_path):
    """The published files: protocol 2, byte strings, and an array's function under its old name."""
    write_cifar10(tmp_path)
    raw = bytes(range(256)) * 24
    dtype = (
        b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN"
        + 2 * b"J\xff\xff\xff\xff"
        + b"K\x00tb"
    )
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    array = (
        empty
        + b"(K\x01(K\x02M\x00\x0ct"
        + dtype
        + b"\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    (tmp_path / "test_batch").write_bytes(
        b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x03K\x04eu."
    )
    found = load("cifar10", "test", data=tmp_path)
    assert found.labels is not None
    assert found.labels.tolist() == [3, 4]
    assert found.tensors().flatten()[:300].tolist() == [i % 256 for i in range(300)]


class Dangerous:
    def __reduce__(self):
        return os.system, ("echo this must never be printed",)


@pytest.mark.parametrize(
    "content", [Dangerous(), {b"data": Dangerous()}, {b"data": np.array([Dangerous()])}]
)
def test_a_pickle_that_would_run_code_is_refused(tmp_path, capfd, content):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(
        InputError,
        match=r"expected nothing but arrays, lists and text in .*test_batch: it asks for",
    ):
        load("cifar10", "test", data=tmp_path)
    assert capfd.readouterr().out == ""


POINTERS = (
    b"cnumpy\nndarray\n((K\x01tcnumpy\ndtype\n(X\x02\x00\x00\x00O8K\x00K\x01tR"
    b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbU\x08AAAAAAAAtR"
)
"""An array whose type is that of objects, without the flag that says so: its bytes are pointers."""
READ_ALL = """
import resource, sys
from pathlib import Path
from atta._base.errors import InputError
from atta.lab.datasets import load

root = Path(sys.argv[1])
for forged in sorted(root.glob("*.forged")):
    (root / "test_batch").write_bytes(forged.read_bytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        load("cifar10", "test", data=root)
        print(forged.name, "was loaded")
    except InputError as error:
        assert "test_batch" in str(error), error
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 200_000:
        print(forged.name, "took too much memory")
print("done")
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no module resource")
def test_a_forged_array_is_refused_and_does_not_end_the_process(tmp_path):
    write_cifar10(tmp_path)
    labels = b"U\x06labels](K\x03e"
    for name, content in {
        "pointers": b"\x80\x02}(U\x04data" + POINTERS + labels + b"u.",
        "memo": b"\x80\x02}r\xff\xff\xff\x03.",
        "no array": b"\x80\x02}(U\x04dataK\x03" + labels + b"u.",
        "no labels": pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [[3]]}, 4),
        "far label": pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [2**70]}, 4),
        "floats": pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [3]}, 4),
        "columns": pickle.dumps(
            {b"data": np.asfortranarray(np.zeros((2, 3072), np.uint8)), b"labels": [3, 3]}, 4
        ),
        "short": pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [3]}, 4),
    }.items():
        (tmp_path / f"{name}.forged").write_bytes(content)
    typed = [sys.executable, "-c", READ_ALL, str(tmp_path)]
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_broken_cifar_file_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"pixels": []}))
    with pytest.raises(
        InputError, match=r"expected data, labels in .*test_batch, as CIFAR's files have"
    ):
        load("cifar10", "test", data=tmp_path)
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(InputError, match="expected nothing but arrays"):
        load("cifar10", "test", data=tmp_path)
