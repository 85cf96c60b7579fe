"""The paper's shifted test sets: CIFAR-10* and the images of UC-Merced under the labels of AID."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from atta._base.errors import InputError
from atta.data.draws import draw_numbers
from atta.data.image_set import Bytes, ImageSet
from atta.data.layouts import listed
from atta.data.transforms import gaussian_blur, gaussian_noise


def shifted(images: ImageSet, seed: int = 0) -> ImageSet:
    """CIFAR-10*: noise of variance U(10, 50) for each image and channel, then blur of size 1 to 5, as bytes again.

    What happens to an image depends on the seed and its index alone.
    """
    worse = _worsened(images.tensors(), images.indices, seed)
    return ImageSet(f"{images.name}*", worse, images.labels, images.classes, images.indices)


def _worsened(images: Bytes, indices: Int[Tensor, "_"], seed: int) -> Bytes:
    pieces = []
    # In pieces: an image needs a number a pixel, and as floats.
    for some, rows in zip(torch.split(images, 1000), torch.split(indices, 1000), strict=True):
        noise = draw_numbers(
            "shift-noise", some.shape[1] + some[0].numel(), rows, repeat=0, repeats=1, seed=seed
        )
        blur = draw_numbers("shift-blur", 1, rows, repeat=0, repeats=1, seed=seed)
        noisy = gaussian_noise(some.float() / 255, noise.to(some.device))
        pieces.append((gaussian_blur(noisy, blur.to(some.device)) * 255).round().byte())
    return torch.cat(pieces) if pieces else images


UCMERCED_IN_AID = {
    "agricultural": "Farmland",
    "baseballdiamond": "BaseballField",
    "beach": "Beach",
    "denseresidential": "DenseResidential",
    "forest": "Forest",
    "mediumresidential": "MediumResidential",
    "parkinglot": "Parking",
    "river": "River",
    "sparseresidential": "SparseResidential",
    "storagetanks": "StorageTanks",
}
"""The ten classes that the two sets of aerial images share."""


def ucmerced_as_aid(ucmerced: ImageSet, aid_classes: Sequence[str]) -> ImageSet:
    """The images of the ten classes that AID has too, with AID's labels; case, spaces and dashes do not matter."""
    if ucmerced.labels is None:
        raise InputError(f"expected labels with {ucmerced.name}, found none")
    theirs = {_plain(label): i for i, label in enumerate(ucmerced.classes)}
    ours = {_plain(label): i for i, label in enumerate(aid_classes)}
    target = torch.full((len(ucmerced.classes),), -1)
    for their_name, our_name in UCMERCED_IN_AID.items():
        for label, classes, named in (
            (their_name, theirs, ucmerced.classes),
            (_plain(our_name), ours, aid_classes),
        ):
            if label not in classes:
                raise InputError(
                    f"expected a class {label} among those of UC-Merced and AID, found {listed(named)}"
                )
        target[theirs[their_name]] = ours[_plain(our_name)]
    shared = ucmerced.subset((target[ucmerced.labels] >= 0).nonzero()[:, 0])
    assert shared.labels is not None
    return ImageSet(
        ucmerced.name, shared.images, target[shared.labels], aid_classes, shared.indices
    )


def _plain(label: str) -> str:
    return re.sub(r"[\W_]", "", label).lower()
