"""Pages from the command line: the images that are named for them."""

from pathlib import Path

import pytest

from atta import find_method
from atta.lab.compare import compare
from scenarios import command, made_up

Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.usefixtures("few_resamples"), pytest.mark.xdist_group("report")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As many images as the record has."""
    for i in range(60):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (4 * i, 0, 0)).save(tmp_path / "photos" / f"{i:02d}.png")
    return tmp_path / "photos"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    methods = [find_method("vanilla"), find_method("temperature")]
    return compare({"mine": made_up(60)}, methods, validation=30).save(tmp_path / "results.json")


def test_a_report_shows_the_images_of_a_folder(file: Path, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command("report", str(file), "-o", str(page), "--images", str(folder))
    assert page.read_text(encoding="utf-8").count("data:image/jpeg;base64,") > 5
    command("report", str(file), "-o", str(page), "--images", "no")
    assert "data:image/jpeg" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (["a folder"], "--images: a folder is neither a folder nor a dataset"),
        (["mine=."], "expected images, or folders of images"),
    ],
)
def test_images_that_are_not_there_are_named(
    file: Path, tmp_path: Path, images: list[str], said: str
) -> None:
    typed = [part for text in images for part in ("--images", text.replace("=.", f"={tmp_path}"))]
    done = command("report", str(file), "-o", str(tmp_path / "report.html"), *typed, ok=False)
    assert said in str(done.exception)
    assert not (tmp_path / "report.html").exists()


def test_images_without_a_page_are_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    record = made_up(60).save(tmp_path / "mine.safetensors")
    done = command("compare", str(record), "--images", str(tmp_path), ok=False)
    assert "expected --report FILE as well" in str(done.exception)
    done = command(
        "compare",
        str(record),
        str(record),
        "--report",
        "r.html",
        "--images",
        str(tmp_path),
        ok=False,
    )
    assert "expected NAME=FOLDER of mine, mine" in str(done.exception)
