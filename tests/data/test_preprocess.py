"""A photograph becomes the pixels that the network's own library would have made of it, to the bit."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import atta
from atta._base.errors import InputError
from atta.data.preprocess import Preprocess
from atta.data.source import as_source

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
SIZES = [(50, 77), (224, 224), (227, 301), (259, 258), (333, 90)]
KINDS = {
    "ViT": {},
    "ConvNext": {},
    "ConvNext below 384": {"size": {"shortest_edge": 224}},
    "Bit": {},
    "EfficientNet": {"rescale_factor": 1 / 127.5, "rescale_offset": True},
    "EfficientNet, normalised once": {"include_top": False},
    "MobileViT": {},
    "Levit": {},
    "PoolFormer": {},
    "DeiT": {"do_rescale": False, "image_mean": [127.0] * 3, "image_std": [128.0] * 3},
    "Beit": {},
    "MobileNetV1": {},
    "MobileNetV2": {},
    "CLIP": {},
    "MobileViT, padded by an odd number": {"crop_size": {"height": 257, "width": 257}},
}


def photograph(height, width, mode="RGB"):
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def seen(preprocess, image):
    return preprocess.normalise(preprocess(image)[None].float() / 255)[0]


@pytest.mark.parametrize("backend", ["Pil", ""], ids=["pillow", "torchvision"])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_the_hugging_face_processor(kind, backend, tmp_path, request):
    transformers = pytest.importorskip("transformers")
    if not backend:
        request.getfixturevalue("torchvision")
    name = kind.split()[0].strip(",") + "ImageProcessor"
    processor = getattr(transformers, name + backend)(**KINDS[kind])
    preprocess = Preprocess.of(processor)
    for size in SIZES:
        theirs = processor(photograph(*size), return_tensors="pt")["pixel_values"][0].float()
        ours = seen(preprocess, photograph(*size))
        assert torch.isfinite(theirs).all()
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-6)
        off = seen(replace(preprocess, interpolation="nearest"), photograph(*size))
        assert size == (224, 224) or not torch.allclose(
            off, theirs, atol=1e-3
        )  # or this test could not fail
    assert Preprocess.of(json.loads(json.dumps(preprocess.about()))) == preprocess
    # Settings do not say which library resizes: it is the one that transformers would choose.
    processor.save_pretrained(tmp_path)
    for given in (processor.to_dict(), str(tmp_path)):
        assert replace(Preprocess.of(given), library=preprocess.library) == preprocess


def test_a_folder_without_settings_says_which_file_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"preprocessor_config\.json or config\.json in .*, found"):
        Preprocess.of(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"preprocessor_config\.json cannot be read"):
        Preprocess.of(tmp_path)
    settings = {"pretrained_cfg": {"input_size": [3, 160, 160], "crop_pct": 1.0}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert Preprocess.of(tmp_path / "config.json").size == (160, 160)


def test_a_processor_with_habits_that_are_not_known_is_refused():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(
        InputError, match=r"PerceiverImageProcessor.* not known here.*atta\.Preprocess\("
    ):
        Preprocess.of(transformers.PerceiverImageProcessorPil())


def test_settings_of_a_processor_say_what_to_install_where_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InputError, match="image processor need the transformers library: pip install transformers"
    ):
        Preprocess.of({"image_processor_type": "ViTImageProcessor", "do_resize": True})


CONFIGS = [
    {},
    {"crop_mode": "squash", "crop_pct": 0.9},
    {"crop_mode": "border", "crop_pct": 1.0, "mean": (0.5, 0.4, 0.3)},
    {"input_size": (3, 160, 224)},
    {"input_size": (3, 225, 225), "interpolation": "bilinear", "crop_pct": 0.95},
]


@pytest.mark.parametrize(("version", "way"), [("1.0.30", "bilinear"), ("1.0.31", "bicubic")])
def test_a_crop_that_is_not_square_is_resized_as_the_installed_timm_does(monkeypatch, version, way):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    config = {"input_size": (3, 160, 224), "interpolation": "bicubic", "crop_mode": "center"}
    assert Preprocess.of(config).interpolation == way


@pytest.mark.parametrize("config", CONFIGS)
def test_pixels_are_those_of_timm(config, torchvision):
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", pretrained=False, pretrained_cfg_overlay=config)
    own = timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )
    for size in SIZES:
        assert torch.equal(seen(Preprocess.of(model), photograph(*size)), own(photograph(*size)))


def test_pixels_are_those_of_torchvision(torchvision):
    weights = torchvision.models.ResNet50_Weights.IMAGENET1K_V2
    for size in SIZES:
        assert torch.equal(
            seen(Preprocess.of(weights), photograph(*size)), weights.transforms()(photograph(*size))
        )
    steps = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(232),
            torchvision.transforms.CenterCrop(224),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    assert Preprocess.of(steps) == Preprocess.of(weights.transforms())


def test_the_two_rules_for_half_a_pixel_are_one_apart():
    image = photograph(9, 12)
    half, down = (Preprocess(crop=9, rounding=rule)(image) for rule in ("half", "down"))
    whole = Preprocess()(image)
    assert torch.equal(half, whole[:, :, 2:11])
    assert torch.equal(down, whole[:, :, 1:10])


def test_a_small_image_is_padded_to_the_crop():
    found = Preprocess(crop=(4, 7), fill=(9, 8, 7))(photograph(4, 4))
    assert found.shape == (3, 4, 7)
    assert found[:, :, 0].tolist() == [[9] * 4, [8] * 4, [7] * 4]


def test_without_antialias_the_pixels_are_others():
    image, plain = photograph(97, 64), Preprocess(resize=20, crop=16)
    assert (plain(image).float() - replace(plain, antialias=False)(image).float()).abs().mean() > 5


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(),
        Preprocess(resize=(20, 30), crop=16, mean=(0.5,), std=(0.2,)),
        Preprocess(channels="BGR"),
    ],
)
def test_it_goes_through_json(preprocess):
    assert Preprocess.of(json.loads(json.dumps(preprocess.about()))) == preprocess


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": (0.5,)}, "mean and std together"),
        ({"mean": (127.0,) * 3, "std": (128.0,) * 3}, "divide mean and std by 255"),
        ({"interpolation": "bilinaer"}, "Did you mean 'bilinear'"),
        ({"resize": 0}, "resize: expected a number of pixels"),
        ({"resize": (3, 4), "fit": "shortest"}, "one number for the shortest edge"),
        ({"mean": (0.5,) * 3, "std": (0.5,) * 3, "channels": "L"}, "1 numbers for L, got 3"),
    ],
)
def test_what_makes_no_sense_is_said(settings, message):
    with pytest.raises(InputError, match=message):
        Preprocess(**settings)


def test_a_dict_with_a_strange_key_is_refused_with_the_one_that_was_meant():
    with pytest.raises(InputError, match="Did you mean 'resize'"):
        Preprocess.of({"rezise": 3, "crop": 2})


def test_files_folders_lists_and_pillow_images_give_the_same_pixels(tmp_path):
    for i, size in enumerate(SIZES):
        photograph(*size).save(tmp_path / f"{i}.png")
    files, preprocess = sorted(tmp_path.iterdir()), Preprocess(resize=40, crop=32)
    opened = [Image.open(file) for file in files]
    found = [
        next(as_source(images, None, preprocess).read([range(5)])).pixels
        for images in (tmp_path, files, opened)
    ]
    assert found[0].shape == (5, 3, 32, 32)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    one = next(as_source(files[3], None, preprocess).read([[0]])).pixels
    assert torch.equal(one[0], found[0][3])


def test_tensors_have_to_be_cropped_already():
    with pytest.raises(
        InputError, match=r"of 32 x 32 pixels, the size that preprocess states, got 8 x 8"
    ):
        list(as_source(torch.zeros(2, 3, 8, 8), None, atta.Preprocess(crop=32)).read([range(2)]))
