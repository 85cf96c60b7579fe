"""Images with masks: files by name, palettes, arrays and datasets; what does not fit is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from atta import InputError
from atta.data.segmentation import check_mask, has_masks, read_mask, scenes


@pytest.fixture
def folders(tmp_path):
    """Three photographs of two sizes, and masks with a palette, in grey and in 16 bits."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    truth = []
    for i, (mode, size) in enumerate([("P", (12, 8)), ("L", (12, 8)), ("I;16", (10, 6))]):
        photo = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(photo).save(tmp_path / "images" / f"scene{i}.png")
        mask = rng.integers(0, 4, size[::-1]).astype(np.uint16 if mode == "I;16" else np.uint8)
        picture = Image.fromarray(mask)
        if mode == "P":
            picture.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
        picture.save(tmp_path / "masks" / f"scene{i}.png")
        truth.append(torch.from_numpy(mask.astype(np.int64)))
    return tmp_path, truth


def test_files_are_paired_by_name_and_read_as_class_numbers(folders):
    path, truth = folders
    found = scenes(path / "images", path / "masks")
    assert len(found) == 3
    for (pixels, mask), wanted in zip(found, truth, strict=True):
        assert torch.equal(mask, wanted)
        assert pixels.shape == (3, *wanted.shape)


def test_an_image_without_a_mask_is_named(folders):
    path, _ = folders
    (path / "masks" / "scene1.png").unlink()
    with pytest.raises(InputError, match="found none for scene1"):
        scenes(path / "images", path / "masks")


def test_a_mask_of_another_size_is_refused(folders):
    path, _ = folders
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(path / "masks" / "scene0.png")
    with pytest.raises(InputError, match=r"expected a mask of 12 x 8 pixels, .*got 5 x 5"):
        scenes(path / "images", path / "masks")[0]


def test_a_damaged_mask_and_a_mask_of_colours_are_refused(folders):
    path, _ = folders
    file = path / "masks" / "scene0.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(InputError, match=r"scene0\.png"):
        read_mask(file)
    with pytest.raises(InputError, match="replace the colours by class numbers"):
        read_mask(Image.new("RGB", (4, 4)))
    Image.new("RGB", (4, 4)).save(file)
    with pytest.raises(InputError, match=r"^expected class numbers in .*scene0\.png, one channel"):
        read_mask(file)


def test_lists_of_files_in_different_orders_are_refused(folders):
    path, _ = folders
    images, masks = (sorted(map(str, (path / kind).iterdir())) for kind in ("images", "masks"))
    assert len(scenes(images, masks)) == 3
    with pytest.raises(InputError, match=r"masks: expected the order of the images, got .*scene2"):
        scenes(images, masks[::-1])


def test_numbers_that_are_no_classes_name_the_cure():
    mask = torch.tensor([[0, 11], [2, 255]])
    with pytest.raises(InputError, match="pass ignore_index=11"):
        check_mask(mask, 11, 255, "image 3")
    check_mask(mask, 12, 255, "image 3")


def test_arrays_datasets_and_loaders_give_the_same_pairs():
    images, masks = torch.rand(4, 3, 5, 6), torch.randint(3, (4, 5, 6))
    data = TensorDataset(images, masks)
    for found in (
        scenes(images, masks),
        scenes(images.numpy(), masks.numpy(), "first"),
        scenes(data),
        scenes(DataLoader(data, batch_size=2)),
    ):
        assert torch.equal(torch.stack([one.mask for one in found]), masks)
        assert torch.equal(torch.stack([one.pixels for one in found]), images)


def test_masks_are_told_from_class_numbers(folders):
    path, _ = folders
    images, masks = torch.rand(4, 3, 5, 6), torch.randint(3, (4, 5, 6))
    assert has_masks(images, masks)
    assert has_masks(path / "images", path / "masks")
    assert has_masks(TensorDataset(images, masks), None)
    assert not has_masks(images, torch.zeros(4, dtype=torch.long))
    assert not has_masks(TensorDataset(images, torch.zeros(4)), None)
    assert not has_masks(path / "images", None)
    assert not has_masks(images, "labels.csv")
