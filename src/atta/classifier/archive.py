"""A classifier on disk: safetensors and JSON, as a folder or as one file, refused if anything in it was changed.

    folder/                                      name.safetensors
        classifier.json        about + digest        about + digest in its header
        calibrator.safetensors                       calibrator.*
        model.safetensors                            model.*

A new folder appears whole. In one that is there, a part whose name is taken is named classifier-model-0123456789ab.safetensors;
then classifier.json names the new parts, and then the old ones go: whenever it is stopped, the old classifier is there or the
new one.

The digest covers every number, name and word, so that a file that was edited, cut short or taken from another classifier
is found out. It protects from accidents, not from forgers: whoever can rewrite the file can rewrite the digest.
Nothing is pickled, so that nothing can run when a classifier is read.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line
from atta._base.files import alone, digest, named, whole_file, whole_folder
from atta._base.tensors import buffers, read_header, read_tensors, write_tensors
from atta.calibrators import Calibrator, restore
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.shift import Adaptation, Reference
from atta.classifier.summary import Summary
from atta.data.preprocess import Preprocess
from atta.data.views import Policy, View
from atta.networks import description
from atta.networks.borrowing import dtype_of
from atta.networks.weights import check_weights, copied
from atta.run.runner import check_takes

FORMAT = "atta.classifier"
FORMAT_VERSION = 1
ABOUT = "classifier.json"
SUFFIX = ".safetensors"
LONGEST_SIDE, PIXELS = 1 << 16, 1 << 28  # of an image that a file may ask to be answered
PICKLES = (b"PK\x03\x04", b"\x80")  # a zip, as torch.save writes; a bare pickle
PARTS = ("calibrator", "model", "before")
PART = "atta.part"  # what the header of a part says that it is
_BY_CONTENT = re.compile(rf"classifier-({'|'.join(PARTS)})-[0-9a-f]{{12}}{re.escape(SUFFIX)}")
Classifier = TypeVar("Classifier", bound="Archived")


class Archived(nn.Module):
    """What a classifier is made of, and its way to disk and back."""

    model: nn.Module
    calibrator: Calibrator
    policy: Policy
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    summary: Summary | None
    preprocess: Preprocess | None
    reference: Reference | None = None
    conformity_scores: ConformityScores | None = None
    adapted: Adaptation | None = None
    before: tuple[Calibrator, ...] = ()
    """The calibrator that was adapted, if one was: in a tuple, for it is no part of what answers."""

    @property
    def answers_otherwise(self) -> bool:
        """Whether it was adapted, and is less sure of an image than it was when it was calibrated."""
        return self.adapted is not None and self.adapted.softness != 1

    def about(self) -> dict[str, Any]:
        """Describe the classifier in plain words and numbers: what its file says of it."""
        from atta import __version__  # the package imports this module first

        about = {
            "atta": __version__,
            "torch": torch.__version__,
            "method": self.calibrator.method.name,
            "keeps_class": self.calibrator.keeps_class,
            "policy": str(self.policy),
            "draws": "stratified",
            "image_shape": list(self.image_shape),
            "classes": self.calibrator.classes,
            "class_names": list(self.class_names),
            "dtype": str(dtype_of(self.model)).removeprefix("torch."),
            "preprocess": None if self.preprocess is None else self.preprocess.about(),
            "model": description.describe(self.model),
            "summary": None if self.summary is None else asdict(self.summary),
            "reference": None if self.reference is None else self.reference.json(),
            "strangeness": None
            if self.conformity_scores is None
            else asdict(self.conformity_scores),
            "adapted": None if self.adapted is None else asdict(self.adapted),
        }
        plain: dict[str, Any] = json.loads(json.dumps(about))
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder, or one file if the name ends in .safetensors: safetensors and JSON, no pickle."""
        parts = {"calibrator": Part(self.calibrator.state_dict(), self.calibrator.header())}
        for before in self.before:
            parts["before"] = Part(before.state_dict(), before.header())
        if description.has_weights(self.model):
            parts["model"] = Part(self.model.state_dict(), {})
        return write(path, self.about(), parts)

    @classmethod
    def load(
        cls: type[Classifier],
        path: str | os.PathLike[str],
        model: object = None,
        *,
        views: Mapping[str, View] | None = None,
        device: str | torch.device | None = None,
    ) -> Classifier:
        """Read what `save` wrote.

        `model` is the network, or one like it, wherever the file cannot say how to build it: the weights in the file are
        loaded into it. `views` adds views of one's own that the policy names.
        """
        about, parts = read(path)
        try:
            shape, names, dtype = _image_shape(about), _class_names(about), _dtype(about)
            calibrator = restore(*parts["calibrator"], path=path)
            policy = _policy(about, views)
            summary = None if about["summary"] is None else Summary(**about["summary"])
            if summary is not None:
                str(summary)  # every number of it is one
            network = _network(about["model"], model, parts, path)
            if model is not None:
                check_takes(network, shape, calibrator.classes)
            _check_parts(about["model"], network, parts, path)
            if "model" in parts:
                _fill(network.to(dtype), parts["model"].tensors)
            if device is not None:
                network, calibrator = network.to(device), calibrator.to(device)
            given = about.get("preprocess")  # which older files do not have
            preprocess = None if given is None else Preprocess.of(given)
            about_images: Any = {
                "image_shape": shape,
                "class_names": names,
                "preprocess": preprocess,
            }
            loaded = cls(network, calibrator, policy, summary=summary, **about_images)
            # Archives of before there were any have none; `adapt` and `drift` then say what is missing.
            if about.get("reference") is not None:
                loaded.reference = Reference.read(about["reference"])
            if about.get("strangeness") is not None:
                loaded.conformity_scores = ConformityScores.read(about["strangeness"])
            if about.get("adapted") is not None:
                loaded.adapted = Adaptation(**about["adapted"])
                loaded.before = (restore(*parts["before"], path=path),)
            return loaded
        except InputError:
            raise
        except (
            Exception
        ) as error:  # a forged file reaches every layer below, each of which has its own kinds
            raise InputError(
                f"{path} is damaged: {type(error).__name__} {first_line(error)}"
            ) from error


# ---- what a file says ----------------------------------------------------------------------------------------------


def _image_shape(about: Mapping[str, Any]) -> tuple[int, ...]:
    shape = about["image_shape"]
    sides = shape if isinstance(shape, list) else []
    if (
        len(sides) != 3
        or not all(type(side) is int and 0 < side <= LONGEST_SIDE for side in sides)
        or prod(sides) > PIXELS
    ):
        raise InputError(
            f"image_shape: expected [channels, height, width], each up to {LONGEST_SIDE}, got {shape!r}"
        )
    return tuple(sides)


def _class_names(about: Mapping[str, Any]) -> tuple[str, ...]:
    names = about["class_names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"class_names: expected a list of names, got {str(names)[:80]}")
    return tuple(names)


def _policy(about: Mapping[str, Any], views: Mapping[str, View] | None) -> Policy:
    if not isinstance(about["policy"], str):
        raise InputError(
            f"the file is damaged: expected a policy as text, got {str(about['policy'])[:80]}"
        )
    return Policy.parse(about["policy"], views=views) if about["policy"] else Policy(())


def _dtype(about: Mapping[str, Any]) -> torch.dtype:
    name = about["dtype"]
    if name not in description.DTYPES:
        raise InputError(f"dtype: expected {', '.join(description.DTYPES)}, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _network(
    about: Any, model: object, parts: "Mapping[str, Part]", path: str | os.PathLike[str]
) -> nn.Module:
    """Build what the file describes, if the file has weights of just these shapes."""
    if not isinstance(about, dict):
        raise InputError(f"model: expected the description of a network, got {str(about)[:80]!r}")
    if model is None:
        with torch.device(
            "meta"
        ):  # shapes alone: numbers that were made up must not fill the memory
            planned = description.build(about)
        _check_parts(about, planned, parts, path)
    return description.build(about, model)


def _check_parts(
    about: dict[str, Any],
    network: nn.Module,
    parts: "Mapping[str, Part]",
    path: str | os.PathLike[str],
) -> None:
    """Make sure that the weights in the file are those of such a network, and that they are there."""
    if "model" in parts:
        check_weights(network, parts["model"].tensors, path)
    elif description.says_weights(about) and description.has_weights(network):
        raise InputError(
            f"{path} is not complete: expected the weights of its network, found none; save it again"
        )


def _fill(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in network.state_dict(
        keep_vars=True
    ).items():  # a network may have several precisions
        tensor.data = tensor.data.to(weights[name].dtype)
    network.load_state_dict(weights)


# ---- the format ----------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Tensors that belong together, and the text that goes with them."""

    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]


def write(
    path: str | os.PathLike[str], about: Mapping[str, Any], parts: Mapping[str, Part]
) -> Path:
    """Write a folder, or one file if the name ends in .safetensors, whole or not at all."""
    path = named(path)
    parts = {name: Part(copied(part.tensors), part.header) for name, part in parts.items()}
    sealed = {"format": FORMAT, "format_version": FORMAT_VERSION, **about}
    sealed["parts"] = {name: dict(part.header) for name, part in parts.items()}
    if path.suffix == SUFFIX:
        together = {
            f"{name}.{key}": value
            for name, part in parts.items()
            for key, value in part.tensors.items()
        }
        return write_tensors(
            path, together, {"format": FORMAT, "about": _text(sealed, parts)}, sealed=False
        )
    if path.exists() and not path.is_dir():
        raise InputError(f"expected a folder, or a file that ends in {SUFFIX}, got the file {path}")
    if path.is_dir():
        with alone(path):
            _write_over(path, sealed, parts)
    else:
        with whole_folder(path) as folder:
            _write_parts(folder, {name: f"{name}{SUFFIX}" for name in parts}, sealed, parts)
    return path


def _write_over(folder: Path, sealed: dict[str, Any], parts: Mapping[str, Part]) -> None:
    """Write into a folder that is there, and may hold a classifier: touch nothing of it before the new one is complete."""
    files = {}
    for name, part in parts.items():
        files[name] = f"{name}{SUFFIX}"
        if (folder / files[name]).exists():
            files[name] = (
                f"classifier-{name}-{digest(dict(part.header), buffers(part.tensors))[:12]}{SUFFIX}"
            )
    before: list[str] = []
    with suppress(InputError):  # a damaged one is replaced all the same
        before = [file for name, file in _files(folder).items() if name in PARTS]
    _write_parts(folder, files, sealed, parts)
    for path in list(
        folder.glob(f"*{SUFFIX}")
    ):  # what the old one named, and what a save that was killed left
        old = (
            path.name in before
            or _BY_CONTENT.fullmatch(path.name)
            or (path.stem in PARTS and _is_part(path))
        )
        if old and path.name not in files.values():
            path.unlink(missing_ok=True)


def _is_part(path: Path) -> bool:
    """Whether a file of that name is a classifier's: a network that was trained may lie in the same folder."""
    try:
        return PART in read_header(path)
    except InputError:
        return False


def _write_parts(
    folder: Path, files: Mapping[str, str], sealed: dict[str, Any], parts: Mapping[str, Part]
) -> None:
    for name, part in parts.items():
        write_tensors(
            folder / files[name],
            part.tensors,
            {**part.header, PART: name},
            sealed=name == "calibrator",
        )
    if other := {name: file for name, file in files.items() if file != f"{name}{SUFFIX}"}:
        sealed = {**sealed, "files": other}
    with whole_file(
        folder / ABOUT
    ) as file:  # last: from here on the new ones are those that are read
        file.write_text(_text(sealed, parts) + "\n", encoding="utf-8")


def _text(sealed: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
    return json.dumps({**sealed, "digest": _digest(sealed, parts)}, indent=2, ensure_ascii=False)


def _files(folder: Path) -> dict[str, str]:
    """The parts of the classifier in a folder and the files they are in; none where that cannot be read."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8", errors="replace"))
        other = about.get("files", {})
        files = {name: other.get(name, f"{Path(name).name}{SUFFIX}") for name in _headers(about)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    for name, file in files.items():
        if name in other and not (isinstance(file, str) and _BY_CONTENT.fullmatch(file)):
            raise InputError(
                f"{folder} is damaged: its description says that {name} is in {file!r}, which is no name of ours"
            )
    return files


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Part]]:
    """Read what `write` wrote, and nothing else."""
    path = named(path)
    text, tensors = _read_folder(path) if path.is_dir() else _read_file(path)
    try:
        about = json.loads(text)
        version, headers = about["format_version"], _headers(about)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path} is not a classifier that atta saved: its description cannot be read"
        ) from None
    if about.get("format") != FORMAT or type(version) is not int:
        raise InputError(
            f"{path} is not a classifier: expected format {FORMAT!r}, got {about.get('format')!r}"
        )
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, this atta reads up to {FORMAT_VERSION}: install a newer one"
        )
    digest = about.pop("digest", None)
    parts = {name: Part(tensors.get(name, {}), header) for name, header in headers.items()}
    if set(tensors) - set(parts) or digest != _digest_or_none(about, parts):
        raise InputError(
            f"{path} was changed after it was saved, or is not complete: expected the digest {str(digest)[:12]}…, "
            "got another; save it again from the model"
        )
    return about, parts


def _read_folder(path: Path) -> tuple[str, dict[str, dict[str, Tensor]]]:
    if not (path / ABOUT).is_file():
        found = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
        raise InputError(f"{path} is not a classifier: expected {ABOUT} in it, found {found}")
    text = (path / ABOUT).read_text(encoding="utf-8", errors="replace")
    return text, {name: read_tensors(path / file)[0] for name, file in _files(path).items()}


def _headers(about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The parts that a description names, each with its text."""
    parts: Any = about.get("parts", {}) if isinstance(about, dict) else None
    if not isinstance(parts, dict) or not parts.keys() <= set(PARTS):
        raise ValueError("parts")
    if not all(
        isinstance(one, dict) and all(isinstance(word, str) for word in one.values())
        for one in parts.values()
    ):
        raise ValueError("parts")
    return dict(parts)


def _read_file(path: Path) -> tuple[str, dict[str, dict[str, Tensor]]]:
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"{path} is a graph, which is for predicting (`atta predict`): expected the classifier that it was exported from, "
            f"a folder or a {SUFFIX} file"
        )
    with path.open("rb") as file:
        start = file.read(9)
    if (
        start.startswith(PICKLES) and start[8:] != b"{"
    ):  # safetensors: the length, which may begin so, and then JSON
        raise InputError(
            f"{path} is a pickle or an archive of them, and reading one can run code: expected what "
            f"CalibratedClassifier.save wrote, a folder or a {SUFFIX} file"
        )
    tensors, header = read_tensors(path)
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a classifier: expected format {FORMAT!r}, got {header.get('format')!r}"
        )
    parted: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, rest = key.partition(".")
        parted.setdefault(name, {})[rest] = value
    return header.get("about", ""), parted


def _digest_or_none(about: Mapping[str, Any], parts: Mapping[str, Part]) -> str | None:
    try:
        return _digest(about, parts)
    except (
        ValueError,
        RecursionError,
    ):  # half a character, or something nested too deeply to be ours
        return None


def _digest(about: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
    """Hash words and numbers, in an order that does not depend on how they were written."""
    return digest(
        about,
        (one for name, part in sorted(parts.items()) for one in buffers(part.tensors, f"{name}.")),
    )
