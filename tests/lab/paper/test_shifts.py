"""The paper's shifted test sets."""

import pytest
import torch

from atta._base.errors import InputError
from atta.data.image_set import ImageSet
from atta.lab.paper.records import shifted, ucmerced_as_aid


def worse(images, indices, seed=0):
    return shifted(ImageSet("some", images, indices=indices), seed).tensors()


def test_the_shift_of_an_image_depends_on_its_index_and_the_seed_alone():
    images = torch.randint(
        0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    indices = torch.tensor([3, 0, 7, 1])
    whole = worse(images, indices, seed=1)
    assert torch.equal(worse(images[2:], indices[2:], seed=1), whole[2:])
    assert torch.equal(worse(images.flip(0), indices.flip(0), seed=1), whole.flip(0))
    assert not torch.equal(worse(images, indices, seed=2), whole)
    assert whole.dtype == torch.uint8


def test_a_shifted_set_is_the_same_images_under_another_name():
    images = ImageSet(
        "some", torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 0]), ["a", "b"]
    )
    found = shifted(images.subset(torch.tensor([2, 0])), seed=3)
    assert (found.name, found.classes) == ("some*", ("a", "b"))
    assert (found.labels.tolist(), found.indices.tolist()) == ([0, 0], [2, 0])


def test_the_shift_adds_noise_of_the_stated_variance():
    """Where the blur has size 1, one image in five, the noise is seen as it was added."""
    grey = torch.full((500, 3, 16, 16), 128, dtype=torch.uint8)
    variance = (worse(grey, torch.arange(500)).float() - 128).var(dim=(2, 3))
    noise = variance.sort(dim=0).values[
        -50:
    ]  # half of those that were not blurred: the upper half of U(10, 50)
    assert noise.mean().item() == pytest.approx(40, abs=3)
    assert noise.max() < 65


def test_the_ten_shared_classes_get_their_labels_in_aid():
    theirs = (
        "agricultural",
        "airplane",
        "baseball diamond",
        "beach",
        "dense_residential",
        "forest",
        "mediumresidential",
    )
    theirs += ("parkinglot", "river", "sparse-residential", "storagetanks", "harbor")
    ours = (
        "Airport",
        "BaseballField",
        "Beach",
        "DenseResidential",
        "Farmland",
        "Forest",
        "Medium Residential",
        "Parking",
    )
    ours += ("River", "SparseResidential", "storage_tanks")
    images = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 1, 2, 2)
    shared = ucmerced_as_aid(ImageSet("ucmerced", images, torch.arange(12), theirs), ours)
    assert shared.classes == ours
    assert shared.labels is not None
    assert shared.indices.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [ours[i] for i in shared.labels[:3]] == ["Farmland", "BaseballField", "Beach"]
    with pytest.raises(
        InputError,
        match="expected a class farmland among those of UC-Merced and AID, found Airport",
    ):
        ucmerced_as_aid(ImageSet("ucmerced", images, torch.arange(12), theirs), ours[:1])
    with pytest.raises(InputError, match="expected labels with ucmerced"):
        ucmerced_as_aid(ImageSet("ucmerced", images), ours)
