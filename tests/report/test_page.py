"""The page shows the numbers of the results, and no text from a file becomes markup."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from scipy import stats

from atta import Predictions, Record, find_method
from atta._base.errors import InputError
from atta.lab.compare import compare
from atta.lab.experiment import Experiment
from atta.lab.run import run
from atta.report.figures.comparison import cost_points
from atta.report.page import Tables, inlined, report, write_report
from atta.report.sections import sections_of
from atta.results.rows import Results, Row
from atta.results.table import Table
from scenarios import made_up

pytestmark = pytest.mark.xdist_group("report")  # one worker makes what all of them look at

ATTACK = "<script>alert(1)</script><!--"
VOID = {"meta", "link", "img", "br", "hr", "input"}
QUICK = ("vanilla", "temperature", "isotonic", "mean-tta", "adaptive-tta")


class Page(HTMLParser):
    """The elements of a page with their attributes and texts; unmatched closing tags are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.open = html, list[dict[str, Any]]()
        self.elements = list[dict[str, Any]]()
        self.feed(html)
        assert not self.open, f"never closed: {[element['tag'] for element in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {**{name: value or "" for name, value in attrs}, "tag": tag, "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, Any]]:
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self.elements if e["tag"] == tag and wanted.items() <= e.items()]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.all("script", id="data")[0]["text"])
        return found

    @property
    def verdict(self) -> str:
        (text,) = [e["text"] for e in self.all("div") if e.get("class") == "verdict"]
        return " ".join(text.split())

    @property
    def words(self) -> str:
        """All that a reader sees, without scripts and styles."""
        hidden = "".join(e["text"] for name in ("script", "style") for e in self.all(name))
        return " ".join(self.all("html")[0]["text"].replace(hidden, "").split())


def compared(
    names: Sequence[str] = QUICK,
    *,
    splits: int = 3,
    records: dict[str, Record] | None = None,
    **more: Any,
) -> Results:
    records = records or {"made up": made_up(400)}
    return compare(
        records, [find_method(name) for name in names], validation=100, splits=splits, **more
    )


@pytest.fixture(scope="module")
def page(results: Results) -> Page:
    return Page(report(results, title="A title"))


def invented(values: dict[str, Sequence[float]], metric: str = "nll", **more: Any) -> Results:
    """One metric of methods over splits, as if they all kept the class."""
    rows = [
        Row(dataset="d", method=method, split=split, metric=name, value=value)
        for method, numbers in values.items()
        for split, number in enumerate(numbers)
        for name, value in ((metric, number), ("class_changes", 0.0))
    ]
    return Results(tuple(rows), **more)


# ---- the page as a page


def test_it_is_one_well_formed_page_with_landmarks_and_headings_in_order(page: Page) -> None:
    assert page.html.startswith('<!doctype html>\n<html lang="en">')
    assert [len(page.all(tag)) for tag in ("h1", "main", "header", "footer", "title")] == [
        1,
        1,
        1,
        1,
        1,
    ]
    assert page.all("h1")[0]["text"] == page.all("title")[0]["text"] == "A title"
    levels = [int(e["tag"][1]) for e in page.elements if re.fullmatch(r"h[1-6]", e["tag"])]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))


def test_it_asks_for_nothing_from_anywhere(page: Page) -> None:
    for element in page.elements:
        assert not any(name in element for name in ("srcset", "action", "ping", "background"))
        assert element.get("src", "data:").startswith("data:")
        assert element.get("href", "#").startswith("#")
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")
    assert "form-action 'none'" in policy["content"]  # which default-src says nothing of
    assert "base-uri 'none'" in policy["content"]
    assert not re.search(r"url\(|@import", page.all("style")[0]["text"])


def test_every_control_has_a_name_and_every_table_its_heads(page: Page) -> None:
    assert all(button["text"].strip() for button in page.all("button"))
    assert all("scope" in head for head in page.all("th"))
    assert len(page.all("label")) == len(page.all("select"))
    assert page.all("p", aria_live="polite")
    assert all(e["aria-label"] for e in page.elements if e.get("role") == "region")


def test_results_that_were_saved_make_the_same_page_and_a_file_holds_it(
    two: Results, tmp_path: Path
) -> None:
    path = write_report(two, tmp_path / "new" / "report.html", title="A title")
    assert path.read_text(encoding="utf-8") == report(
        Results.load(two.save(tmp_path / "results.json")), title="A title"
    )
    assert path.stat().st_size < 1_200_000


def test_no_results_are_refused() -> None:
    with pytest.raises(InputError, match="no rows"):
        report(Results(()))


# ---- the numbers


def cells(page: Page) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of the comparison table: method, metric and the cell's element."""
    start = next(i for i, e in enumerate(page.elements) if "comparison" in e.get("class", ""))
    method = ""
    for element in page.elements[start:]:
        if element["tag"] == "th" and element.get("scope") == "row":
            method = element["data-value"]
        elif element["tag"] == "td" and "data-metric" in element:
            yield method, element["data-metric"], element
        elif element["tag"] == "p":
            return


def test_every_number_of_the_table_is_that_of_the_results(results: Results, page: Page) -> None:
    seen = 0
    for method, metric, cell in cells(page):
        found = results.summary(method=method, metric=metric)
        assert found is not None
        assert float(cell["data-value"]) == found.mean
        assert (
            cell["text"].split()[0].rstrip("★")
            == f"{found.mean:.{0 if metric == 'class_changes' else 4}f}"
        )
        seen += 1
    assert seen == len(QUICK) * 5


def ends(low: float, high: float) -> str:
    """The interval of a difference, as the page writes it."""
    return f"[{low:+.4f}, {high:+.4f}]".replace("-", "−")


def test_differences_are_judged_by_the_paired_bootstrap_where_it_is_there(
    results: Results, page: Page
) -> None:
    table = {
        (method, metric): " ".join(cell["text"].split()) for method, metric, cell in cells(page)
    }
    found = {(i.method, i.metric): i for i in results.intervals if i.against == "vanilla"}
    said = set()
    for method in QUICK[1:]:
        for metric in ("brier", "nll", "ece"):
            one = found[method, metric]
            word = (
                "no clear difference"
                if one.low <= 0 <= one.high
                else "better"
                if one.high < 0
                else "worse"
            )
            assert f"{ends(one.low, one.high)} {word}" in table[method, metric]
            said.add(word)
    assert len(said) > 1


def test_without_intervals_differences_are_paired_over_splits_with_students(
    results: Results,
) -> None:
    page = Page(report(Results(results.rows)))
    table = {(method, metric): cell["text"] for method, metric, cell in cells(page)}
    for method in QUICK[1:]:
        for metric in ("brier", "nll", "ece"):
            here, base = (
                [row.value for row in results.where(method=name, metric=metric)]
                for name in (method, "vanilla")
            )
            steps = [a - b for a, b in zip(here, base, strict=True)]
            half = stats.t.ppf(0.975, 2) * stdev(steps) / math.sqrt(3)
            mean = fmean(steps)
            text = f"{mean:+.4f} ".replace("-", "−") + ends(mean - half, mean + half)
            assert text in " ".join(table[method, metric].split())
            word = (
                "no clear difference"
                if abs(fmean(steps)) <= half
                else "better"
                if fmean(steps) < 0
                else "worse"
            )
            assert word in table[method, metric]


def test_the_difference_of_any_two_is_there_for_the_switch(results: Results, page: Page) -> None:
    section = page.data["sections"]["s1"]
    nll = section["metrics"].index("nll")
    for i, one in enumerate(QUICK):
        for j, other in enumerate(QUICK[:i]):
            mean, *_ = section["differences"][f"{i} {j}"][nll]
            here, base = (
                fmean(row.value for row in results.where(method=m, metric="nll"))
                for m in (one, other)
            )
            assert mean == pytest.approx(here - base, abs=1e-12)


def test_the_charts_hold_the_numbers_of_the_details(results: Results, page: Page) -> None:
    for i, detail in enumerate(results.details):
        (rows, *_) = page.data["charts"][f"s1/reliability/{i}"]["datasets"].values()
        accuracy = [row["accuracy"] for row in rows]
        assert accuracy == [value for value in detail["bins"]["accuracy"] if value is not None]
    assert page.data["sections"]["s1"]["changed"]["1"] == results.details[1]["changed"]


def test_only_a_method_that_keeps_the_class_is_best(page: Page) -> None:
    best = {method for method, _, cell in cells(page) if "best" in cell["class"].split()}
    assert best
    assert "mean-tta" not in best


# ---- the verdict


def test_the_verdict_is_made_of_the_numbers(results: Results, page: Page) -> None:
    vanilla = results.details[0]
    assert (
        f"The model’s mean confidence is {100 * vanilla['confidence']:.1f} %, "
        f"and {100 * vanilla['accuracy']:.1f} % of its answers are right" in page.verdict
    )
    keeping = [name for name in QUICK if name != "mean-tta"]
    best = min(keeping, key=lambda name: results.summary(method=name, metric="nll").mean)  # type: ignore[union-attr]
    assert f"With {best} the mean confidence is" in page.verdict, (
        "the methods with fewer passes are significantly worse"
    )
    assert f"{best} has the lowest NLL" in page.verdict
    assert "The predicted class is unchanged on all 300 images of every split." in page.verdict
    means = (results.summary(method=name, metric="nll") for name in ("temperature", "vanilla"))
    scaled, before = (found.mean for found in means)  # type: ignore[union-attr]
    assert (
        f"the NLL changes by {100 * (scaled / before - 1):+.0f} %".replace("-", "−") in page.verdict
    )
    assert "The mean difference between confidence and accuracy" in page.verdict
    exact = {e["value"] for e in page.all("data")}
    assert {repr(vanilla["confidence"]), repr(vanilla["accuracy"])} <= exact


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"vanilla": [0.20, 0.21, 0.22], "a": [0.10, 0.11, 0.12]},
            "the NLL falls from 0.2100 to 0.1100 (−48 %)",
        ),
        (
            {"vanilla": [0.20, 0.21, 0.22], "a": [0.30, 0.31, 0.33]},
            "lowers the NLL: leave the model as it is",
        ),
        (
            {"vanilla": [0.2, 0.3, 0.2], "a": [0.3, 0.1, 0.2]},
            "too few images to tell. Leave the model as it is.",
        ),
        ({"vanilla": [0.2], "a": [0.1]}, "One split: differences this small may be noise."),
        ({"vanilla": [0.2, 0.2]}, "Only vanilla was run; its NLL is 0.2000."),
        ({"b": [0.2, 0.3], "a": [0.1, 0.2]}, "The unmodified model (vanilla) was not run"),
        (
            {"vanilla": [0.3, 0.3], "b": [0.2, 0.2], "a": [0.1, 0.1]},
            "next is b, significantly worse (+0.1000 [+0.1000, +0.1000])",
        ),
        (
            {"vanilla": [0.3, 0.3], "b": [0.1, 0.3], "a": [0.2, 0.1]},
            "next is b, not significantly worse",
        ),
    ],
)
def test_the_verdict_claims_no_more_than_the_numbers_do(
    values: dict[str, list[float]], said: str
) -> None:
    assert said in Page(report(invented(values))).verdict


def priced(values: dict[str, list[float]], passes: dict[str, float]) -> Results:
    """Invented numbers of methods that run the network so often."""
    seen = [
        {
            "dataset": "d",
            "method": method,
            "keeps_class": True,
            "passes": float(count),
            "images": 100,
        }
        for method, count in passes.items()
    ]
    return invented(values, details=tuple(seen))


FAR, NEAR, BEST = [0.50, 0.51, 0.52], [0.21, 0.19, 0.21], [0.20, 0.20, 0.20]


@pytest.mark.parametrize(
    ("values", "passes", "advised", "said"),
    [
        (
            {"vanilla": FAR, "t": NEAR, "v": BEST},
            {"vanilla": 1, "t": 1, "v": 9},
            "t",
            "v takes 9 passes per image, t takes 1;",
        ),
        (
            {"vanilla": FAR, "t": FAR, "v": BEST},
            {"vanilla": 1, "t": 1, "v": 9},
            "v",
            "the extra passes change NLL by −0.3100 [−0.3348, −0.2852]",
        ),
        (
            {"vanilla": FAR, "s": NEAR, "v": BEST},
            {"vanilla": 1, "s": 2.5, "v": 9},
            "s",
            "9 passes per image, s takes 2.5;",
        ),
        (
            {"vanilla": NEAR, "v": BEST},
            {"vanilla": 1, "v": 9},
            None,
            "too few images to tell. Leave the model as it is.",
        ),
        (
            {"vanilla": FAR, "t": NEAR, "u": BEST},
            {"vanilla": 1, "t": 1, "u": 1},
            "u",
            "u has the lowest NLL",
        ),
    ],
)
def test_the_cheapest_method_that_is_not_significantly_worse_is_recommended(
    values: dict[str, list[float]], passes: dict[str, float], advised: str | None, said: str
) -> None:
    page = Page(report(priced(values, passes)))
    tagged = [e["data-value"] for e in page.all("th", scope="row") if "recommended" in e["text"]]
    assert tagged == ([] if advised is None else [advised])
    assert said in page.verdict
    rule = "We recommend the cheapest method that is significantly better than the unmodified model"
    assert (rule in page.verdict) == (advised is not None)


def test_without_intervals_temperature_or_nothing_is_recommended() -> None:
    for name, said in (("temperature", "temperature costs nothing"), ("t", "Leave the model")):
        values = {"vanilla": [0.3], name: [0.21], "v": [0.2]}
        results = priced(values, {"vanilla": 1.0, name: 1.0, "v": 9.0})
        assert said in Page(report(results)).verdict
        assert "too few images to tell" in Page(report(results)).verdict
        assert "too few images to tell" in sections_of(results)[0].sentence


def judged(brier: dict[str, list[float]], nll: dict[str, list[float]]) -> str | None:
    """What is recommended by both metrics, of methods of one pass."""
    rows = invented(brier, metric="brier").rows + invented(nll).rows
    found = sections_of(Results(tuple(dict.fromkeys(rows))))[0].recommended
    return found and found.label


def test_a_method_that_is_better_by_one_metric_and_worse_by_the_other_is_not_recommended() -> None:
    low, high = [0.30, 0.31, 0.30], [0.40, 0.41, 0.40]
    same = {"vanilla": high, "temperature": low}
    assert judged(same | {"isotonic": low}, same | {"isotonic": [0.9, 0.91, 0.9]}) == "temperature"
    assert judged({"vanilla": low, "a": high}, {"vanilla": high, "a": low}) is None


def test_a_difference_below_one_per_cent_is_not_better() -> None:
    slightly = {"vanilla": [0.4, 0.4, 0.4], "temperature": [0.398, 0.398, 0.398]}
    assert judged(slightly, slightly) == "temperature"
    (section,) = sections_of(invented(slightly))
    assert section.proven == [], "temperature costs nothing, but is not called better"
    assert section.lines[1].difference(section.lines[0], "nll").better == 0  # type: ignore[union-attr]


def test_the_recommended_row_is_first_and_passes_have_one_count() -> None:
    values = {"vanilla": [0.4, 0.41], "a": [0.39, 0.40], "t": [0.2, 0.21]}
    results = priced(values, {"vanilla": 1, "a": 1, "t": 4})
    passes = tuple(replace(row, metric="passes", value=2.5) for row in results if row.method == "t")
    page = Page(report(Results(results.rows + passes, {}, results.details)))
    assert page.all("th", scope="row")[0]["data-value"] == "t"
    assert "2.5" in page.words
    assert " 4 passes" not in page.words


def test_the_verdict_says_how_many_images_are_answered_at_a_risk(
    results: Results, page: Page
) -> None:
    (section,) = sections_of(results)
    assert section.advised is not None
    share = 100 * section.advised.mean("answered_1")
    assert (
        "If at most 1 % of the answers may be wrong, "
        f"{section.advised.label} can answer {share:.1f} % of the images" in page.verdict
    )
    assert f"At 1 % risk {section.advised.label} answers {share:.0f}%" in section.sentence
    assert "s1/risk" in page.data["charts"]
    assert section.answered is not None
    assert section.others is None or not set(section.others.header) & set(
        section.answered.header[1:]
    )


def test_a_small_reliability_diagram_stands_next_to_the_verdict(
    results: Results, page: Page
) -> None:
    assert page.all("figure")[0]["data-chart"] == "s1/overlay"
    sets = page.data["charts"]["s1/overlay"]["datasets"].values()
    names = [row["method"] for rows in sets for row in rows if "method" in row]
    (section,) = sections_of(results)
    assert set(names) == {"vanilla", section.chosen.label}
    assert names.count("vanilla") == sum(n > 0 for n in results.details[0]["bins"]["counts"])


def test_one_split_is_judged_by_its_images_and_never_without_intervals() -> None:
    results = compared(("vanilla", "mean-tta"), splits=1)
    page = Page(report(results))
    assert "noise" not in page.verdict
    text = {
        metric: " ".join(cell["text"].split()) for m, metric, cell in cells(page) if m == "mean-tta"
    }
    bounds = {
        (i.metric, i.against): (i.low, i.high) for i in results.intervals if i.method == "mean-tta"
    }
    for metric in ("brier", "nll", "ece"):
        (low, high), (least, most) = bounds[metric, ""], bounds[metric, "vanilla"]
        word = "no clear difference" if least <= 0 <= most else "better" if most < 0 else "worse"
        assert f"[{low:.4f}, {high:.4f}]" in text[metric], "the interval of the number itself"
        assert f"{ends(least, most)} {word}" in text[metric], "and of its difference"
    assert any("better" in cell or "worse" in cell for cell in text.values())
    page = Page(report(Results(results.rows, {}, results.details)))
    assert "One split of 300 images: differences this small may be noise." in page.verdict
    assert not any(
        word in cell["text"]
        for _, _, cell in cells(page)
        for word in ("better", "worse", "clear", "[")
    )


def test_images_that_were_fitted_on_recommend_nothing() -> None:
    results = invented(
        {"vanilla": [0.3, 0.3], "a": [0.1, 0.1]}, about={"experiments": {"": {"test": "fitted"}}}
    )
    page = Page(report(results))
    assert "fitted on: the numbers do not hold for other images" in page.verdict
    assert "recommended" not in page.words


def test_a_method_that_changes_classes_is_not_recommended() -> None:
    results = invented({"vanilla": [0.3, 0.3], "a": [0.1, 0.1]})
    changing = [
        replace(row, value=7.0) if (row.method, row.metric) == ("a", "class_changes") else row
        for row in results
    ]
    page = Page(report(Results(tuple(changing))))
    assert "Only vanilla is known to keep the predicted class" in page.verdict
    assert "recommended" not in page.words


# ---- what is not there


def test_without_details_the_diagrams_vanish_and_the_table_stays(results: Results) -> None:
    page = Page(report(Results(results.rows)))
    assert len(list(cells(page))) == len(QUICK) * 5
    assert [e["text"] for e in page.all("h3")] == ["Verdict", "Comparison", "Answer or hand over"]
    assert not page.all("section", id="about")
    assert {e["data-chart"] for e in page.all("figure")} == {"s1/ranking", "s1/cost"}


def test_without_labels_nothing_is_said_of_right_and_wrong() -> None:
    known = made_up(300)
    unknown = Record(made_up(200, seed=3).predictions)
    experiment = Experiment(
        name="unknown",
        dataset="known → unknown",
        fit="known",
        test="unknown",
        methods={"vanilla": {}, "temperature": {}},
        validation=(100,),
        splits=2,
        metrics=("entropy", "shannon_entropy", "ood_auroc", "class_changes"),
    )
    page = Page(report(run(experiment, {"known": known, "unknown": unknown})))
    assert page.verdict.startswith("Verdict These images have no labels")
    assert "highest entropy" in page.verdict
    charts = {e["data-chart"].split("/")[1] for e in page.all("figure")}
    assert charts == {"entropy", "histogram"}


def test_one_method_alone_makes_a_tidy_page() -> None:
    page = Page(report(compared(("temperature",))))
    assert page.verdict.startswith("Verdict Only temperature was run")
    assert not page.all("select", data_baseline="s1")
    assert "★" not in page.words


def test_thirty_methods_fit_on_a_page(two: Results) -> None:
    names = [f"method {i}" for i in range(28)]
    rows = [replace(row, method=name) for name in names for row in two.where(method="vanilla")]
    (seen,) = (detail for detail in two.details if detail["method"] == "vanilla")
    details = [{**seen, "method": name, "accuracy": i / 30} for i, name in enumerate(names)]
    html = report(Results((*two.rows, *rows), two.about, (*two.details, *details)))
    page = Page(html)
    assert len(html.encode()) < 1_700_000
    assert len(page.all("tr", data_contender="29")) == 1
    diagrams = {f"s1/reliability/{i}" for i in range(30)}
    assert diagrams <= page.data["charts"].keys(), "any two of the thirty can be looked at"


def test_a_thousand_classes_fit_on_a_page() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1200, 1000, generator=generator) * 4
    views = {"flip": logits[:, None] + torch.randn(1200, 1, 1000, generator=generator)}
    labels = torch.where(
        torch.rand(1200, generator=generator) < 0.7, logits.argmax(1), torch.zeros(1200).long()
    )
    names = [f"n{i:08d} great white shark, man-eater, Carcharodon carcharias" for i in range(1000)]
    record = Record(Predictions(logits, views), labels, {"classes": json.dumps(names)})
    methods = {"vanilla": {}, "m-atta": {"epochs": 2}}
    experiment = Experiment(
        name="e", dataset="d", fit="r", methods=methods, validation=(200,), splits=1
    )
    html = report(run(experiment, {"r": record}))
    assert len(html.encode()) < 1_700_000
    page = Page(html)
    assert page.data["sections"]["s1"]["classes"] == names
    folded = [e for e in page.all("details") if e.get("class") == "many"]
    assert [e["text"].count("Carcharodon") for e in folded] == [1003], (
        "the first three in the line, all of them behind it"
    )
    assert all(e.get("tabindex") == "0" for e in page.all("ol")), "a list that scrolls takes focus"
    (line,) = (e["text"] for e in page.all("summary") if "in all" in e["text"])
    assert line == f"{' · '.join(names[:3])} · … (1000 in all)"


def test_a_number_that_is_none_is_shown_as_such() -> None:
    html = report(invented({"vanilla": [0.2, 0.3], "a": [math.nan, 0.1], "b": [0.1, 0.1]}))
    page = Page(html)
    assert "b has the lowest NLL" in page.verdict
    assert {m: c["data-value"] for m, metric, c in cells(page) if metric == "nll"}["a"] == "nan"


# ---- several


def test_each_dataset_has_its_section_and_the_contents_name_it() -> None:
    page = Page(
        report(
            compared(
                ("vanilla", "temperature"),
                splits=2,
                records={"one": made_up(300), "two": made_up(350)},
            )
        )
    )
    assert [e["text"].strip() for e in page.all("h2")] == ["one", "two", "What was run"]
    assert {e["href"] for e in page.all("a")} >= {"#s1", "#s2", "#about"}
    assert {key.split("/")[0] for key in page.data["charts"]} == {"s1", "s2"}


def test_policies_rules_and_sizes_are_told_apart_by_name() -> None:
    experiment = Experiment(
        name="e",
        dataset="d",
        fit="r",
        methods={"vanilla": {}, "adaptive-tta": {"policies": ["flip", "flip + crop"]}},
        validation=(100, 150),
        splits=2,
    )
    page = Page(report(replace(run(experiment, {"r": made_up(300)}), details=())))
    assert {method for method, *_ in cells(page)} == {
        f"{name} · {size} images"
        for name in ("vanilla", "adaptive-tta · flip", "adaptive-tta · flip + crop")
        for size in (100, 150)
    }
    assert page.all("figure", data_chart="s1/sizes")
    assert "adaptive-tta · flip + crop · 150 images" in page.verdict, (
        "the verdict is about the most images"
    )
    differences = page.data["sections"]["s1"]["differences"]
    assert differences["4 0"] == [None] * 4, "those of other sizes were tested on other images"
    assert differences["4 3"][0] is not None


def test_seeds_are_averaged_before_splits_are_paired() -> None:
    rows = [
        Row(dataset="d", method=method, split=split, seed=seed, metric=metric, value=value)
        for method, seed, values in (
            ("vanilla", 0, (0.5, 0.6)),
            ("a", 0, (0.1, 0.2)),
            ("a", 1, (0.3, 0.4)),
        )
        for split, number in enumerate(values)
        for metric, value in (("nll", number), ("class_changes", 0.0))
    ]
    mean, low, high, better = Page(report(Results(tuple(rows)))).data["sections"]["s1"][
        "differences"
    ]["1 0"][0]
    assert (mean, better) == (pytest.approx(-0.3), 1)
    assert high - low == pytest.approx(0, abs=1e-12)


def test_tables_that_are_handed_in_stand_below_the_sections(two: Results) -> None:
    claims = Table("claims", ("claim", "holds"), (("never worse", "yes"),))
    ours = Table("Ours <and> theirs", ("method", "brier published"), (("v-atta", "0.0358"),))
    page = Page(report(two, tables=Tables(claims, [ours])))
    assert [e["text"].strip() for e in page.all("h2")][-3:-1] == [
        "The paper’s conclusions",
        "Published and ours",
    ]
    assert {"never worse", "v-atta", "0.0358"} <= {
        e["text"].strip() for e in page.all("td") + page.all("th")
    }
    assert "Ours <and> theirs" in {e["text"].strip() for e in page.all("h3")}


def test_runs_that_were_added_keep_their_settings() -> None:
    one, two = (
        compared(("vanilla", "temperature"), splits=n, records={f"d{n}": made_up(300)})
        for n in (1, 2)
    )
    page = Page(report(replace(one + two, details=())))
    assert "experiments" in page.words
    assert [e["text"].strip() for e in page.all("h2")][:2] == ["d1", "d2"]


# ---- what files say


def test_nothing_that_a_file_says_becomes_markup() -> None:
    record = made_up(300)
    record = Record(
        record.predictions, record.labels, {"classes": json.dumps([ATTACK] * 5), "model": ATTACK}
    )
    experiment = Experiment(
        name=ATTACK,
        title=ATTACK,
        dataset=ATTACK,
        fit="r",
        methods={"vanilla": {}, ATTACK: {"method": "adaptive-tta"}},
        validation=(100,),
        splits=2,
    )
    results = run(experiment, {"r": record})
    html = report(results, title=ATTACK)
    plain = report(results, title="x")
    assert ATTACK not in html
    assert "<!--" not in html
    assert len(Page(html).all("script")) == len(Page(plain).all("script")) == 3
    assert Page(html).all("h1")[0]["text"] == ATTACK, "shown as it is written"
    assert Page(html).data["sections"]["s1"]["classes"] == [ATTACK] * 5


def test_inlined_json_is_json_that_cannot_end_its_script() -> None:
    nasty = {"a": "</script><!-- ]]> & \u2028", "b": [math.nan, math.inf, 1.5]}
    text = inlined(nasty)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": nasty["a"], "b": [None, None, 1.5]}


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"experiments": "none"},
        {"experiments": {"": 3}},
        {"runs": 7},
        {"deep": {"er": [1, {"a": None}]}},
    ],
)
def test_a_page_needs_no_certain_facts_about_the_run(about: dict[str, Any]) -> None:
    assert Page(report(invented({"vanilla": [0.2], "a": [0.1]}, about=about))).verdict


def test_a_cost_experiment_goes_into_the_cost_chart_of_its_section() -> None:
    methods = [find_method("vanilla"), find_method("v-atta", optimizer="adam", epochs=3)]
    results = compare({"shop": made_up(200)}, methods, validation=100, cost=True)
    (section,) = sections_of(results)
    assert section.name == "shop"
    points = cost_points(section.cost)
    assert [point["passes"] for point in points] == [2, 5, 8, 9, 1]
    fewer = [row.value for row in results.where(experiment="shop: cost", metric="brier")]
    full = results.summary(experiment="shop", metric="brier", method="v-atta")
    assert full is not None
    assert [point["value"] for point in points[:4]] == [*fewer[:3], full.mean]


def test_a_page_from_a_file_needs_nothing_that_makes_results(two: Results, tmp_path: Path) -> None:
    program = (
        "import sys; from atta import Results; from atta.report.page import write_report\n"
        "write_report(Results.load(sys.argv[1]), sys.argv[2])\n"
        "print(*(name for name in sys.modules if name.startswith('atta.')))"
    )
    file = two.where(method="vanilla").save(tmp_path / "results.json")
    command = [sys.executable, "-c", program, str(file), str(tmp_path / "report.html")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    makers = ("lab", "classifier", "calibrators", "run", "networks", "cli")
    assert not [
        name for name in loaded if name.startswith(tuple(f"atta.{maker}" for maker in makers))
    ]
