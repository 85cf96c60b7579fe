"""What was typed, read: each function makes of the words of a command what a function takes, and names what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atta._base.errors import InputError, first_line

if TYPE_CHECKING:
    from atta.record.predictions import Record


def read_record(name: str, rows: str | None = None) -> Record:
    """Load a record by path or bundled name, and take the rows asked for."""
    from atta.record.predictions import find_record

    record = find_record(name)
    if rows is None:
        return record
    if not range(len(record))[read_rows(rows)]:
        raise InputError(f"--rows {rows} leaves none of the {len(record)} images of {name}")
    return record[read_rows(rows)]


def unfair_rows(name: str, rows: str) -> str | None:
    """What is to be said of rows of a record that are of other classes than its other rows."""
    import torch

    from atta.record.predictions import find_record, unfair

    record = find_record(name)
    return (
        None
        if record.labels is None
        else unfair(record.labels, torch.arange(len(record))[read_rows(rows)])
    )


def read_model(text: str) -> tuple[Any, dict[str, str]]:
    """Load a network: what `atta train` wrote, an ONNX file, or `package.module:name`, a module or what makes one."""
    import importlib

    from torch import nn

    if text.endswith(".onnx"):
        return text, {"model": text}
    if text.endswith(".py"):
        file = Path(text).with_suffix("")
        module = file.name if file.is_absolute() else ".".join(file.parts)
        raise InputError(
            f"expected package.module:name, got the file {text}: write {module}:NAME, NAME being the network in it"
        )
    if Path(text).exists():
        from atta.lab.trained import about, load_trained

        model, metadata = load_trained(
            Path(text) / "model.safetensors" if Path(text).is_dir() else Path(text)
        )
        return model, about(metadata)
    module, separator, name = text.partition(":")
    if not separator:
        raise InputError(
            f"expected a model file or package.module:name, got {text!r}, which is neither"
        )
    if not module or not name or module.startswith("."):
        raise InputError(
            f"expected package.module:name, with a module and a name in it, got {text!r}"
        )
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
        made = found if isinstance(found, nn.Module) or not callable(found) else found()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # it is someone's code, and may raise anything
        raise InputError(
            f"{text} cannot be had: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(made, nn.Module):
        gave = "gave" if made is not found else "is"
        raise InputError(
            f"expected {text} to be a torch module or a function that makes one; it {gave} {_a(made)}"
        )
    return made, {"model": text}


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def read_output(path: Path) -> None:
    """Make sure that a classifier can be written there, before the network runs."""
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"expected a folder or FILE.safetensors, got {path}; `atta export` makes graphs of those"
        )
    if path.is_file() and path.suffix != ".safetensors":
        raise InputError(f"expected a folder or FILE.safetensors, got the file {path}")


def read_engine(engine: str | None, actors: int | None = None) -> Literal["ray"] | None:
    """What is to run elsewhere, if it can."""
    from atta.run.cluster import check_engine

    return check_engine(engine, actors, called="--{}".format)


def read_device(name: str | None, engine: str | None = None) -> str | None:
    """The device that was named, if it is there; else the GPU where there is one; a model stays where it is otherwise.

    What the machines of an engine have is not looked for here.
    """
    import torch

    from atta.networks.borrowing import find_device

    if name is not None and engine is not None:
        return name
    if name is not None:
        return str(find_device(name, "--device"))
    return "cuda" if torch.cuda.is_available() else None


def read_rows(text: str, option: str = "--rows") -> slice:
    """Read FROM:TO."""
    try:
        start, stop = (_place(part) if part.strip() else None for part in text.split(":"))
    except ValueError:
        raise InputError(f"{option} takes FROM:TO, such as 0:1000 or 1000:, got {text!r}") from None
    return slice(start, stop)


def _place(text: str) -> int:
    return max(-sys.maxsize, min(int(text), sys.maxsize))  # further than that, no rows are


def read_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Read numbers between commas: one, or one a channel."""
    try:
        found = None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{option} takes a number for each channel, such as 0.485,0.456,0.406, got {text!r}"
        ) from None
    return found


def read_size(text: str | None, option: str) -> int | tuple[int, int] | None:
    """Read PIXELS or HEIGHTxWIDTH."""
    try:
        sides = [] if text is None else [int(part) for part in text.split("x")]
    except ValueError:
        sides = [0]
    if len(sides) > 2 or any(side < 1 for side in sides):
        raise InputError(
            f"{option} takes a number of pixels, or HEIGHTxWIDTH, such as 224 or 224x320, got {text!r}"
        )
    return None if not sides else sides[0] if len(sides) == 1 else (sides[0], sides[1])


def read_parts(images: int, rows: str | None, test: str | None) -> tuple[slice, slice | None]:
    """Read the rows to fit on and the rows to test on, which must not be the same."""
    texts = {"--rows": rows, "--test": test}
    parts = {option: read_rows(text, option) for option, text in texts.items() if text is not None}
    for option, part in parts.items():
        if not range(images)[part]:
            raise InputError(f"{option} {texts[option]} leaves none of the {images} images")
    fitted, tested = parts.get("--rows", slice(None)), parts.get("--test")
    if tested is not None and (both := {*range(images)[fitted]} & {*range(images)[tested]}):
        raise InputError(
            f"--test expects rows that are not searched, got {len(both)} of --rows {rows or ':'} in {test}"
        )
    return fitted, tested


def read_settings(texts: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value is JSON where it can be, and a comma-separated list or plain text otherwise."""
    settings: dict[str, Any] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--set takes NAME=VALUE, got {text!r}")
        try:
            settings[name] = json.loads(value)
        except RecursionError:
            raise InputError(
                f"--set {name}: expected a value, got lists inside of lists, too deep to be read"
            ) from None
        except ValueError:
            settings[name] = value.split(",") if "," in value or name == "views" else value
    return settings
