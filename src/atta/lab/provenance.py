"""On what a number was measured: the machine, the versions, the commit."""

import platform
import subprocess
from pathlib import Path

import torch

from atta import __version__
from atta.lab.workers import cores


def machine() -> dict[str, str]:
    """The processor, its cores as this process may use them, the GPU if there is one, and the versions that matter."""
    found = {
        "processor": _processor(),
        "cores": str(cores()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "atta": __version__,
    }
    return found | {"commit": commit()}


def commit() -> str:
    """The commit of the source this runs from, and whether it was changed since; "unknown" outside a clone."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not Path(git("rev-parse", "--show-toplevel")).joinpath("src", "atta").samefile(here):
            return "unknown"  # installed somewhere inside a repository of something else
        changed = git(
            "status", "--porcelain", "--", str(here), str(here.parents[1] / "experiments")
        )
        return git("rev-parse", "--short=12", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
