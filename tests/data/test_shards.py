"""Shards: the images, labels and sentences of the files in them, wherever they lie."""

import io
import json
import tarfile

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

import atta
from atta import Preprocess
from atta._base.errors import InputError
from atta.data import loading
from atta.data import source as source_module
from atta.data.source import as_source, batches_of
from atta.data.tables import shards_of
from atta.run.collect import collect
from scenarios import blend, linear, same, twenty

LABELS = [row % 3 for row in range(20)]


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "png")
    return file.getvalue()


def tar_of(files):
    """The bytes of a tar with these files."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return whole.getvalue()


def write_tars(folder, about="cls"):
    """Twenty images in three shards, as WebDataset lays them out."""
    folder.mkdir(exist_ok=True)
    for shard, rows in enumerate([range(7), range(7, 14), range(14, 20)]):
        files = {"./notes.txt": b"no image"}
        for row in rows:
            files[f"train/{row:04}.png"] = png(twenty()[row])
            files[f"train/{row:04}.txt"] = b"a caption"
            label = {"label": LABELS[row]} if about == "json" else LABELS[row]
            files[f"train/{row:04}.{about}"] = json.dumps(label).encode()
        (folder / f"part-{shard:03}.tar").write_bytes(tar_of(files))
    return f"{folder}/part-{{000..002}}.tar"


def write_parquet(folder, **how):
    """Twenty images in two files, as Hugging Face writes them."""
    hf = pytest.importorskip("datasets")
    folder.mkdir(exist_ok=True)
    kinds = hf.Features(image=hf.Image(), label=hf.ClassLabel(names=["x", "y", "z"]))
    for shard, rows in enumerate([range(12), range(12, 20)]):
        cells = [{"bytes": png(twenty()[row]), "path": None} for row in rows]
        columns = {"image": cells, "label": [LABELS[row] for row in rows]}
        table = hf.Dataset.from_dict(columns, features=kinds)
        table.to_parquet(folder / f"{shard}.parquet", batch_size=5)
    return f"{folder}/*.parquet"


WRITERS = {
    "tar": write_tars,
    "json": lambda folder: write_tars(folder, "json"),
    "parquet": write_parquet,
}


@pytest.fixture
def small(monkeypatch):
    """Processes for few images."""
    monkeypatch.setattr(source_module, "PIECE", 3)
    monkeypatch.setattr(loading, "EACH", 4)
    monkeypatch.setattr(loading, "cores", lambda: 3)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("workers", [0, 1, 3, "auto"])
def test_shards_are_read_in_their_order_whatever_the_number_of_processes(
    tmp_path, small, kind, workers
):
    source = as_source(WRITERS[kind](tmp_path), workers=workers)
    assert (source.once, source.shape) == (True, (3, 8, 8))
    assert source.classes == (("x", "y", "z") if kind == "parquet" else ())
    batches = list(source.read(batches_of(6, 0, None)))
    assert [len(batch.positions) for batch in batches] == [6, 6, 6, 2]
    assert torch.equal(torch.cat([batch.pixels for batch in batches]), twenty())
    assert torch.cat([batch.labels for batch in batches]).tolist() == LABELS


@pytest.mark.parametrize("kind", WRITERS)
def test_shards_elsewhere_give_the_record_of_shards_here(tmp_path, kind):
    name = WRITERS[kind](tmp_path / "here")
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "here"), "/bucket/shards", recursive=True)
    try:
        there = f"memory://bucket/shards/{name.rpartition('/')[2]}"
        one, other = (collect(linear(), images, checks=False) for images in (name, there))
        assert same(one, other)
        assert one.labels.tolist() == LABELS
        assert same(one, collect(linear(), twenty(), LABELS, checks=False))
        listed = sorted(str(path) for path in (tmp_path / "here").iterdir())
        assert same(one, collect(linear(), listed, checks=False))
    finally:
        system.rm("/bucket", recursive=True)


def test_a_classifier_is_calibrated_and_asked_by_shards(tmp_path):
    shards = write_tars(tmp_path)
    classifier = atta.calibrate(linear(), shards, policy="flip", progress=False, rehearse=False)
    expected = classifier.predict_proba(twenty().numpy(), channels="first")
    assert np.array_equal(classifier.predict_proba(shards), expected)
    photographs = Preprocess(resize=4)
    (batch,) = as_source(shards, preprocess=photographs).read([range(20)])
    assert batch.pixels.shape == (20, 3, 4, 4)
    (grey,) = as_source(shards, shape=(1, 8, 8)).read([range(20)])
    assert grey.pixels.shape == (20, 1, 8, 8)
    assert blend(linear()).predict_proba(shards).shape == (20, 3)


def test_shards_are_opened_when_their_turn_comes(tmp_path, small):
    shards = write_tars(tmp_path)
    (tmp_path / "part-002.tar").write_bytes(b"no tar")
    read = as_source(shards, workers=0).read([range(6), range(6, 20)])
    assert torch.equal(next(read).pixels, twenty()[:6])
    with pytest.raises(InputError, match=r"a shard of images at .*part-002.tar, but it cannot"):
        next(read)


@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("shard", [1, 2])
def test_a_damaged_shard_ends_no_stream_early(tmp_path, small, shard, workers):
    shards = write_tars(tmp_path)
    (tmp_path / f"part-00{shard}.tar").write_bytes(b"no tar")
    with pytest.raises(InputError, match=rf"a shard of images at .*part-00{shard}.tar, but it"):
        list(as_source(shards, workers=workers).read(batches_of(6, 0, None)))


def test_names_stand_for_shards():
    assert [str(one) for one in shards_of(["a{1..2}-{09..10}.tar", "s3://b/c.parquet"])] == [
        *("a1-09.tar", "a1-10.tar", "a2-09.tar", "a2-10.tar", "s3://b/c.parquet")
    ]
    for other in ("photos", ["a.tar", "b.png"], [torch.zeros(1)], 3, None):
        assert not shards_of(other)


FAULTS = {
    "two images": ({"a.png": b"1", "a.jpg": b"2"}, "expected one image in a of .*, found png, jpg"),
    "no image": ({"a.cls": b"1"}, "expected one image in a of .*, found none"),
    "a label of text": ({"a.png": b"1", "a.cls": b"cat"}, "expected a class number .* got b'cat'"),
    "a damaged image": ({"a.png": b"1"}, "expected an image in a of .*one.tar, but it cannot be"),
    "nothing": ({"a.txt": b"1"}, "expected at least one image in one.tar, found none"),
    "another size": (
        {"a.png": png(twenty()[0]), "b.png": png(twenty()[0, :, :5])},
        r"expected images of the shape \(3, 8, 8\), got \(3, 5, 8\) in b of",
    ),
    "another colour": (
        {"a.png": png(twenty()[0, :1].expand(3, 8, 8)), "b.png": b"1"},
        "an image in b of",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_shard_is_named(tmp_path, fault):
    files, sentence = FAULTS[fault]
    (tmp_path / "one.tar").write_bytes(tar_of(files))
    with pytest.raises(InputError, match=sentence):
        list(as_source(tmp_path / "one.tar").read([range(2)]))


def test_shards_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InputError, match=r"a shard of images at .*gone.tar, but it cannot be read"):
        as_source(tmp_path / "gone.tar")
    with pytest.raises(InputError, match=r"expected shards of images at .*\*.tar, found none"):
        as_source(f"{tmp_path}/*.tar")
    with pytest.raises(InputError, match="skip_bad: a loader or a stream"):
        collect(linear(), write_tars(tmp_path), skip_bad=True)
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match=r"a shard of images at .*bad.parquet, but it cannot be"):
        as_source(tmp_path / "bad.parquet")
