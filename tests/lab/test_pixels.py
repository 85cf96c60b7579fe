"""Records of pixels: splits, folds and resamples take whole images."""

import torch

from atta import VATTA
from atta.calibrators.fitting import fold_splits, standard_error
from atta.lab.fits import FOLDS, Fit, Rows
from atta.metrics.resampling import Resamples

SIZES = (5, 3, 4, 6, 2, 5, 4, 3)
IMAGES = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))


def whole(rows: torch.Tensor) -> bool:
    """Whether all rows of each of their images are among them."""
    return torch.equal(rows.sort().values, torch.isin(IMAGES, IMAGES[rows]).nonzero()[:, 0])


def test_splits_and_folds_take_whole_images():
    for split in range(4):
        rows = Rows(len(IMAGES), 14, split, groups=SIZES)
        fitted, rest = rows.drawn()
        assert whole(fitted)
        assert whole(rest)
        assert 14 <= len(fitted) < 14 + max(SIZES)
        assert sorted([*fitted.tolist(), *rest.tolist()]) == list(range(len(IMAGES)))
    everything = Rows(len(IMAGES), len(IMAGES), groups=SIZES)
    for one in Fit("a", everything, VATTA()).parted():
        kept, out = one.rows.folded()
        assert whole(kept)
        assert whole(out)
    for kept, out in fold_splits(len(IMAGES), FOLDS, groups=IMAGES):
        assert whole(kept)
        assert whole(out)


def test_resamples_draw_whole_images():
    for counts in Resamples(len(IMAGES), 20, groups=IMAGES):
        for image in range(len(SIZES)):
            assert len({*counts[IMAGES.numpy() == image, 0].tolist()}) == 1


def test_rows_of_an_image_count_as_one():
    values = torch.randn(8, generator=torch.Generator().manual_seed(0)).repeat_interleave(50)
    images = torch.arange(8).repeat_interleave(50)
    alone = standard_error(values[::50])
    assert abs(standard_error(values, images) / alone - 1) < 1e-6
    assert standard_error(values) < alone / 5
