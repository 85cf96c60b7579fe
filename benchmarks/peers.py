"""The peers: an environment of their own, upon this one's, and what of them is there.

    python -m benchmarks.peers .venv-peers        makes it

Each peer is installed by itself, beside the torch that is here: one that fails is named, with the reason, and the others are
there all the same. The environment sees this one's packages through a .pth file, so that torch is not installed twice.
"""

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.children import ROOT, reason

LIST = ROOT / "benchmarks" / "peers.txt"
FAILED = "failed.json"
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[bytes]"]


def wanted(path: Path = LIST) -> dict[str, str]:
    """What pip is asked for, by the name of the peer."""
    lines = (
        line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()
    )
    return {line.partition("=")[0].partition("[")[0]: line for line in filter(None, lines)}


def found() -> dict[str, str]:
    """The version of each peer that is here, or why it is not."""
    failed = Path(sys.prefix) / FAILED
    reasons = json.loads(failed.read_text(encoding="utf-8")) if failed.exists() else {}

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"not installed: {reasons[name]}" if name in reasons else "not installed"

    return {name: version(name) for name in wanted()}


def _run(order: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(order, capture_output=True, check=False, cwd=ROOT)


def make(folder: Path, run: Run = _run) -> dict[str, str]:
    """Make the environment, and return why those that could not be installed could not."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    here = sysconfig.get_path("purelib")
    there = (
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .stdout.decode()
        .strip()
    )
    # A site, not a path: packages that are installed for development have .pth files of their own.
    Path(there, "base.pth").write_text(
        f"import site; site.addsitedir({here!r})\n", encoding="utf-8"
    )
    # No peer may bring another version of what is here: it would be measured beside something else than we are.
    ours = (
        one for one in metadata.distributions() if one.name not in ("atta", "pip", "setuptools")
    )
    held = folder / "constraints.txt"
    held.write_text(
        "".join(sorted(f"{one.name}=={one.version}\n" for one in ours)), encoding="utf-8"
    )
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        str(held.resolve()),
    ]
    failed = {}
    for name, line in wanted().items():
        print(f"installing {line}", file=sys.stderr, flush=True)
        ended = run([*pip, *line.split()])
        if ended.returncode:
            failed[name] = reason(ended.stderr.decode(errors="replace"), ended.returncode)
            print(f"  {failed[name]}", file=sys.stderr, flush=True)
    (folder / FAILED).write_text(json.dumps(failed, indent=1), encoding="utf-8")
    return failed


if __name__ == "__main__":
    make(Path(sys.argv[1]))
