"""The calibrated classifier: images in, calibrated probabilities out.

    images [n c h w] ─┬──────────► model ──► logits [n k] ─────────┐
                      └► views ──► model ──► views["crop"] [n r k] ─┴► calibrator ──► probs [n k]

It holds the network, the calibrator and the policy. Views are stratified: their numbers are the
same for every image, so that an answer depends on the image alone, and fit and deployment see the
same views. The network runs in its own precision, the calibrator in float32 or wider:
**argmax(probs) == argmax(logits), in the dtype that is returned**, for every calibrator that keeps
the class.

A gated calibrator (`selective-v-atta`) decides before each stage which images need more views. A
graph (`torch.export`, ONNX, `torch.compile`) cannot decide: it shows every image in every view, and
gives the same answers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from math import inf, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atta._base.errors import InputError
from atta._base.settings import check_one, checked
from atta.calibrators import AverageBlend, Calibrator, ViewBlend
from atta.calibrators.conformal import ConformityScores
from atta.calibrators.shift import STATISTICS, Reference
from atta.classifier.adapt import Adaptable
from atta.classifier.archive import NOTHING_KEPT, Kept
from atta.classifier.estimator import Details
from atta.classifier.export import Exportable
from atta.classifier.hub import OnHub
from atta.classifier.summary import Summary
from atta.data.batched import BatchedViews
from atta.data.items import check_range
from atta.data.preprocess import Preprocess, sheet_of, showing
from atta.data.views import Policy
from atta.functional import guard_class, largest_share, leader
from atta.networks.adapters import as_logits
from atta.networks.borrowing import device_of, dtype_of
from atta.run.runner import (
    IMAGE,
    ROWS,
    Shown,
    as_pixels,
    batch_size,
    check_takes,
    logits_of,
    run_views,
    without_autocast,
)

SMALL = 128  # pixels of a side that tell if a network for any size works
LEAST_ROWS = 8
CHANNELS = 64
"""Several views share a pass as long as that saves more than it costs.

A pass reads the weights once, and its activations, about CHANNELS numbers per pixel, have to fit
the caches of a CPU. Time of passes of 32 rows relative to passes of 8, on AMD EPYC: ResNet-50 at
32 x 32 pixels 0.29, ResNet-20 at 32 x 32 1.23, ResNet-50 at 224 x 224 1.52.
"""


class _Answer(NamedTuple):
    """Logits of a batch, and the passes of each image; None if every view was run."""

    logits: Tensor
    views: dict[str, Tensor]
    passes: Tensor | None = None

    @property
    def base(self) -> Tensor:
        """The probabilities of the network itself."""
        return guard_class(self.logits.softmax(dim=-1), self.logits)


class CalibratedClassifier(Adaptable, Exportable, OnHub):
    """A network with its calibrator: `classifier(images)` returns calibrated probabilities.

    `atta.calibrate` makes one; `CalibratedClassifier.load` reads a saved one.

    Args:
        model: The network, in evaluation mode; it is not changed.
        calibrator: What a method has learned.
        policy: Views that the calibrator uses.
        image_shape: Channels, height and width of the images; of views of the photograph, too,
            where the policy has some (`Preprocess.sheet`).
        class_names: Names of the classes, in the network's order.
        summary: Cross-validated numbers, as `calibrate` writes them.
        preprocess: How photographs are resized, cropped and normalised.
        reference: The validation images, for `drift` and `adapt`.
        conformity: Conformity scores of the validation images, for `predict_set`.
        kept: What `adapt` and `at_risk` need.

    The constructor does not run the network: `check()` tells if the parts fit together.
    """

    @checked
    def __init__(
        self,
        model: object,
        calibrator: Calibrator,
        policy: str | Policy | None = None,
        *,
        image_shape: Sequence[int],
        class_names: Sequence[str] = (),
        summary: Summary | None = None,
        preprocess: Any = None,
        reference: Reference | None = None,
        conformity: ConformityScores | None = None,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        super().__init__()
        check_one("calibrator", calibrator, Calibrator)
        if len(image_shape) != 3 or not all(side > 0 for side in image_shape):
            raise InputError(
                f"image_shape: expected (channels, height, width), got {tuple(image_shape)}"
            )
        if class_names and len(class_names) != calibrator.classes:
            raise InputError(
                f"expected {calibrator.classes} class names, one for each class, got "
                f"{len(class_names)}"
            )
        self.policy = used_views(policy, calibrator, kept.before)
        wanted = None if preprocess is None else Preprocess.of(preprocess)
        self.preprocess = showing(wanted, () if self.any_size else self.policy.photographs)
        model = getattr(model, "_orig_mod", model)  # saved by its own names, not by its wrapper's
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        self.model = self._adapted(model)
        self.calibrator = calibrator.to(device_of(self.model))
        self.image_shape = _input_shape(image_shape, self.preprocess)
        self.classes = calibrator.classes
        self.class_names = tuple(map(str, class_names))
        self.summary = summary
        self.reference = reference
        self.conformity = conformity
        self.kept = kept
        self.second = kept.second
        self.views = self._rendered().to(device_of(self.model))
        weights = sum(each.numel() for each in self.model.parameters())
        rows = weights // (CHANNELS * self.image_shape[1] * self.image_shape[2])
        self.rows_on_cpu = min(max(rows, LEAST_ROWS), ROWS["cpu"])
        self.images_seen = self.passes_run = 0
        super().train(False)

    any_size = False
    """Whether images may have another height and width than `image_shape`."""

    def _adapted(self, model: object) -> nn.Module:
        return as_logits(model, self.preprocess)

    def _rendered(self) -> BatchedViews:
        sheet = sheet_of(self.preprocess)
        shape = (self.image_shape[0], *sheet.size) if sheet else self.image_shape
        return BatchedViews(self.policy, shape, sheet)

    @torch.no_grad()
    def check(self) -> None:
        """Answer one blank image, to find out if the parts fit together.

        Raises:
            InputError: The model fails on such an image, or has other classes than the calibrator.
        """
        channels, *sides = self.image_shape
        if self.any_size:
            sides = [min(side, SMALL) for side in sides]
        blank = torch.zeros(1, channels, *sides, device=device_of(self))
        check_takes(self.model, self.views.crop(blank).shape[1:], self.calibrator.classes)
        self.graph(self._validated(blank))

    # ---- answering -------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, images: Any) -> Tensor:
        """Return calibrated probabilities (n, k) of images (n, c, h, w), uint8 or in [0, 1]."""
        if torch.compiler.is_compiling():
            return self.graph(images)[0]
        answer = self._answer(self._validated(images))
        return _checked(self._calibrated(answer), answer.logits)

    def graph(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what a graph returns (`export.OUTPUTS`) without looking at values."""
        answer = self._all_views(as_pixels(images, dtype_of(self.model)), self.policy.passes)
        probs = self._calibrated(answer)
        confidence, answered = self._certain(answer, probs)
        return probs, answer.base, confidence, *(() if answered is None else (answered,))

    @torch.no_grad()
    def details(self, images: Any) -> Details:
        """Return what the answer to each image is made of."""
        self._for_images("details")
        answer = self._answer(self._validated(images))
        logits = answer.logits
        calibrator = self.calibrator
        passes = answer.passes
        probs = _checked(self._calibrated(answer), logits)
        start = fused = share = None
        if isinstance(calibrator, ViewBlend | AverageBlend):
            start, fused = calibrator.parts(logits, answer.views)
            limit = calibrator.limit.to(start)
            step = calibrator.step
            share = largest_share(start, fused, limit, step=step, first=leader(logits))
            if not calibrator.keeps_class:
                share = torch.ones_like(share)
        views = {name: view.softmax(dim=-1) for name, view in answer.views.items()}
        if passes is None:
            passes = torch.full(probs.shape[:1], self.passes, device=probs.device)
        confidence, answered = self._certain(answer, probs)
        return Details(probs, confidence, answered, answer.base, fused, share, views, passes, start)

    @torch.no_grad()
    def shown(self, images: Any) -> list[Shown]:
        """Return the name, the repeat and the pixels of each view of these images."""
        kinds = (IMAGE, *self.calibrator.kinds)
        return list(self._shown(self._validated(images), kinds, most=self.policy.passes))

    @property
    def mean_passes(self) -> float:
        """Mean number of passes per image so far; before any image, the expected number."""
        if self.images_seen:
            return self.passes_run / self.images_seen
        if self.summary is None or self.second is not None:
            return float(self.passes)
        return self.summary.passes

    @property
    def passes(self) -> int:
        """The largest number of passes per image."""
        return used_views(self.policy, self.calibrator).passes + (self.second is not None)

    def train(self, mode: bool = True) -> "CalibratedClassifier":
        """Stay in evaluation mode, in which the calibrator was fitted."""
        super().train(False)
        return self

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "CalibratedClassifier":
        """Cast and move the network; views and calibrator move with it, in their own precision."""
        for network in (self.model, self.second):
            if network is not None:
                network._apply(fn, recurse)  # type: ignore[no-untyped-call]

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor.new_empty(0)).device)

        for part in (self.views, self.calibrator):
            part._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def __repr__(self) -> str:
        views = f", {str(self.policy)!r}" if self.policy.terms else ""
        inner = getattr(self.model, "model", self.model)
        shape = " × ".join(map(str, self.image_shape))
        learned = f"{self.calibrator.extra_repr()}{views}"
        return f"{type(self).__name__}({type(inner).__name__}, {learned}, images {shape})"

    def _repr_html_(self) -> str:
        """The same for a notebook, and the summary: what was tried and what calibration gained."""
        summary = "" if self.summary is None else self.summary._repr_html_()
        return f"<p>{escape(repr(self))}</p>{summary}"

    def _validated(self, images: Any) -> Tensor:
        """Check what comes in, once, and make pixels of it."""
        wanted = self.image_shape[:1] if self.any_size else self.image_shape
        shape = ", ".join(map(str, wanted)) + (", h, w" if self.any_size else "")
        expected = f"expected images of shape (n, {shape}), as it was fitted on"
        if not isinstance(images, Tensor):
            raise InputError(
                f"{expected}, as a tensor, got {type(images).__name__}; predict_proba takes files, "
                "folders, arrays and datasets"
            )
        if images.ndim != 4 or tuple(images.shape[1 : 1 + len(wanted)]) != wanted:
            advice = ": write images[None] for a batch of one" if images.ndim == 3 else ""
            if sheet_of(self.preprocess):
                advice = (
                    ", which lack the views of the photograph: give what preprocess(image) of "
                    "this classifier returns, or files to predict_proba"
                )
            raise InputError(f"{expected}, got {tuple(images.shape)}{advice}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise InputError(f"expected images as uint8 or floats in [0, 1], got {images.dtype}")
        if images.device != device_of(self):
            raise InputError(
                f"expected images on {device_of(self)}, where the model is, got {images.device}"
            )
        if images.is_floating_point() and images.shape[0]:
            check_range(images, "image {} of the batch".format)
        waiting: list[nn.Module | None] = [self.model]
        while waiting:  # four times as fast as `modules()`, which a GPU would wait for
            if (module := waiting.pop()) is not None:
                if module.training:
                    raise InputError(
                        "expected the model in evaluation mode, got training mode: call "
                        "classifier.eval()"
                    )
                waiting.extend(module._modules.values())
        return as_pixels(images, dtype_of(self.model))

    def _answer(self, pixels: Tensor) -> _Answer:
        """Run the network on the images and on the views that they need."""
        n = pixels.shape[0]
        repeats = self.policy.repeats
        if n == 0:  # many networks fail on an empty batch
            logits = pixels.new_zeros(0, self.calibrator.classes)
            counts = repeats | {STATISTICS: 1}
            views = {kind: logits[:, None].expand(-1, count, -1) for kind, count in counts.items()}
            return _Answer(logits, views)
        rows = self.rows_on_cpu if pixels.device.type == "cpu" else batch_size(None, pixels.device)
        most = max(1, rows // n)
        run = self._stage_by_stage if self.calibrator.gated else self._all_views
        answer = run(pixels, most)
        self.images_seen += n
        self.passes_run += n * self.passes if answer.passes is None else int(answer.passes.sum())
        return answer

    def _all_views(self, pixels: Tensor, most: int) -> _Answer:
        """Run the network on the images and on all of their views."""
        views = self._logits(pixels, (IMAGE, *self.calibrator.kinds), most)
        return _Answer(views.pop(IMAGE)[:, 0], views)

    def _stage_by_stage(self, pixels: Tensor, most: int) -> _Answer:
        """Run the views of each stage only for images that need them; count all passes."""
        n = pixels.shape[0]
        repeats = self.policy.repeats
        device = pixels.device
        logits = self._logits(pixels, (IMAGE,), most)[IMAGE][:, 0]
        views: dict[str, Tensor] = {}
        passes = torch.ones(n, dtype=torch.int64, device=device)
        left = torch.arange(n, device=device)
        for stage in self.calibrator.stages:
            if left.shape[0]:
                seen = {kind: view[left] for kind, view in views.items()}
                with without_autocast(device):
                    left = left[self.calibrator.goes_on(logits[left], seen)]
            for kind in stage:
                views[kind] = logits.new_full((n, repeats[kind], logits.shape[1]), float("nan"))
            if left.shape[0]:
                for kind, answers in self._logits(pixels[left], stage, most).items():
                    views[kind][left] = answers
            passes[left] += sum(repeats[kind] for kind in stage)
        return _Answer(logits, views, passes)

    def _calibrated(self, answer: _Answer) -> Tensor:
        with without_autocast(answer.logits.device):
            return self.kept.restated(self.calibrator.calibrate(answer.logits, answer.views))

    def _certain(self, answer: _Answer, probs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the confidence in the predicted class, and which images are answered."""
        with without_autocast(answer.logits.device):
            confidence = self.calibrator.certainty(answer.logits, answer.views)
        if self.kept.odds:  # which move the class, too
            confidence = probs.amax(dim=-1)
        if self.promise is None:
            return confidence, None
        return confidence, self.promise.answered(confidence, probs.argmax(dim=-1))

    def _logits(self, pixels: Tensor, kinds: Sequence[str], most: int) -> dict[str, Tensor]:
        """Return the logits (n, r, k) of these kinds of view, with up to `most` views in a pass."""
        network = partial(logits_of, self.model, dtype=dtype_of(self.model))
        found = run_views(network, self._shown(pixels, kinds, most), most)
        every = torch.stack([logits for *_, logits in found])
        counts = Counter(kind for kind, *_ in found)  # in their order
        views = {
            kind: part.transpose(0, 1)
            for kind, part in zip(counts, torch.split(every, [*counts.values()]), strict=True)
        }
        if STATISTICS in kinds and (second := self.second) is not None:
            crops = self.views.crop(pixels)
            views[STATISTICS] = logits_of(second, crops, dtype_of(self.model))[:, None]
        return views

    def _shown(self, pixels: Tensor, kinds: Sequence[str], most: int) -> Iterator[Shown]:
        """Yield each repeat of these kinds of view, made up to `most` at once."""
        passes = [(IMAGE, 0)] if IMAGE in kinds else []
        passes += self.views.passes(kind for kind in kinds if kind not in (IMAGE, STATISTICS))
        for start in range(0, len(passes), most):
            part = passes[start : start + most]
            if part[0][0] == IMAGE:
                yield *part.pop(0), self.views.crop(pixels)
            with without_autocast(pixels.device):
                shown = self.views.show(pixels, part)
            yield from shown


def _input_shape(given: Sequence[int], preprocess: Preprocess | None) -> tuple[int, ...]:
    """Return the shape of what comes in, if that is given, or that of the network's images."""
    channels, *sides = (int(side) for side in given)
    size = preprocess and preprocess.size
    if size and tuple(sides) not in (size, preprocess and preprocess.input_size):
        raise InputError(
            f"image_shape: expected {size} pixels, as preprocess states, got {tuple(sides)}"
        )
    return (channels, *(size or sides))


def used_views(
    policy: str | Policy | None, calibrator: Calibrator, before: Calibrator | None = None
) -> Policy:
    """Return the policy with only the views that these calibrators use.

    An adapted calibrator can use fewer views than the one `before` it, which `unadapted()` needs.
    """
    kinds = [kind for kind in calibrator.kinds if kind != STATISTICS]
    earlier = () if before is None else before.kinds
    if not kinds and not earlier:
        return Policy(())
    if policy is None:
        raise InputError(f"expected the policy of the views {', '.join(kinds)}, got none")
    policy = Policy.parse(policy)
    terms = {view.name: (view, repeats) for view, repeats in policy.terms}
    if missing := [kind for kind in kinds if kind not in terms]:
        raise InputError(f"expected a policy with the views {', '.join(missing)}, got '{policy}'")
    # Older files of adapted classifiers lack the views that only `before` uses.
    every = dict.fromkeys((*(kind for kind in earlier if kind in terms), *kinds))
    return Policy(tuple(terms[kind] for kind in every))


def _checked(probs: Tensor, logits: Tensor) -> Tensor:
    """Refuse logits that are not finite; checked last, because this waits for a GPU."""
    # One reduction, which is not finite if any logit is not.
    if logits.shape[0] and not isfinite(torch.linalg.vector_norm(logits, inf)):
        known = torch.isfinite(logits).all(dim=1)
        raise InputError(
            f"the model returns logits that are not finite for image {int(known.long().argmin())} "
            "of the batch"
        )
    return probs
