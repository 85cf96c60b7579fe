"""The documentation is run: README and guide line by line, every example, and docs/cli.md against the commands."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import atta

ROOT = Path(__file__).parent.parent
NEEDS = {
    "export": ["onnxscript", "onnxruntime"],
    "hugging_face": ["transformers"],
    "scikit_learn": ["sklearn"],
}
"""What an example needs beyond the package."""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readme_runs_on_a_model_and_on_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from_model, from_logits = blocks("README.md")
    torch.manual_seed(0)
    images, labels = torch.rand(40, 3, 16, 16), torch.arange(40) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    names = {"model": model, "images": images, "labels": labels, "new_images": torch.rand(10, 3, 16, 16)}
    monkeypatch.setattr("atta.deploy.door.POLICIES", {"few": atta.Policy.parse("flip + vflip")})  # a search takes longer
    exec(from_model.replace(".onnx", ".pt2"), names)  # the example exports ONNX
    own = names["model"](names["new_images"]).softmax(dim=1).argmax(dim=1)  # type: ignore[operator]
    assert torch.equal(names["probs"].argmax(dim=1), own)  # type: ignore[attr-defined]

    logits, views = torch.randn(1200, 5).numpy(), torch.randn(2, 1200, 1, 5).numpy()
    names = {"atta": atta, "logits": logits, "flip_logits": views[0], "crop_logits": views[1]}
    names["labels"] = (torch.arange(1200) % 5).numpy()
    exec(from_logits, names)
    assert (tmp_path / "v-atta.safetensors").is_file()


def test_the_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks("docs/guide.md")), {})


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for library in NEEDS.get(path.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(path))
    assert capsys.readouterr().out


def test_the_page_of_the_commands_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generate.cli_page(), "run `make docs`"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_within_the_repository_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_every_method_and_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in atta.METHODS:
        assert f"`{name}`" in readme


def test_any_module_of_torch_is_a_model() -> None:
    record = atta.collect(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.rand(5, 3, 2, 2), policy="flip", progress=False)
    assert record.predictions.passes == 2
