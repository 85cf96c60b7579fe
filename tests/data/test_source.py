"""Sources: positions in, pixels out; a cache decodes each file once, and faults have positions."""

from collections import Counter

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from atta._base.errors import InputError
from atta.data import source as source_module
from atta.data.image_set import BadImage, EncodedImages, ImageSet
from atta.data.labels import Reading, labelled_source
from atta.data.source import (
    ArraySource,
    CachedSource,
    as_source,
    batches_of,
    cached,
    copies,
)
from scenarios import LABELS, Items, Stream, twenty


@pytest.fixture
def opened(monkeypatch, tmp_path_factory):
    """The file of what was decoded, a byte for each image; processes write to it as well."""
    file, read = tmp_path_factory.mktemp("opened") / "rows", EncodedImages.__getitem__

    def counted(self, row):
        with file.open("ab") as log:
            log.write(bytes([row]))
        return read(self, row)

    monkeypatch.setattr(EncodedImages, "__getitem__", counted)
    return file


def everything(source, size=6, **how):
    batches = list(source.read(batches_of(size, 0, source.count), **how))
    positions = [position for batch in batches for position in batch.positions]
    return positions, torch.cat([batch.pixels for batch in batches])


def test_batches_end_at_the_last_image_or_never():
    assert list(batches_of(8, 8, 20)) == [range(8, 16), range(16, 20)]
    assert list(batches_of(8, 20, 20)) == []
    endless = batches_of(3, 1, None)
    assert [next(endless), next(endless)] == [range(1, 4), range(4, 7)]


# ---- the cache


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "in a temporary file"])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_file_is_opened_once_however_often_it_is_read(
    folder, opened, monkeypatch, memory, workers
):
    monkeypatch.setattr(source_module, "_MEMORY", memory)
    source = cached(as_source(folder))
    assert isinstance(source, CachedSource)
    opened.write_bytes(b"")
    some = next(source.read([[3, 4, 11]], workers))
    assert torch.equal(some.pixels, twenty()[[3, 4, 11]])
    for size in (6, 20, 1):
        positions, pixels = everything(source, size, workers=workers)
        assert positions == list(range(20))
        assert torch.equal(pixels, twenty())
        assert pixels.dtype == torch.uint8
    rest = source.subset(torch.tensor([2, 19]))
    assert torch.equal(everything(rest)[1], twenty()[[2, 19]])
    assert Counter(opened.read_bytes()) == Counter(range(20))
    assert (source.count, source.shape, source.classes) == (20, (3, 8, 8), ("a", "b", "c"))
    assert source.where(8).endswith("b/08.png")


def test_what_is_too_large_for_memory_is_not_cached_where_only_memory_is_allowed(
    folder, monkeypatch
):
    source = as_source(folder)
    assert isinstance(cached(source, in_memory=True), CachedSource)
    monkeypatch.setattr(source_module, "_MEMORY", 0)
    assert cached(source, in_memory=True) is source


@pytest.mark.parametrize("images", [twenty().float() / 255, twenty().double() / 255])
@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_floats_and_the_labels_of_items_are_cached_as_they_are(monkeypatch, images, memory):
    monkeypatch.setattr(source_module, "_MEMORY", memory)
    source = cached(as_source(Items(images, LABELS.tolist())))
    for _ in range(2):
        (batch,) = source.read([range(20)])
        assert torch.equal(batch.pixels, images)
        assert torch.equal(batch.labels, LABELS)


def test_arrays_are_their_own_cache_and_a_stream_is_read_to_its_end():
    array = as_source(twenty())
    assert cached(array) is array
    for images in (Stream(twenty()), DataLoader(TensorDataset(twenty(), LABELS), batch_size=6)):
        source = cached(as_source(images))
        assert isinstance(source, ArraySource)
        assert (source.count, source.once) == (20, False)
        assert torch.equal(source.labels, LABELS)
        for _ in range(2):
            assert torch.equal(everything(source)[1], twenty())


@pytest.mark.parametrize("bad", [(0,), (0, 1, 2, 3), (19,)], ids=["first", "four", "last"])
def test_a_file_that_cannot_be_read_is_a_fault_each_time_and_the_others_keep_their_bytes(
    folder, bad
):
    files = sorted(folder.rglob("*.png"))
    for row in bad:
        files[row].write_bytes(b"no image")
    good = [row for row in range(20) if row not in bad]
    source = cached(as_source(folder, skip_bad=True))
    for _ in range(2):
        batches = list(source.read(batches_of(4, 0, 20), skip=BadImage))
        assert [row for batch in batches for row in batch.faults] == list(bad)
        assert all(files[row].name in why for batch in batches for row, why in batch.faults.items())
        assert [row for batch in batches for row in batch.positions] == good
        pixels = torch.cat([batch.pixels for batch in batches if len(batch.positions)])
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, twenty()[good])
    with pytest.raises(BadImage, match=files[bad[0]].name):
        list(source.read([range(20)]))


@pytest.mark.parametrize("wrap", [lambda source: source, cached], ids=["plain", "cached"])
def test_bytes_and_floats_in_one_set_are_refused(wrap):
    mixed = [twenty()[0], twenty()[1].float() / 255]
    with pytest.raises(InputError, match=r"as uint8, or all as floats in \[0, 1\], got both"):
        list(wrap(as_source(mixed)).read([range(2)]))


# ---- subsets


@pytest.mark.parametrize("wrap", [lambda source: source, cached], ids=["plain", "cached"])
def test_a_subset_counts_from_0_and_its_images_keep_their_places(folder, wrap):
    whole = wrap(as_source(folder))
    part = whole.subset(torch.tensor([2, 5, 8, 13, 19]))
    positions, pixels = everything(part, 2)
    assert positions == [0, 1, 2, 3, 4]
    assert torch.equal(pixels, twenty()[[2, 5, 8, 13, 19]])
    assert part.labels.tolist() == [0, 0, 1, 1, 2]
    assert part.places([1, 3]).tolist() == whole.places([5, 13]).tolist()
    assert part.where(2) == whole.where(8)
    assert part.files == [whole.files[row] for row in (2, 5, 8, 13, 19)]
    inner = part.subset(torch.tensor([1, 4]))
    assert inner.places(range(2)).tolist() == whole.places([5, 19]).tolist()
    assert torch.equal(everything(inner)[1], twenty()[[5, 19]])


def test_a_subset_of_a_set_that_was_shuffled_keeps_the_places_of_that_set():
    order = [7, 3, 11, 0, 19]
    whole = as_source(ImageSet("toy", twenty()).subset(order))
    assert whole.places(range(5)).tolist() == order
    assert whole.subset(torch.tensor([1, 4])).places(range(2)).tolist() == [3, 19]
    assert as_source(twenty()).places([4, 9]).tolist() == [4, 9]


def test_the_faults_of_a_subset_are_named_by_its_own_positions(folder):
    (folder / "b" / "08.png").write_bytes(b"no image")
    part = as_source(folder).subset(torch.tensor([2, 8, 13]))
    (batch,) = part.read([range(3)], skip=BadImage)
    assert batch.positions == [0, 2]
    assert [*batch.faults] == [1]
    assert "b/08.png" in batch.faults[1]


@pytest.mark.parametrize(
    ("image", "label"), [("image", "label"), ("img", "label"), ("pixel_values", "labels")]
)
def test_a_dataset_of_dicts_holds_images_and_their_labels(image, label):
    images = twenty()
    items = [{image: one, label: i % 3} for i, one in enumerate(images)]
    for given in (items, Items(items), DataLoader(Items(items), batch_size=7)):
        source = cached(as_source(given))
        batches = list(source.read(batches_of(6, 0, 20)))
        assert torch.equal(torch.cat([batch.pixels for batch in batches]), images)
        labels = source.labels
        if labels is None:
            labels = torch.cat([batch.labels for batch in batches])
        assert labels.tolist() == [i % 3 for i in range(20)]
    bare = next(as_source([{image: one} for one in images]).read([range(20)]))
    assert torch.equal(bare.pixels, images)
    assert bare.labels is None


def test_one_image_is_a_batch_of_one(tmp_path):
    image = twenty(1)[0]
    photo = Image.fromarray(image.permute(1, 2, 0).numpy())
    photo.save(tmp_path / "one.png")
    for given, channels in (
        (image, None),
        (image.numpy(), "first"),
        (image.permute(1, 2, 0).numpy(), "last"),
        (photo, None),
        (tmp_path / "one.png", None),
    ):
        positions, pixels = everything(as_source(given, channels))
        assert positions == [0]
        assert torch.equal(pixels[0], image)


def test_images_without_an_axis_of_channels_are_not_one_image():
    for images, shape in ((twenty()[:, 0], None), (twenty(3)[:, 0], (1, 8, 8))):
        with pytest.raises(InputError, match=r"images\[:, None\] for grey images"):
            as_source(images, shape=shape)


@pytest.mark.parametrize("sampler", [None, SubsetRandomSampler(range(20))])
def test_labels_apart_from_a_shuffled_loader_are_refused_and_its_own_are_taken(sampler):
    images, labels = twenty(), torch.arange(20) % 3
    how = {"batch_size": 7, "shuffle": sampler is None or None, "sampler": sampler}
    loader = DataLoader(Items(images, labels), **how)
    with pytest.raises(InputError, match="leave labels out if the batches hold them"):
        labelled_source(loader, labels, Reading(cache=True))
    source, labelling, _ = labelled_source(loader, None, Reading(cache=True))
    (batch,) = source.read([range(20)])
    rows = [int((images == one).flatten(1).all(1).nonzero()[0]) for one in batch.pixels]
    assert labelling.labels.tolist() == labels[rows].tolist()
    plain = DataLoader(images, batch_size=7)
    _, labelling, _ = labelled_source(plain, labels, Reading())
    assert labelling.labels.tolist() == labels.tolist()


def test_copies_are_counted_where_the_pixels_are_at_hand(tmp_path):
    images = twenty()
    images[10:12] = images[0]
    assert copies(as_source(images)) == 3
    assert copies(cached(as_source(Items(images)))) == 3
    assert copies(cached(as_source(Items(images))).subset(torch.arange(11))) == 2
    assert copies(as_source(Items(images))) == 0
    assert copies(as_source(twenty().float() / 255)) == 0
