"""The table and the picture of the README, measured on the network and photographs in examples/cifar10.

    python -m benchmarks.front_page

The network runs on the 2000 photographs and on the same photographs with noise and blur (as CIFAR-10* of the paper). Each method is
fitted on 1000 of them without noise and tested on the other 1000, ten times. It writes docs/results/front-page.json, from which
`make docs` makes the table, and docs/before-after.svg. It takes three minutes on two cores.
"""

from pathlib import Path

import torch

from atta.calibrators import CATTA
from atta.data.folder import folder_of_images
from atta.lab.experiment import Experiment
from atta.lab.paper.records import shifted
from atta.lab.recipe import load_trained
from atta.lab.run import joined, run
from atta.record.predictions import Predictions, Record, find_record
from atta.results.rows import Results
from atta.run.collect import collect

ROOT = Path(__file__).parent.parent
PHOTOGRAPHS = ROOT / "examples" / "cifar10"
FOUND = ROOT / "docs" / "results" / "front-page.json"
PICTURE = ROOT / "docs" / "before-after"
POLICY = "flip + 5 crop + 5 brightness + 5 contrast + 3 nudge"
CHOSEN = "flip + 2 crop"
"""What `atta calibrate` chooses for this network."""
AUG8, NUDGES = "flip + 5 crop + 5 brightness + 5 contrast", "3 nudge"
EXPERIMENT = {
    "dataset": "photographs",
    "fit": "photographs",
    "validation": [1000],
    "splits": 10,
    "metrics": ["passes", "brier", "ece", "nll", "accuracy", "class_changes"],
    "methods": {
        "vanilla": {},
        "temperature": {},
        "v-atta": {"policy": AUG8},
        "c-atta, 3 nudges": {"method": "c-atta", "policy": NUDGES},
        "selective, 3 nudges": {"method": "selective-v-atta", "policy": NUDGES, "passes": 1.7},
        "hedged-c-atta, flip": {"method": "hedged-c-atta", "policy": AUG8, "views": ["flip"]},
    },
}


def records() -> dict[str, Record]:
    """The answers of the network to the photographs, and to the same with noise and blur."""
    model, _ = load_trained(PHOTOGRAPHS / "resnet20.safetensors")
    found = {}
    parts = [folder_of_images(PHOTOGRAPHS / part) for part in ("validation", "test")]
    for name, policy in (("", POLICY), (", chosen", CHOSEN)):
        for state, change in (("photographs", lambda images: images), ("shifted", shifted)):
            records = [
                collect(model, change(images), policy=policy, draws="stratified")
                for images in parts
            ]
            found[state + name] = joined_records(records)
    return found


def joined_records(records: list[Record]) -> Record:
    """Several records of the same views as one."""
    seen = [record.predictions for record in records]
    views = {kind: torch.cat([one.views[kind] for one in seen]) for kind in seen[0].views}
    labels = torch.cat([record.require_labels() for record in records])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    joined = Predictions(torch.cat([one.logits for one in seen]), views)
    return Record(joined, labels)[order]


def main() -> None:
    """Measure, and write the numbers and the picture."""
    found = records()
    chosen = {"methods": {"c-atta, flip + 2 crop": {"method": "c-atta"}}}
    results = []
    for name, more in (("", {}), (", chosen", chosen)):
        fit = {**EXPERIMENT, **more, "fit": "photographs" + name}
        test = {"dataset": "shifted", "test": "shifted" + name, "aligned": True}
        results.append(run(Experiment.of({**fit, "name": "photographs"}), found))
        results.append(run(Experiment.of({**fit, **test, "name": "shifted"}), found))
    results = joined(results)
    Results(results.rows, intervals=results.intervals).save(FOUND)
    print(results.pivot(("dataset", "method"), ("metric",)).text())

    draw()


def draw() -> None:
    """Draw the bundled ResNet-50 before and after, on 9000 images; 1000 are too few to see it."""
    from atta.report.figures.detail import compare_plot
    from atta.report.figures.theme import picture

    record = find_record("cifar10-resnet50-nudged")
    rest = record[1000:]
    calibrator = CATTA(views=["nudge"]).fit(record.predictions[:1000], record.labels[:1000])
    answers = {
        "network alone": rest.predictions.logits.softmax(dim=-1),
        "calibrated, 4 passes": calibrator(rest.predictions),
    }
    for dark in (False, True):
        chart = compare_plot(answers, rest.require_labels(), dark=dark, bins=10)
        print(picture(chart, PICTURE.with_name(f"{PICTURE.name}{'-dark' if dark else ''}.svg")))


if __name__ == "__main__":
    main()
