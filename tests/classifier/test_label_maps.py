"""Label maps, confidence maps and the table of a segmenter, and what the page shows."""

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image

from atta import InputError
from atta.classifier.label_maps import names_of, palette
from atta.classifier.predict import predict
from atta.classifier.serve import Explainer
from scenarios import command as run
from segmenters_made import data, fitted


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A saved segmenter, and a folder of photographs of two sizes, one of them damaged."""
    folder = tmp_path_factory.mktemp("maps")
    segmenter = fitted()
    images, masks = data(12)
    for kind in ("photos", "photos/b", "masks"):
        (folder / kind).mkdir()
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        pixels = (image * 255).byte().permute(1, 2, 0).numpy()
        name = f"{'b/' if i % 2 else ''}{i}"
        Image.fromarray(pixels[: 16 - 4 * (i % 2)]).save(folder / "photos" / f"{name}.png")
        Image.fromarray(mask.numpy().astype(np.uint8)[: 16 - 4 * (i % 2)]).save(
            folder / "masks" / f"{i}.png"
        )
    return folder, segmenter


def test_maps_and_table_are_written(scene, tmp_path):
    folder, segmenter = scene
    files = sorted((folder / "photos").rglob("*.png"))
    done = predict(segmenter, files, tmp_path / "out.csv")
    assert done.images == 12
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(rows[0]) == ["file", "class", "confidence", "unsure", "confidence_before"]
    for row, file, maps in zip(rows, files, segmenter.maps(files), strict=True):
        name = file.relative_to(folder / "photos")
        labels = Image.open(tmp_path / "out" / "labels" / name)
        assert labels.mode == "P"
        assert np.array_equal(np.array(labels), maps.labels.numpy())
        assert labels.getpalette()[3:6] == [128, 0, 0]
        sure = np.array(Image.open(tmp_path / "out" / "confidence" / name))
        assert sure.dtype in (np.uint16, np.int32)
        np.testing.assert_allclose(sure / 65535, maps.confidence.numpy(), atol=1e-5)
        assert float(row["confidence"]) == pytest.approx(float(maps.confidence.mean()), abs=1e-5)


def test_damaged_files_are_named_and_the_run_resumes(scene, tmp_path):
    folder, segmenter = scene
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    files = [*sorted((folder / "photos").glob("*.png")), bad]
    done = predict(segmenter, files, tmp_path / "out.csv")
    assert list(done.unreadable) == [str(bad)]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == len(files)
    with pytest.raises(InputError, match="expected neither for a segmenter"):
        predict(segmenter, files, tmp_path / "two.csv", probs=True)


def test_maps_have_different_names(tmp_path):
    assert names_of([tmp_path / "a" / "1.jpg", tmp_path / "b" / "1.jpg"])[0].as_posix() == "a/1.png"
    with pytest.raises(InputError, match=r"several called 1\.png"):
        names_of([tmp_path / "1.jpg", tmp_path / "1.png"])


def test_the_palette_is_that_of_pascal_voc():
    assert palette(4).tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]


def test_the_page_shows_labels_and_confidence_before_and_after(scene):
    _, segmenter = scene
    content = io.BytesIO()
    Image.fromarray(np.full((24, 30, 3), 90, np.uint8)).save(content, "png")
    said = Explainer(segmenter, views=True)(content.getvalue())
    assert [one["view"] for one in said["views"]] == [
        *("the image itself", "labels", "confidence before", "confidence after"),
    ]
    assert 0 < said["confidence"] <= 1


def test_the_command_line_calibrates_and_predicts(scene, tmp_path, monkeypatch):
    folder, _ = scene
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shaped_network.py").write_text(
        "from segmenters_made import Shaped\nnetwork = Shaped()\n"
    )
    photos, masks = str(folder / "photos"), str(folder / "masks")
    run(
        "calibrate",
        "shaped_network:network",
        photos,
        "-o",
        "seg",
        "--masks",
        masks,
        "--policy",
        "flip",
    )
    run("predict", "seg", photos, "-o", "out.csv", "--model", "shaped_network:network")
    assert len(list((tmp_path / "out").rglob("*.png"))) == 24
    told = run("evaluate", "seg", photos, "--model", "shaped_network:network", ok=False)
    assert "segmenter.evaluate(images, masks)" in str(told.exception)


def test_a_graph_of_a_segmenter_says_how_to_use_it(scene, tmp_path):
    from atta.classifier.predict import open_predictor

    _, segmenter = scene
    written = segmenter.export(tmp_path / "graph.onnx")
    with pytest.raises(InputError, match="answers every pixel"):
        open_predictor(written.path)
    assert torch.is_tensor(segmenter(torch.rand(1, *segmenter.image_shape)))
