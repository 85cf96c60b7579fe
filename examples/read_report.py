"""Write a report, and read it: one HTML page that opens offline, in the browser of whoever has to decide."""

import re
from pathlib import Path
from tempfile import mkdtemp

import atta
from atta.lab.compare import compare
from atta.report.page import write_report

record = atta.find_record("cifar10-resnet50-nudged")[:2000]
methods = [atta.Vanilla(), atta.TemperatureScaling(), atta.CATTA(views=["nudge"])]
results = compare({"cifar10": record}, methods, validation=1000, cost=True)
page = write_report(
    results, Path(mkdtemp()) / "report.html", title="Is the ResNet-50 as sure as it is right?"
)
print(page, f"{page.stat().st_size / 1e6:.1f} MB")

# How to read it, from top to bottom:
# 1. The verdict says in words which method is best among those that keep every predicted class, and whether that is sure.
# 2. The table has a row for each method. ✓ and ✗ are differences to vanilla that other test images would not have undone.
# 3. Reliability diagrams: a bar is a bin of confidence. Above the diagonal the network is too modest, below it too sure.
#    Whiskers that reach the diagonal say that there are too few images to tell. Empty bins stay empty.
# 4. What was learned, and what an image costs in passes of the network.
verdict = re.search(
    r'<div class="verdict">(.*?)</div>', page.read_text(encoding="utf-8"), flags=re.DOTALL
)
print(" ".join(re.sub(r"<[^>]+>", "", verdict[1]).split()))

# The same charts one by one, in a notebook or for a paper (`atta figure` writes .svg, .png and .pdf):
calibrator = methods[2].fit(record.predictions[:1000], record.labels[:1000])
chart = atta.reliability(
    calibrator(record.predictions[1000:]), record.labels[1000:], title="C-ATTA"
)
print(type(chart).__name__, "is an Altair chart")
