"""The calibrated classifier as one thing: images in, calibrated probabilities out.

    images [n c h w] ─┬────────────────────────► model ──► logits
                      └► views, fixed numbers ──► model ──► views["crop"] [n r k]  ──► calibrator ──► probs [n k]

It holds the network, what was learned, and the policy. The numbers of the views are stratified: the same for every image, so
that the answer to an image depends on nothing but the image, and fit and deployment see the same views. The network and its
views run in the network's precision, the calibrator in float32 or wider, which is what is returned:
**argmax(probs) == argmax(base), in the dtype that is returned**, for every calibrator that promises to keep the class.

A gated calibrator (`selective-v-atta`) is asked before each stage which images need it, and only those are shown in its
views. A graph (`torch.export`, ONNX, `torch.compile`) cannot choose: it shows every image in every view, and answers the same.
"""

import copy
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from atta.calibrators import AverageBlend, Calibrator, ViewBlend, restore
from atta.collection.collect import collect
from atta.collection.runner import Shown, groups
from atta.deploy import archive as archives
from atta.deploy import export as exporting
from atta.deploy.hub import OnHub
from atta.functional import largest_share
from atta.images.sources import Channels, Source, as_source
from atta.images.views import Policy, View, stratified_numbers
from atta.networks import description as architectures
from atta.networks.adapters import as_logits, check_weights
from atta.networks.borrowing import device_of, dtype_of
from atta.predictions import Predictions
from atta.progress import counted
from atta.types import InputError

ROWS = {"cuda": 256, "cpu": 32}  # images to a pass: enough to keep the device busy, few enough for a CPU's caches
ROUNDING = 1e-5  # a resize in floats may leave [0, 1] by the last few bits


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What calibration did, judged by cross-validation: each image answered by a fit that did not see it."""

    method: str
    policy: str
    passes: float
    images: int
    classes: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    accuracy: float
    class_changes: int
    bins: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        change = "   ".join(
            f"{name.upper() if name != 'brier' else 'Brier'} {self.before[name]:.4f} → {self.after[name]:.4f}"
            for name in self.after
        )
        views = f" · {self.policy}" if self.policy else ""
        passes = "1 pass" if self.passes == 1 else f"{self.passes:.3g} passes"
        lines = [
            f"{self.method}{views} · {passes} an image · {self.classes} classes",
            f"cross-validated on {self.images} images, {self.accuracy:.1%} right: {change}",
            f"class changes: {self.class_changes}",
        ]
        if len(self.candidates) > 1:
            lines.append(f"chosen from {len(self.candidates)} policies by cross-validated NLL")
        if self.after["nll"] >= self.before["nll"]:
            lines.append("not better than the network as it is: take more images, other views, or method='temperature'")
        return "\n".join(lines)


class Details(NamedTuple):
    """What the answer to each image is made of; `fused` and `share` are None where the method has no such thing.

    `views` holds the probabilities of every view, NaN where an image was not shown in it.
    """

    probs: Tensor
    base: Tensor
    fused: Tensor | None
    share: Tensor | None
    views: Mapping[str, Tensor]
    passes: Tensor


class _Answer(NamedTuple):
    logits: Tensor
    views: dict[str, Tensor]
    passes: Tensor


class CalibratedClassifier(nn.Module, OnHub):
    """A network with its calibrator: `classifier(images)` gives calibrated probabilities.

    Images are bytes, or floats in [0, 1], of the one shape it was fitted on; the model is kept as it is, in evaluation mode.
    """

    def __init__(
        self,
        model: object,
        calibrator: Calibrator,
        policy: str | Policy | None = None,
        *,
        image_shape: Sequence[int],
        class_names: Sequence[str] = (),
        summary: Summary | None = None,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or not all(side > 0 for side in image_shape):
            raise InputError(f"image_shape: expected (channels, height, width), got {tuple(image_shape)}")
        if class_names and len(class_names) != calibrator.classes:
            raise InputError(f"expected {calibrator.classes} class names, one a class, got {len(class_names)}")
        self.model = as_logits(_unwrapped(model))
        self.calibrator = calibrator.to(device_of(self.model))
        self.policy = _used(policy, calibrator)
        self.image_shape = tuple(int(side) for side in image_shape)
        self.class_names = tuple(map(str, class_names))
        self.summary = summary
        self.numbers = _Numbers(self.policy, self.image_shape).to(device_of(self.model))
        self.images_seen = self.passes_run = 0
        self.eval()
        self._try_out()

    # ---- answering -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, images: Any) -> Tensor:
        """Answer a batch (n, c, h, w) with its calibrated probabilities (n, k)."""
        if torch.compiler.is_compiling():
            return self.graph(images)[0]
        answer = self._answered(self._door(images))
        return _checked(self._calibrated(answer), answer.logits)

    def graph(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Answer with probabilities and base probabilities, all views in one pass, without a look at any value."""
        pixels = self._pixels(images)
        found = self._logits(pixels, self.calibrator.kinds, most=self.policy.passes)
        answer = _Answer(found.pop("")[:, 0], found, pixels.new_empty(0))
        return self._calibrated(answer), answer.logits.softmax(dim=-1)

    @torch.no_grad()
    def details(self, images: Any) -> Details:
        """Say what the answer to each image is made of."""
        answer = self._answered(self._door(images))
        probs, base = _checked(self._calibrated(answer), answer.logits), answer.logits.softmax(dim=-1)
        fused = share = None
        if isinstance(self.calibrator, ViewBlend | AverageBlend):
            fused = self.calibrator.fused(answer.logits, answer.views)
            share = largest_share(base, fused, self.calibrator.limit.to(base), step=self.calibrator.step)
        views = {name: logits.softmax(dim=-1) for name, logits in answer.views.items()}
        return Details(probs, base, fused, share, views, answer.passes)

    @property
    def mean_passes(self) -> float:
        """Forward passes an image took, on average over all images answered so far; before any, what is expected."""
        if self.images_seen:
            return self.passes_run / self.images_seen
        return self.summary.passes if self.summary else float(self.policy.passes)

    # ---- many images, and scikit-learn's habits --------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """The class numbers, as scikit-learn calls them; their names are `class_names`."""
        return np.arange(self.calibrator.classes)

    def predict(self, images: Any, **how: Any) -> np.ndarray:
        """Give the class number of each image: the network's own. Takes what `predict_proba` takes."""
        return np.asarray(self.classes_[self.predict_proba(images, **how).argmax(axis=1)])

    def predict_proba(
        self,
        images: Any,
        *,
        channels: Channels = None,
        batch_size: int | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> np.ndarray:
        """Answer an array, a Dataset, a DataLoader, a Hugging Face dataset or a folder of images: probabilities (n, k).

        An array (n, h, w, c) needs no `channels` where the shape tells it apart.
        """
        source = self.source(images, channels)
        done, probs = 0, list[Tensor]()
        with counted("predicting", source.count, shown=progress) as tell:
            for batch in self.batches(source, batch_size=batch_size, workers=workers):
                probs.append(self(batch.to(device_of(self))).cpu())
                done += batch.shape[0]
                tell(done)
        if not probs:
            raise InputError(f"expected at least one image in {source.name}, found none")
        return torch.cat(probs).numpy()

    def fit(self, images: Any, labels: Any = None, **collecting: Any) -> "CalibratedClassifier":
        """Fit the same method with the same views to other images, in place; all else is what `collect` takes."""
        how = {"channels": self._channels(images), "progress": False, **collecting}
        record = collect(self.model, images, labels, policy=self.policy, draws="stratified", **how)
        fitted = self.calibrator.method.fit(record.predictions, record.require_labels())
        self.calibrator, self.summary = fitted.to(device_of(self)), None
        return self

    def score(self, images: Any, labels: Any) -> float:
        """The part of the images whose class is right, as scikit-learn's classifiers say it."""
        return float((self.predict(images) == np.asarray(labels)).mean())

    def source(self, images: Any, channels: Channels = None) -> Source:
        """Make a source of whatever holds images, of the right shape."""
        return as_source(images, channels or self._channels(images))

    def batches(self, source: Source, *, batch_size: int | None = None, workers: int = 0) -> Iterator[Tensor]:
        """Read the pixels batch by batch."""
        size = ROWS.get(device_of(self).type, ROWS["cpu"]) if batch_size is None else batch_size
        if size < 1:
            raise InputError(f"batch_size: expected 1 or more, got {size}")
        starts = count(0, size) if source.count is None else range(0, source.count, size)
        ranges = (
            (start, start + size if source.count is None else min(start + size, source.count)) for start in starts
        )
        return (pixels for pixels, _ in source.read(ranges, workers))

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> "CalibratedClassifier":
        return copy.deepcopy(self)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that this is a classifier."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    # ---- files -----------------------------------------------------------------------------------------------------

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
            "model": architectures.describe(self.model),
            "summary": None if self.summary is None else asdict(self.summary),
        }
        plain: dict[str, Any] = json.loads(json.dumps(about))
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder, or one file if the name ends in .safetensors: safetensors and JSON, no pickle."""
        parts = {"calibrator": archives.Part(self.calibrator.state_dict(), self.calibrator.header())}
        if architectures.has_weights(self.model):
            parts["model"] = archives.Part(self.model.state_dict(), {})
        return archives.write(path, self.about(), parts)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: object = None,
        *,
        views: Mapping[str, View] | None = None,
        device: str | torch.device | None = None,
    ) -> "CalibratedClassifier":
        """Read what `save` wrote.

        `model` is the network, or one like it, wherever the file cannot say how to build it: the weights in the file are
        loaded into it. `views` adds views of one's own that the policy names.
        """
        about, parts = archives.read(path)
        try:
            shape = tuple(about["image_shape"])
            network, dtype = architectures.build(about["model"], model), getattr(torch, about["dtype"])
            calibrator = restore(*parts["calibrator"], path=path)
            policy = Policy.parse(about["policy"], views=views) if about["policy"] else Policy(())
            summary = None if about["summary"] is None else Summary(**about["summary"])
            names = tuple(about["class_names"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {type(error).__name__} {error}") from None
        if model is not None:
            _check_takes(network, shape, calibrator.classes)
        if "model" in parts:
            weights = parts["model"].tensors
            check_weights(network, weights, path)
            network.to(dtype)
            for name, tensor in network.state_dict(keep_vars=True).items():  # a network may have several precisions
                tensor.data = tensor.data.to(weights[name].dtype)
            network.load_state_dict(weights)
        if device is not None:
            network, calibrator = network.to(device), calibrator.to(device)
        return cls(network, calibrator, policy, image_shape=shape, class_names=names, summary=summary)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        pixels: str = "float32",
        opset: int | None = None,
        tolerance: float = exporting.TOLERANCE,
    ) -> exporting.Exported:
        """Write preprocessing, views, network and calibrator as one graph: .pt2 (`torch.export`) or .onnx.

        Input `images` (n, c, h, w), n free, `pixels` "float32" in [0, 1] or "uint8"; outputs `probs` and `base`. The graph is
        held against this classifier before it is left behind.
        """
        if pixels not in ("float32", "uint8"):
            raise InputError(f"pixels: expected 'float32' or 'uint8', got {pixels!r}")
        if (dtype := dtype_of(self.model)) != torch.float32:
            raise InputError(f"expected a classifier in float32, got {dtype}: export classifier.float()")
        if not architectures.has_weights(self.model):
            raise InputError("expected a torch model: a function or an ONNX file inside cannot become part of a graph")
        self._check_mode()
        here = self if device_of(self).type == "cpu" else copy.deepcopy(self).cpu()
        with torch.autocast("cpu", enabled=False):
            return exporting.export(
                _Graph(here),
                self.image_shape,
                path,
                dtype=getattr(torch, pixels),
                outputs=("probs", "base"),
                opset=opset,
                tolerance=tolerance,
            )

    # ---- inside ----------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> "CalibratedClassifier":
        """Stay in evaluation mode: what was fitted is fitted to the network as it is."""
        super().train(False)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CalibratedClassifier":
        """Cast and move the network; numbers and calibrator go where it goes, in the precision they have."""
        self.model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for part in (self.numbers, self.calibrator):
            part._apply(lambda tensor: tensor.to(fn(tensor.new_empty(0)).device), recurse)  # type: ignore[no-untyped-call]
        return self

    def __repr__(self) -> str:
        views = f", {str(self.policy)!r}" if self.policy.terms else ""
        inner = getattr(self.model, "model", self.model)
        shape = " × ".join(map(str, self.image_shape))
        return f"CalibratedClassifier({type(inner).__name__}, {self.calibrator.extra_repr()}{views}, images {shape})"

    def _try_out(self) -> None:
        """Answer one image: what does not fit together is found now, not at someone's first picture."""
        _check_takes(self.model, self.image_shape, self.calibrator.classes)
        self.details(torch.zeros(1, *self.image_shape, device=device_of(self)))
        self.images_seen = self.passes_run = 0

    def _door(self, images: Any) -> Tensor:
        """Check what comes in, once, and make pixels of it."""
        shape = " x ".join(map(str, self.image_shape))
        expected = f"expected images of shape (n, {', '.join(map(str, self.image_shape))}), as it was fitted on"
        if not isinstance(images, Tensor):
            raise InputError(f"{expected}, as a tensor, got {type(images).__name__}; predict_proba takes other things")
        if images.ndim == 3:
            raise InputError(f"{expected}, got one of {tuple(images.shape)}: write images[None] for a batch of one")
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"{expected}, got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise InputError(f"expected images as uint8 or floats in [0, 1], got {images.dtype}")
        if images.device != device_of(self):
            raise InputError(f"expected images on {device_of(self)}, where the model is, got {images.device}")
        self._check_mode()
        if images.is_floating_point() and images.shape[0]:
            low, high = (float(value) for value in images.aminmax())
            if low != low:
                row = int(images.isnan().flatten(1).any(dim=1).nonzero()[0])
                raise InputError(f"expected pixels in [0, 1], got nan in image {row} of the batch")
            if not (low >= -ROUNDING and high <= 1 + ROUNDING):
                rows = (~((images >= -ROUNDING) & (images <= 1 + ROUNDING))).flatten(1).any(dim=1).nonzero()
                raise InputError(
                    f"expected pixels in [0, 1] ({shape}), got {low:.4g} to {high:.4g}, first in image {int(rows[0])} "
                    "of the batch; give bytes as uint8, and normalisation belongs into the model: atta.Normalized"
                )
        return self._pixels(images)

    def _check_mode(self) -> None:
        if any(module.training for module in self.model.modules()):
            raise InputError("expected the model in evaluation mode, it was put into training mode: classifier.eval()")

    def _channels(self, images: Any) -> Channels:
        """Where an array has its channels, as the shape that is expected tells."""
        if not isinstance(images, Tensor | np.ndarray) or images.ndim != 4:
            return None
        first, last = tuple(images.shape[1:]), (images.shape[3], *images.shape[1:3])
        return "last" if last == self.image_shape != first else "first"

    def _pixels(self, images: Tensor) -> Tensor:
        """Floats in [0, 1], wide enough for the views."""
        wide = _wide(dtype_of(self.model))
        if images.dtype != torch.uint8:
            return images.to(wide).clamp(0, 1)
        # A tensor as divisor: by a Python number a GPU multiplies with the inverse, and the last bit would differ.
        return images.to(wide) / torch.tensor(255.0, dtype=wide, device=images.device)

    def _answered(self, pixels: Tensor) -> _Answer:
        """Run the network on the images, and on the views that they need."""
        n, repeats = pixels.shape[0], self.policy.repeats
        if n == 0:  # many a network fails on no images
            logits = torch.zeros(0, self.calibrator.classes, dtype=pixels.dtype, device=pixels.device)
            views = {kind: logits.new_zeros(0, count, logits.shape[1]) for kind, count in repeats.items()}
            return _Answer(logits, views, torch.zeros(0, dtype=torch.int64, device=pixels.device))
        most = max(1, ROWS.get(pixels.device.type, ROWS["cpu"]) // max(n, 1))
        if not self.calibrator.gated:
            views = self._logits(pixels, self.calibrator.kinds, most=most)
            logits = views.pop("")[:, 0]
            passes = torch.full((n,), 1 + sum(repeats.values()), device=pixels.device)
            self.passes_run += n * (1 + sum(repeats.values()))
        else:
            logits = self._logits(pixels, (), most=most)[""][:, 0]
            views, passes = {}, torch.ones(n, dtype=torch.int64, device=pixels.device)
            left = torch.arange(n, device=pixels.device)
            for stage in self.calibrator.stages:
                if left.shape[0]:
                    seen = {kind: view[left] for kind, view in views.items()}
                    with _precise(pixels.device):
                        left = left[self.calibrator.goes_on(logits[left], seen)]
                for kind in stage:
                    views[kind] = logits.new_full((n, repeats[kind], logits.shape[1]), float("nan"))
                if left.shape[0]:
                    for kind, answers in self._logits(pixels[left], stage, most=most, itself=False).items():
                        views[kind][left] = answers
                passes[left] += sum(repeats[kind] for kind in stage)
            self.passes_run += int(passes.sum())
        self.images_seen += n
        return _Answer(logits, views, passes)

    def _calibrated(self, answer: _Answer) -> Tensor:
        with _precise(answer.logits.device):
            return self.calibrator.calibrate(answer.logits, answer.views)

    def _logits(self, pixels: Tensor, kinds: Sequence[str], *, most: int, itself: bool = True) -> dict[str, Tensor]:
        """Run the network on the images and these kinds of view, `most` of them to a pass: kind → logits n r k."""
        n = pixels.shape[0]
        answers: dict[str, list[Tensor]] = {}
        images = [("", 0, pixels)] if itself else []
        for group in groups(chain(images, self._shown(pixels, kinds)), most):
            shown = torch.cat([view for *_, view in group]) if len(group) > 1 else group[0][2]
            logits = self.model(shown.to(dtype_of(self.model)))
            logits = logits.to(_wide(logits.dtype)).reshape(len(group), n, -1)
            for (kind, *_), answer in zip(group, logits, strict=True):
                answers.setdefault(kind, []).append(answer)
        return {kind: torch.stack(parts, dim=1) for kind, parts in answers.items()}

    def _shown(self, pixels: Tensor, kinds: Sequence[str]) -> Iterator[Shown]:
        """Show the images in each repeat of each of these kinds."""
        for view, numbers in self.numbers.of(kinds):
            for repeat, u in enumerate(numbers):
                with _precise(pixels.device):
                    given = () if u is None else (u.expand(pixels.shape[0], -1),)
                    shown = view.transform(pixels, *given)
                yield view.name, repeat, shown


class _Numbers(nn.Module):
    """The views of a policy and the stratified numbers of each of their repeats, as buffers: they move with the model."""

    def __init__(self, policy: Policy, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.terms = policy.terms
        for i, (view, repeats) in enumerate(self.terms):
            if view.random:
                count = view.numbers if isinstance(view.numbers, int) else view.numbers(*shape)
                self.register_buffer(f"u{i}", stratified_numbers(view.name, count, repeats), persistent=False)

    def of(self, kinds: Sequence[str]) -> Iterator[tuple[View, Iterable[Tensor | None]]]:
        """The views of these kinds, each with the numbers of its repeats."""
        places = {view.name: i for i, (view, _) in enumerate(self.terms)}
        for kind in kinds:
            view = self.terms[places[kind]][0]
            yield view, getattr(self, f"u{places[kind]}") if view.random else (None,)


class _Graph(nn.Module):
    """What is exported: `CalibratedClassifier.graph` as a module."""

    def __init__(self, classifier: CalibratedClassifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.training = False

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.classifier.graph(images)


def _used(policy: str | Policy | None, calibrator: Calibrator) -> Policy:
    """The policy without the views that the calibrator does not look at."""
    if not calibrator.kinds:
        return Policy(())
    if policy is None:
        raise InputError(f"expected the policy of the views {', '.join(calibrator.kinds)}, got none")
    policy = Policy.parse(policy)
    terms = {view.name: (view, repeats) for view, repeats in policy.terms}
    if missing := [kind for kind in calibrator.kinds if kind not in terms]:
        raise InputError(f"expected a policy with the views {', '.join(missing)}, got '{policy}'")
    return Policy(tuple(terms[kind] for kind in calibrator.kinds))


def _unwrapped(model: object) -> object:
    """The network that torch.compile or DataParallel wrap: it is saved under its own names, and the whole can be wrapped."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else model


@torch.no_grad()
def _check_takes(model: nn.Module, shape: Sequence[int], classes: int) -> None:
    """Make sure that the model takes such images and knows as many classes."""
    image = torch.zeros(1, *shape, dtype=dtype_of(model), device=device_of(model))
    try:
        logits = Predictions(model(image).float()).logits
    except InputError:
        raise
    except Exception as error:  # whatever a network says of images it cannot take
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"expected a model that takes images of {tuple(shape)}, but this one fails: {reason}"
        ) from error
    if logits.shape[1] != classes:
        raise InputError(f"expected a model of {classes} classes, as the calibrator has, got one of {logits.shape[1]}")


def _checked(probs: Tensor, logits: Tensor) -> Tensor:
    """Refuse what a network could not answer; asked last, because a GPU has to be waited for."""
    if not (known := torch.isfinite(logits).all(dim=1)).all():
        raise InputError(
            f"the model answers image {int(known.long().argmin())} of the batch with logits that are not finite"
        )
    return probs


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Half precision would round classes into ties, and pixels into each other."""
    return torch.promote_types(dtype, torch.float32)


def _precise(device: torch.device) -> Any:
    """Step out of autocast: the network may run in half precision, what it is shown and what is made of it does not."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()
