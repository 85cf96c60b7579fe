"""Commands that run a network: train one, and collect what it says of images and their views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atta._base.errors import InputError
from atta.cli.arguments import read_device, read_model, read_settings
from atta.cli.options import (
    ANY,
    AS_THEY_ARE,
    HERE,
    Data,
    Device,
    ImageSize,
    ModelArgument,
    Photographs,
    Rows,
    Running,
    Seed,
    Source,
    grouped,
)
from atta.cli.terminal import out, resumable, tell, waiting

if TYPE_CHECKING:
    from atta.data.image_set import ImageSet
    from atta.lab.training import Epoch


def train(
    dataset: Annotated[
        str,
        typer.Argument(
            help="cifar10, cifar100, aid, digits, ... or the name of a folder under --data."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where the model and checkpoints go."
        ),
    ],
    data: Data = None,
    model: Annotated[str, typer.Option(help="resnet50, resnet18 or small_cnn.")] = "resnet50",
    image_size: ImageSize = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates in all, instead of the recipe's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the recipe; may be repeated."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    compile: Annotated[bool, typer.Option(help="Compile the network first.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on from a checkpoint in the folder.")] = True,
) -> None:
    """Train a network by the one recipe of all experiments; stopped, it goes on from its checkpoint."""
    from atta.lab.datasets import load
    from atta.lab.recipe import Recipe
    from atta.lab.training import train as run

    read_device(device)
    recipe = Recipe.of(**read_settings(settings) | ({} if steps is None else {"steps": steps}))
    with waiting(f"reading {dataset}"):
        train_set = load(dataset, "train", data=data, image_size=image_size).decoded()
        test_set = load(dataset, "test", data=data, image_size=image_size).decoded()
    with resumable(output):
        result = run(
            model,
            train_set,
            test_set=test_set,
            recipe=recipe,
            seed=seed,
            output=output,
            resume=resume,
            device=device,
            compile=compile,
            progress=out.is_terminal,
            on_epoch=None if out.is_terminal else _print_epoch,
        )
    tell(f"{model} on {dataset}: test accuracy {result.accuracy:.2%}: {result.path}")


def _print_epoch(epoch: Epoch) -> None:
    print(f"epoch {epoch.epoch}/{epoch.of} loss {epoch.loss:.4f}", flush=True)


@grouped
def collect(
    model: ModelArgument,
    dataset: Annotated[str, typer.Argument(help="A dataset by name, or a folder of images.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER",
            help="NAME.safetensors: one file. NAME: a folder, of any size.",
        ),
    ],
    policy: Annotated[
        str, typer.Option(help='A policy by name, or as text: "flip + 5 crop".')
    ] = "aug8",
    source: Source = ANY,
    photographs: Photographs = AS_THEY_ARE,
    shift: Annotated[
        int | None, typer.Option(metavar="SEED", help="Add the noise and blur of CIFAR-10* first.")
    ] = None,
    rows: Rows = None,
    seed: Seed = 0,
    draws: Annotated[str, typer.Option(help="random, as in the paper, or stratified.")] = "random",
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Also images made worse on purpose, for hedged methods: up to 3 passes more.",
        ),
    ] = False,
    running: Running = HERE,
    half: Annotated[bool, typer.Option(help="Store the logits in float16.")] = False,
) -> None:
    """Run a network over images and their views, and write the record. Stopped, it goes on where it was.

    A folder is for records that do not fit into memory: run again, it is also mended where shards are missing or damaged.
    """
    from atta.data.views import Policy
    from atta.run.collect import as_folder
    from atta.run.collect import collect as run

    folder = as_folder(output)
    if folder and half:
        raise InputError(
            f"--half: expected NAME.safetensors to write, got the folder {output}, which takes "
            "logits as they are"
        )
    how, views, preprocess = running.read(), Policy.parse(policy), photographs.read()
    with waiting(f"reading {dataset}"):
        images, arranged = _arranged(dataset, source, rows, shift)
        network, about = read_model(model)
    with resumable(Path(output) if folder else Path(f"{output}.shards")):
        record = run(
            network,
            images,
            source.labels,
            class_names=source.class_names(),
            skip_bad=source.skip_bad,
            policy=views,
            seed=seed,
            draws=draws,
            rehearse=rehearse,
            preprocess=preprocess,
            output=output,
            origin={**about, **arranged},
            **how,
        )
    if half:
        record.save(output, half=True)
    path = Path(output)
    tell(f"{record.predictions}: {path}")


def _arranged(
    dataset: str, source: Source, rows: str | None, shift: int | None
) -> tuple[ImageSet, dict[str, str]]:
    """The images, in their order and with their shift, and what the record says of both."""
    images, seed = source.read(dataset, rows)
    if shift is not None:
        from atta.lab.paper.records import shifted

        images = shifted(images, shift)
    known = (
        str(Path(dataset).absolute()) if source.data is None and Path(dataset).is_dir() else None
    )
    arranged = {
        "split": source.split,
        "shuffle": seed,
        "rows": rows,
        "shift": shift,
        "folder": known,
    }
    return images, {name: str(value) for name, value in arranged.items() if value is not None}
