"""The images of a record, found again: the same ones in the same order, or a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atta import Record, collect
from atta._base.errors import InputError
from atta.data.folder import Origin, folder_of_images
from atta.data.image_set import ImageSet
from scenarios import small_network

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve files of three classes, each of a grey of its own."""
    for i in range(12):
        place = tmp_path / "photos" / "abc"[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i,) * 3).save(place / f"{11 - i:02d}.png")
    return tmp_path / "photos"


def recorded(images: Any, **settings: Any) -> Record:
    return collect(small_network(), images, policy="flip", progress=False, checks=False, **settings)


def greys(images: ImageSet) -> list[int]:
    return [int(images.images[i][0, 0, 0]) // 20 for i in range(len(images))]


@pytest.mark.parametrize("shuffle", [None, 3, False])
def test_a_folder_is_found_again_in_the_order_of_its_record(
    folder: Path, tmp_path: Path, shuffle: int | bool | None
) -> None:
    record = recorded(folder, shuffle=shuffle)
    assert record.origin["folder"] == str(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    found = Origin.of(record.origin).images(moved, len(record))
    assert torch.equal(found.labels, record.labels)
    again = recorded(found)
    assert torch.allclose(again.predictions.logits, record.predictions.logits, atol=1e-5), (
        "the same images, in their order"
    )


def test_what_was_left_out_stays_out(folder: Path) -> None:
    (folder / "a" / "05.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="left out"):
        record = recorded(folder, skip_bad=True)
    assert len(json.loads(record.origin["left_out"])) == 1
    found = Origin.of(record.origin).images(folder, len(record))
    assert len(greys(found)) == len(record) == 11


def test_rows_of_a_set_are_cut_as_they_were() -> None:
    images = ImageSet(
        "toy",
        torch.arange(12, dtype=torch.uint8)
        .mul(20)[:, None, None, None]
        .expand(12, 3, 8, 8)
        .contiguous(),
    )
    found = Origin.of({"shuffle": "1", "rows": "2:6"}).images(images, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert greys(found) == order[2:6].tolist()
    assert greys(Origin.of({"shuffle": "of words", "rows": "neither:"}).images(images, 12)) == list(
        range(12)
    ), "text for people"


def test_a_folder_that_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    record = recorded(folder)
    (folder / "a" / "11.png").rename(folder / "a" / "99.png")
    with pytest.raises(
        InputError, match=r"expected the files of the record in .*, found files with other names"
    ):
        Origin.of(record.origin).images(folder, len(record))
    (folder / "a" / "99.png").unlink()
    with pytest.raises(InputError, match=r"expected the 12 images of the record in .*, found 11"):
        Origin.of(record.origin).images(folder, len(record))
    with pytest.raises(InputError, match="expected a folder of images, found none"):
        Origin.of(record.origin).images(tmp_path / "gone", len(record))


def test_a_part_of_a_record_no_longer_says_which_files_it_is_of(folder: Path) -> None:
    record = recorded(folder)
    assert "files" in record.origin
    assert "files" not in record[2:].origin
    assert "folder" not in recorded(folder_of_images(folder)).origin, "a set may be of anywhere"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ({}, Origin()),
        ({"shuffle": "0", "rows": "2:"}, Origin(shuffle=0, rows=slice(2, None))),
        ({"rows": ":6", "folder": "/photos"}, Origin(rows=slice(None, 6), folder="/photos")),
        ({"left_out": '["a/05.png"]', "files": "00"}, Origin(left_out=("a/05.png",), files="00")),
        ({"note": "of one's own", "rows": "2:6"}, Origin(rows=slice(2, 6))),
    ],
)
def test_an_origin_is_read_as_it_was_written(text: dict[str, str], origin: Origin) -> None:
    assert Origin.of(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        {"shuffle": "1.5"},
        {"shuffle": "9" * 5000, "rows": "1:" + "9" * 5000},
        {"left_out": "[1"},
        {"left_out": '"a text"'},
        {"left_out": None},
        {"left_out": "[" * 100_000},
        {"rows": "some", "files": 5, "folder": None},
        {"rows": "1:2:3"},
    ],
)
def test_what_people_wrote_by_hand_and_cannot_be_read_is_left_out(text: dict[str, Any]) -> None:
    assert Origin.of(text) == Origin()
