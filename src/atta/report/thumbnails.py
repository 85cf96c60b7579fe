"""Thumbnails for the images whose confidence changed the most, where those images can be had.

They are given, or found in the folder that the record they were tested on remembers. A folder that is gone, or is not what it
was, costs the page nothing but its pictures: it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atta._base.errors import InputError
from atta.data.image_set import ImageSet, thumbnail
from atta.data.origin import Origin
from atta.data.source import as_source
from atta.report.sections import Section
from atta.results.rows import Results

MOST, BUDGET = 48, 200_000
"""Images of a page that are shown, and letters that they may take."""


def thumbnails(
    results: Results, sections: Sequence[Section], images: Any = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The pictures that there are, by "record/row of the record", and by section why it has none.

    `images` are those of the one dataset, or {dataset: images}, as they were given to `collect`: a folder, an `ImageSet`, an
    array. None finds them where the record says, False leaves them out.
    """
    shown: dict[str, str] = {}
    notes: dict[str, str] = {}
    if images is False:
        return shown, notes
    given, size = _given(images, [section.dataset for section in sections]), 0
    for section in sections:
        origin = results.known("records").get(section.tested, {})
        known = Origin.of(origin)  # a folder without a digest of its files is not trusted
        place = Path(known.folder) if known.folder and known.files else None
        own = given.get(section.dataset, place)
        rows = [
            row for row in dict.fromkeys(_wanted(section)) if f"{section.tested}/{row}" not in shown
        ]
        if own is None or not rows:
            continue
        try:
            pictures = _drawn(own, origin, rows[: max(1, MOST // len(sections))])
        except (InputError, OSError) as error:
            if section.dataset in given:
                raise InputError(f"images of {section.dataset}: {error}") from None
            notes[section.id] = (
                f"No thumbnails: {error}. images=... (--images) says where they are."
            )
            continue
        for row, uri in pictures:
            size += len(uri)
            if size <= BUDGET:
                shown[f"{section.tested}/{row}"] = uri
    return shown, notes


def _given(images: Any, datasets: Sequence[str]) -> dict[str, Any]:
    """What was given, by dataset."""
    if images is None:
        return {}
    names = list(dict.fromkeys(datasets))
    if isinstance(images, Mapping):
        if strange := [str(name) for name in images if name not in names]:
            raise InputError(
                f"images: expected those of {', '.join(names)}, got those of {', '.join(strange)}"
            )
        return dict(images)
    if len(names) > 1:
        raise InputError(
            f"images: there are several datasets, expected {{name: images}} of {', '.join(names)}, got one alone"
        )
    return {names[0]: images}


def _wanted(section: Section) -> Iterator[int]:
    """The rows of the record that changed the most, those first that a reader sees first."""
    for i in section.order:
        for one in section.contenders[i].detail.get("changed") or ():
            if isinstance(one.get("image"), int):
                yield one["image"]


def _drawn(images: Any, origin: Mapping[str, Any], rows: Sequence[int]) -> list[tuple[int, str]]:
    """Thumbnails of rows of the record of that origin."""
    count = origin.get("images") if isinstance(origin.get("images"), int) else None
    if isinstance(images, str | Path) and Path(images).suffix == ".safetensors":
        images = ImageSet.load_file(images)
    if isinstance(images, str | Path | ImageSet):
        own = images if isinstance(images, ImageSet) else Path(images)
        found = Origin.of(origin).images(own, count)
        _check(rows, len(found))
        return [(row, thumbnail(found.images[row])) for row in rows]
    source = as_source(images)
    if count is not None and source.count not in (None, count):
        raise InputError(f"expected the {count} of the record, got {source.count}")
    _check(rows, source.count or count or 0)
    ordered = sorted(rows)  # a source never goes back
    read = source.read([row] for row in ordered)
    return [(row, thumbnail(batch.pixels[0])) for row, batch in zip(ordered, read, strict=True)]


def _check(rows: Sequence[int], count: int) -> None:
    if not all(0 <= row < count for row in rows):
        raise InputError(f"expected more images than row {max(rows)} of the record, got {count}")
