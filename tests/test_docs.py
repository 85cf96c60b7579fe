"""Run the documentation and every example; check links and generated pages."""

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import socket
import threading
import urllib.error
import urllib.request
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import atta
from atta.lab.paper.reproduce import find_experiments
from scenarios import command, encoded, linear, made_up, mostly_right, pixels

ROOT = Path(__file__).parent.parent
CHARTS = ["altair", "vl_convert"]
NEEDS = {
    "compare_logits": CHARTS,
    "custom_view": ["PIL"],
    "decide": ["PIL", *CHARTS],
    "export": ["onnxscript", "onnxruntime", *CHARTS],
    "from_logits": CHARTS,
    "from_model": CHARTS,
    "hugging_face": ["transformers"],
    "new_camera": ["PIL", "sklearn", *CHARTS],
    "read_report": CHARTS,
    "scikit_learn": ["sklearn"],
    "timm_folder": ["PIL", "timm"],
}
"""What an example needs beyond the package."""


def blocks(page: str) -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def test_the_readme_runs_on_a_model_and_on_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from_model, from_logits = blocks("README.md")
    torch.manual_seed(0)
    images, labels = torch.rand(40, 3, 16, 16), torch.arange(40) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    names = {
        "model": model,
        "images": images,
        "labels": labels,
        "new_images": torch.rand(10, 3, 16, 16),
    }
    monkeypatch.setattr(
        "atta.classifier.choice.rivals", lambda *_: {"few": atta.Policy.parse("flip + vflip")}
    )  # a search takes longer
    exec(from_model, names)
    own = names["model"](names["new_images"]).softmax(dim=1).argmax(dim=1)  # type: ignore[operator]
    assert torch.equal(names["probs"].argmax(dim=1), own)  # type: ignore[attr-defined]

    logits, views = torch.randn(1200, 5).numpy(), torch.randn(2, 1200, 1, 5).numpy()
    names = {"atta": atta, "logits": logits, "flip_logits": views[0], "crop_logits": views[1]}
    names["labels"] = (torch.arange(1200) % 5).numpy()
    exec(from_logits, names)
    assert (tmp_path / "record.safetensors").is_file()


def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_resamples: None
) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "atta.report.page._vega", str
    )  # the charts' JavaScript takes seconds to be had
    few = {"few": atta.Policy.parse("flip")}
    monkeypatch.setattr("atta.classifier.choice.rivals", lambda *_: few)
    made_up(1100).save(tmp_path / "record.safetensors")
    torch.manual_seed(0)
    for i, photo in enumerate((torch.rand(60, 16, 16, 3) * 255).byte().numpy()):
        for folder in (f"photos/{'ab'[i % 2]}", f"more-photos/{'ab'[i % 2]}", "new-photos"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            image.fromarray(photo).save(f"{folder}/{i}.png")
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export = {
            "input_names": ["x"],
            "dynamic_axes": {"x": {0: "n"}},
            "dynamo": False,
        }  # the new way takes seconds
        torch.onnx.export(network, (torch.rand(1, 3, 16, 16),), "network.onnx", **export)  # type: ignore[arg-type]
    lines = re.findall(
        r"^atta (.+?) +#", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert [line.split()[0] for line in lines] == [
        "calibrate",
        "evaluate",
        "predict",
        "drift",
        "compare",
        "reproduce",
    ]
    assert {experiment.paper for experiment in find_experiments([lines.pop().split()[2]])} == {
        "Table 3"
    }  # which takes a minute
    for line in lines:
        command(
            *shlex.split(line.replace("--splits 10", "--splits 1 --methods vanilla,temperature"))
        )
    assert Path("report.html").is_file()
    assert len(Path("predictions.csv").read_text().splitlines()) == 61


def test_the_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks("docs/guide.md")), {})


def test_the_version_is_the_same_everywhere() -> None:
    for page, line in (
        ("CHANGELOG.md", rf"^## {re.escape(atta.__version__)} - (.+)$"),
        ("docs/release-notes.md", rf"^## {re.escape(atta.__version__)}, (.+)$"),
        ("CITATION.cff", rf"^version: {re.escape(atta.__version__)}\ndate-released: (.+)$"),
    ):
        text = (ROOT / page).read_text(encoding="utf-8")
        (date,) = re.findall(line, text, flags=re.MULTILINE)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date), page


SERVICE = ROOT / "examples" / "serve.py"
SCRIPTS = [path for path in sorted((ROOT / "examples").glob("*.py")) if path != SERVICE]


def few_photographs(folder: Path, step: int) -> Path:
    """A folder with the networks of examples/cifar10 and every `step`th photograph."""
    whole = ROOT / "examples" / "cifar10"
    networks = [whole / "resnet20.safetensors", *(whole / "hugging_face").iterdir()]
    for file in [*sorted(whole.glob("*/*/*.png"))[::step], *networks]:
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return folder


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    few_resamples: None,
    tmp_path: Path,
) -> None:
    for library in NEEDS.get(path.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    if "examples/cifar10" in path.read_text(encoding="utf-8"):
        pytest.importorskip("PIL", reason="Pillow is not installed")
        monkeypatch.chdir(few_photographs(tmp_path, 4))
    if (
        path.stem == "read_report"
    ):  # the charts' JavaScript takes seconds to be had; the tests of the report have it
        monkeypatch.setattr("atta.report.page._vega", str)
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(path))
    assert capsys.readouterr().out


def test_the_service_of_the_examples_answers_a_real_client(tmp_path: Path) -> None:
    for library in ("PIL", "onnxscript", "onnxruntime", "starlette", "uvicorn"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    import uvicorn

    network = linear()
    classifier = atta.calibrate(
        network,
        pixels(),
        mostly_right(network),
        policy="flip",
        class_names=[*"abc"],
        progress=False,
    )
    classifier.export(tmp_path / "classifier.onnx", pixels="uint8")
    assert len(SERVICE.read_text(encoding="utf-8").splitlines()) < 60
    service = runpy.run_path(str(SERVICE))["service"](tmp_path / "classifier.onnx", coverage=0.9)
    line = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [line]})
    thread.start()

    def ask(path: str, body: bytes | None = None) -> Any:
        url = f"http://127.0.0.1:{line.getsockname()[1]}/{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, body, {"Content-Type": "image/png"})
        ) as answer:
            return json.load(answer)

    try:
        images = pixels(40, seed=1)
        expected = classifier(images)
        assert ask("drift") is None
        found = [ask("predict", encoded(image)) for image in images]
        assert [one["probability"] for one in found] == pytest.approx(
            classifier.confidence(images.numpy()).tolist(), abs=1e-5
        )
        assert [one["class"] for one in found] == ["abc"[k] for k in expected.argmax(dim=1)]
        assert all(one["class"] == one["set"][0] and 0 <= one["ood"] <= 1 for one in found)
        assert [one["drifted"] for one in found] == [None] * 31 + [False] * 9
        assert ask("drift")["sentence"] == classifier.drift(images).sentence
        with pytest.raises(urllib.error.HTTPError, match="422") as refused:
            ask("predict", b"no image")
        assert "expected an image in this file" in json.load(refused.value)["error"]
    finally:
        server.should_exit = True
        thread.join()


def test_the_start_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from_logits, from_model, deploy = blocks("docs/start.md")
    exported: list[str] = []  # the example `export` exports for real, which takes seconds
    monkeypatch.setattr(
        atta.CalibratedClassifier, "export", lambda classifier, path: exported.append(path)
    )
    pytest.importorskip("PIL", reason="Pillow is not installed")
    few_photographs(tmp_path, 4)
    exec(from_logits, {})
    exec(from_model + deploy, {})
    assert exported == ["classifier.pt2"]
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ atta (.+)$", page, flags=re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        typed = line.replace("--validation 500", "--validation 150 --splits 1")
        command(*shlex.split(typed + " --policy flip" * line.startswith("calibrate")))
    assert (tmp_path / "results.json").is_file()


def test_which_method_to_use_can_be_asked(few_resamples: None) -> None:
    (ask,) = blocks("docs/which-method.md")
    exec(ask, {})


@cache
def maker(name: str) -> ModuleType:
    """One of the modules of docs/ that write pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "which-method.md", "scale.md", "../README.md"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == maker("generate").PAGES[name](), (
        "run `make docs`"
    )


def test_every_example_is_a_notebook_with_its_code_and_what_it_printed() -> None:
    make = maker("notebooks")
    for path in make.scripts():
        made = json.loads((make.NOTEBOOKS / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
        code = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
        assert code == make.cells(path), f"{path.name}: run `make notebooks`"
        compile("\n".join(text for kind, text in code if kind == "code"), path.name, "exec")
        assert any(cell.get("outputs") for cell in made["cells"]), path.name


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def without_code(page: Path) -> str:
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@cache
def anchors(page: Path) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,4} (.+)$", without_code(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_every_page_is_in_the_site() -> None:
    listed = set()
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for tree in re.findall(r"```{toctree}\n(.*?)```", text, flags=re.DOTALL):
            for line in tree.splitlines():
                named = line.partition("<")[2].rstrip(">") or line
                listed.add((page.parent / named).resolve())
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    expected = {page.with_suffix("") for page in pages if page.name != "README.md"}
    expected |= {page.with_suffix("") for page in (ROOT / "examples/notebooks").glob("*.ipynb")}
    assert expected - {ROOT / "docs" / "index"} <= listed


def test_every_example_is_in_the_gallery() -> None:
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f"](../examples/notebooks/{path.stem}.ipynb)" in gallery or path == SERVICE
    assert "](../examples/serve.py)" in gallery


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    named = re.findall(r"^\.\. (?:auto\w+|py:data):: atta\.(\S+)$", pages, flags=re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(atta.__all__) <= set(named)


def test_only_the_records_of_cifar10_come_with_the_package() -> None:
    records = {path.name for path in (ROOT / "src/atta/records").glob("*.safetensors")}
    assert records
    assert all(name.startswith("cifar10-") for name in records)


def test_every_method_is_in_the_readme_and_it_counts_the_claims_as_the_results_do() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in atta.METHODS:
        assert f"`{name}`" in readme
    counts = re.search(
        r"all of them \| (.+?) \| .+? \| (.+?) \|",
        (ROOT / "docs/results.md").read_text(encoding="utf-8"),
    )
    assert counts is not None
    assert f"{counts[2]} hold\non our networks, {counts[1]} on the paper's own numbers" in readme


def test_any_module_of_torch_is_a_model() -> None:
    record = atta.collect(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
        torch.rand(5, 3, 2, 2),
        policy="flip",
        progress=False,
    )
    assert record.predictions.passes == 2
