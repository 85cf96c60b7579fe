"""Makes thumbnails of the images whose confidence changed most.

The images are given, or read from the folder that the record of the test images remembers. If that
folder is missing or has changed, the page says so and shows no thumbnails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta._base.errors import InputError
from atta.data.folder import Origin
from atta.data.image_set import ImageSet, data_uri
from atta.data.source import as_source
from atta.report.sections import Section
from atta.results.rows import Results

MOST, BUDGET, SIDE = 48, 200_000, 96
"""The most images of a page, the most characters of their data URIs, and their longest edge."""


def thumbnails(
    results: Results, sections: Sequence[Section], images: Any = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The thumbnails by "record/row of the record", and by section why there are none.

    `images` are those of the dataset, or {dataset: images}, as they were given to `collect`: a
    folder, an `ImageSet`, an array. None reads the folder of the record; False makes none.
    """
    shown: dict[str, str] = {}
    notes: dict[str, str] = {}
    if images is False:
        return shown, notes
    given, size = _by_dataset(images, sections), 0
    for section in sections:
        origin = results.known("records").get(section.tested, {})
        # Without a digest of its files, nothing proves that the folder is the right one.
        known = Origin.of(origin)
        folder = Path(known.folder) if known.folder and known.files else None
        source = given.get(section.dataset, folder)
        rows = [row for row in _changed(section) if f"{section.tested}/{row}" not in shown]
        if source is None or not rows:
            continue
        try:
            pictures = _thumbnails(source, origin, rows[: max(1, MOST // len(sections))])
        except (InputError, OSError) as error:
            if section.dataset in given:
                raise InputError(f"images of {section.dataset}: {error}") from None
            notes[section.id] = (
                f"No thumbnails: {error}. Pass images=... (--images) to say where the images are."
            )
            continue
        for row, uri in pictures:
            size += len(uri)
            if size <= BUDGET:
                shown[f"{section.tested}/{row}"] = uri
    return shown, notes


def _by_dataset(images: Any, sections: Sequence[Section]) -> Mapping[str, Any]:
    """The given images by dataset."""
    if images is None:
        return {}
    names = list(dict.fromkeys(section.dataset for section in sections))
    listed = ", ".join(names)
    if not isinstance(images, Mapping):
        if len(names) > 1:
            raise InputError(
                f"images: there are several datasets, expected {{name: images}} of {listed}, "
                "got images without a name"
            )
        return {names[0]: images}
    if unknown := [str(name) for name in images if name not in names]:
        raise InputError(f"images: expected those of {listed}, got those of {', '.join(unknown)}")
    return images


def _changed(section: Section) -> list[int]:
    """The rows of the record that changed most; those that the page shows first come first."""
    changed = (image for one in section.order for image in one.detail.get("changed") or ())
    found = dict.fromkeys(image.get("image") for image in changed)
    return [row for row in found if isinstance(row, int)]


def _thumbnails(
    images: Any, origin: Mapping[str, Any], rows: Sequence[int]
) -> list[tuple[int, str]]:
    """Thumbnails of these rows of the record with this origin."""
    count = origin.get("images") if isinstance(origin.get("images"), int) else None
    if isinstance(images, str):
        images = Path(images)
    if isinstance(images, Path) and images.suffix == ".safetensors":
        images = ImageSet.load_file(images)
    if isinstance(images, Path | ImageSet):
        images = Origin.of(origin).images(images, count).images
        _check(rows, len(images))
        return [(row, data_uri(images[row], SIDE)) for row in rows]
    source = as_source(images)
    if count is not None and source.count not in (None, count):
        raise InputError(f"expected the {count} images of the record, got {source.count}")
    _check(rows, source.count or count or 0)
    ordered = sorted(rows)  # a source reads forward only
    read = source.read([row] for row in ordered)
    return [
        (row, data_uri(batch.pixels[0], SIDE)) for row, batch in zip(ordered, read, strict=True)
    ]


def _check(rows: Sequence[int], count: int) -> None:
    """Refuse rows that the images do not have."""
    if not all(0 <= row < count for row in rows):
        raise InputError(f"expected more images than row {max(rows)} of the record, got {count}")
