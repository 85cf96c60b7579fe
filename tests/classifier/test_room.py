"""Answering images imports no training, no experiments and no charts; names are found lazily."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import atta

MODULES = sorted(
    path.name.removesuffix(".py")
    for path in files("atta.classifier").iterdir()
    if path.name[0].isalpha()
)
ABSENT = (
    "atta.lab",
    "atta.lab.paper",
    "atta.report",
    "atta.report.figures",
    "atta.lab.datasets",
    "atta.lab.training.train",
)


def test_deploying_loads_no_experiments_no_training_no_figures_and_no_datasets() -> None:
    imports = ", ".join(f"atta.classifier.{name}" for name in MODULES)
    loaded = f"print(*(name for name in sys.modules if name.startswith({ABSENT})))"
    code = f"import sys, atta, {imports}; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "classifier" in MODULES
    assert done.stdout.split() == []


def test_type_checkers_see_every_public_name() -> None:
    stub = Path(atta.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imported = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    named = {name.asname for node in imported for name in node.names}
    assert named == set(atta.__all__)
    for node in imported:
        for name in node.names:
            assert getattr(import_module(str(node.module)), name.name) is getattr(atta, name.name)
