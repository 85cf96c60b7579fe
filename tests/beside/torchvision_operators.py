"""Let torchvision import beside a torch of another build: tests only, in their process and in those that they start.

A torchvision whose operators do not load, as that of the index beside a CPU's torch, fails at its first line, and torchmetrics,
lightning and timm with it. It needs no more than the names of two operators. They are defined when somebody imports it, and not
before: whoever does not pays nothing.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_kept: list[Any] = []  # A library of operators lives as long as someone holds it.


class _Before:
    """Stands in front of all finders: whether torchvision is there may be asked by anybody, and costs nothing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name == "torchvision" else None
        if found is None or found.origin is None or found.loader is None:
            return None
        folder, run = Path(found.origin).parent, found.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            _define(folder)
            run(module)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


def _define(folder: Path) -> None:
    import torch

    if _kept:
        return
    try:
        for library in folder.glob("_C.*"):
            torch.ops.load_library(library)  # its own, where they are of the same build
            return
    except OSError:
        pass
    _kept.append(torch.library.Library("torchvision", "DEF"))
    for name in ("nms", "qnms"):
        _kept[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _Before)  # type: ignore[arg-type]
