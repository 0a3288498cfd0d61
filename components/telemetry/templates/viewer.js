"use strict";
// The trajectory viewer. Whatever a model wrote becomes text nodes, never markup; nothing is stored, nothing is fetched.
(() => {
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("trajectories-data").textContent);
const all = data.list, box = byId("viewer"), list = byId("viewer-list"), talk = byId("viewer-talk");
const form = byId("viewer-filter"), count = byId("viewer-count"), token = byId("viewer-token");
const view = { shown: [], at: 0, cells: [], cell: -1 };

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
}
function add(parent, ...children) {
  for (const child of children) if (child) parent.append(child);
  return parent;
}
const textOf = (value) => (typeof value === "number" ? data.texts[value] : value || "");
const number = (value) => (value === null || value === undefined ? "–" : String(+(+value).toPrecision(3)).replace("-", "−"));
const known = (value) => value !== null && value !== undefined;
const mistakes = (each) => each.errors + each.malformed;
const tone = (each) => (each.reward === null ? "none" : each.reward > 0.5 ? "good" : "poor");
const ended = (each) => (each.failure ? "failed: " + each.failure[0] : each.cut ? "cut by " + each.cut : each.outcome);

// Everything that can be found in a trajectory, made when it is first looked for.
function words(each) {
  if (each.words === undefined) {
    const parts = [each.task, each.failure ? each.failure.join(" ") : ""];
    for (const said of each.messages) {
      parts.push(said.name, textOf(said.content));
      for (const pair of [...said.calls, ...said.bad]) parts.push(pair.join(" "));
    }
    for (const turn of each.turns) parts.push(textOf(turn.prompt), turn.tokens.join(""));
    each.words = parts.join("\n").toLowerCase();
  }
  return each.words;
}

const ORDERS = {
  step: (a, b) => a.step - b.step,
  best: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  worst: (a, b) => (a.reward ?? -Infinity) - (b.reward ?? -Infinity),
  stale: (a, b) => (b.stale ?? -1) - (a.stale ?? -1),
  unlikely: (a, b) => (a.lowest ?? 0) - (b.lowest ?? 0),
  gap: (a, b) => (b.gap ?? -1) - (a.gap ?? -1),
  slow: (a, b) => (b.seconds ?? -1) - (a.seconds ?? -1),
};

function filtered() {
  const value = (name) => form.elements[name].value;
  const bound = (name, otherwise) => (value(name) === "" ? otherwise : +value(name));
  const low = bound("low", -Infinity), high = bound("high", Infinity), step = bound("step", null);
  const any = value("low") === "" && value("high") === "";
  const text = value("text").toLowerCase();
  const fits = (each) =>
    (value("outcome") === "" || ended(each) === value("outcome")) &&
    (any || (each.reward !== null && each.reward >= low && each.reward <= high)) &&
    (step === null || each.step === step) &&
    (!form.elements.errors.checked || mistakes(each) > 0) &&
    (text === "" || words(each).includes(text));
  return all.filter(fits).sort(ORDERS[value("order")]);
}

function refill(wanted) {
  view.shown = filtered();
  list.replaceChildren(...view.shown.map(option));
  count.textContent = view.shown.length + " of " + all.length + " shown";
  select(Math.max(0, view.shown.indexOf(wanted)));
}

function option(each) {
  const item = make("li", "option");
  item.id = "option-" + each.id;
  item.setAttribute("role", "option");
  const marks = ["step " + each.step, each.outcome === "finished" ? "" : ended(each),
    mistakes(each) ? mistakes(each) + (mistakes(each) > 1 ? " tool errors" : " tool error") : "",
    each.stale ? each.stale + " behind" : ""];
  add(item, make("span", "reward " + tone(each), number(each.reward)), make("span", "prompt", each.title || each.task),
    make("span", "meta", marks.filter(Boolean).join(" · ")));
  return item;
}

function select(at) {
  view.at = Math.min(Math.max(at, 0), view.shown.length - 1);
  for (const old of list.querySelectorAll("[aria-selected=true]")) old.setAttribute("aria-selected", "false");
  const each = view.shown[view.at];
  if (!each) {
    list.removeAttribute("aria-activedescendant");
    talk.replaceChildren(make("p", "note", "No trajectory is like that."));
    return;
  }
  const item = list.children[view.at];
  item.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", item.id);
  // Not scrollIntoView, which would move the page, too.
  const low = item.offsetTop, high = low + item.offsetHeight - list.clientHeight;
  list.scrollTop = Math.max(high, Math.min(low, list.scrollTop));
  show(each);
}

function show(each) {
  const facts = [["reward", number(each.reward)], ...each.parts.filter(([name]) => name !== "reward").map(([name, value]) => [name, number(value)]),
    ["ended", ended(each)], ["tokens", each.tokens], ["seconds", each.seconds], ["in tools", each.toolSeconds],
    ["tool calls", each.calls], ["tool errors", each.errors], ["malformed calls", each.malformed],
    ["versions behind", each.stale], ["least likely token", known(each.lowest) ? number(each.lowest) + " nats" : null],
    ["largest mismatch", known(each.gap) ? number(each.gap) + " nats" : null],
    ["largest change since sampled", known(each.drift) ? number(each.drift) + " nats" : null]];
  const title = make("h3", "", each.title || each.task);
  const where = "step " + each.step + " · task " + each.task + " · member " + each.member +
    (each.attempt ? " · attempt " + each.attempt : "");
  const parts = make("dl", "numbers-of");
  for (const [name, value] of facts) {
    if (known(value) && value !== "" && value !== 0) add(parts, add(make("div"), make("dt", "", name), make("dd", "", value)));
  }
  talk.replaceChildren(title, make("p", "note", where), parts);
  for (const [name, why] of each.reasons) talk.append(make("p", "parts", name + ": " + why));
  if (each.used.length) talk.append(make("p", "parts", "tools: " + each.used.join(" · ")));
  if (each.failure) talk.append(make("p", "failure", each.failure.join(": ")));
  const asTokens = form.elements.view.value === "tokens" && each.turns.length > 0;
  byId("viewer-legend").hidden = token.hidden = !asTokens;
  view.cells = [];
  view.cell = -1;
  token.textContent = "Tokens: arrow keys or a tap tell their numbers.";
  if (asTokens) each.turns.forEach((turn, index) => talk.append(turnOf(turn, index, each.step - 1)));
  else each.messages.forEach((said) => talk.append(messageOf(said)));
  if (form.elements.view.value === "tokens" && !asTokens) {
    talk.append(make("p", "note", "Its tokens were not written down, as the step had no bytes left for them."));
  }
  const more = asTokens ? 0 : each.more;
  if (more) talk.append(make("p", "note", more + " more messages are not shown."));
  if (asTokens) paint();
}

function messageOf(said) {
  const element = make("div", "message " + said.role);
  element.append(make("p", "who", said.role + (said.name ? " · " + said.name : "")));
  if (said.content !== "") element.append(make("div", "content", textOf(said.content)));
  for (const [name, values] of said.calls) element.append(add(make("div", "call"), make("b", "", name), " " + values));
  for (const [text, why] of said.bad) element.append(add(make("div", "call bad", text), make("small", "", why)));
  return element;
}

// The update that trained on it began from the version `trainer`.
function turnOf(turn, index, trainer) {
  const element = make("div", "turn");
  const versions = turn.versions.flatMap(([version, length]) => Array(length).fill(version));
  const many = turn.tokens.length + (turn.more || 0);
  element.append(make("p", "who", "turn " + (index + 1) + " · prompt of " + turn.promptTokens + " tokens, " + many +
    " sampled, ended by " + turn.finish + (turn.reward ? ", earned " + number(turn.reward) : "")));
  const text = make("div", "sampled");
  text.append(make("span", "prompted", textOf(turn.prompt)));
  turn.tokens.forEach((piece, at) => {
    const cell = make("span", "t", piece === "" ? "◦" : piece);
    cell.dataset.at = view.cells.length;
    view.cells.push({ cell, piece, logprob: turn.logprobs[at], gap: turn.gaps[at], version: versions[at], behind: trainer - versions[at] });
    text.append(cell);
  });
  if (turn.more) text.append(make("span", "prompted", " … " + turn.more + " more tokens"));
  return add(element, text);
}

// Colours come from the page's variables, so that they follow light and dark.
const mixed = (color, share) => "color-mix(in srgb, var(" + color + ") " + Math.round(100 * Math.min(1, share)) + "%, transparent)";
const swatch = (color, text) => { const mark = make("i"); mark.style.background = color; return add(make("li"), mark, text); };
// Of an older token the difference is not the engine's alone: the trainer has learned since.
function gapLegend() {
  const told = (color, scale, text) => [0.5, 1].map((share) => swatch(mixed(color, share), number(share * scale) + text));
  const here = (behind) => view.cells.some((each) => known(each.gap) && Boolean(each.behind) === behind);
  return [...(here(false) ? told("--second", data.gapScale, " nats, of one version: arithmetic") : []),
    ...(here(true) ? told("--surplus", data.driftScale, " nats, sampled by an older one: learning, too") : []),
    ...(here(false) || here(true) ? [] : [swatch("transparent", "not known of this one")])];
}
const VERSIONS = ["--work-1", "--wait-1", "--surplus", "--second", "--stale", "--muted"];
function paint() {
  const by = form.elements.colour.value;
  const versions = [...new Set(view.cells.map((each) => each.version))].sort((a, b) => a - b);
  const colorOf = {
    mask: () => mixed("--accent", 0.28),
    logprob: (each) => (known(each.logprob) ? mixed("--second", -each.logprob / 5) : ""),
    gap: (each) => (!known(each.gap) ? "" : each.behind ? mixed("--surplus", Math.abs(each.gap) / data.driftScale)
      : mixed("--second", Math.abs(each.gap) / data.gapScale)),
    version: (each) => mixed(VERSIONS[versions.indexOf(each.version) % VERSIONS.length], 0.4),
  }[by];
  for (const each of view.cells) each.cell.style.background = colorOf(each);
  const legend = byId("viewer-legend");
  legend.replaceChildren(...{
    mask: () => [swatch(mixed("--accent", 0.28), "sampled, may be trained on"), swatch("transparent", "prompt, never trained on")],
    logprob: () => [0, 1, 2.5, 5].map((nats) => swatch(mixed("--second", nats / 5), (nats ? "−" : "") + nats + " nats")),
    gap: gapLegend,
    version: () => versions.map((version, at) => swatch(mixed(VERSIONS[at % VERSIONS.length], 0.4), "version " + version)),
  }[by]());
}

const later = (versions) => (!versions ? "at this version " : versions + (versions > 1 ? " versions" : " version") + " later ");
function point(at) {
  if (!view.cells.length) return;
  if (view.cells[view.cell]) view.cells[view.cell].cell.classList.remove("here");
  view.cell = Math.min(Math.max(at, 0), view.cells.length - 1);
  const each = view.cells[view.cell];
  each.cell.classList.add("here");
  each.cell.scrollIntoView({ block: "nearest" });
  token.textContent = "token " + (view.cell + 1) + " of " + view.cells.length + ": " + JSON.stringify(each.piece) +
    (known(each.logprob) ? ", log-prob " + number(each.logprob) : "") +
    ", version " + each.version + (known(each.gap) ? ", the trainer " + later(each.behind) + "differs by " + number(each.gap) : "");
}

function go(href, focus) {
  const [, kind, at] = /^#(trajectory|step)-(\d+)$/.exec(href) || [];
  if (kind) {
    form.reset();
    if (kind === "step") form.elements.step.value = at;
    refill(kind === "trajectory" ? all[+at] : undefined);
    byId("trajectories").scrollIntoView();
    if (focus) talk.focus({ preventScroll: true });
    return true;
  }
  const target = href.length > 1 && byId(href.slice(1));
  if (target) target.scrollIntoView();
  return Boolean(target);
}

// In a frame made of a text, a link to a place in the page would lead to the page around it.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  const href = link && link.getAttribute("href");
  if (!href || !href.startsWith("#")) return;
  event.preventDefault();
  if (go(href, true) && location.protocol !== "about:") location.hash = href;
});
window.addEventListener("hashchange", () => { if (!box.contains(document.activeElement)) go(location.hash, false); });

// Each chart is one stop of the tab key; the arrow keys go from point to point.
for (const chart of document.querySelectorAll("svg")) {
  const points = [...chart.querySelectorAll("a[href]")];
  points.forEach((each, at) => each.setAttribute("tabindex", at ? "-1" : "0"));
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = by && points[points.indexOf(document.activeElement) + by];
    if (!next) return;
    event.preventDefault();
    points.forEach((each) => each.setAttribute("tabindex", each === next ? "0" : "-1"));
    next.focus();
  });
}

list.addEventListener("keydown", (event) => {
  const last = view.shown.length - 1;
  const to = { ArrowDown: view.at + 1, ArrowUp: view.at - 1, PageDown: view.at + 8, PageUp: view.at - 8, Home: 0, End: last };
  if (event.key === "Enter" || event.key === "ArrowRight") talk.focus();
  else if (event.key in to) select(to[event.key]);
  else return;
  event.preventDefault();
});
list.addEventListener("click", (event) => {
  const item = event.target.closest("[role=option]");
  if (item) select([...list.children].indexOf(item));
});
talk.addEventListener("keydown", (event) => {
  const to = { ArrowRight: view.cell + 1, ArrowLeft: view.cell - 1, Home: 0, End: view.cells.length - 1 }[event.key];
  if (event.key === "Escape") list.focus();
  else if (view.cells.length && to !== undefined) point(to);
  else return;
  event.preventDefault();
});
talk.addEventListener("click", (event) => { if (event.target.dataset.at) point(+event.target.dataset.at); });
form.addEventListener("input", (event) => {
  if (event.target.name === "colour") paint();
  else if (event.target.name === "view") select(view.at);
  else refill(view.shown[view.at]);
});
form.addEventListener("reset", () => setTimeout(() => refill(view.shown[view.at])));
form.addEventListener("submit", (event) => event.preventDefault());

for (const name of [...new Set(all.map(ended))].sort()) form.elements.outcome.append(new Option(name, name));
box.hidden = false;
if (!location.hash || location.protocol === "about:" || !go(location.hash, false)) refill(all[all.length - 1]);
})();
