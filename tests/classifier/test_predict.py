"""Files in, a table out: the same numbers as the classifier itself, however the work is cut into pieces."""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atta
from atta._base.files import locked
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.risk import Promise
from atta.classifier.adapt import Drift
from atta.classifier.estimator import Details
from atta.classifier.predict import Predicted, beside, identity, open_predictor
from atta.classifier.predict import predict as predict_files
from atta.data.folder import find_images
from scenarios import Answerer, answered, encoded, made_classifier

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
predict = partial(predict_files, batch_size=2)  # a log of several batches
NAMES = ("cat", "dog", "emu, grey", 'f"x', "gnu")


def write_images(
    folder: Path, count: int = 7, size: tuple[int, int] = (8, 8), mode: str = "RGB"
) -> list[Path]:
    generator = torch.Generator().manual_seed(count)
    paths = [folder / f"sub{i % 2}" / f"{i:02}.png" for i in range(count)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 256, (*size, 3), generator=generator, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).convert(mode).save(path)
    return sorted(paths)


def tensor(path: Path) -> Tensor:
    with Image.open(path) as image:
        return (
            torch.tensor(list(image.convert("RGB").tobytes()), dtype=torch.uint8)
            .reshape(8, 8, 3)
            .permute(2, 0, 1)
        )


def fake(shape: tuple[int, int, int] = (3, 8, 8)) -> Answerer:
    """Answers by the brightness of the image, two passes each."""

    def answer(images: Tensor) -> Details:
        light = images.float().mean(dim=(1, 2, 3)) / 255
        probs = torch.stack([light, 1 - light], dim=1)
        return answered(
            probs,
            probs.square() / probs.square().sum(dim=1, keepdim=True),
            torch.full((len(images),), 2),
        )

    return Answerer(answer, shape, 2)


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return [dict(row) for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return found


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_each_row_holds_what_the_classifier_answers(ending: str, tmp_path: Path) -> None:
    paths, classifier = write_images(tmp_path / "in"), made_classifier(names=NAMES, summary=False)
    done = predict(
        classifier,
        find_images([tmp_path / "in"]),
        tmp_path / f"out.{ending}",
        probs=True,
    )
    expected = classifier.details(torch.stack([tensor(path) for path in paths]))
    rows = read(done.path)
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    each = (expected.probs.double(), expected.base.double(), expected.confidence)
    for row, probs, base, confidence in zip(rows, *each, strict=True):
        assert float(row["confidence"]) == pytest.approx(confidence.item(), abs=1e-6)
        assert row["class"] == NAMES[int(probs.argmax())]
        assert float(row["confidence_before"]) == pytest.approx(base.max().item(), abs=1e-6)
        assert float(row["entropy"]) == pytest.approx(-(probs * probs.log()).sum().item(), abs=1e-6)
        assert [float(row[f"p_{name}"]) for name in NAMES] == pytest.approx(
            probs.tolist(), abs=1e-6
        )
    assert (done.images, done.passes, done.unreadable) == (7, 4, {})
    assert done.confidence == pytest.approx(expected.confidence.mean().item(), abs=1e-6)
    assert not beside(done.path).exists()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_at_a_stated_risk_the_table_says_which_images_are_unsure(
    ending: str, tmp_path: Path
) -> None:
    _, classifier = write_images(tmp_path / "in"), made_classifier(names=NAMES)
    classifier.conformity = ConformityScores(4, (0.1, 0.2, 0.3, 0.4))
    files = find_images([tmp_path / "in"])
    middle = float(np.median(classifier.confidence(files)))
    promise = Promise(risk=0.1, delta=0.05, thresholds=(middle,), coverage=0.5, images=100)
    careful = classifier._with(promise=promise)
    output = tmp_path / f"out.{ending}"
    done = predict(careful, files, output, coverage=0.5)
    rows = read(output)
    assert list(rows[0])[-2:] == ["answered", "set"]
    answered = [str(row["answered"]) == "True" for row in rows]
    assert answered == careful.answered(files).tolist()
    assert (done.answered, answered.count(False)) == (3, 4)
    assert "4 unsure" in str(done)
    assert done.sentences[0] == str(promise)
    for row, sure, inside in zip(
        rows, answered, careful.predict_set(files, coverage=0.5), strict=True
    ):
        assert len(row["set"].split("|")) == inside.sum()
        assert sure or inside.sum() > 1  # no set of one class where the answer is "unsure"
    alone = classifier.predict_set(files, coverage=0.5)
    assert (alone.sum(axis=1)[~np.array(answered)] == 1).any()


def test_a_drift_withdraws_the_stated_risk_in_words() -> None:
    promise = Promise(risk=0.1, delta=0.05, thresholds=(0.5,), coverage=0.5, images=100)
    drift = Mock(Drift, drifted=True, sentence="drifted.")
    facts = {"images": 2, "confidence": 0.5, "before": 0.6, "passes": 1.0, "unreadable": {}}
    done = Predicted(path=Path("out.csv"), **facts, promise=promise, drift=drift)
    assert done.sentences == [str(promise), "drifted. The stated risk does not hold for them."]


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_an_interrupted_run_goes_on_to_the_same_bytes(stop: int, tmp_path: Path) -> None:
    write_images(tmp_path / "in")
    files, whole, predictor = find_images([tmp_path / "in"]), tmp_path / "whole.csv", fake()
    predict(predictor, files, whole)
    allowed = stop

    def interrupted(images: Tensor) -> Details:
        nonlocal allowed
        if not allowed:
            raise KeyboardInterrupt
        allowed -= 1
        return predictor.run(images)

    cut, weary = tmp_path / "cut.csv", Answerer(interrupted, (3, 8, 8), 2)
    with pytest.raises(KeyboardInterrupt):
        predict(weary, files, cut)
    assert not cut.exists()
    with beside(cut).open("a") as file:
        file.write('{"file": "killed while it wr')
    allowed = 4 - stop  # what was finished is not done again
    with pytest.warns(
        atta.Advice, match=f"is damaged: {2 * stop - (stop > 3)} of 7 images are kept"
    ):
        done = predict(weary, files, cut)
    assert cut.read_bytes() == whole.read_bytes()
    assert done.images == 7


def damaged(log: bytes, chance: random.Random) -> bytes:
    """The log after an accident: flipped bits, lost or doubled bytes, lost, doubled or moved lines."""
    lines = log.splitlines(keepends=True)
    at, line = chance.randrange(len(log)), chance.randrange(len(lines))
    far = at + chance.randrange(1, 200)
    match chance.randrange(8):
        case 0:
            return log[:at] + bytes([log[at] ^ 1 << chance.randrange(8)]) + log[at + 1 :]
        case 1:
            return log[:at]
        case 2:
            return log[:at] + log[far:]
        case 3:
            return log[:far] + log[at:]
        case 4:
            return b"".join(lines[: line + 1] + lines[line:])
        case 5:
            return b"".join(lines[:line] + lines[line + 1 :])
        case 6:
            return b"".join(chance.sample(lines, len(lines)))
    digits = [i for i, value in enumerate(log) if chr(value).isdigit()]
    at = chance.choice(digits)
    return log[:at] + str(chance.randrange(10)).encode() + log[at + 1 :]


@pytest.mark.parametrize("stop", [2, 4])
def test_a_damaged_log_gives_the_same_table_or_a_sentence(stop: int, tmp_path: Path) -> None:
    write_images(tmp_path / "in")
    files, whole, cut = find_images([tmp_path / "in"]), tmp_path / "whole.csv", tmp_path / "cut.csv"
    predict(fake(), files, whole)
    left = [True] * stop

    def stopped(images: Tensor) -> Details:
        left.pop()
        return fake().run(images)

    stubborn = pytest.raises(IndexError) if stop < 4 else mock.patch.object(Path, "unlink")
    with stubborn:
        predict(Answerer(stopped, (3, 8, 8), 2), files, cut)
    log, chance, refused = beside(cut).read_bytes(), random.Random(stop), 0
    assert log.count(b"\n") == 1 + stop  # a line for each batch
    for _ in range(100):
        cut.unlink(missing_ok=True)
        beside(cut).write_bytes(damaged(log, chance))
        try:
            predict(fake(), files, cut)
        except atta.InputError:
            assert not cut.exists()
            refused += 1
        else:
            assert cut.read_bytes() == whole.read_bytes()
    assert 20 < refused < 90


def test_a_log_without_checksums_is_not_believed_and_another_file_is_not_overwritten(
    tmp_path: Path,
) -> None:
    files, output = write_images(tmp_path / "in", 2), tmp_path / "out.csv"
    old = '{"model": "", "files": "2"}\n{"file": "a", "row": ["cat", 1.0, 0.0, 1.0]}\n'
    beside(output).write_text(old)
    with pytest.warns(atta.Advice, match="without checksums: its images are predicted again"):
        assert predict(fake(), files, output).images == 2
    assert [row["file"] for row in read(output)] == [*map(str, files)]
    for text in ("notes of mine", "two\nlines\n", "{}", "\n"):
        beside(output).write_text(text)
        with pytest.raises(atta.InputError, match="to hold finished predictions, got something"):
            predict(fake(), files, output)
        assert beside(output).read_text() == text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda how: {**how, "made_by": "other"}, "model"),
        (lambda how: {**how, "probs": True}, "probs"),
        (lambda how: {**how, "batch_size": 3}, "batch_size"),
        (lambda how: {**how, "files": how["files"][1:]}, "files"),
    ],
)
def test_finished_work_of_another_run_is_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], word: str, tmp_path: Path
) -> None:
    def stopped(images: Tensor) -> Details:
        raise KeyboardInterrupt

    how = {"files": write_images(tmp_path / "in"), "output": tmp_path / "out.csv", "made_by": "one"}
    with pytest.raises(KeyboardInterrupt):
        predict(Answerer(stopped, (3, 8, 8), 2), **how)  # type: ignore[arg-type]
    with pytest.raises(atta.InputError, match=f"another run: its {word} is"):
        predict(fake(), **change(how))


def test_unreadable_files_are_told_and_do_not_stop_the_others(tmp_path: Path) -> None:
    paths = write_images(tmp_path / "in", 5)
    paths[1].write_bytes(b"not an image")
    paths[2].write_bytes(paths[0].read_bytes()[:60])
    (tmp_path / "in" / "notes.txt").write_text("not looked at")
    done = predict(fake(), find_images([tmp_path / "in"]), tmp_path / "out.jsonl")
    assert list(done.unreadable) == [str(paths[1]), str(paths[2])]
    assert [row["file"] for row in read(done.path)] == [str(paths[i]) for i in (0, 3, 4)]


def test_a_link_that_leads_nowhere_is_told_with_its_name(tmp_path: Path) -> None:
    paths = write_images(tmp_path / "in", 2)
    link = tmp_path / "in" / "gone.png"
    link.symlink_to(tmp_path / "nowhere.png")
    done = predict(fake(), find_images([tmp_path / "in"]), tmp_path / "out.csv")
    assert list(done.unreadable) == [str(link)]
    assert str(link) in done.unreadable[str(link)]
    assert [row["file"] for row in read(done.path)] == [*map(str, paths)]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_where_nothing_can_be_read_the_table_is_empty(ending: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    done = predict(fake(), [tmp_path / "a.png"], tmp_path / f"out.{ending}")
    assert (done.images, len(done.unreadable), read(done.path)) == (0, 1, [])
    assert "no image could be read" in str(done)


def test_other_colours_become_what_the_classifier_takes_and_other_sizes_are_listed_as_unreadable(
    tmp_path: Path,
) -> None:
    write_images(tmp_path / "wide", 2, size=(9, 16))
    write_images(tmp_path / "grey", 2, mode="L")
    write_images(tmp_path / "palette", 2, mode="P")
    files = find_images([tmp_path / "wide", tmp_path / "grey", tmp_path / "palette"])
    for channels in (1, 3):
        done = predict(fake((channels, 8, 8)), files, tmp_path / "out.csv")
        assert (done.images, list(done.unreadable)) == (4, list(map(str, files[:2])))
        for path, why in done.unreadable.items():
            assert f"got ({channels}, 9, 16) in {path}; photographs of other sizes need" in why
    wanted = replace(fake(), preprocess=atta.Preprocess(resize=8, crop=8))
    done = predict(wanted, files, tmp_path / "out.csv")
    assert (done.images, done.unreadable) == (6, {})
    with pytest.raises(atta.InputError, match=r"1 channel \(grey\) or 3"):
        predict(fake((4, 8, 8)), files, tmp_path / "out.csv")


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    paths = write_images(tmp_path / "in", 2)
    links = [tmp_path / "in" / name for name in ("gone", "x.png")]
    for link in links:
        link.symlink_to(tmp_path / "nowhere" / link.name)
    (tmp_path / "in" / "notes.txt").write_text("not an image, and not meant as one")
    files = find_images([tmp_path / "in"])
    assert sorted(files) == sorted([*paths, *links])
    done = predict(fake(), files, tmp_path / "out.csv")
    assert (done.images, sorted(done.unreadable)) == (2, sorted(map(str, links)))


def test_folders_are_walked_in_order_and_no_file_comes_twice(tmp_path: Path) -> None:
    paths = write_images(tmp_path / "in", 4)
    (tmp_path / "odd").write_bytes(paths[0].read_bytes())
    assert find_images([tmp_path / "odd", paths[2], tmp_path / "in"]) == [
        tmp_path / "odd",
        paths[2],
        *(path for path in paths if path != paths[2]),
    ]
    with pytest.raises(atta.InputError, match="there is no file or folder"):
        find_images([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        atta.InputError, match=r"expected images, or folders of images .*, found nothing"
    ):
        find_images([tmp_path / "empty"])


def test_a_graph_answers_as_its_classifier_does(tmp_path: Path) -> None:
    paths, small = write_images(tmp_path / "in", 3), made_classifier(summary=False)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    classifier = atta.CalibratedClassifier(
        network, small.calibrator, small.policy, image_shape=(3, 8, 8)
    )
    expected = classifier(torch.stack([tensor(path) for path in paths])).double()
    path = classifier.export(tmp_path / "graph.onnx", pixels="uint8").path
    done = predict(open_predictor(path), paths, tmp_path / "out.csv", probs=True)
    rows = read(done.path)
    assert [int(row["class"]) for row in rows] == expected.argmax(dim=1).tolist()
    found = [[float(row[f"p_{j}"]) for j in range(5)] for row in rows]
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), expected, atol=1e-5)
    assert done.passes is None
    with pytest.raises(atta.InputError, match="is a graph"):
        open_predictor(path, device="cuda")


@pytest.mark.parametrize(
    ("body", "about", "sentence"),
    [
        ("probs = Reshape (images, sizes) base = Identity (probs)", {}, "ONNX Runtime says"),
        (
            "probs = ReduceMean <axes=[2,3], keepdims=0> (images) base = Slice (probs, a, b)",
            {},
            r"expected base of shape \(3, 3\), got shape \(1, 3\)",
        ),
        ("probs = ReduceMean <axes=[2,3], keepdims=0> (images) base = Log (probs)", {}, "finite"),
        ("", {"class_names": '["a"]'}, "3 class names, got 1"),
        ("", {"class_names": "7"}, "as `export` writes them"),
        ("", {"class_names": "["}, "as `export` writes them"),
        ("", {"preprocess": '{"resize": "x"}'}, "as `export` writes them"),
        ("", {"preprocess": "[" * 100_000}, "as `export` writes them"),
        ("", {"reference": '{"quantiles": 1e400}'}, "as `export` writes them"),
        ("", {"strangeness": '{"images": 1e400, "scores": [0.5]}'}, "as `export` writes them"),
    ],
)
def test_a_forged_graph_costs_a_sentence(
    body: str, about: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    mean = "probs = ReduceMean <axes=[2,3], keepdims=0> (images) base = Identity (probs)"
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    forged (float[n,3,8,8] images) => (float[n,3] probs, float[n,k] base)
    <int64[2] sizes = {{5, 3}}, int64[1] a = {{0}}, int64[1] b = {{1}}> {{ {body or mean} }}"""
    model = onnx.parser.parse_model(text)
    onnx.helper.set_model_props(model, about)
    onnx.save(model, tmp_path / "graph.onnx")
    files = write_images(tmp_path / "in", 3)
    files[0].write_bytes(encoded(torch.zeros(3, 8, 8).byte(), "PNG"))
    with pytest.raises(atta.InputError, match=sentence):
        predict_files(open_predictor(tmp_path / "graph.onnx"), files, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_what_is_no_classifier_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for path, sentence in (("x.pt2", "torch.export.load reads"), ("y.onnx", "there is no file")):
        with pytest.raises(atta.InputError, match=sentence):
            open_predictor(tmp_path / path)
    with pytest.raises(atta.InputError, match=r"ends in .csv, .jsonl, .parquet, got 'x.xlsx'"):
        predict(fake(), [], tmp_path / "x.xlsx")


def test_an_identity_is_that_of_what_was_fitted(tmp_path: Path) -> None:
    classifier = made_classifier(summary=False)
    first = identity(classifier.save(tmp_path / "one"))
    assert identity(classifier.save(tmp_path / "two")) == first
    with torch.no_grad():
        next(classifier.model.parameters()).add_(1)
    assert identity(classifier.save(tmp_path / "one")) != first


TWIN = """
import sys

import atta
from atta.classifier.export import Graph
from atta.classifier.predict import predict
from atta.data.folder import find_images

try:
    predict(
        Graph(None, (3, 8, 8), 2), find_images([sys.argv[1]]), sys.argv[2], batch_size=2
    )
except atta.InputError as error:
    sys.exit(str(error))
"""


def test_a_second_process_that_would_write_the_same_table_is_refused_and_the_first_one_is_whole(
    tmp_path: Path,
) -> None:
    files, output = write_images(tmp_path / "in"), tmp_path / "out.csv"
    predictor, said = fake(), list[str]()

    def interrupted(images: Tensor) -> Details:
        if not said:  # while this process is at its first batch
            twin = subprocess.run(
                [sys.executable, "-c", TWIN, str(tmp_path / "in"), str(output)],
                env={**os.environ, "PYTHONPATH": str(Path(atta.__file__).parent.parent)},
                capture_output=True,
                text=True,
                check=False,
            )
            said.append(twin.stderr.strip())
            assert twin.returncode == 1
        return predictor.run(images)

    done = predict(Answerer(interrupted, (3, 8, 8), 2), files, output)
    assert said == [f"another run is writing {output}: wait until it ends, or name another output"]
    assert (done.images, len(read(output))) == (7, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.csv"], (
        "nor is a lock left"
    )


def test_what_a_dead_process_left_locked_holds_nobody_up(tmp_path: Path) -> None:
    script = "import os, sys; from atta._base.files import locked\nwith locked(sys.argv[1]): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "out.csv")], check=False)
    assert (tmp_path / ".out.csv.lock").exists()
    with (
        locked(tmp_path / "out.csv"),
        pytest.raises(atta.InputError, match="another run is writing"),
    ):
        locked(tmp_path / "out.csv").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_link_to_an_output_has_its_lock_and_a_name_too_long_is_said_first(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "out.csv")
    with (
        locked(tmp_path / "out.csv"),
        pytest.raises(atta.InputError, match="another run is writing"),
    ):
        locked(tmp_path / "link.csv").__enter__()
    for name in ("é" * 200, "x" * 256 + "/y"):
        with pytest.raises(atta.InputError, match="it is too long"):
            locked(tmp_path / name).__enter__()
    with locked(tmp_path / ("x" * 255)):
        pass


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_name_that_is_no_text_has_its_row(ending: str, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "in", 3)
    try:
        odd = paths[1].rename(paths[1].with_name(os.fsdecode(b"caf\xe9.png")))
    except OSError:
        pytest.skip("this file system takes names that are text alone")
    (tmp_path / "in" / os.fsdecode(b"\xff.png")).write_bytes(b"not an image")
    done = predict(fake(), find_images([tmp_path / "in"]), tmp_path / f"out.{ending}")
    assert len(done.unreadable) == 1
    assert [row["file"] for row in read(done.path)] == [
        str(path).replace("\udce9", "\\udce9") for path in sorted([paths[0], odd, paths[2]])
    ]


def test_a_line_break_in_a_name_begins_neither_a_row_nor_a_formula(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    (image,) = write_images(tmp_path, 1)
    names = ["a\r=1+1.png", "b\n=2.png", "c\r\n@d.png", "e\r.png", "f,g.png", "\r-h.png"]
    files = [tmp_path / name for name in names]
    for path in files:
        path.write_bytes(image.read_bytes())
    table = predict(fake(), files, tmp_path / "out.csv").path
    expected = ["a\r'=1+1.png", "b\n'=2.png", "c\r'\n'@d.png", "e\r.png", "f,g.png", "\r'-h.png"]
    expected = [f"{tmp_path}/{name}" for name in expected]
    assert [row["file"] for row in read(table)] == expected
    frame = pandas.read_csv(table)
    assert list(frame["file"]) == expected
    assert frame["confidence"].dtype == float
    for line in table.read_bytes().replace(b"\r", b"\n").split(b"\n"):
        assert not line.startswith((b"=", b"+", b"-", b"@"))


def test_no_spreadsheet_works_out_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (image,) = write_images(tmp_path, 1)
    files = [
        Path(name) for name in ("=1+1.png", "+a.png", "-b.png", "@c.png", "\td.png", "plain.png")
    ]
    for path in files:
        path.write_bytes(image.read_bytes())
    names = ("=cmd()", "-5")
    predictor = Answerer(fake().run, (3, 8, 8), 2, names)
    rows = read(predict(predictor, files, "out.csv").path)
    assert [row["file"] for row in rows] == [*(f"'{path}" for path in files[:-1]), "plain.png"]
    assert {row["class"] for row in rows} <= {f"'{name}" for name in names}
    assert all(float(row["confidence"]) <= 1 for row in rows)
    assert [row["file"] for row in read(predict(predictor, files, "out.jsonl").path)] == [
        *map(str, files)
    ]
