"""Images as bytes get the same answers as files, and hostile bytes are refused early."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atta
from atta._base.errors import InputError
from atta.classifier.estimator import Details
from atta.classifier.predict import predict
from atta.classifier.serve import REMEMBERED, Explainer
from scenarios import (
    POLICY,
    SHAPE,
    Answerer,
    Doubtful,
    answered,
    encoded,
    linear,
    made_classifier,
    pixels,
)

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is so large."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_bytes_are_answered_as_the_file_is(
    fitted: atta.CalibratedClassifier, tmp_path: Path
) -> None:
    predictor, image = fitted, pixels()[0]
    (tmp_path / "image.png").write_bytes(encoded(image))
    done = predict(predictor, [tmp_path / "image.png"], tmp_path / "out.jsonl", coverage=0.9)
    row = json.loads(done.path.read_text())
    said = Explainer(predictor, coverage=0.9)(encoded(image))
    assert "|".join(map(str, said.pop("set"))) == row.pop("set")
    assert said.pop("top")[0] == {"class": row["class"], "probability": row["confidence"]}
    assert (said.pop("warning") is None) == (said["ood"] < 0.95)
    assert said == {key: value for key, value in row.items() if key != "file"} | {"passes": 4}
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_every_view_is_shown_with_what_the_network_said_of_it() -> None:
    classifier, image = made_classifier(names=tuple("abcde"), summary=False), pixels()[0]
    details = classifier.details(image[None])
    itself, *views = Explainer(classifier, views=True)(encoded(image))["views"]
    assert [(view["view"], view["repeat"]) for view in views] == [
        ("flip", 0),
        ("brightness", 0),
        ("brightness", 1),
    ]
    assert itself["confidence"] == pytest.approx(details.base.max().item())
    for view in views:
        expected = details.views[view["view"]][0, view["repeat"]]
        assert (view["confidence"], view["class"]) == (
            pytest.approx(expected.max().item()),
            "abcde"[int(expected.argmax())],
        )
    shown = [decoded(view["picture"]) for view in (itself, views[0])]
    assert torch.equal(shown[0], image)
    assert torch.equal(shown[1], image.flip(2))


def decoded(uri: str) -> Tensor:
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return (
            torch.tensor(list(image.tobytes()), dtype=torch.uint8).reshape(8, 8, 3).permute(2, 0, 1)
        )


def test_a_view_that_was_not_needed_says_nothing() -> None:
    sure = atta.CalibratedClassifier(linear(scale=1e3), Doubtful(), POLICY, image_shape=SHAPE)
    said = Explainer(sure, views=True)(encoded(pixels()[0]))
    assert said["passes"] == 1
    assert [view["class"] is None for view in said["views"]] == [False, True, True, True]
    json.dumps(said, allow_nan=False)


def test_drift_is_told_of_the_last_images_once_they_are_enough(
    fitted: atta.CalibratedClassifier,
) -> None:
    explainer, images = Explainer(fitted), pixels(40, seed=1)
    for image in images[:31]:
        explainer(encoded(image))
    assert explainer.drift() is None
    for image in images[31:]:
        explainer(encoded(image))
    found, expected = explainer.drift(), fitted.drift(images)
    assert found is not None
    assert (found.sentence, found.seen_histogram) == (expected.sentence, expected.seen_histogram)
    explainer.stream("").seen.extend([(0.0, 1.0, 0)] * REMEMBERED)
    assert explainer.drift().images == REMEMBERED  # type: ignore[union-attr]


def whole(images: Tensor) -> Details:
    probs = torch.tensor([[0.9, 0.1]]).expand(len(images), 2)
    return answered(probs, probs, None)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"",
            "expected an image in this file, but it cannot be decoded: cannot identify image file",
        ),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
            "cannot be decoded: cannot identify image file",
        ),
        (encoded(pixels()[0])[:-30], "cannot be decoded"),
        (claimed(8000, 8000), "at most 25 million pixels, got 8000 x 8000"),
        (claimed(40_000, 40_000), "cannot be decoded"),  # Pillow's own limit
        (claimed(1, 1_000_000), "got 1 x 1000000"),
    ],
    ids=["nothing", "another kind", "cut", "large", "huge", "thread"],
)
def test_what_is_no_image_or_claims_too_much_is_refused_in_a_sentence(
    data: bytes, sentence: str
) -> None:
    with pytest.raises(InputError) as error:
        Explainer(Answerer(whole, (3, 8, 8), 2))(data)
    assert sentence in str(error.value)
    assert " at 0x" not in str(error.value)


def test_a_photograph_of_another_size_is_refused_or_cropped_and_never_squashed() -> None:
    large = encoded(pixels(1, (3, 9, 12))[0], "PNG")
    with pytest.raises(
        InputError, match=r"got \(3, 9, 12\) in this file; .*other sizes need preprocessing"
    ):
        Explainer(Answerer(whole, (3, 8, 8), 2))(large)
    wanted = Answerer(whole, (3, 8, 8), 2, preprocess=atta.Preprocess(resize=8, crop=8))
    assert Explainer(wanted)(large)["class"] in (0, 1)


def test_a_graph_shows_no_views_and_counts_no_passes() -> None:
    explainer = Explainer(Answerer(whole, (3, 8, 8), 2), views=True)
    said: dict[str, Any] = explainer(encoded(pixels()[0], "JPEG"))
    assert (said["views"], said["passes"]) == ([], None)
    with pytest.raises(InputError, match="coverage: expected a classifier with conformity scores"):
        Explainer(Answerer(whole, (3, 8, 8), 2), coverage=0.9)
