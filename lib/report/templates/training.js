"use strict";
// GRPO's training rollouts by step, and the answers to one problem over the steps.

const training = { views: { step: [], problem: [] }, view: "step", shown: [], entry: null };

/** Rows in groups of one problem at one step, and the groups by step and by problem. */
function groupRollouts({ problems, columns }) {
  const groups = new Map();
  for (const row of rowsOf(columns, problems)) {
    const { step, place, problem } = row;
    const key = `${step} ${place}`;
    if (!groups.has(key)) groups.set(key, { step, place, problem, rows: [] });
    groups.get(key).rows.push(row);
  }
  for (const view of ["step", "problem"]) {
    const entries = new Map();
    for (const group of groups.values()) {
      const name = view === "step" ? group.step : group.place;
      if (!entries.has(name)) entries.set(name, { name: String(name), groups: [] });
      entries.get(name).groups.push(group);
    }
    training.views[view] = [...entries.values()];
  }
  // Problems sampled at the most steps come first: they show best how answers change.
  training.views.problem.sort((one, other) => other.groups.length - one.groups.length);
}

function meanReward(groups) {
  const rows = groups.flatMap((group) => group.rows);
  return rows.reduce((sum, row) => sum + row.reward, 0) / rows.length;
}

/** How much the mean reward of a problem rose from the first step to the last. */
function rise({ groups }) {
  return meanReward(groups.slice(-1)) - meanReward(groups.slice(0, 1));
}

const TRAINING_ORDERS = {
  "": () => 0,
  reward: (one, other) => meanReward(one.groups) - meanReward(other.groups),
  rise: (one, other) => rise(other) - rise(one),
};

function listTraining() {
  const needle = document.getElementById("training-search").value.trim().toLowerCase();
  const order = document.getElementById("training-order").value;
  const holds = ({ problem, rows }) =>
    [problem.text, problem.reference, ...rows.map((row) => row.completion)].some((text) => text.toLowerCase().includes(needle));
  training.shown = training.views[training.view]
    .filter(({ groups }) => groups.some(holds))
    .sort(TRAINING_ORDERS[order]);
  const matching = training.shown.length.toLocaleString("en");
  document.getElementById("training-count").textContent = `${matching} ${training.view}s`;
  const entries = training.shown.map((entry) => {
    const [line, what] = training.view === "step" ? stepLines(entry) : problemLines(entry);
    const shown = element("div", { className: "row", attributes: { role: "option", "aria-selected": "false" } },
      element("div", { className: "line", textContent: line }),
      element("div", { className: "what" }, visibleText(what)));
    shown.addEventListener("click", () => openTraining(entry, true));
    return shown;
  });
  document.getElementById("training-list").replaceChildren(...entries);
  const { entry } = training;
  openTraining(training.shown.find((other) => entry && other.name === entry.name) ?? training.shown[0]);
}

function stepLines({ name, groups }) {
  const problems = groups.length === 1 ? "1 problem" : `${groups.length} problems`;
  return [`step ${name} · reward ${round(meanReward(groups))}`, problems];
}

function problemLines({ groups }) {
  const steps = groups.map(({ step }) => step).join(", ");
  const rewards = groups.map((group) => round(meanReward([group]))).join(" → ");
  return [`steps ${steps} · reward ${rewards}`, groups[0].problem.text.slice(0, SNIPPET).replaceAll("\n", " ")];
}

/** Shows a step or a problem; `isChosen` puts it in the address. */
function openTraining(entry, isChosen = false) {
  training.entry = entry ?? null;
  const place = training.shown.indexOf(entry);
  document.querySelectorAll("#training-list .row").forEach((row, number) => {
    row.setAttribute("aria-selected", String(number === place));
  });
  const holder = document.getElementById("training-detail");
  holder.scrollTop = 0;
  if (!entry) {
    holder.replaceChildren(element("p", { className: "empty", textContent: "No rollout matches the search." }));
    return;
  }
  const isStep = training.view === "step";
  const back = element("button", { type: "button", className: "back", textContent: "← list" });
  back.addEventListener("click", () => document.getElementById("training-browser").classList.remove("reading"));
  holder.replaceChildren(back, ...(isStep ? [] : [problemCard(entry.groups[0].problem)]),
    ...entry.groups.map((group) => groupCard(group, isStep)));
  if (isChosen) {
    document.getElementById("training-browser").classList.add("reading");
    history.replaceState(null, "", `#training/${training.view}/${encodeURIComponent(entry.name)}`);
  }
}

/** A problem with its reference, and its prompt folded. */
function problemCard(problem) {
  const question = element("p", { className: "question", attributes: { dir: "auto" } }, visibleText(problem.text));
  return element("div", {}, question, element("div", { className: "facts" }, ...fact("reference", problem.reference)), promptDetails(problem.prompt));
}

function groupCard(group, isStep) {
  const { rows } = group;
  const gaps = rows.map((row) => row.log_prob_gap).filter((gap) => gap !== null);
  const numbers = element("div", { className: "facts" },
    ...fact("step", group.step),
    ...fact("mean reward", round(meanReward([group]))),
    ...(gaps.length ? fact("log-prob gap", Math.max(...gaps).toExponential(1)) : []),
    ...(rows.every((row) => row.advantage === 0) ? [element("span", { className: "badge wrong", textContent: "no signal" })] : []));
  const answers = [...rows].sort((one, other) => other.reward - one.reward || one.sample - other.sample);
  return element("section", { className: "answer-card" }, ...(isStep ? [problemCard(group.problem)] : []), numbers, ...answers.map(rolloutCard));
}

function rolloutCard(row) {
  const tone = row.advantage > 0 ? "right" : row.advantage < 0 ? "wrong" : "";
  const left = row.num_tokens - row.num_loss_tokens;
  const summary = element("summary", {},
    element("span", { className: `badge ${tone}`, textContent: `${row.advantage > 0 ? "+" : ""}${row.advantage.toFixed(2)}`, title: "advantage" }),
    element("span", { className: "what" }, ` reward ${round(row.reward)} · `, visibleText(row.completion.slice(-80).replaceAll("\n", " "))));
  const parts = Object.entries(row.rewards).flatMap(([name, value]) => fact(name, value === null ? "–" : round(value)));
  const extra = Object.entries(row.extra).flatMap(([name, value]) => fact(name, String(value)));
  const facts = element("div", { className: "facts" }, ...parts,
    ...fact("tokens", row.num_tokens),
    ...(left ? fact("not in the loss", left) : []),
    ...(row.log_prob_gap === null ? [] : fact("log-prob gap", row.log_prob_gap.toExponential(1))),
    ...extra,
    ...(row.truncated ? [element("span", { className: "badge wrong", textContent: "truncated" })] : []));
  return element("details", { className: "rollout" }, summary, element("pre", { className: "completion" }, visibleText(row.completion.slice(0, SHOWN_CHARACTERS))), facts);
}

/** Opens `#training/step/12` or `#training/problem/3`; false where the page has no such entry. */
function followTraining(parts) {
  const [view, name] = parts;
  const entry = training.views[view]?.find((other) => other.name === name);
  if (!entry) return false;
  document.getElementById("training-view").value = training.view = view;
  document.getElementById("training-search").value = "";
  listTraining();
  openTraining(entry, true);
  document.getElementById("training-browser").scrollIntoView();
  return true;
}

async function startTraining() {
  const browser = document.getElementById("training-browser");
  if (!browser) return;
  groupRollouts(await unpack("training"));
  const view = document.getElementById("training-view");
  view.addEventListener("change", () => {
    training.view = view.value;
    training.entry = null;
    listTraining();
  });
  document.getElementById("training-order").addEventListener("change", listTraining);
  document.getElementById("training-search").addEventListener("input", listTraining);
  document.getElementById("training-form").addEventListener("submit", (event) => event.preventDefault());
  listTraining();
  browser.setAttribute("aria-busy", "false");
}
