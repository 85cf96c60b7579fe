"""A classifier on disk: safetensors and JSON, as a folder or as one file, refused if anything in it was changed.

    folder/                                      name.safetensors
        classifier.json        about + digest        about + digest in its header
        calibrator.safetensors                       calibrator.*
        model.safetensors                            model.*

The digest covers every number, name and word, so that a file that was edited, cut short or taken from another classifier
is found out. It protects from accidents, not from forgers: whoever can rewrite the file can rewrite the digest.
Nothing is pickled, so that nothing can run when a classifier is read.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from atta.calibrators import Calibrator, restore
from atta.collection.runner import check_takes
from atta.deploy.summary import Summary
from atta.errors import InputError
from atta.files import whole_file
from atta.images.preprocessing import Preprocess
from atta.images.views import Policy, View
from atta.networks import description
from atta.networks.borrowing import dtype_of
from atta.networks.weights import check_weights, copied
from atta.predictions import read_tensors, write_tensors

FORMAT = "atta.classifier"
FORMAT_VERSION = 1
ABOUT = "classifier.json"
SUFFIX = ".safetensors"
PICKLES = (b"PK\x03\x04", b"\x80")  # a zip, as torch.save writes; a bare pickle
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
        }
        plain: dict[str, Any] = json.loads(json.dumps(about))
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder, or one file if the name ends in .safetensors: safetensors and JSON, no pickle."""
        parts = {"calibrator": Part(self.calibrator.state_dict(), self.calibrator.header())}
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
            shape = tuple(about["image_shape"])
            network, dtype = description.build(about["model"], model), getattr(torch, about["dtype"])
            calibrator = restore(*parts["calibrator"], path=path)
            policy = Policy.parse(about["policy"], views=views) if about["policy"] else Policy(())
            summary = None if about["summary"] is None else Summary(**about["summary"])
            names = tuple(about["class_names"])
            given = about.get("preprocess")  # which older files do not have
            preprocess = None if given is None else Preprocess.of(given)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {type(error).__name__} {error}") from None
        if model is not None:
            check_takes(network, shape, calibrator.classes)
        if "model" in parts:
            weights = parts["model"].tensors
            check_weights(network, weights, path)
            network.to(dtype)
            for name, tensor in network.state_dict(keep_vars=True).items():  # a network may have several precisions
                tensor.data = tensor.data.to(weights[name].dtype)
            network.load_state_dict(weights)
        if device is not None:
            network, calibrator = network.to(device), calibrator.to(device)
        about_images: Any = {"image_shape": shape, "class_names": names, "preprocess": preprocess}
        return cls(network, calibrator, policy, summary=summary, **about_images)


# ---- the format ----------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Tensors that belong together, and the text that goes with them."""

    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]


def write(path: str | os.PathLike[str], about: Mapping[str, Any], parts: Mapping[str, Part]) -> Path:
    """Write a folder, or one file if the name ends in .safetensors; each file appears whole or not at all."""
    path = Path(path)
    parts = {name: Part(copied(part.tensors), part.header) for name, part in parts.items()}
    sealed = {"format": FORMAT, "format_version": FORMAT_VERSION, **about}
    sealed["parts"] = {name: dict(part.header) for name, part in parts.items()}
    sealed["digest"] = _digest(sealed, parts)
    text = json.dumps(sealed, indent=2, ensure_ascii=False)
    if path.suffix == SUFFIX:
        together = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.tensors.items()}
        return write_tensors(path, together, {"format": FORMAT, "about": text})
    if path.is_file():
        raise InputError(f"expected a folder, or a file that ends in {SUFFIX}, got the file {path}")
    for name, part in parts.items():
        write_tensors(path / f"{name}{SUFFIX}", part.tensors, part.header)
    with whole_file(path / ABOUT) as file:  # last: a folder without it, or with an older one, is not read
        file.write_text(text + "\n", encoding="utf-8")
    return path


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Part]]:
    """Read what `write` wrote, and nothing else."""
    path = Path(path)
    text, tensors = _read_folder(path) if path.is_dir() else _read_file(path)
    try:
        about = json.loads(text)
        version, headers = about["format_version"], dict(about.get("parts", {}))
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a classifier that atta saved: its description cannot be read") from None
    if about.get("format") != FORMAT or type(version) is not int:
        raise InputError(f"{path} is not a classifier: expected format {FORMAT!r}, got {about.get('format')!r}")
    if version > FORMAT_VERSION:
        raise InputError(f"{path} has format version {version}, this atta reads up to {FORMAT_VERSION}: install a newer one")
    digest = about.pop("digest", None)
    parts = {name: Part(tensors.get(name, {}), header) for name, header in headers.items()}
    if set(tensors) - set(parts) or digest != _digest(about, parts):
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
    try:
        names = list(json.loads(text)["parts"])
    except (ValueError, KeyError, TypeError):
        names = []
    return text, {name: read_tensors(path / f"{Path(name).name}{SUFFIX}")[0] for name in names}


def _read_file(path: Path) -> tuple[str, dict[str, dict[str, Tensor]]]:
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(PICKLES) and start[8:] != b"{":  # safetensors: the length, which may begin so, and then JSON
        raise InputError(
            f"{path} is a pickle or an archive of them, and reading one can run code: expected what "
            f"CalibratedClassifier.save wrote, a folder or a {SUFFIX} file"
        )
    tensors, header = read_tensors(path)
    if header.get("format") != FORMAT:
        raise InputError(f"{path} is not a classifier: expected format {FORMAT!r}, got {header.get('format')!r}")
    parted: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, rest = key.partition(".")
        parted.setdefault(name, {})[rest] = value
    return header.get("about", ""), parted


def _digest(about: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
    """Hash words and numbers, in an order that does not depend on how they were written."""
    found = hashlib.sha256(json.dumps(about, sort_keys=True, ensure_ascii=False).encode())
    for name, part in sorted(parts.items()):
        for key, value in sorted(part.tensors.items()):
            found.update(f"\n{name}.{key} {value.dtype} {tuple(value.shape)}\n".encode())
            found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
