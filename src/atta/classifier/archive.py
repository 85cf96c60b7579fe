"""Save and load classifiers: safetensors and JSON, as a folder or as one file, with a digest.

    folder/                                      name.safetensors
        classifier.json        about + digest        about + digest in its header
        calibrator.safetensors                       calibrator.*
        model.safetensors                            model.*

A new folder appears complete or not at all. In an existing folder, a part whose name is taken is
named classifier-model-0123456789ab.safetensors. Then classifier.json names the new parts, and then
the old parts are removed. A save that is stopped leaves the old classifier or the new one.

The digest covers every number, name and word, so that a file that was edited, cut short or mixed
with another classifier is refused. It protects from accidents, not from forgery: a person who can
rewrite a file can rewrite its digest. Nothing is pickled, so that reading runs no code.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, prod
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from atta._base.errors import InputError, first_line
from atta._base.files import alone, check_digest, digest, named, whole_file, whole_folder
from atta._base.tensors import buffers, read_header, read_tensors, write_tensors
from atta._base.types import Probs
from atta.calibrators import Calibrator, restore
from atta.calibrators.conformal import ConformalSets, ConformityScores
from atta.calibrators.risk import HeldOut, Promise
from atta.calibrators.shift import Adaptation, Reference
from atta.classifier.summary import Summary
from atta.data.preprocess import Preprocess
from atta.data.views import Policy, View
from atta.networks import description
from atta.networks.borrowing import device_of, dtype_of, sharing, statistics_of
from atta.networks.description import check_weights
from atta.run.runner import check_takes

FORMAT = "atta.classifier"
FORMAT_VERSION = 1
ABOUT = "classifier.json"
SUFFIX = ".safetensors"
LONGEST_SIDE, PIXELS = 1 << 16, 1 << 28  # the largest image shape that a file may name
LEAST_PROB = 1e-30  # so that the classes that occur have a probability if they had none before
PICKLES = (b"PK\x03\x04", b"\x80")  # a zip of torch.save, and a bare pickle
PARTS = ("calibrator", "model", "before", "hedged", "statistics")
PART = "atta.part"  # key in the header of a part, with its name
_BY_CONTENT = re.compile(rf"classifier-({'|'.join(PARTS)})-[0-9a-f]{{12}}{re.escape(SUFFIX)}")
Classifier = TypeVar("Classifier", bound="Archived")
Parts: TypeAlias = Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, str]]]
"""Tensors that belong together and their text metadata, for each part."""
AnyPath: TypeAlias = str | os.PathLike[str]
Readers: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""What makes a value of its description in a file, by its name there."""
READERS: Readers = {
    "preprocess": Preprocess.of,
    "summary": Summary.read,
    "reference": Reference.read,
    "strangeness": ConformityScores.read,
}
KEPT: Readers = {
    "adapted": lambda about: Adaptation(**about),
    "held_out": HeldOut.read,
    "promise": Promise.read,
}


def read_values(about: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    """Return the values that a description has, each checked, and None for the others."""
    known = {name for name in readers if about.get(name) is not None}
    return {name: read(about[name]) if name in known else None for name, read in readers.items()}


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a classifier keeps besides what it answers with.

    Args:
        hedged: The calibrator that takes over after a drift.
        held_out: The validation images as cross-validation answered them, for `at_risk`.
        promise: The risk that was promised.
        adapted: What an adaptation did.
        before: The calibrator before it.
        odds: The stated share of each class over its validation share, from `with_classes`.
        second: The network with the statistics of the images that it was adapted to.
    """

    hedged: Calibrator | None = None
    held_out: HeldOut | None = None
    promise: Promise | None = None
    adapted: Adaptation | None = None
    before: Calibrator | None = None
    odds: tuple[float, ...] = ()
    second: nn.Module | None = None

    def restated(self, probs: Probs) -> Probs:
        """Return the probabilities for the stated shares of the classes."""
        if not self.odds:
            return probs
        weighted = probs.clamp_min(LEAST_PROB) * probs.new_tensor(self.odds)
        return weighted / weighted.sum(dim=-1, keepdim=True)


NOTHING_KEPT = Kept()


class Answerer:
    """What answers images: a classifier, or a graph that was exported from one."""

    image_shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...]
    preprocess: Preprocess | None
    reference: Reference | None
    conformity: ConformityScores | None
    any_size: bool

    @property
    def names(self) -> Sequence[str | int]:
        """The names of the classes, or their numbers."""
        return self.class_names or range(self.classes)

    def _for_images(self, what: str) -> None:
        """Refuse a segmenter."""
        if self.any_size:
            raise InputError(f"{what}: expected a classifier of images, got a segmenter")

    def conformal(self, coverage: float) -> ConformalSets:
        """Return the function from probabilities to sets that contain the true class this often."""
        self._for_images("coverage")
        if self.conformity is None:
            raise InputError(
                "coverage: expected a classifier with conformity scores, got one without, as older "
                "versions wrote them and as `fit` leaves it: calibrate or export it again"
            )
        return self.conformity.sets(coverage)


class Archived(Answerer, nn.Module):
    """The parts of a classifier, and how they are saved and loaded."""

    model: nn.Module
    calibrator: Calibrator
    policy: Policy
    summary: Summary | None
    kept: Kept

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return device_of(self.model)

    @property
    def promise(self) -> Promise | None:
        """The risk that `at_risk` promised; an adaptation withdraws it."""
        return self.kept.promise

    def check(self) -> None:
        """Find out if the parts fit together."""
        raise NotImplementedError

    @property
    def answers_otherwise(self) -> bool:
        """Whether it was adapted, or told its classes."""
        return bool(self.kept.odds) or (self.adapted is not None and self.adapted.changed)

    @property
    def adapted(self) -> Adaptation | None:
        """What an adaptation did; None for a classifier as it was calibrated."""
        return self.kept.adapted

    def about(self) -> dict[str, Any]:
        """Describe the classifier in words and numbers, as its file does.

        Returns:
            Method, policy, image shape, class names, preprocessing, network and summary, as JSON.
        """
        from atta import __version__  # the package imports this module first

        values = {
            "summary": self.summary,
            "reference": self.reference,
            "strangeness": self.conformity,
            "adapted": self.adapted,
            "held_out": self.kept.held_out,
            "promise": self.promise,
        }
        about = {
            "atta": __version__,
            "torch": torch.__version__,
            "method": self.calibrator.method.name,
            "keeps_class": self.calibrator.keeps_class and not self.kept.odds,
            "policy": str(self.policy),
            "draws": "stratified",
            "image_shape": self.image_shape,
            "classes": self.classes,
            "class_names": self.class_names,
            "dtype": str(dtype_of(self.model)).removeprefix("torch."),
            "preprocess": self.preprocess and self.preprocess.about(),
            "model": description.describe(self.model),
            **{name: one and asdict(one) for name, one in values.items()},
            "odds": self.kept.odds,
        }
        return dict(json.loads(json.dumps(about)))

    def save(self, path: AnyPath) -> Path:
        """Save the classifier as safetensors and JSON, without pickle.

        An existing classifier is replaced, and stays complete until the new one is.

        Args:
            path: A folder, or one file if the name ends in .safetensors.

        Returns:
            The path.

        >>> import atta, tempfile
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        >>> fitted = atta.TemperatureScaling().fit(atta.Predictions(torch.eye(3), {}), [0, 1, 2])
        >>> classifier = atta.CalibratedClassifier(network, fitted, image_shape=(3, 2, 2))
        >>> path = classifier.save(tempfile.mkdtemp() + "/classifier")
        >>> again = atta.CalibratedClassifier.load(path, model=network)
        >>> again.image_shape
        (3, 2, 2)
        """
        kept = self.kept
        known = {"calibrator": self.calibrator, "before": kept.before, "hedged": kept.hedged}
        parts = {name: (one.state_dict(), one.header()) for name, one in known.items() if one}
        if kept.second is not None:
            parts["statistics"] = statistics_of(kept.second), {}
        if description.has_weights(self.model):
            parts["model"] = self.model.state_dict(), {}
        return write(path, self.about(), parts)

    @classmethod
    def load(
        cls: type[Classifier],
        path: AnyPath,
        model: object = None,
        *,
        views: Mapping[str, View] | None = None,
        device: str | torch.device | None = None,
    ) -> Classifier:
        """Load a classifier that `save` wrote; no code from the file runs.

        Args:
            path: The folder or the .safetensors file.
            model: The network, if the file cannot build it: the weights of the file are loaded
                into it. Needed for an ONNX file, a function, or a class of your own.
            views: Your own views that the policy names.
            device: Where the classifier goes; by default the CPU, or the device of `model`.

        Returns:
            The classifier, which gives the same probabilities as the saved one.

        Raises:
            InputError: The file is damaged, was changed, is not a classifier, or needs a `model`.
        """
        about, parts = read(path)
        try:
            if about["model"]["kind"] == "Dense":
                from atta.classifier.segmenter import CalibratedSegmenter  # one of these

                cls = CalibratedSegmenter  # type: ignore[assignment]
            calibrator = restore(*parts["calibrator"], path=path)
            shape, policy = _image_shape(about["image_shape"]), str(about["policy"])
            network = _network(path, about, parts, model, shape, calibrator.classes).to(device)
            values = read_values(about, READERS)
            loaded = cls(
                network,
                calibrator,
                Policy.parse(policy, views=views) if policy else Policy(()),
                image_shape=shape,
                class_names=tuple(about["class_names"]),
                conformity=values.pop("strangeness"),
                kept=_kept(path, about, parts, network, calibrator.classes),
                **values,
            )
            loaded.check()
            return loaded
        except InputError:
            raise
        except Exception as error:  # forged values can raise anything, anywhere below
            why = f"{type(error).__name__} {first_line(error)}"
            raise InputError(f"{path} is damaged: {why}") from error


def _image_shape(shape: Any) -> tuple[int, ...]:
    """Check that a file names an image shape that fits into memory."""
    sides = shape if isinstance(shape, list) else []
    whole = all(type(side) is int and 0 < side <= LONGEST_SIDE for side in sides)
    if len(sides) != 3 or not whole or prod(sides) > PIXELS:
        raise InputError(
            f"image_shape: expected [channels, height, width], each up to {LONGEST_SIDE}, "
            f"got {shape!r}"
        )
    return tuple(sides)


def _network(
    path: AnyPath,
    about: Mapping[str, Any],
    parts: Parts,
    model: object,
    shape: tuple[int, ...],
    classes: int,
) -> nn.Module:
    """Build the described network, or adapt the given one, if the weights of the file fit it."""
    said, weights = about["model"], parts["model"][0] if "model" in parts else None
    if model is None:
        with torch.device("meta"):  # shapes alone: forged sizes must not fill the memory
            network = description.build(said)
    else:
        network = description.build(said, model)
        check_takes(network, shape, classes)
    if weights is not None:
        check_weights(network, weights, path)
    elif description.says_weights(said) and description.has_weights(network):
        raise InputError(
            f"{path} is not complete: expected the weights of its network, found none; "
            "save it again"
        )
    network = description.build(said) if model is None else network
    if weights is not None:
        network.to(getattr(torch, about["dtype"]))
        for name, tensor in network.state_dict(keep_vars=True).items():
            tensor.data = tensor.data.to(weights[name].dtype)  # a network may have several
        network.load_state_dict(weights)
    return network


def _kept(
    path: AnyPath, about: Mapping[str, Any], parts: Parts, network: nn.Module, classes: int
) -> Kept:
    """Read what older files lack in part; `adapt`, `drift`, `predict_set` say what is missing."""
    odds = tuple(map(float, about.get("odds") or ()))
    if odds and not (len(odds) == classes and all(0 <= one < inf for one in odds) and any(odds)):
        raise InputError(f"odds: expected one number ≥ 0 for each of {classes} classes")
    values = read_values(about, KEPT)
    for name in {"before", "hedged"} & parts.keys():
        values[name] = restore(*parts[name], path=path)
    if "statistics" in parts:
        values["second"] = sharing(network, parts["statistics"][0])
    return Kept(odds=odds, **values)


# ---- the format


def write(path: AnyPath, about: Mapping[str, Any], parts: Parts) -> Path:
    """Write a folder, or one file if the name ends in .safetensors, completely or not at all."""
    path, tensors = named(path), _joined(parts)
    headers = {name: header for name, (_, header) in parts.items()}
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "parts": headers}
    if path.suffix == SUFFIX:
        header = {"format": FORMAT, "about": _text(about, tensors)}
        return write_tensors(path, tensors, header, sealed=False)
    if path.exists() and not path.is_dir():
        raise InputError(f"expected a folder, or a file that ends in {SUFFIX}, got the file {path}")
    writing = alone if path.is_dir() else whole_folder
    with writing(path) as new:
        _write_folder(new or path, about, parts)
    return path


def _write_folder(folder: Path, about: dict[str, Any], parts: Parts) -> None:
    """Write the parts, then classifier.json, and then remove the parts of the old classifier."""
    files, taken = list[str](), {}
    for name, (tensors, header) in parts.items():
        file = f"{name}{SUFFIX}"
        if (folder / file).exists():
            file = f"classifier-{name}-{digest(header, buffers(tensors))[:12]}{SUFFIX}"
            taken[name] = file
        sealed = name == "calibrator"
        write_tensors(folder / file, tensors, {**header, PART: name}, sealed=sealed)
        files.append(file)
    if taken:
        about = {**about, "files": taken}
    with whole_file(folder / ABOUT) as temporary:
        temporary.write_text(_text(about, _joined(parts)) + "\n", encoding="utf-8")
    for path in list(folder.glob(f"*{SUFFIX}")):
        if path.name not in files and _is_part(path):
            path.unlink(missing_ok=True)


def _joined(parts: Parts) -> dict[str, Tensor]:
    """The tensors of all parts, as one file has them."""
    return {
        f"{name}.{key}": tensor
        for name, (tensors, _) in parts.items()
        for key, tensor in tensors.items()
    }


def _is_part(path: Path) -> bool:
    """Whether a classifier was saved with this file: a folder may also hold a trained network."""
    try:
        ours = path.stem in PARTS or _BY_CONTENT.fullmatch(path.name)
        return bool(ours) and PART in read_header(path)
    except InputError:
        return False


def _text(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    sealed = {**about, "digest": digest(about, buffers(tensors))}
    return json.dumps(sealed, indent=2, ensure_ascii=False)


def read(path: AnyPath) -> tuple[dict[str, Any], Parts]:
    """Read what `write` wrote, and refuse anything else."""
    path = named(path)
    if path.is_dir():
        if not (path / ABOUT).is_file():
            found = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
            raise InputError(f"{path} is not a classifier: expected {ABOUT} in it, found {found}")
        about = _parsed(path, (path / ABOUT).read_text(encoding="utf-8", errors="replace"))
        each = {name: read_tensors(path / file) for name, file in _files(path, about).items()}
        tensors = _joined(each)
    else:
        tensors, header = _read_file(path)
        about = _parsed(path, header.get("about", ""))
    check_digest(path, about.pop("digest", None), digest(about, buffers(tensors)))
    parts = {}
    for name, header in about["parts"].items():
        start = f"{name}."
        keys = [key for key in tensors if key.startswith(start)]
        parts[name] = {key.removeprefix(start): tensors[key] for key in keys}, header
    return about, parts


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """Parse the description of a classifier, and check its format and its parts."""
    try:
        about: dict[str, Any] = json.loads(text)
        json.dumps(about)  # refuses what is nested too deeply for the digest
        found, version, parts = about.get("format"), about["format_version"], about["parts"]
        known = parts.keys() <= {*PARTS} and isinstance(about.get("files", {}), dict)
        words = [word for header in parts.values() for word in header.values()]
        known &= all(isinstance(word, str) for word in words)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise InputError(
            f"{path} is not a classifier that atta saved: its description cannot be read"
        )
    if found != FORMAT or type(version) is not int:
        raise InputError(f"{path} is not a classifier: expected format {FORMAT!r}, got {found!r}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, this atta reads up to {FORMAT_VERSION}: "
            "install a newer one"
        )
    return about


def _files(folder: Path, about: Mapping[str, Any]) -> dict[str, str]:
    """The file of each part in a folder."""
    files = {name: f"{name}{SUFFIX}" for name in about["parts"]}
    for name, file in about.get("files", {}).items():
        if not _BY_CONTENT.fullmatch(str(file)):
            raise InputError(
                f"{folder} is damaged: its description says that {name} is in {file!r}, "
                "which is not a file name that atta writes"
            )
        files[name] = file
    return files


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a file."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"{path} is a graph, which is for predicting: expected the classifier that it was "
            f"exported from, a folder or a {SUFFIX} file"
        )
    with path.open("rb") as file:
        start = file.read(9)
    # The length in front of safetensors may begin as a pickle does, but JSON follows it.
    if start.startswith(PICKLES) and start[8:] != b"{":
        raise InputError(
            f"{path} is a pickle or an archive of them, and reading one can run code: expected a "
            f"folder or a {SUFFIX} file that CalibratedClassifier.save wrote"
        )
    tensors, header = read_tensors(path)
    if (found := header.get("format")) != FORMAT:
        raise InputError(f"{path} is not a classifier: expected format {FORMAT!r}, got {found!r}")
    return tensors, header
