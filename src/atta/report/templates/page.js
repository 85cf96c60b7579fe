"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const all = (query, inside = document) => [...inside.querySelectorAll(query)];
  const say = (text) => { document.getElementById("status").textContent = text; };
  const made = (name, content, attributes = {}) => {
    const element = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...[content].flat());
    return element;
  };

  // ---- Charts

  const chosen = (pane) => document.querySelector(`select[data-select="${pane}"]`);
  const key = (figure) => figure.dataset.chart + (figure.dataset.pane ? "/" + chosen(figure.dataset.pane).value : "");

  const embed = (place, spec, config) => vegaEmbed(place, structuredClone(spec), {
    mode: "vega-lite", logLevel: 1, renderer: "svg", actions: false, config, tooltip: {disableDefaultStyle: true},
  });
  const draw = async (figure) => {
    const name = key(figure);
    figure.hidden = !(name in data.charts);
    if (figure.hidden) return;
    const spec = data.charts[name];
    const plot = figure.querySelector(".plot");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", spec.description ?? "chart");
    const [light, paper] = [!dark(), figure.querySelector(".paper")];
    await embed(plot, spec, data.themes[light ? "light" : "dark"]);
    // Printing does not wait for drawing, so a dark chart has a light copy for paper.
    paper.replaceChildren();
    if (!light) await embed(paper, spec, data.themes.light);
    plot.dataset.drawn = name;
    list(figure, spec);
  };
  // Draw one chart at a time so that the page stays responsive; a later call stops an earlier one.
  let turn = 0;
  const drawAll = async (figures = all("figure.chart")) => {
    const mine = ++turn;
    for (const figure of figures) {
      if (mine !== turn) return;
      await draw(figure);
      await new Promise((next) => setTimeout(next));
    }
    root.dataset.drawn = "true";
  };
  // The numbers of a chart as a table, for readers who do not use tooltips.
  const tips = (node) => {
    if (node === null || typeof node !== "object") return null;
    if (Array.isArray(node.tooltip)) return node.tooltip;
    return Object.values(node).reduce((found, inner) => found ?? tips(inner), null);
  };
  const list = (figure, spec) => {
    const numbers = figure.querySelector(".numbers");
    const fields = tips({...spec, datasets: null});
    if (!numbers || !fields) return;
    numbers.hidden = false;
    const rows = Object.values(spec.datasets).find((set) => set.length && fields.every(({field}) => field in set[0])) ?? [];
    const format = (form) => (value) => {
      const digits = /\.(\d+)f/.exec(form);
      const text = Math.abs(value).toLocaleString("en", digits ? {minimumFractionDigits: +digits[1], maximumFractionDigits: +digits[1], useGrouping: form.includes(",")} : {useGrouping: form.includes(",")});
      return (value < 0 ? "−" : form.startsWith("+") ? "+" : "") + text;
    };
    const body = rows.map((row) => fields.map(({field, format: form}) => {
      const value = row[field];
      return {text: value === null ? "–" : form ? format(form)(value) : String(value), value: form ? value : null};
    }));
    numbers.querySelector("div").replaceChildren(table(fields.map(({title}) => title), body));
  };
  const table = (heads, rows) => {
    const numeric = heads.map((_, j) => rows.every((row) => row[j].value !== null && row[j].value !== undefined));
    const cell = ({text, value, node}, j) => {
      const td = made("td", node ?? text, numeric[j] ? {class: "numeric", "data-value": value, title: value} : {});
      return td;
    };
    return made("table", [
      made("thead", made("tr", heads.map((text, j) => made("th", text, {scope: "col", ...(numeric[j] && {class: "numeric"})})))),
      made("tbody", rows.map((row) => made("tr", row.map(cell)))),
    ]);
  };

  // ---- The most changed images

  const percent = (value) => (100 * value).toFixed(1) + " %";
  const showChanged = (box) => {
    const {changed, classes, record} = data.sections[box.dataset.changed];
    const rows = changed[chosen(box.dataset.pane).value];
    const name = (label) => label === null ? "–" : classes ? classes[label] : String(label);
    const images = rows ?? [];
    const seen = ({image}) => data.thumbs[`${record}/${image}`];
    const pictured = images.some(seen);
    const heads = [...(pictured ? ["image"] : []), "row", "confidence", "predicted", "label"];
    const named = (text) => made("span", text, {class: "name", title: text});
    const body = images.map((one) => {
      const {row, predicted, label, before, after} = one;
      const thumbs = [seen(one)].filter(Boolean).map((source) => made("img", [], {src: source, alt: `image of row ${row}`, title: "image", class: "thumb"}));
      thumbs.forEach((image) => image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth < 48)));
      const verdict = label === null ? "–" : label === predicted ? "✓ right" : [made("span", "✗ "), named(name(label))];
      return [
        ...(pictured ? [{text: "", node: thumbs}] : []),
        {text: String(row), value: row},
        {text: "", node: made("span", `${percent(before)} → ${percent(after)}`, {class: "whole", title: `${before} → ${after}`})},
        {text: "", node: named(name(predicted))},
        {text: "", node: verdict},
      ];
    });
    box.replaceChildren(table(heads, body));
  };

  // ---- Controls

  all("select[data-select]").forEach((select) => select.addEventListener("change", () => {
    const pane = select.dataset.select;
    all(`[data-pane="${pane}"][data-for]`).forEach((text) => { text.hidden = text.dataset.for !== select.value; });
    all(`[data-pane="${pane}"][data-changed]`).forEach(showChanged);
    all(`figure[data-pane="${pane}"]`).forEach(draw);
    say(`Showing ${select.selectedOptions[0].text}`);
  }));

  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);
  const exact = (value, text) => made("data", text, {value, title: value});
  const compare = (select) => {
    const {metrics, differences} = data.sections[select.dataset.baseline];
    const base = Number(select.value);
    const name = select.selectedOptions[0].text;
    all(`#${select.dataset.baseline}-table tbody tr`).forEach((line) => {
      const one = Number(line.dataset.contender);
      const pair = differences[`${Math.max(one, base)} ${Math.min(one, base)}`];
      const sign = one > base ? 1 : -1;  // only later minus earlier is stored
      metrics.forEach((metric, j) => {
        const place = line.querySelector(`td[data-metric="${metric}"] .difference`);
        const found = one === base ? null : pair[j];
        if (!place) return;
        place.replaceChildren();
        if (!found) return;
        const [mean, first, last, judged] = found;
        const ends = first === null ? null : [sign * first, sign * last].sort((a, b) => a - b);
        if (mean === 0 && first === 0 && last === 0) return place.append(made("em", "the same", {class: "unclear"}));
        place.append(exact(sign * mean, signed(sign * mean)));
        if (ends) place.append(" [", exact(ends[0], signed(ends[0])), ", ", exact(ends[1], signed(ends[1])), "]");
        if (judged !== null) place.append(" ", made("em", data.words[sign * judged][1], {class: data.words[sign * judged][0]}));
      });
    });
    all(`[data-baseline-name="${select.dataset.baseline}"]`).forEach((place) => { place.textContent = name; });
    say(`Differences from ${name}`);
  };
  all("select[data-baseline]").forEach((select) => select.addEventListener("change", () => compare(select)));

  const sort = (button) => {
    const head = button.closest("th");
    const heads = [...head.parentElement.children];
    const column = heads.indexOf(head);
    const first = button.dataset.first ?? "ascending";
    const order = head.ariaSort === first ? (first === "ascending" ? "descending" : "ascending") : first;
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
    const value = (line) => {
      const text = line.children[column].dataset.value;
      return column === 0 ? text : text === undefined || Number.isNaN(Number(text)) ? null : Number(text);
    };
    const body = head.closest("table").tBodies[0];
    const sign = order === "ascending" ? 1 : -1;
    const lines = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);  // missing values come last
      return sign * (column === 0 ? x.localeCompare(y) : x - y);
    });
    body.append(...lines);
    say(`Sorted by ${button.textContent}, ${order}`);
  };
  all("th button").forEach((button) => button.addEventListener("click", () => sort(button)));

  // ---- Light and dark

  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches;
  const show = () => { theme.setAttribute("aria-pressed", dark()); drawAll(); };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    say(dark() ? "Dark" : "Light");
    show();
  });
  preferred.addEventListener("change", show);

  all("data").forEach((number) => { number.title = number.value; });
  all("td[data-value]:not(:has(data))").forEach((cell) => { cell.title = cell.dataset.value; });
  all("[data-changed]").forEach(showChanged);
  show();
})();
