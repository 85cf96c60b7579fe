"""A chart as a file, whole or not at all."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from atta import InputError
from atta.report.figures.detail import diagram, shares
from atta.report.figures.theme import picture

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


ODD = '</script><script>alert("x")</script>'


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        ("svg", b"<svg"),
        ("png", b"\x89PNG"),
        ("pdf", b"%PDF"),
        ("json", b"{"),
        ("html", b"\n<!DOCTYPE"),
    ],
)
def test_a_picture_is_written_by_its_suffix(
    suffix: str, start: bytes, detail: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "new folder" / f"picture.{suffix}"
    assert picture(diagram(detail, ODD), path) == path
    content = path.read_bytes()
    assert content.lstrip().startswith(start.lstrip())
    assert list(path.parent.iterdir()) == [path], "and no other file"
    if suffix == "json":
        assert json.loads(content)["$schema"].startswith("https://vega.github.io/schema/vega-lite")
    if suffix == "svg":
        assert (
            ElementTree.fromstring(content)
            .attrib["aria-label"]
            .startswith("Reliability diagram of </script>")
        )
    if suffix == "html":
        page = content.decode()
        assert ODD not in page, "a name cannot end the script"
        assert not re.search(r"<(script|link)[^>]+(src|href)=", page), "nothing is fetched"


def test_what_cannot_be_written_leaves_nothing_behind(
    detail: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = shares(detail, "")
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf, \.json, \.html, got 'x\.gif'"):
        picture(chart, tmp_path / "x.gif")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(
        InputError, match=r"a picture needs more than was installed: pip install 'atta\[report\]'"
    ):
        picture(chart, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
