"""Images that are not on this disk: the same answers as for copies of them in a folder."""

import csv

import fsspec
import pytest
import torch

from atta._base.errors import InputError
from atta.classifier.predict import predict
from atta.data import loading
from atta.data.folder import Address, as_place, find_images, folder_of_images
from atta.data.source import as_source, batches_of
from atta.run.collect import collect
from scenarios import blend, linear, same, twenty


@pytest.fixture
def cloud(folder):
    """The folder, copied to another file system."""
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/bucket/photos", recursive=True)
    yield "memory://bucket/photos"
    system.rm("/bucket", recursive=True)


def everything(source, **how):
    return torch.cat([batch.pixels for batch in source.read(batches_of(6, 0, 20), **how)])


def test_a_folder_elsewhere_is_read_as_one_here(cloud, folder, monkeypatch):
    monkeypatch.setattr(loading, "EACH", 4)
    here, there = as_source(folder), as_source(cloud)
    assert (there.count, there.shape, there.classes) == (20, here.shape, here.classes)
    assert torch.equal(there.labels, here.labels)
    assert [str(file) for file in there.files] == [
        f"{cloud}/{file.relative_to(folder)}" for file in here.files
    ]
    for workers in (0, 2):
        assert torch.equal(everything(there, workers=workers), twenty())
    assert same(collect(linear(), cloud, checks=False), collect(linear(), folder, checks=False))


def test_one_image_several_and_nested_ones_are_read(cloud, folder):
    first, last = f"{cloud}/a/00.png", f"{cloud}/c/19.png"
    assert torch.equal(next(as_source(first).read([[0]])).pixels, twenty()[:1])
    (batch,) = as_source([last, first]).read([range(2)])
    assert torch.equal(batch.pixels, twenty()[[19, 0]])
    found = find_images(["memory://bucket", folder])
    assert [str(one) for one in found[:20]] == sorted(str(one) for one in found[:20])
    assert len(found) == 40
    assert {type(one) for one in found} == {Address, type(folder)}


def test_a_table_of_labels_names_files_elsewhere(cloud, tmp_path):
    numbers = [row % 3 for row in range(20)]
    files = [str(file) for file in folder_of_images(as_place(cloud)).files]
    for names in (files, [file.removeprefix("memory://bucket/") for file in files]):
        with (tmp_path / "labels.csv").open("w", newline="") as table:
            csv.writer(table).writerows([("file", "label"), *zip(names, numbers, strict=True)])
        record = collect(linear(), cloud, tmp_path / "labels.csv", shuffle=False, checks=False)
        assert record.labels.tolist() == numbers


def test_a_classifier_answers_and_names_files_elsewhere(cloud, folder, tmp_path):
    classifier = blend(linear())
    expected = classifier.predict_proba(folder)
    assert torch.equal(torch.tensor(classifier.predict_proba(cloud)), torch.tensor(expected))
    fsspec.filesystem("memory").pipe("/bucket/photos/b/07.png", b"no image")
    output = tmp_path / "out.csv"
    done = predict(classifier, find_images([cloud]), output)
    assert list(done.unreadable) == [f"{cloud}/b/07.png"]
    with output.open() as table:
        names = [row["file"] for row in csv.DictReader(table)]
    assert names == [
        f"{cloud}/{file.relative_to(folder)}"
        for file in sorted(folder.rglob("*.png"))
        if file.name != "07.png"
    ]


def test_what_is_not_there_or_damaged_is_named(cloud):
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/photos/a/00.png", b"no image")
    with pytest.raises(InputError, match=r"an image in memory://bucket/photos/a/00.png, but it"):
        everything(as_source(cloud))
    record = collect(linear(), cloud, skip_bad=True, checks=False)
    assert len(record) == 19
    with pytest.raises(InputError, match="found none at memory://bucket/nothing"):
        as_source("memory://bucket/nothing")
    with pytest.raises(InputError, match="there is no file or folder memory://bucket/nothing"):
        find_images(["memory://bucket/nothing"])
    gone = as_source([f"{cloud}/b/08.png", f"{cloud}/gone.png"])
    with pytest.raises(InputError, match=r"memory://bucket/photos/gone.png.*cannot be decoded"):
        next(gone.read([range(2)]))
    with pytest.raises(InputError, match=r"fsspec reads, but nowhere://x cannot be: .*nowhere"):
        as_source("nowhere://x")


def test_errors_of_any_kind_are_those_of_files(cloud, monkeypatch):
    def refuse(self, path, **how):
        raise LookupError("no credentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refuse)
    with pytest.raises(InputError, match=r"00.png: LookupError: no credentials"):
        as_source(cloud)
