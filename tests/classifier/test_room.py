"""Answering images imports no training, no experiments and no charts."""

import subprocess
import sys
from importlib.resources import files

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
