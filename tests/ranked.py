"""What two processes do that torchrun started, for collection/test_ranks.py. It imports little, for both wait for it."""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import atta
from atta._base.errors import InputError
from atta._base.files import locked
from atta.cli.app import app
from atta.record import shards

SETTINGS = {"policy": "flip + 2 crop", "batch_size": 8, "progress": False, "checks": False}
IMAGES = torch.randint(
    0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = torch.arange(60) % 3
BRIEF = 2 * 4 * 8  # passes of a shard of two batches


class Network(nn.Module):
    """In rank 1, it is killed or answers with no number from some pass on, if that is its fault."""

    def __init__(self, fault: str = "", after: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 3)
        self.linear.weight.data = torch.linspace(-1, 1, 576).reshape(192, 3).t().contiguous()
        self.linear.bias.data.zero_()
        self.fault, self.left = fault, after

    def forward(self, images):
        self.left -= os.environ.get("RANK") == "1"
        if self.left < 0 and self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(images.flatten(1)) / (self.left >= 0 or self.fault != "infinite")


def collect(folder: Path, network: nn.Module, **changes: Any) -> atta.Record:
    """Record the images into a folder."""
    return atta.collect(network, IMAGES, LABELS, **(SETTINGS | changes), output=folder)


def main(here: Path, rank: int) -> None:
    """Record, be refused, and be killed; write down what each process was told."""
    torch.set_num_threads(1)
    shards.PASSES, shards.SECONDS = BRIEF, 0.0

    def told(name: str, network: nn.Module, **changes: Any) -> None:
        try:
            said = str(collect(here / name, network, **changes).predictions.logits.sum().item())
        except InputError as error:
            said = str(error)
        (here / f"{name}.{rank}").write_text(said)

    def typed(*words: str) -> None:
        sys.argv = ["atta", *words]
        try:
            app()
        except SystemExit as end:
            (here / f"{words[0]}.{rank}").write_text(str(end.code))

    told("whole", Network(), rehearse=True)
    told("infinite", Network("infinite"))
    told("unlike", Network(), seed=rank)
    with locked(here / "taken" / "run.json") if rank == 0 else nullcontext():
        told("taken", Network())
    typed(
        "collect",
        "ranked:Network",
        str(here / "images"),
        "-o",
        str(here / "typed"),
        "--batch-size",
        "8",
    )
    typed("methods")
    dist.init_process_group("gloo")  # the program's own
    told("killed", Network("killed"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
