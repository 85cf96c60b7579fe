"""Write a report and read it: one HTML page that opens offline in any browser."""

import re
from pathlib import Path
from tempfile import mkdtemp

import atta
from atta.lab.compare import compare
from atta.report.page import write_report

record = atta.find_record("cifar10-resnet50-nudged")[:2000]
methods = [atta.Vanilla(), atta.TemperatureScaling(), atta.CATTA(views=["nudge"])]
results = compare({"cifar10": record}, methods, validation=1000, cost=True)
folder = Path(mkdtemp())
path = folder / "report.html"
page = write_report(results, path, title="Is the confidence of the ResNet-50 right?")
print(page, f"{page.stat().st_size / 1e6:.1f} MB")

# How to read it, from top to bottom:
# 1. The verdict recommends the cheapest method that is not significantly worse than the best,
#    among the methods that keep every predicted class.
# 2. The table has one row per method. ✓ and ✗ are significant differences from vanilla (95 %).
# 3. Reliability diagrams: a bar is a bin of confidence. Above the diagonal the network is
#    under-confident, below it over-confident. If an interval reaches the diagonal, there are too
#    few images to tell. Empty bins stay empty.
# 4. What was learned, and how many passes an image costs.
verdict = re.search(
    r'<div class="verdict">(.*?)</div>', page.read_text(encoding="utf-8"), flags=re.DOTALL
)
print(" ".join(re.sub(r"<[^>]+>", "", verdict[1]).split()))

# The same charts one by one, for a notebook or a paper (`atta figure` writes .svg, .png, .pdf):
calibrator = methods[2].fit(record.predictions[:1000], record.labels[:1000])
probs = calibrator(record.predictions[1000:])
chart = atta.reliability(probs, record.labels[1000:], title="C-ATTA")
chart.save(folder / "reliability of C-ATTA.svg")
