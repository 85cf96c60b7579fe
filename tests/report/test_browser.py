"""The page in a browser: it opens offline from a file, and its controls work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atta.report.page import write_report
from atta.results.rows import Results

CHROMIUM = Path("/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"{CHROMIUM} is not installed")
METHODS = ("vanilla", "temperature", "isotonic", "mean-tta", "adaptive-tta")


@pytest.fixture(scope="module")
def file(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = torch.full((400, 3, 8, 8), 0.5)
    return write_report(results, tmp_path_factory.mktemp("page") / "report.html", images=images)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """A page that is open and drawn, and what went wrong meanwhile."""

    def __init__(self, browser: Any, file: Path, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.requests, self.errors = list[str](), list[str]()
        self.context.route("**/*", self._let_pass)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn]", timeout=30_000)

    def _let_pass(self, route: Any) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def methods(self) -> list[str]:
        return list(
            self.page.eval_on_selector_all(
                ".comparison tbody th", "heads => heads.map(h => h.dataset.value)"
            )
        )


@pytest.fixture(scope="module")
def visit(browser: Any, file: Path) -> Iterator[Visit]:
    visit = Visit(browser, file, viewport={"width": 1280, "height": 900})
    yield visit
    assert visit.errors == [], "of all the tests together"
    visit.context.close()


def test_it_opens_from_a_file_asks_for_nothing_and_draws_every_chart(visit: Visit) -> None:
    assert visit.requests == []
    assert visit.errors == []
    shown = visit.page.locator("figure.chart:visible")
    assert shown.count() == visit.page.locator("figure.chart:visible .plot svg").count() > 5
    assert all(
        plot.get_attribute("aria-label")
        for plot in visit.page.locator("figure.chart:visible .plot").all()
    )


def test_a_click_on_a_head_sorts_and_another_turns_it_round(visit: Visit, results: Results) -> None:
    by_nll = sorted(METHODS, key=lambda name: results.summary(method=name, metric="nll").mean)  # type: ignore[union-attr]
    button = visit.page.get_by_role("button", name="NLL")
    head = visit.page.locator("th", has=button)
    button.click()
    assert (visit.methods(), head.get_attribute("aria-sort")) == (by_nll, "ascending")
    button.click()
    assert (visit.methods(), head.get_attribute("aria-sort")) == (by_nll[::-1], "descending")
    assert visit.page.locator("#status").text_content() == "Sorted by NLL, descending"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_the_keyboard_sorts_too(visit: Visit, key: str) -> None:
    button = visit.page.locator(".comparison thead button").first
    button.focus()
    visit.page.keyboard.press(key)
    names = visit.methods()
    assert sorted(METHODS) in (names, names[::-1])
    outline = button.evaluate("element => getComputedStyle(element).outlineStyle")
    assert outline != "none", "the focus is seen"


def test_accuracy_has_its_highest_first(visit: Visit) -> None:
    visit.page.get_by_role("button", name="accuracy").click()
    assert visit.methods()[0] == max(
        visit.methods(), key=lambda name: float(cell(visit, name, "accuracy"))
    )


def cell(visit: Visit, method: str, metric: str) -> str:
    line = visit.page.locator(f'.comparison tr:has(th[data-value="{method}"])')
    return str(line.locator(f'td[data-metric="{metric}"]').get_attribute("data-value"))


def test_another_baseline_changes_the_differences(visit: Visit, results: Results) -> None:
    visit.page.select_option("select[data-baseline]", label="temperature")
    line = visit.page.locator(
        '.comparison tr:has(th[data-value="vanilla"]) td[data-metric="nll"] .difference'
    )
    vanilla, temperature = (
        results.summary(method=name, metric="nll").mean  # type: ignore[union-attr]
        for name in ("vanilla", "temperature")
    )
    exact = float(line.locator("data").first.get_attribute("value") or "nan")
    assert exact == pytest.approx(vanilla - temperature, abs=1e-12)
    assert (line.text_content() or "").startswith(f"{vanilla - temperature:+.4f} [")
    own = visit.page.locator('.comparison tr:has(th[data-value="temperature"]) .difference')
    assert own.all_text_contents() == [""] * own.count()
    assert visit.page.locator("[data-baseline-name]").text_content() == "temperature"
    visit.page.select_option("select[data-baseline]", label="vanilla")


def test_the_differences_of_the_first_baseline_come_back_as_they_were(
    visit: Visit, file: Path, browser: Any
) -> None:
    fresh = Visit(browser, file)
    before = fresh.page.locator(".difference").all_text_contents()
    for label in ("temperature", "vanilla"):
        fresh.page.select_option("select[data-baseline]", label=label)
    after = fresh.page.locator(".difference").all_text_contents()
    assert [text.split() for text in after] == [text.split() for text in before]
    fresh.context.close()


def test_the_switch_changes_the_diagrams(visit: Visit) -> None:
    plot = visit.page.locator('figure[data-chart="s1/reliability"][data-pane="s1-right"] .plot')
    before = plot.inner_html()
    visit.page.select_option('select[data-select="s1-right"]', label="isotonic")
    visit.page.wait_for_selector(
        'figure[data-pane="s1-right"] .plot[data-drawn="s1/reliability/2"]'
    )
    assert plot.inner_html() != before
    assert "isotonic" in (plot.get_attribute("aria-label") or "")
    assert visit.page.locator("#status").text_content() == "Showing isotonic"


def test_pointing_at_a_bar_shows_its_numbers(visit: Visit) -> None:
    plot = visit.page.locator('figure[data-chart="s1/reliability"][data-pane="s1-left"] .plot svg')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    visit.page.mouse.move(box["x"] + 0.93 * box["width"], box["y"] + 0.5 * box["height"])
    tip = visit.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    text = tip.inner_text()
    assert "images" in text
    assert "95 % interval" in text
    assert any(character.isdigit() for character in text)
    visit.page.mouse.move(0, 0)


def test_the_numbers_of_a_chart_can_be_read_without_pointing(
    visit: Visit, results: Results
) -> None:
    figure = visit.page.locator('figure[data-chart="s1/reliability"][data-pane="s1-left"]')
    before = figure.bounding_box()
    figure.locator("summary").focus()
    visit.page.keyboard.press("Enter")
    assert before
    assert (figure.bounding_box() or {})["width"] == before["width"], "the next chart stays there"
    counts = figure.locator("tbody tr td:nth-child(2)").all_text_contents()
    assert [int(text.replace(",", "")) for text in counts] == [
        n for n in results.details[0]["bins"]["counts"] if n
    ]


def test_inside_one_method_follows_its_switch(visit: Visit) -> None:
    weights = visit.page.locator('figure[data-chart="s1/weights"]')
    visit.page.select_option('select[data-select="s1-inside"]', label="temperature")
    weights.wait_for(state="hidden")
    assert visit.page.locator('p[data-pane="s1-inside"]:visible').count() == 0
    visit.page.select_option('select[data-select="s1-inside"]', label="adaptive-tta")
    weights.wait_for(state="visible")
    assert "class guard" in visit.page.locator('p[data-pane="s1-inside"]:visible').inner_text()


def test_the_most_changed_images_have_their_pictures(visit: Visit) -> None:
    images = visit.page.locator("[data-changed] img")
    assert images.count() == visit.page.locator("[data-changed] tbody tr").count() > 0
    assert images.first.evaluate("image => image.complete && image.naturalWidth") == 8
    assert images.first.get_attribute("alt")


TEXT = "p, th, td, h1, h2, h3, li, dt, dd, a, label, select, button, summary, em"
LABELS = ".role-axis-label text, .role-axis-title text, .role-title text, .role-legend-label text"
CONTRAST = """(texts) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const seen = [...document.querySelectorAll(texts)]
    .filter((element) => element.textContent.trim() && element.getClientRects().length);
  return Math.min(...seen.map((element) => {
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_is_legible_in_light_and_dark(browser: Any, file: Path, scheme: str) -> None:
    visit = Visit(browser, file, color_scheme=scheme)
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert visit.page.evaluate(CONTRAST, TEXT) >= 4.5
    assert visit.page.evaluate(CONTRAST, LABELS) >= 4.5
    visit.page.get_by_role("button", name="Dark").click()
    visit.page.wait_for_function(
        "before => getComputedStyle(document.body).backgroundColor !== before", arg=ground
    )
    assert visit.page.evaluate(CONTRAST, TEXT) >= 4.5
    visit.context.close()


def boxes(visit: Visit) -> tuple[dict[str, float], dict[str, float]]:
    """Where the verdict is, and the diagram that goes with it."""
    found = (
        visit.page.locator(query).bounding_box()
        for query in (".verdict", 'figure[data-chart="s1/overlay"]')
    )
    verdict, diagram = (box or {} for box in found)
    return verdict, diagram


def test_the_first_screen_has_the_verdict_and_its_diagram(browser: Any, file: Path) -> None:
    visit = Visit(browser, file, viewport={"width": 1200, "height": 900})
    verdict, diagram = boxes(visit)
    assert diagram["x"] >= verdict["x"] + verdict["width"]
    assert diagram["y"] + diagram["height"] < 900
    visit.context.close()


def test_a_phone_scrolls_tables_and_not_the_page(browser: Any, file: Path) -> None:
    visit = Visit(browser, file, viewport={"width": 360, "height": 740})
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 360
    verdict, diagram = boxes(visit)
    assert diagram["y"] >= verdict["y"] + verdict["height"], "one below the other"
    box = visit.page.locator(".wide").first
    assert box.evaluate("element => element.scrollWidth > element.clientWidth"), (
        "the table scrolls in its box"
    )
    for summary in visit.page.locator("summary:visible").all():
        summary.click()
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 360
    visit.context.close()


def test_paper_has_no_switches_and_light_charts(browser: Any, file: Path) -> None:
    visit = Visit(browser, file, color_scheme="dark")
    visit.page.emulate_media(media="print")
    for control in ("#theme", "select", ".numbers", ".skip"):
        assert visit.page.locator(f"{control}:visible").count() == 0, control
    assert (
        visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    figures = visit.page.locator("figure.chart:visible")
    assert figures.count() == figures.locator("svg:visible").count(), "each chart once"
    assert (
        figures.locator("svg:visible").count() == visit.page.locator(".paper svg:visible").count()
    )
    assert len(visit.page.pdf(prefer_css_page_size=True)) > 10_000
    visit.context.close()
