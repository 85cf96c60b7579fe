"""The layers of the package: a module imports only from layers below its own."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "atta"

LAYERS = [
    ["errors"],
    ["types", "files"],
    ["functional", "metrics", "results", "transforms", "networks", "augmentation", "memory", "provenance", "progress"],
    ["predictions", "views", "fitting", "imagesets", "published", "resampling"],
    ["calibrators.base", "layouts", "models", "slopes", "archives", "exporting", "graphs", "conformal"],
    ["calibrators.scaling", "calibrators.binning", "datasets"],
    ["calibrators.views", "training", "sources", "borrowing", "shards", "architectures"],
    ["calibrators.convex", "calibrators.shrunk", "runner"],
    ["calibrators.selective"],
    ["calibrators"],
    ["collecting", "workers", "claims", "details", "search"],
    ["fits", "recording", "terminal"],
    ["choosing"],
    ["experiment"],
    ["figures"],
    ["card"],
    ["hub"],
    ["deploy"],
    ["calibrating", "predicting"],
    ["demo", "reproduce"],
    ["tables"],
    ["sections"],
    ["verdict"],
    ["report", "typed"],
    ["cli"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
HEAVY = {
    "scipy": {"fitting", "calibrators.binning", "resampling", "results"},
    "sklearn": {"datasets", "deploy"},
    "datasets": {"layouts"},
    "PIL": {"imagesets"},
    "onnxruntime": {"models", "exporting", "graphs"},
    "onnxscript": {"exporting"},
    "transformers": {"architectures"},
    "huggingface_hub": {"hub"},
    "pyarrow": {"predicting"},
    "typer": {"cli"},
    "altair": {"figures"},
    "vl_convert": {"figures", "report"},
    "jinja2": {"report"},
    "markupsafe": {"report", "verdict"},
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name not in ("__init__", "__main__"):
            found[name] = path
    return found


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "atta" else [node.module]
    return names


def test_every_module_has_a_layer() -> None:
    assert set(modules()) <= set(LEVEL), "a new module must be put into LAYERS"


@pytest.mark.parametrize("name", modules())
def test_imports_point_downwards(name: str) -> None:
    for target in imported(modules()[name]):
        inner = target.removeprefix("atta.")
        if target.startswith("atta.") and inner in LEVEL:
            assert LEVEL[inner] < LEVEL[name], f"{name} imports {inner}, which is not below it"


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_appears_only_where_it_belongs(library: str) -> None:
    users = {name for name, path in modules().items() if any(t.split(".")[0] == library for t in imported(path))}
    assert users <= HEAVY[library]


def test_relative_imports_and_catch_all_modules_are_absent() -> None:
    for name, path in modules().items():
        assert not any(
            isinstance(node, ast.ImportFrom) and node.level
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        ), name
        assert name.split(".")[-1] not in {"utils", "misc", "core", "common", "config", "registry", "helpers"}
