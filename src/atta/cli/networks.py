"""Commands that run a network: train, and collect, which records its answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from atta._base.errors import InputError
from atta.cli.options import (
    Compile,
    Data,
    Device,
    ImageSize,
    ModelArgument,
    Photographs,
    Running,
    Seed,
    Set,
    Source,
    grouped,
    read_device,
    read_settings,
)
from atta.cli.terminal import out, resumable, tell, waiting

if TYPE_CHECKING:
    from atta.data.image_set import ImageSet
    from atta.lab.training import Epoch


def train(
    dataset: Annotated[str, Argument(help="cifar10, digits, ..., or a folder under --data.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="For the model and checkpoints.")
    ],
    data: Data = None,
    model: Annotated[str, Option(help="resnet50, resnet18 or small_cnn.")] = "resnet50",
    image_size: ImageSize = None,
    steps: Annotated[int | None, Option(help="Updates in all, instead of the recipe's.")] = None,
    settings: Set = None,
    seed: Seed = 0,
    device: Device = None,
    compile: Compile = False,
    resume: Annotated[bool, Option(help="Resume from a checkpoint in the folder.")] = True,
) -> None:
    """Train a network by the recipe of all experiments. The same command resumes."""
    from atta.lab.datasets import load
    from atta.lab.recipe import Recipe
    from atta.lab.training import train as run

    read_device(device)
    recipe = Recipe.of(**read_settings(settings) | ({} if steps is None else {"steps": steps}))
    with waiting(f"reading {dataset}"):
        train_set, test_set = (
            load(dataset, split, data=data, image_size=image_size).decoded()
            for split in ("train", "test")
        )
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
    accuracy = "not measured" if result.accuracy is None else f"{result.accuracy:.2%}"
    tell(f"{model} on {dataset}: test accuracy {accuracy}: {result.path}")


def _print_epoch(epoch: Epoch) -> None:
    print(f"epoch {epoch.epoch}/{epoch.of} loss {epoch.loss:.4f}", flush=True)


@dataclass(frozen=True)
class Views:
    """Which views of which images are recorded."""

    policy: Annotated[str, Option(help='A policy by name or as text: "flip + 5 crop".')] = "aug8"
    shift: Annotated[
        int | None, Option(metavar="SEED", help="First add the noise and blur of CIFAR-10*.")
    ] = None
    seed: Seed = 0
    draws: Annotated[str, Option(help="random, as in the paper, or stratified.")] = "random"
    rehearse: Annotated[
        bool,
        Option(
            "--rehearse", help="Also record degraded images, for hedged methods: up to 3 passes."
        ),
    ] = False


@grouped
def collect(
    model: ModelArgument,
    dataset: Annotated[str, Argument(help="A dataset by name, or a folder of images.")],
    output: Annotated[
        str, Option("--output", "-o", metavar="FILE|FOLDER", help="NAME.safetensors, or a folder.")
    ],
    *,
    views: Views,
    source: Source,
    photographs: Photographs,
    running: Running,
    half: Annotated[bool, Option(help="Store the logits in float16.")] = False,
) -> None:
    """Run a network on images and their views, and write the record. The same command resumes.

    A folder is for records that do not fit into memory. Damaged or missing shards are made again.
    """
    from atta.data.views import Policy
    from atta.lab.recipe import find_model
    from atta.run.collect import as_folder
    from atta.run.collect import collect as run

    if half and as_folder(output):
        raise InputError(f"--half: expected -o NAME.safetensors, got the folder {output}")
    how, policy, preprocess = running.read(), Policy.parse(views.policy), photographs.read()
    with waiting(f"reading {dataset}"):
        images, arranged = _read_shifted(source, dataset, views.shift)
        network, about = find_model(model)
    with resumable(Path(output)):
        record = run(
            network,
            images,
            source.labels,
            class_names=source.class_names(),
            skip_bad=source.skip_bad,
            policy=policy,
            seed=views.seed,
            draws=views.draws,
            rehearse=views.rehearse,
            preprocess=preprocess,
            output=output,
            origin={**about, **arranged},
            **how,
        )
    if half:
        record.save(output, half=True)
    tell(f"{record.predictions}: {output}")


def _read_shifted(
    source: Source, dataset: str, seed: int | None
) -> tuple[ImageSet | str, dict[str, str]]:
    """Read the images, with the noise and blur of CIFAR-10* if there is a seed."""
    from atta.lab.paper.records import shifted

    images, arranged = source.read(dataset)
    if seed is None:
        return images, arranged
    if isinstance(images, str):
        raise InputError(f"--shift: expected a dataset or a folder, got the shards {images}")
    return shifted(images, seed), {**arranged, "shift": str(seed)}
