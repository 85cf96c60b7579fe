"""Views of the photograph are those that Pillow makes by hand, and the centre crop stays as it is."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

import atta
from atta import Preprocess
from atta._base.errors import InputError
from atta.data.photographs import MOST, Sheet, box_of, larger, positions
from atta.data.source import as_source
from atta.data.views import PHOTOGRAPH_VIEWS, VIEWS, Policy

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
EVERY = (
    *(("larger", 1), ("tight", 1), ("wide", 1), ("whole", 1), ("corner", 4), ("window", 2)),
    *(("flip-larger", 1), ("flip-corner", 2)),
)
SIZES = [(150, 260), (301, 200), (128, 128), (640, 427)]


def photograph(width, height, mode="RGB"):
    rng = np.random.default_rng(width)
    pixels = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), 3).convert(mode)


def by_hand(image, resize, crop, resample):
    """The views of a photograph whose shortest edge is resized, with Pillow alone."""
    w, h = image.size
    full = image.resize(
        (resize, int(resize * h / w)) if w <= h else (int(resize * w / h), resize), resample
    )
    fw, fh = crop * w / full.width, crop * h / full.height
    big = larger(crop)

    def part(scale, size):
        left, top = max(0, (w - fw * scale) / 2), max(0, (h - fh * scale) / 2)
        return image.resize((size, size), resample, box=(left, top, w - left, h - top))

    spare = full.width - crop, full.height - crop
    places = [(0, 0), spare, (spare[0], 0), (0, spare[1])]
    places += [(round(spare[0] * x), round(spare[1] * y)) for x, y in positions("window", 2)]
    cut = [full.crop((x, y, x + crop, y + crop)) for x, y in places]
    made = {
        "larger": [part(1, big)],
        "tight": [part(1 / 1.22, crop)],
        "wide": [part(min(w / fw, h / fh), crop)],
        "whole": [image.resize((crop, crop), resample)],
        "corner": cut[:4],
        "window": cut[4:],
    }
    mirror = Image.Transpose.FLIP_LEFT_RIGHT
    return made | {
        "flip-larger": [one.transpose(mirror) for one in made["larger"]],
        "flip-corner": [one.transpose(mirror) for one in made["corner"][:2]],
    }


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("resample", "way"), [(2, "bilinear"), (3, "bicubic")])
@pytest.mark.parametrize("size", SIZES)
def test_views_are_those_of_pillow_and_the_centre_crop_stays(size, resample, way, mode):
    plain = Preprocess(128, 112, interpolation=way)
    image = photograph(*size, mode)
    preprocess = replace(plain, views=EVERY)
    sheet, where = preprocess(image), preprocess.sheet
    assert tuple(sheet.shape[1:]) == preprocess.size == where.shape
    assert torch.equal(where.crop(sheet), plain(image))
    for name, expected in by_hand(image, 128, 112, resample).items():
        found = where.views(sheet, name, dict(EVERY)[name])
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            pixels = torch.from_numpy(np.array(other)).reshape(*other.size[::-1], -1)
            assert torch.equal(one, pixels.permute(2, 0, 1)), name


def test_views_of_networks_of_other_libraries_are_those_of_pillow():
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")
    network = timm.create_model("test_resnet", pretrained=False)
    processor = transformers.ViTImageProcessorPil(size={"height": 96, "width": 96})
    image = photograph(301, 200)
    config = timm.data.resolve_model_data_config(network)
    side = config["input_size"][1]
    found = replace(Preprocess.of(network), views=EVERY)
    sheet = found(image)
    way = {"bilinear": 2, "bicubic": 3}[config["interpolation"]]
    hand = by_hand(image, int(side / config["crop_pct"]), side, way)
    for name, repeats in EVERY:
        for one, other in zip(found.sheet.views(sheet, name, repeats), hand[name], strict=True):
            assert np.array_equal(one.permute(1, 2, 0), np.array(other))
    squashed = replace(Preprocess.of(processor), views=(("larger", 1), ("tight", 1)))
    sheet = squashed(image)
    (big,), (tight,) = (squashed.sheet.views(sheet, name, 1) for name in ("larger", "tight"))
    left, top = (301 - 301 / 1.22) / 2, (200 - 200 / 1.22) / 2
    box = (left, top, 301 - left, 200 - top)
    assert np.array_equal(big.permute(1, 2, 0), image.resize((110, 110), 2))
    assert np.array_equal(tight.permute(1, 2, 0), image.resize((96, 96), 2, box=box))


def test_a_photograph_is_turned_upright_before_its_views_are_made():
    image = photograph(200, 150)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    file = io.BytesIO()
    image.save(file, "PNG")
    turned = io.BytesIO()
    image.save(turned, "JPEG", quality=100, subsampling=0, exif=exif)
    preprocess = Preprocess(64, 56, views=(("whole", 1),))
    photo = Image.open(turned)
    expected = np.array(photo.transpose(Image.Transpose.ROTATE_270).resize((56, 56), 2))
    (whole,) = preprocess.sheet.views(preprocess(Image.open(turned)), "whole", 1)
    assert np.array_equal(whole.permute(1, 2, 0), expected)


@pytest.mark.parametrize("name", MOST)
def test_a_part_lies_in_the_photograph(name):
    for photo in [(500, 400), (30, 900), (7, 7)]:
        for part in [(3.0, 3.0), (6.9, 7.0)]:
            left, top, right, bottom = box_of(name, photo, part)
            assert 0 <= left < right <= photo[0]
            assert 0 <= top < bottom <= photo[1]
    assert set(PHOTOGRAPH_VIEWS) == set(MOST)
    assert not set(PHOTOGRAPH_VIEWS) & set(VIEWS)


def test_the_sheet_says_what_it_holds_as_text_and_json():
    preprocess = Preprocess(128, 112, views=(("larger", 1), ("corner", 2)))
    assert str(preprocess).endswith("with views of the photograph (larger + 2 corner)")
    assert Preprocess.of(preprocess.about()) == preprocess
    assert "views" not in Preprocess(128, 112).about()  # which older versions read
    assert preprocess.size == (112 + 128 + 2 * 112, 128)
    assert preprocess.input_size == (112, 112)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"resize": 128, "crop": 112, "views": [["rotated", 1]]}, "expected larger, tight"),
        ({"resize": 128, "crop": 112, "views": ["tight"]}, "views: expected names of views"),
        ({"resize": 128, "crop": 112, "views": [["corner", 5]]}, "repeats of 'corner'"),
        ({"resize": 128, "crop": 112, "views": [["larger", 2]]}, "repeats of 'larger'"),
        ({"crop": 112, "views": [["larger", 1]]}, "fills the input"),
        ({"resize": 100, "crop": 112, "views": [["larger", 1]]}, "fills the input"),
        ({"resize": (9, 9), "fit": "longest", "crop": 9, "views": [["tight", 1]]}, "fills the in"),
        ({"resize": 9000, "crop": 9000, "views": [["corner", 4]]}, "take fewer views"),
    ],
)
def test_views_that_cannot_be_made_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        Preprocess.of(settings)


def test_pixels_that_are_cropped_already_are_refused():
    policy = Policy.parse("flip + tight")
    crops = torch.zeros(9, 3, 56, 56, dtype=torch.uint8)
    with pytest.raises(InputError, match="expected files or Pillow images with preprocess"):
        list(policy.render(crops.float(), range(9)))
    preprocess = Preprocess(64, 56, views=policy.photographs)
    with pytest.raises(InputError, match=r"of which views are made \(tight\), got pixels of 56"):
        as_source(crops, preprocess=preprocess)
    sheets = torch.stack([preprocess(photograph(90, 70))] * 2)
    assert as_source(sheets, preprocess=preprocess).shape == (3, *preprocess.size)


def test_policies_mix_views_of_the_photograph_and_of_its_crop():
    policy = Policy.parse("2 corner + flip + larger")
    assert (policy.passes, policy.photographs) == (5, (("corner", 2), ("larger", 1)))
    sheet = Sheet((8, 8), policy.photographs)
    images = torch.rand(3, 3, *sheet.shape)
    shown = list(policy.render(images, range(3), sheet=sheet))
    assert [(name, repeat) for name, repeat, _ in shown] == [
        *(("corner", 0), ("corner", 1), ("flip", 0), ("larger", 0))
    ]
    assert torch.equal(shown[1][2], images[..., 16:24, :8])
    assert torch.equal(shown[2][2], images[..., :8, :8].flip(-1))
    assert shown[3][2].shape == (3, 3, 9, 9)
    with pytest.raises(InputError, match="would be the same"):
        Policy.parse("2 larger")
    with pytest.raises(InputError, match="atta has another 'tight'"):
        Policy.parse("tight", views={"tight": atta.View.of("tight", torch.neg)})
