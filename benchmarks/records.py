"""The records of four networks that benchmarks compare on, and per-image terms of what was tested on them."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from atta import Predictions, Record, find_record
from atta._base.files import whole_file
from atta.lab.workers import machine

DATA = Path(os.environ.get("ATTA_DATA", "data"))
AUG8 = ("flip", "crop", "brightness", "contrast")


def draws_asked(doc: str | None) -> int:
    """What `--draws` says, of a benchmark on one thread."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=10)
    torch.set_num_threads(1)
    return int(parser.parse_args().draws)


def publish(text: str, page: Path | None) -> None:
    """Write a page, or print it where none was named."""
    if page is None:
        print(text)
        return
    with whole_file(page) as part:
        part.write_text(text, encoding="utf-8")


def run(doc: str | None, page: Callable[[int], str], draws: int) -> None:
    """Read `--draws` and `--page`, measure on one thread, and publish the page."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=draws)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    publish(page(asked.draws), asked.page)


def described() -> str:
    """This machine, in words."""
    here = machine()
    return f"{here['processor']}, {here['cores']} cores, torch {here['torch']}, commit {here['commit']}"


def joined(folder: Path, name: str) -> Record:
    """The records of one set of images, with the views of all of them."""
    records = [
        Record.load(folder / f"{name}_{part}.safetensors") for part in ("spread", "nudge", "rich")
    ]
    views = {kind: view for record in records for kind, view in record.predictions.views.items()}
    return Record(
        Predictions(records[0].predictions.logits, views), records[0].labels, records[0].origin
    )


def networks() -> dict[str, Record]:
    """The bundled record of CIFAR-10, and those of three more networks under $ATTA_DATA."""
    return {
        "CIFAR-10": find_record("cifar10-resnet50-nudged"),
        "CIFAR-10, second network": Record.load(DATA / "logits" / "cifar10.safetensors"),
        "CIFAR-100": joined(DATA / "records", "cifar100"),
        "AID": joined(DATA / "records", "aid"),
    }


@dataclass
class Means:
    """NLL, Brier of the top label, multi-class Brier and errors of each image, averaged over the draws that test it."""

    images: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, rows: Tensor, probs: Tensor, labels: Tensor) -> None:
        """Test on some of the images."""
        probs, truth = probs.double(), torch.nn.functional.one_hot(labels, probs.shape[1]).double()
        confidence, winner = probs.max(dim=1)
        right = (winner == labels).double()
        nll = -probs.gather(1, labels[:, None])[:, 0].clamp(min=1e-30).log()
        terms = torch.stack(
            [nll, (confidence - right).square(), (probs - truth).square().sum(dim=1), 1 - right]
        )
        self.sums.setdefault(name, torch.zeros(4, self.images, dtype=torch.float64))[:, rows] += (
            terms
        )
        self.counts.setdefault(name, torch.zeros(self.images))[rows] += 1

    def of(self, name: str) -> Tensor:
        """The mean of each image, of those that were tested."""
        found = self.sums[name] / self.counts[name]
        return found[:, torch.isfinite(found[0])]

    def against(self, name: str, other: str) -> list[tuple[float, float]]:
        """How much more than another, in per cent of it, and half the width of the paired interval over images."""
        apart, base = self.of(name) - self.of(other), self.of(other).mean(dim=1)
        half = 1.96 * apart.std(dim=1) / apart.shape[1] ** 0.5
        return [
            (100 * float(a / b), 100 * float(h / b))
            for a, h, b in zip(apart.mean(dim=1), half, base, strict=True)
        ]


def draw(images: int, seed: int, validation: int = 1000) -> tuple[Tensor, Tensor]:
    """Rows to fit on, and the others."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return order[:validation], order[validation:]
