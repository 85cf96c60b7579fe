"""Decide: answer where it is safe, and set the other photographs aside for a person.

The network is a ResNet-20, the photographs are those of CIFAR-10. Replace both with your own.
"""

import csv
import shutil
from pathlib import Path
from tempfile import mkdtemp

import torch

import atta
from atta.classifier.predict import predict
from atta.lab.recipe import load_trained

folder, output = Path("examples/cifar10"), Path(mkdtemp())
network, _ = load_trained(folder / "resnet20.safetensors")
classifier = atta.calibrate(
    network, folder / "validation", policy="flip", rehearse=False, progress=False
)

# At most 3 % of the answers may be wrong.
careful = classifier.at_risk(0.03)
print(careful.promise)

# Photographs in, a table out. On the command line: atta predict --risk 0.03 --coverage 0.95
photographs = sorted((folder / "test").glob("*/*.png"))[::4]
table = predict(careful, photographs, output / "predictions.csv", coverage=0.95)
with table.path.open(newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
print(f"{table.answered} of {table.images} photographs are answered")

# The unsure ones go to a person, with the classes to choose from.
aside = output / "for a person"
aside.mkdir()
for row in rows:
    if row["answered"] == "False":
        options = row["set"].replace("|", " or ")
        shutil.copy(row["file"], aside / f"{options}, {Path(row['file']).name}")
print("for a person:", *sorted(path.name for path in aside.iterdir())[:3], "...", sep="\n  ")

# Here the folders say what is right.
right = [row["class"] == Path(row["file"]).parent.name for row in rows]
wrong = sum(row["answered"] == "True" and not yes for row, yes in zip(rows, right, strict=True))
print(f"{wrong} of {table.answered} answers are wrong: {wrong / table.answered:.1%}")

# How many answers would be wrong if more of them, or fewer, were given?
confidence = torch.tensor([float(row["confidence"]) for row in rows])
chart = atta.risk_plot({"c-atta, flip": confidence}, torch.tensor(right))
chart.save(output / "risk against coverage.svg")
