"use strict";
// The reader's filters and search, and the completions that match.

const SELECTS = ["checkpoint", "benchmark", "mode", "level", "subject", "tag", "change"];
const CHANGES = { gained: "wrong before, right now", lost: "right before, wrong now" };

const filters = { values: {}, classes: new Set(), needle: "", order: "" };

function isRight(row) {
  return row.label[1] === "1";
}

/** The badge's colour: none for an answer to an instruction, which nothing here grades. */
function toneOf(row) {
  if (row.decided_by === "not graded") return "";
  return isRight(row) ? "right" : "wrong";
}

/** One value of a row for a select; empty where the row has none. */
function fieldOf(row, name) {
  if (name === "checkpoint" || name === "mode") return row[name];
  if (name === "change") return changeOf(row);
  return row.problem[name];
}

/** How the grade of the same problem and sample changed since the parent; empty if it has none. */
function changeOf(row) {
  const before = rollouts.before[row.checkpoint];
  const earlier = before === undefined ? null : counterpart(row, before);
  if (earlier?.sample !== row.sample || isRight(earlier) === isRight(row)) return "";
  return isRight(row) ? "gained" : "lost";
}

function matches(row) {
  for (const [name, wanted] of Object.entries(filters.values)) {
    if (wanted === "") continue;
    if (name === "tag" ? !row.problem.tags.includes(wanted) : fieldOf(row, name) !== wanted) return false;
  }
  return !filters.needle || haystack(row).includes(filters.needle);
}

function haystack(row) {
  const { id, problem, reference } = row.problem;
  row.haystack ??= [problem, row.completion, row.answer ?? "", reference, id].join("\n").toLowerCase();
  return row.haystack;
}

/** The rows that match everything but the classes, by class. */
function matchingByClass(rows) {
  const byClass = new Map([...rollouts.classes.keys()].map((label) => [label, []]));
  for (const row of rows) if (matches(row)) byClass.get(row.label).push(row);
  return byClass;
}

function naturalOrder(one, other) {
  return one.localeCompare(other, "en", { numeric: true });
}

function choices(name) {
  if (name === "checkpoint") return rollouts.checkpoints;
  if (name === "benchmark") return rollouts.benchmarks;
  if (name === "change") return Object.keys(CHANGES);
  const values = new Set();
  for (const row of rollouts.rows) {
    if (name === "tag") row.problem.tags.forEach((tag) => values.add(tag));
    else values.add(fieldOf(row, name));
  }
  values.delete("");
  return [...values].sort(naturalOrder);
}

const ORDERS = {
  "": "order: as answered",
  reward: "order: lowest reward first",
  best: "order: highest reward first",
  length: "order: longest first",
  disagreement: "order: samples disagree most",
};

/** Variance of the grades of a problem's samples: at most 0.25, where half of them are right. */
function disagreement(row) {
  const samples = siblings(row);
  const share = samples.filter(isRight).length / samples.length;
  return share * (1 - share);
}

const COMPARE = {
  reward: (one, other) => one.reward - other.reward,
  best: (one, other) => other.reward - one.reward,
  length: (one, other) => other.num_tokens - one.num_tokens,
  disagreement: (one, other) => disagreement(other) - disagreement(one),
};

function orderSelect(changed) {
  const select = element("select", { id: "order", attributes: { "aria-label": "order" } });
  for (const [name, title] of Object.entries(ORDERS)) select.append(new Option(title, name));
  select.addEventListener("change", () => {
    filters.order = select.value;
    changed();
  });
  return select;
}

/** Builds the selects and chips; calls `changed` whenever one of them is used. */
function startFilters(changed) {
  const selects = document.getElementById("selects");
  for (const name of SELECTS) {
    const offered = choices(name);
    if (offered.length < 2 && name !== "tag") continue;
    if (offered.length) selects.append(selectOf(name, offered, changed));
  }
  selects.append(orderSelect(changed));
  const chips = document.getElementById("chips");
  for (const label of rollouts.classes.keys()) {
    filters.classes.add(label);
    chips.append(chipOf(label, changed));
  }
  startSearch(changed);
}

function selectOf(name, offered, changed) {
  const select = element("select", { attributes: { "aria-label": name, "data-filter": name } });
  select.append(new Option(`${name}: all`, ""));
  for (const value of offered) {
    const title = name === "change" ? CHANGES[value] : `${name}: ${value}`;
    select.append(new Option(title, value));
  }
  if (name === "checkpoint") select.value = rollouts.exported;
  if (name === "benchmark") select.value = rollouts.benchmarks[0];
  filters.values[name] = select.value;
  select.addEventListener("change", () => {
    filters.values[name] = select.value;
    changed();
  });
  return select;
}

function chipOf(label, changed) {
  const chip = element("button", {
    type: "button",
    className: "chip",
    title: label,
    attributes: { "aria-pressed": "true", "data-class": label },
  });
  chip.addEventListener("click", () => {
    const isOn = filters.classes.has(label);
    if (isOn) filters.classes.delete(label);
    else filters.classes.add(label);
    chip.setAttribute("aria-pressed", String(!isOn));
    changed();
  });
  return chip;
}

function startSearch(changed) {
  const search = document.getElementById("search");
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      filters.needle = search.value.trim().toLowerCase();
      changed();
    }, 120);
  });
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
}

function showCounts(byClass) {
  for (const chip of document.querySelectorAll(".chip")) {
    const label = chip.dataset.class;
    chip.textContent = `${rollouts.classes.get(label)} · ${byClass.get(label).length.toLocaleString("en")}`;
  }
}
