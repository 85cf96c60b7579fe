"""Thumbnails show the right rows, are small and few, and a sentence replaces missing ones."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atta import Results, find_method
from atta._base.errors import InputError
from atta.data.folder import digest_of, folder_of_images
from atta.data.image_set import ImageSet, arrange
from atta.lab.compare import compare
from atta.report.page import MOST, PICTURES, report, thumbnails
from atta.report.sections import sections_of
from scenarios import made_up

Image = pytest.importorskip("PIL.Image")
IMAGES = 200
pytestmark = pytest.mark.xdist_group("report")


def of_origin(results: Results, origin: dict[str, str]) -> Results:
    """The results of a record of that origin."""
    (known,) = results.known("records").values()
    return replace(results, about={**results.about, "records": {"made up": {**known, **origin}}})


def coloured(row: int, side: int = 8) -> torch.Tensor:
    return (
        torch.tensor([row, 255 - row, 100], dtype=torch.uint8)[:, None, None]
        .expand(3, side, side)
        .contiguous()
    )


def row_of(uri: str) -> int:
    """The row that a picture of `coloured` is of, as far as a JPEG keeps colours."""
    assert uri.startswith("data:image/jpeg;base64,")
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return int(np.asarray(image)[..., 0].mean())


@pytest.fixture(scope="module")
def results() -> Results:
    return compare(
        {"made up": made_up(IMAGES)},
        [find_method("vanilla"), find_method("temperature")],
        validation=100,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    for i in range(IMAGES):
        Image.fromarray(coloured(i, 120).permute(1, 2, 0).numpy()).save(place / f"{i:03d}.png")
    return place


def remembered(folder: Path) -> dict[str, str]:
    found = arrange(folder_of_images(folder), by_name=True, shuffle=0)
    return {"folder": str(folder), "files": digest_of(found.files, folder), "shuffle": "0"}


def pictures(results: Results, images: Any = None) -> dict[str, str]:
    return thumbnails(results, sections_of(results), images)[0]


def test_each_changed_image_knows_its_row_of_the_record(results: Results) -> None:
    for detail in results.details:
        assert all(one["image"] == one["row"] + 100 for one in detail["changed"]), (
            "the first 100 were fitted on"
        )


@pytest.mark.parametrize("kind", ["set", "tensor", "list"])
def test_images_that_are_given_are_shown_by_their_rows(results: Results, kind: str) -> None:
    pixels = torch.stack([coloured(i) for i in range(IMAGES)])
    images = {"set": ImageSet("s", pixels), "tensor": pixels, "list": list(pixels)}[kind]
    found = pictures(results, images)
    wanted = {one["image"] for detail in results.details for one in detail["changed"]}
    assert found.keys() == {f"made up/{row}" for row in wanted}
    assert all(abs(row_of(uri) - int(key.partition("/")[2])) <= 3 for key, uri in found.items())
    assert pictures(results, {"made up": images}) == found


def test_a_folder_that_a_record_remembers_is_found_without_a_word(
    folder: Path, results: Results
) -> None:
    results = of_origin(results, remembered(folder))
    found = pictures(results)
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0)).tolist()
    assert found
    assert all(
        abs(row_of(uri) - order[int(key.partition("/")[2])]) <= 3 for key, uri in found.items()
    )
    assert pictures(results, False) == {}
    html = report(results)
    assert json.dumps(found, separators=(",", ":")).strip("{}") in html
    with Image.open(
        io.BytesIO(base64.b64decode(next(iter(found.values())).partition(",")[2]))
    ) as image:
        assert image.size == (96, 96)


def test_a_folder_that_is_gone_or_changed_costs_a_sentence_and_no_page(
    folder: Path, tmp_path: Path, results: Results
) -> None:
    origin = remembered(folder)
    html = report(of_origin(results, {**origin, "folder": str(tmp_path / "gone")}))
    assert "No thumbnails: expected a folder of images, found none at" in html
    changed = of_origin(results, {**origin, "files": "0" * 64})
    _, notes = thumbnails(changed, sections_of(changed))
    assert "found files with other names" in notes["s1"]
    with pytest.raises(InputError, match=r"images of made up: .*found files with other names"):
        report(changed, images=folder)
    assert pictures(of_origin(results, {"folder": str(folder)})) == {}, (
        "no folder is shown on a word alone"
    )


def test_images_of_another_number_or_dataset_are_refused(results: Results) -> None:
    with pytest.raises(InputError, match="expected the 200 images of the record, got 3"):
        report(results, images=torch.zeros(3, 3, 8, 8))
    with pytest.raises(InputError, match=r"expected {name: images} of made up, got other"):
        report(results, images={"other": torch.zeros(3, 3, 8, 8)})
    two = results + replace(results, rows=tuple(replace(row, dataset="b") for row in results))
    with pytest.raises(InputError, match=r"expected {name: images} of made up, b, got Tensor"):
        report(two, images=torch.zeros(3, 3, 8, 8))


def test_pictures_are_few_and_small_however_many_methods_there_are(results: Results) -> None:
    first, _ = results.details
    moved = [
        [{**one, "image": (one["image"] + 12 * i) % IMAGES} for one in first["changed"]]
        for i in range(15)
    ]
    seen = [{**first, "method": f"m{i}", "changed": changed} for i, changed in enumerate(moved)]
    rows = [
        replace(row, method=f"m{i}") for i in range(15) for row in results.where(method="vanilla")
    ]
    noise = torch.randint(
        0, 256, (IMAGES, 3, 300, 200), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    found = pictures(
        Results((*results.rows, *rows), results.about, (*results.details, *seen)), noise
    )
    assert 12 <= len(found) <= MOST
    assert sum(map(len, found.values())) <= PICTURES
