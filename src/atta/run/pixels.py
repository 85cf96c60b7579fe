"""Run a segmentation network on images and their views, map the answers back, and sample pixels.

    for each image:                                one at a time, so that memory stays bounded
        for the image itself and each of its views:
            logits = inverse(network(view))        (k, h, w), at the size of the image
            keep those of a few hundred pixels     (pixels, k)
    Record(Predictions(logits, views, images), labels)

A pixel is a row of an ordinary record, and `images` says which image it belongs to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atta._base.display import counted
from atta._base.errors import InputError
from atta.data.draws import random_numbers, stratified_numbers
from atta.data.segmentation import LogitMaps, Scenes, check_mask, inverse_of
from atta.data.views import REHEARSAL, Policy
from atta.networks.adapters import Dense
from atta.networks.borrowing import dtype_of
from atta.networks.description import fingerprint
from atta.record.predictions import Predictions, Record
from atta.record.store import LOGITS
from atta.run.collect import by_kind
from atta.run.runner import IMAGE, Execution, as_pixels, failing_on, logits_of, running

PIXELS = 200
"""Pixels of each image in a record."""


class Pass(NamedTuple):
    """Logits of one pass, mapped back to the image: the name of the view, its repeat, (n k h w)."""

    view: str
    repeat: int
    logits: LogitMaps


class Sampled(NamedTuple):
    """A record of labelled pixels, and pixels of all kinds, which unlabelled images have too."""

    record: Record
    anywhere: Predictions


@dataclass(frozen=True)
class PixelRun:
    """A segmentation network and its images, to be sampled.

    Args:
        network: The network.
        scenes: The images and their masks.
        execution: Device, precision and progress.
        pixels: Labelled pixels of each image in the record.
        ignored: The number in masks that is no class.
        seed: Seed of the sampled pixels.
    """

    network: Dense
    scenes: Scenes
    execution: Execution
    pixels: int = PIXELS
    ignored: int = 255
    seed: int = 0

    def record(self, policy: Policy, rehearsals: Policy, about: Mapping[str, str]) -> Sampled:
        """Record random pixels: those with labels, if there are masks, and any."""
        device = self.execution.device_of(self.network)
        half = self.execution.half
        views = Policy((*policy.terms, *rehearsals.terms))
        shown = self.execution.progress is True
        known = list[Tensor]()
        anywhere = list[Tensor]()
        labels = list[Tensor]()
        with (
            running(self.network, device, False, half),
            counted("sampling pixels", len(self.scenes), shown=shown) as tell,
        ):
            for number, (pixels, mask) in enumerate(self.scenes):
                images = as_pixels(pixels[None].to(device), dtype_of(self.network))
                places = free = self._drawn(torch.arange(pixels[0].numel()), number)
                if mask is not None:
                    with_class = (mask.flatten() != self.ignored).nonzero().flatten()
                    places = self._drawn(with_class, number)
                    labels.append(mask.flatten()[places])
                own = list[Tensor]()
                others = list[Tensor]()
                for view, _, logits in passes(self.network, images, views, number):
                    if view == IMAGE:
                        self._check(logits, mask, number)
                    flat = logits[0].flatten(1)
                    own.append(flat[:, places.to(device)].T.cpu())
                    if not view.startswith(REHEARSAL):
                        others.append(flat[:, free.to(device)].T.cpu())
                known.append(torch.stack(own, dim=1))
                anywhere.append(torch.stack(others, dim=1))
                tell(number + 1)
        if labels and not sum(map(len, labels)):
            raise InputError(
                f"expected pixels with a class in the masks, got none: all are {self.ignored}, "
                "which ignore_index says is no class"
            )
        origin = {
            "dataset": self.scenes.name,
            "model": fingerprint(self.network),
            "images": str(len(known)),
            "pixels": str(self.pixels),
            "draws": "stratified",
            "policy": str(policy),
            "passes": str(policy.passes),
            **about,
        }
        record = Record(_joined(known, views), torch.cat(labels) if labels else None, origin)
        return Sampled(record, _joined(anywhere, policy))

    def _drawn(self, places: Tensor, number: int) -> Tensor:
        """Draw some of the places in an image, always alike for a seed and an image."""
        key = random_numbers("pixels", 1, torch.tensor([number]), seed=self.seed)
        generator = torch.Generator().manual_seed(int(key.double() * 2**24) + number * 2**24)
        order = torch.randperm(len(places), generator=generator)[: self.pixels]
        return places[order].sort().values

    def _check(self, logits: LogitMaps, mask: Tensor | None, number: int) -> None:
        """Refuse logits that are not finite, and masks of other classes."""
        where = self.scenes.where(number)
        if not torch.isfinite(logits).all():
            raise InputError(f"expected finite logits, got others for {where}")
        if mask is not None:
            check_mask(mask, logits.shape[1], self.ignored, where)


def passes(network: Dense, images: Tensor, policy: Policy, number: int = 0) -> Iterator[Pass]:
    """Yield the logits of the images and of each of their views, mapped back to the images."""

    def run(shown: Tensor) -> LogitMaps:
        with failing_on(shown):
            return logits_of(network, shown, dtype_of(network))

    own = run(images)
    yield Pass(IMAGE, 0, own)
    for view, repeats in policy.terms:
        back = inverse_of(view)
        count = view.count(images)
        for repeat in range(repeats):
            if view.stratified:
                u = stratified_numbers(view.name, count, repeats)[repeat]
                u = u.expand(images.shape[0], -1)
            else:
                u = random_numbers(view.name, count, torch.tensor([number]), repeat=repeat)
            u = u.to(images.device)
            yield Pass(view.name, repeat, back(run(view(images, u)), own, u))


def _joined(rows: Sequence[Tensor], policy: Policy) -> Predictions:
    """Make predictions of the sampled pixels of each image, (pixels, passes, k)."""
    views = by_kind(rows, {LOGITS: 1, **policy.repeats})
    sizes = torch.tensor([len(each) for each in rows])
    images = torch.arange(len(rows)).repeat_interleave(sizes)
    return Predictions(views.pop(LOGITS)[:, 0], views, images)
