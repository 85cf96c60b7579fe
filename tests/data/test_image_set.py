"""Sets of images: what they decode to, what they are cut and saved as."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from atta._base.errors import InputError
from atta.data.folder import folder_of_images
from atta.data.image_set import BadImage, ImageSet, decode, resize
from atta.data.preprocess import Preprocess
from atta.data.source import as_source
from atta.lab.datasets import load
from layouts_made import EXPECTED, LABELS, PIXELS, write_images

pytestmark = pytest.mark.usefixtures("apart")


def test_images_of_different_sizes_need_a_size(tmp_path):
    write_images(tmp_path)
    Image.fromarray(PIXELS[1][:4]).save(tmp_path / "bee" / "1.png")
    found = load("insects", "train", data=tmp_path)
    with pytest.raises(
        InputError, match=r"to be \(3, 8, 8\) as the first is, image 2 is \(3, 4, 8\); give an"
    ):
        found.tensors()
    assert found.resized(5).tensors().shape == (6, 3, 5, 5)
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
    assert torch.equal(
        found[0][0][0], torch.from_numpy(np.asarray(Image.fromarray(PIXELS[0]).convert("L")).copy())
    )


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
    deep = Image.fromarray(
        np.full((8, 8), 40000, dtype=np.uint16)
    )  # which Pillow would show as white
    for preprocess in (None, Preprocess(resize=4)):
        with pytest.raises(
            InputError, match=r"expected 8 bits a channel in image 0 of .* found the mode I"
        ):
            list(as_source([deep], preprocess=preprocess).read([[0]]))


def test_a_file_that_pillow_refuses_in_its_own_way_is_named_and_can_be_left_out(tmp_path):
    from PIL.PngImagePlugin import PngInfo

    for name, letters in (("a", 0), ("b", 2_000_000), ("c", 0)):  # more text than Pillow unfolds
        text = PngInfo()
        text.add_text("comment", "x" * letters, zip=True)
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png", pnginfo=text)
    with pytest.raises(
        BadImage, match=r"expected an image in .*b\.png, but it cannot be decoded: .*too large"
    ):
        folder_of_images(tmp_path).images[1]
    (batch,) = as_source(tmp_path).read([range(3)], skip=BadImage)
    assert list(batch.positions) == [0, 2]
    assert [*batch.faults] == [1]
    assert "too large" in batch.faults[1]


def progressive(scans: int, side: int = 16) -> bytes:
    """A JPEG whose last scan is repeated; each repeat costs a pass over all pixels."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 200)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def test_a_jpeg_of_thousands_of_scans_is_named_and_can_be_left_out(tmp_path):
    (tmp_path / "a.jpg").write_bytes(progressive(2000))
    # A comment and what follows the end, such as the film of a live photo, are not scans.
    comment = b"\xff\xfe\x01\x92" + b"\xff\xda" * 200
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8" + comment + progressive(3)[2:] + b"\xff\xda" * 200)
    with pytest.raises(BadImage, match=r"at most 100 scans in the JPEG .*a\.jpg, got more"):
        folder_of_images(tmp_path).images[0]
    (batch,) = as_source(tmp_path, skip_bad=True).read([range(2)], skip=BadImage)
    assert list(batch.positions) == [1]


def test_an_image_that_was_sent_has_a_stricter_limit_of_pixels():
    file = io.BytesIO()
    Image.new("1", (5001, 5000)).save(file, "PNG")
    with pytest.raises(BadImage, match="at most 25 million pixels, got 5001 x 5000"):
        decode(file.getvalue(), "L", None, "what was sent", sent=True)
    assert decode(file.getvalue(), "L", None, "a file of one's own").shape == (1, 5000, 5001)


def test_resizing_never_takes_more_memory_than_the_limit(tmp_path):
    Image.new("L", (20_000, 1)).save(tmp_path / "line.png")
    with pytest.raises(
        BadImage, match=r"line\.png.* at most 100 million pixels after resizing, got 4480000 x 224"
    ):
        decode(tmp_path / "line.png", None, Preprocess(resize=224, crop=224), "line.png")
    for forged in ({"resize": 10_001}, {"crop": (1, 10**9)}, {"resize": (40_000, 30_000)}):
        with pytest.raises(InputError, match="expected at most 100 million pixels, got"):
            Preprocess.of(forged)


def test_a_photograph_is_turned_upright(tmp_path):
    (tmp_path / "one").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    Image.fromarray(PIXELS[0][:, :4]).save(tmp_path / "one" / "0.jpg", exif=exif)
    assert load("photos", "train", data=tmp_path).shape == (3, 4, 8)


def test_an_unlabelled_set_can_be_saved(tmp_path):
    ImageSet("clouds", EXPECTED).save(tmp_path / "clouds.safetensors")
    assert ImageSet.load_file(tmp_path / "clouds.safetensors").labels is None


def test_a_file_that_holds_no_set_is_refused(tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(InputError, match="there is no file"):
        ImageSet.load_file(tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="is not a whole safetensors file"):
        ImageSet.load_file(tmp_path / "broken.safetensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"expected images, a name and classes in .* found weight"):
        ImageSet.load_file(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"classes": "[1"}, "expected a list of names as the classes in"),
        ({"classes": "[" * 100_000}, "expected a list of names as the classes in"),
        ({"classes": "[1, 2, 3]"}, "expected a list of names as the classes in"),
        ({"classes": '{"a": 1}'}, "expected a list of names as the classes in"),
        (
            {"indices": torch.arange(5)},
            r"6 whole numbers as the indices in toy, got .* shape \(5,\)",
        ),
        ({"indices": torch.zeros(6)}, "6 whole numbers as the indices in toy, got torch.float"),
        ({"labels": torch.zeros(6)}, "6 whole numbers as the labels in toy, got torch.float32"),
        ({"labels": torch.full((6,), 9)}, "expected labels from 0 to 2 in toy"),
        ({"images": EXPECTED.float()}, "expected the images of toy as uint8"),
    ],
)
def test_a_forged_set_is_refused_in_a_sentence(tmp_path, forged, message):
    from safetensors.torch import save_file

    tensors = {"images": EXPECTED, "labels": torch.tensor(LABELS)}
    tensors |= {name: value for name, value in forged.items() if name != "classes"}
    tensors["images"] = tensors["images"].contiguous()
    text = {"name": "toy", "classes": forged.get("classes", '["ant", "bee", "cat"]')}
    save_file(tensors, tmp_path / "set.safetensors", text)
    with pytest.raises(InputError, match=message):
        ImageSet.load_file(tmp_path / "set.safetensors")


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


def test_a_set_checks_what_it_is_made_of():
    with pytest.raises(
        InputError, match=r"as uint8 of shape \(n, c, h, w\), got torch.float32 of shape \(2, 3"
    ):
        ImageSet("x", torch.zeros(2, 3, 4, 4))
    with pytest.raises(InputError, match=r"expected 6 whole numbers as the labels in x, got .*5"):
        ImageSet("x", EXPECTED, torch.zeros(5), ("a",))
    with pytest.raises(
        InputError, match="expected labels from 0 to 1 in x, which has 2 classes, got 0 to 2"
    ):
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
