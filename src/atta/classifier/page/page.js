"use strict";
const MOST = 100; // images at a time
const known = JSON.parse(document.getElementById("known").textContent);
const [drop, files, status, drift, answers, template] = ["drop", "files", "status", "drift", "answers", "answer"].map((id) => document.getElementById(id));
const percent = (part) => (part > 0.9995 ? ">99.9" : part < 0.0005 ? "<0.1" : (100 * part).toFixed(1)) + "\u00a0%"; // nothing is certain
const tab = { "X-Tab": [...crypto.getRandomValues(new Uint32Array(4))].join("-") }; // drift is that of this tab
const [tools, sort, compact, csv, forget, clear] = ["tools", "sort", "compact", "csv", "forget", "clear"].map((id) => document.getElementById(id));
const shown = new Map(); // article → what was said of it, in the order of the answers
const waiting = [];
let done = 0, busy = false;

function take(list) {
  const images = [...list].filter((file) => file.type.startsWith("image/") || file.type === "");
  const room = MOST - waiting.length;
  waiting.push(...images.slice(0, room));
  if (images.length > room) refused(`${images.length - room} more`, `at most ${MOST} images at a time: drop these again later`);
  for (const file of list) if (!images.includes(file)) refused(file.name, "this is not an image");
  if (!busy) work();
}

async function work() {
  busy = true;
  while (waiting.length) {
    const file = waiting.shift();
    status.textContent = `looking at ${file.name}` + (waiting.length ? `, ${waiting.length} more to come` : "");
    await ask(file);
  }
  busy = false;
  status.textContent = done ? `${done} image${done > 1 ? "s" : ""} answered` : "";
}

async function ask(file) {
  if (file.size > known.largest) return refused(file.name, `larger than ${known.largest / 1e6} MB`);
  try {
    const headers = { "Content-Type": "application/octet-stream", ...tab };
    const response = await fetch("answer", { method: "POST", headers, body: file });
    const said = await response.json().catch(() => ({ error: `the server is busy (${response.status})` }));
    if (said.error) return refused(file.name, said.error);
    done += 1;
    show(file, said);
  } catch {
    refused(file.name, "the server does not answer: is `atta serve` still running?");
  }
}

function refused(name, why) {
  const article = document.createElement("article");
  article.className = "refused";
  const said = make("div", "said");
  said.append(make("p", "name", name), make("h2", "", why));
  article.append(said);
  answers.prepend(article);
}

function show(file, said) {
  const article = template.content.cloneNode(true).firstElementChild;
  const find = (selector) => article.querySelector(selector);
  const itself = said.views[0];
  find(".name").textContent = file.name;
  const refuses = said.answered === false;
  find("h2").textContent = refuses ? `unsure: ${said.class}?` : said.class;
  article.classList.toggle("unsure", refuses);
  if (said.answered === undefined && said.set && said.set.length > 1) find("h2").append(make("span", "tag", "unsure"));
  find(".warning").textContent = said.warning || "";
  find(".top").textContent = said.top.map((one) => `${one.class} ${percent(one.probability)}`).join(" · ");
  picture(find(".picture"), itself ? itself.picture : URL.createObjectURL(file), itself ? "what the network was shown" : "");
  for (const [which, part] of [["before", said.confidence_before], ["after", said.confidence]]) {
    find(`.${which} span`).style.width = `${100 * part}%`;
    find(`.${which} .number`).textContent = percent(part);
  }
  if (said.set) {
    find(".set").append(`${+(100 * known.coverage).toFixed(2)} % set: `);
    find(".set").append(...said.set.map((one) => make("b", "", one)));
  } else find(".set").remove();
  find(".more").textContent = facts(said).join(" · ");
  find(".views").append(...said.views.slice(1).map((view) => viewed(view, said.class)));
  drift.textContent = said.drift || "";
  shown.set(article, { name: file.name, ...said });
  tools.hidden = false;
  arrange();
}

function arrange() {
  const by = { newest: () => 0, confidence: (a, b) => a.confidence - b.confidence, ood: (a, b) => (b.ood ?? 0) - (a.ood ?? 0), name: (a, b) => a.name.localeCompare(b.name) };
  const sorted = [...shown].reverse().sort(([, a], [, b]) => by[sort.value](a, b));
  answers.prepend(...sorted.map(([article]) => article));
}

function saved() {
  const columns = ["name", "class", "confidence", "entropy", "confidence_before", "ood", "answered", "set", "passes", "warning"];
  const cell = (value) => {
    const text = Array.isArray(value) ? value.join("|") : String(value ?? "");
    const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; // a table would compute it
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  const rows = [columns, ...[...shown.values()].map((said) => columns.map((name) => said[name]))];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
  link.download = "answers.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

function facts(said) {
  const found = [];
  if (said.views.length && said.views[0].class !== said.class) found.push(`the network itself says ${said.views[0].class}`);
  if (said.passes !== null) found.push(said.passes === 1 ? "1 pass" : `${said.passes} passes`);
  if (typeof said.views[0]?.weight === "number") found.push(`weight of the image itself ${said.views[0].weight.toFixed(2)}`);
  if (said.ood !== undefined) found.push(`more unusual than ${Math.round(100 * said.ood)}\u00a0% of the validation images`);
  return found;
}

function viewed(view, winner) {
  const item = make("li", view.class === null ? "unseen" : view.class === winner ? "" : "other");
  const image = document.createElement("img");
  picture(image, view.picture, "");
  item.append(image, view.view + (view.repeat ? ` ${view.repeat + 1}` : ""), document.createElement("br"));
  if (view.class === null) item.append("not needed");
  else item.append(make("b", "", percent(view.confidence)), view.class === winner ? "" : ` ${view.class}`);
  if (typeof view.weight === "number") item.append(document.createElement("br"), `weight ${view.weight.toFixed(2)}`);
  return item;
}

function picture(image, uri, alt) {
  image.alt = alt;
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 80);
  image.src = uri;
}

function make(tag, style, text) {
  const made = document.createElement(tag);
  made.className = style;
  if (text !== undefined) made.textContent = text;
  return made;
}

sort.addEventListener("change", arrange);
compact.addEventListener("change", () => answers.classList.toggle("compact", compact.checked));
csv.addEventListener("click", saved);
clear.addEventListener("click", () => { shown.clear(); answers.replaceChildren(); tools.hidden = true; done = 0; status.textContent = ""; });
forget.addEventListener("click", async () => {
  await fetch("reset", { method: "POST", headers: tab }).catch(() => null);
  drift.textContent = "Drift starts again with the next image.";
});
files.addEventListener("change", () => { take(files.files); files.value = ""; });
drop.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
document.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files); });
document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files); });
