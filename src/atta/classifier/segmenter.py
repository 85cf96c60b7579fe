"""The calibrated segmenter: images in, calibrated probabilities of each pixel out.

    image ─┬──────────► network ──► logits (k h w) ──────────────────┐
           └► view ───► network ──► logits ──► inverse ──► weighted ─┴► calibrator ──► probs (k h w)

Views are run one after the other and added up as they come, so that memory does not grow with their
number. The calibrator works on a tile of pixels at a time (TILES). No pixel changes its label:
**argmax(probs) == argmax(logits)**, pixel by pixel, for every calibrator that keeps the class.

`atta.calibrate` comes here if it is given masks (`calibrate_segmenter`):

sample      random labelled pixels of each image, in the views of all candidates and degraded
choose      the policy with the fewest passes that is as good as the best, on images left out
fit         the method, on the pixels of all images
wrap        `CalibratedSegmenter`
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from atta._base.errors import InputError
from atta._base.types import Logits
from atta.calibrators import Calibrator, Method, ViewBlend
from atta.calibrators.crossval import check_folds, held_out, rank
from atta.calibrators.hedged import hedge
from atta.calibrators.shift import Reference
from atta.classifier.archive import Kept
from atta.classifier.choice import NO_VIEWS, candidates, methods_for
from atta.classifier.classifier import CalibratedClassifier, used_views
from atta.classifier.estimator import Answering
from atta.classifier.summary import summarise
from atta.data.batched import BatchedViews
from atta.data.corruptions import families_of
from atta.data.items import Channels
from atta.data.labels import Reading
from atta.data.segmentation import IGNORED, LogitMaps, Scenes, check_inverses, scenes
from atta.data.views import Policy
from atta.functional import guard_class
from atta.metrics.scores import map_scores
from atta.networks.adapters import Dense, as_dense, fitted
from atta.networks.borrowing import class_names_of, device_of, dtype_of
from atta.record.predictions import Predictions, Record
from atta.run.checks import look_over
from atta.run.collect import CollectOptions, degraded
from atta.run.pixels import PIXELS, PixelRun, Sampled, passes
from atta.run.runner import IMAGE, Execution, as_pixels, split_options, without_autocast

TILES = {"cpu": 1 << 16, "cuda": 1 << 18}
"""Pixels that the calibrator maps at once: they fit the caches, or keep a GPU busy."""
SUM = "sum"
"""Name of the weighted sum of all views."""


class Maps(NamedTuple):
    """The answer to one image: labels, calibrated confidence, and the network's own confidence."""

    labels: Int[Tensor, "h w"]
    confidence: Float[Tensor, "h w"]
    before: Float[Tensor, "h w"]


class SegmenterOptions(CollectOptions, total=False):
    """Less common keyword arguments: those of `collect`, and

    Args:
        ignore_index: The number in masks that is no class.
        pixels: Labelled pixels of each image that are looked at.
    """

    ignore_index: int
    pixels: int


class CalibratedSegmenter(CalibratedClassifier):
    """A segmentation network with its calibrator: `segmenter(images)` is (n, k, h, w).

    `atta.calibrate(network, images, masks)` makes one; `CalibratedSegmenter.load` reads a saved
    one. It answers images of any size. Arguments, saving, `drift`, `adapt` and `export` are those
    of `CalibratedClassifier`; `image_shape` is the shape of an exported graph.

    >>> import atta
    >>> network = nn.Conv2d(3, 4, 3, padding=1)
    >>> images, masks = torch.rand(20, 3, 8, 8), torch.randint(4, (20, 8, 8))
    >>> segmenter = atta.calibrate(network, images, masks, policy="flip", progress=False)
    >>> segmenter(images[:2]).shape, segmenter.predict(images[:2]).shape
    (torch.Size([2, 4, 8, 8]), (2, 8, 8))
    """

    model: Dense
    any_size = True
    tolerance = 1e-3  # where two classes of a pixel are nearly tied, rounding changes more

    def _adapted(self, model: object) -> nn.Module:
        return as_dense(model, self.preprocess)

    def _rendered(self) -> BatchedViews:
        """Views are rendered one by one: the size of an image is not known before."""
        check_inverses(self.policy)
        return BatchedViews(Policy(()), self.image_shape)

    # ---- answering -------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, images: Any) -> Tensor:
        """Return calibrated probabilities (n, k, h, w) of images (n, c, h, w)."""
        if torch.compiler.is_compiling():
            return self.graph(images)[0]
        pixels = self._validated(images)
        n, _, h, w = pixels.shape
        probs = pixels.new_empty(n, self.calibrator.classes, h, w, dtype=torch.float32)
        for image, out in zip(pixels, probs, strict=True):
            flat = out.flatten(1)
            start = 0
            for _, part in self._tiles(image[None]):
                flat[:, start : start + len(part)] = part.T
                start += len(part)
        return probs

    def graph(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities, base probabilities (n, k, h, w) and confidence (n, h, w)."""
        pixels = as_pixels(images, dtype_of(self.model))
        calibrator, own, maps = self._run(pixels)
        n, k, h, w = own.shape
        rows = _rows(own.flatten(2))
        views = {kind: _rows(x) for kind, x in maps.items()}
        probs = calibrator.calibrate(rows, views)
        base = guard_class(rows.softmax(dim=-1), rows)
        sure = calibrator.certainty(rows, views).reshape(n, h, w)
        return *(x.reshape(n, h, w, k).movedim(-1, 1) for x in (probs, base)), sure

    @torch.no_grad()
    def maps(self, images: Any, *, channels: Channels = None) -> Iterator[Maps]:
        """Yield labels and confidence of one image after the other, whatever their sizes.

        Args:
            images: A folder, files, an array or a dataset.
            channels: Where arrays have their channels.
        """
        for pixels, _ in scenes(images, channels=channels):
            yield self.answered_map(pixels)

    @torch.no_grad()
    def answered_map(self, pixels: Tensor) -> Maps:
        """Return labels and confidence of one image (c, h, w), a tile at a time."""
        images = self._validated(pixels[None].to(device_of(self)))
        parts = [
            (logits.argmax(dim=1), sure, logits.softmax(dim=1).amax(dim=1))
            for logits, sure in self._tiles(images, sure=True)
        ]
        size = images.shape[2:]
        return Maps(*(torch.cat(part).reshape(size).cpu() for part in zip(*parts, strict=True)))

    def predict(self, images: Any, *, channels: Channels = None, **how: Any) -> np.ndarray:
        """Return the labels (n, h, w) of images of one size: the network's own, at each pixel.

        Args:
            images: What `maps` takes.
            channels: Where arrays have their channels.
            how: Nothing else.
        """
        return self._stacked("predict", lambda one: one.labels, images, channels, how)

    def confidence(self, images: Any, *, channels: Channels = None, **how: Any) -> np.ndarray:
        """Return the probability (n, h, w) that the label of a pixel is right.

        Args:
            images: What `maps` takes; all of one size.
            channels: Where arrays have their channels.
            how: Nothing else.
        """
        return self._stacked("confidence", lambda one: one.confidence, images, channels, how)

    def _stacked(
        self,
        called: str,
        part: Callable[[Maps], Tensor],
        images: Any,
        channels: Channels,
        how: Mapping[str, Any],
    ) -> np.ndarray:
        """Stack maps of one size."""
        split_options(called, how, CalibratedSegmenter.maps, CollectOptions)
        found = [part(one) for one in self.maps(images, channels=channels)]
        if len({one.shape for one in found}) > 1:
            raise InputError(
                "expected images of one size, got several: take one after the other from "
                "segmenter.maps(images)"
            )
        return torch.stack(found).numpy()

    def record(
        self,
        images: Any,
        labels: Any = None,
        *,
        channels: Channels = None,
        rehearse: bool | Iterable[int] = False,
        **options: Unpack[SegmenterOptions],
    ) -> Record:
        """Record the logits of random pixels of images and of the views of this segmenter.

        Args:
            images: What `maps` takes.
            labels: The masks; by default those of the images, if they have any.
            channels: Where arrays have their channels.
            rehearse: Also record degraded images.
            **options: `SegmenterOptions`: `pixels`, `ignore_index`, `device`, ...
        """
        return self._sampled(scenes(images, labels, channels), rehearse, options).record

    def _sampled(
        self, images: Scenes, rehearse: bool | Iterable[int], options: Mapping[str, Any]
    ) -> Sampled:
        options = {"progress": False, **options}
        own = CalibratedSegmenter.record
        how, rest = split_options("record", options, own, SegmenterOptions)
        return _sampled(self.model, images, how, self.policy, rehearse, rest)

    def _answers(self, images: Any, **how: Unpack[Answering]) -> Predictions:
        """Sample pixels of unlabelled images."""
        found = scenes(images, channels=how.pop("channels", None))
        return self._sampled(replace(found, masks=None), False, how).anywhere

    def evaluate(
        self,
        images: Any,
        labels: Any = None,
        **options: Unpack[SegmenterOptions],
    ) -> dict[str, dict[str, float]]:
        """Measure the network and the segmenter on random pixels of images with masks.

        Args:
            images: What `maps` takes.
            labels: The masks; by default those of the images.
            **options: What `record` takes.

        Returns:
            The metrics of `atta.evaluate`, mIoU and the AUROC of the confidence as a detector of
            errors, under "vanilla" and under the name of the method.
        """
        return self._measured(self.record(images, labels, **options), map_scores)

    # ---- one image -------------------------------------------------------------------------------

    def _run(self, pixels: Tensor) -> tuple[Calibrator, LogitMaps, dict[str, Tensor]]:
        """Run all views; return the calibrator of their sum, or of all of them, and its input.

        Views are (n, r, k, pixels).
        """
        calibrator, weights = _folded(self.calibrator)
        found = passes(self.model, pixels, used_views(self.policy, self.calibrator))
        total = None
        kept = dict[str, list[Tensor]]()
        first = next(found)
        for view, _, logits in chain([first], found):
            if view in weights:
                weight = (weights[view] / self.policy.repeats.get(view, 1)).to(logits)
                more = logits * weight[:, None, None]
                total = more if total is None else total.add_(more)
            elif view != IMAGE and not weights:
                kept.setdefault(view, []).append(logits.flatten(2))
        views = {kind: torch.stack(parts, dim=1) for kind, parts in kept.items()}
        if total is not None:
            views = {SUM: total.flatten(2)[:, None]}
        return calibrator, first.logits, views

    def _tiles(self, pixels: Tensor, *, sure: bool = False) -> Iterator[tuple[Logits, Tensor]]:
        """Yield logits and probabilities, or else confidence, of one image, in tiles."""
        calibrator, own, views = self._run(pixels)
        flat = own[0].flatten(1)
        size = TILES.get(pixels.device.type, TILES["cpu"])
        if not torch.isfinite(flat).all():
            raise InputError("the model returns logits that are not finite for an image")
        answer = calibrator.certainty if sure else calibrator.calibrate
        with without_autocast(pixels.device):
            for start in range(0, flat.shape[1], size):
                part = slice(start, start + size)
                rows = flat[:, part].T.contiguous()
                seen = {kind: x[0, :, :, part].permute(2, 0, 1) for kind, x in views.items()}
                yield rows, answer(rows, seen)


def _rows(maps: Tensor) -> Tensor:
    """Make rows (n · pixels, k) of (n, k, pixels), and (n · pixels, r, k) of (n, r, k, pixels)."""
    return maps.movedim(-1, 1).flatten(0, 1)


def _folded(calibrator: Calibrator) -> tuple[Calibrator, dict[str, Tensor]]:
    """Return the same calibrator for a weighted sum of views, and the weight (k or 1) of each.

    A calibrator that needs each view comes back as it is, without weights.
    """
    if not isinstance(calibrator, ViewBlend) or calibrator.space != "logits":
        return calibrator, {}
    kinds = ((IMAGE,) if calibrator.itself else ()) + calibrator.kinds
    folded = ViewBlend(
        torch.ones_like(calibrator.weights[:1, :1]),
        calibrator.limit,
        calibrator.temperature,
        calibrator.odds,
        kinds=(SUM,),
        step=calibrator.step,
        guarded=calibrator.guarded,
    )
    folded.classes = calibrator.classes
    folded.method = calibrator.method
    return folded, dict(zip(kinds, calibrator.weights, strict=True))


# ---- calibrating ---------------------------------------------------------------------------------


MODERATE = (
    "flip + scale-75 + scale-125",
    "flip-scale-75 + scale-125 + flip-scale-150",
    "flip + scale-125",
    "flip",
    "scale-125",
    "flip + scale-50 + scale-75 + scale-125 + scale-150",
)
ENLARGING = ("scale-75 + flip-scale-75 + scale-200", "scale-75 + scale-200", "scale-200")
"""Policies that `auto` tries within the budget; the first is the default. Small images are enlarged
first: to twice the sides, a pass costs as much as four."""
SMALL = 1 << 18  # pixels of a small image, such as 512 x 512


@dataclass(frozen=True)
class Wanted:
    """What `calibrate` was asked for."""

    policy: Any
    budget: int
    rehearse: bool | Iterable[int]
    method: Method
    execution: Execution
    reading: Reading
    options: Mapping[str, Any]


def calibrate_segmenter(
    model: object, images: Any, masks: Any, wanted: Wanted
) -> CalibratedSegmenter:
    """Turn a segmentation network into a calibrated segmenter: `atta.calibrate` with masks."""
    reading, options, preprocess = wanted.reading, wanted.options, wanted.reading.preprocess
    if preprocess is not None and (preprocess.resize or preprocess.crop):
        raise InputError(
            "preprocess: expected only mean and std for segmentation, where images keep their "
            f"size, got '{preprocess}': resize images and masks before"
        )
    found = scenes(images, masks, reading.channels)
    check_folds(len(found))
    image = found[0].pixels
    known = ENLARGING + MODERATE if image[0].numel() <= SMALL else MODERATE
    tried = {text: Policy.parse(text) for text in known}
    policies = candidates(wanted.policy, wanted.budget, wanted.method, policies=tried)
    check_inverses(views := Policy.union(*policies.values()))
    network = as_dense(model, preprocess)
    device = wanted.execution.device_of(network)
    network.to(device)
    network = fitted(network.eval(), as_pixels(image[None].to(device), dtype_of(network)))
    record, anywhere = _sampled(network, found, wanted.execution, views, wanted.rehearse, options)
    look_over(record)
    labels, predictions = record.require_labels(), record.predictions
    methods = methods_for(policies, wanted.method)
    seen = {name: predictions.select(one.kinds) for name, one in policies.items()}
    answers = {
        name: (one.passes, held_out(methods[name], seen[name], labels).probs)
        for name, one in policies.items()
    }
    default = None if list(policies) == [NO_VIEWS] else next(iter(policies))
    judged = rank(answers, labels, predictions.images, default=default)
    best = judged[0].policy
    calibrator = methods[best].fit(seen[best], labels)
    policy = used_views(policies[best], calibrator)
    assert predictions.images is not None
    groups = families_of(predictions.rehearsals, predictions.images, options.get("seed", 0))
    chosen = Record(seen[best], labels, record.origin)
    return CalibratedSegmenter(
        network,
        calibrator,
        policy,
        image_shape=tuple(image.shape),
        class_names=reading.class_names or class_names_of(network),
        summary=summarise(calibrator, policy, chosen, answers[best][1], judged),
        preprocess=preprocess,
        reference=Reference.of(calibrator, seen[best], labels, groups, anywhere),
        kept=Kept(hedged=hedge(calibrator, seen[best], labels)),
    )


def _sampled(
    network: Dense,
    images: Scenes,
    execution: Execution,
    policy: Policy,
    rehearse: bool | Iterable[int],
    options: Mapping[str, Any],
) -> Sampled:
    """Record random pixels, as these options ask for."""
    pixels = options.get("pixels", PIXELS)
    ignored = options.get("ignore_index", IGNORED)
    run = PixelRun(network, images, execution, pixels, ignored, options.get("seed", 0))
    return run.record(policy, degraded(rehearse), options.get("origin") or {})
