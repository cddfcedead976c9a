"use strict";
// One problem in full: the question, one checkpoint's answer, and another checkpoint's beside it.

const SHOWN_CHARACTERS = 20000;

const detail = { row: null, other: null, isPromptOpen: false };

/** Shows `row`, beside it the same problem and sample of the checkpoint to compare with. */
function showDetail(row) {
  detail.row = row;
  showAddress();
  const holder = document.getElementById("detail");
  holder.replaceChildren(...(row ? detailOf(row) : [emptyDetail()]));
  holder.scrollTop = 0;
}

function emptyDetail() {
  return element("p", { className: "empty", textContent: "No completion matches the filters." });
}

function detailOf(row) {
  const { problem } = row;
  const back = element("button", { type: "button", className: "back", textContent: "← list" });
  back.addEventListener("click", closeDetail);
  const question = element("p", { className: "question", attributes: { dir: "auto" } });
  question.append(visibleText(problem.problem, filters.needle));
  const cards = [row, counterpart(row, comparedWith(row))].filter(Boolean);
  return [
    back,
    element(
      "div",
      { className: "facts" },
      ...fact("reference", problem.reference),
      ...fact("level", problem.level),
      ...fact("subject", problem.subject),
      ...fact("tags", problem.tags.join(", ")),
      ...fact("benchmark", problem.benchmark),
      ...fact("id", problem.id),
    ),
    question,
    element("div", { className: "pair" }, ...cards.map((shown, place) => cardOf(shown, place === 1))),
  ];
}

function fact(name, value) {
  if (value === "") return [];
  const shown = element("b");
  shown.append(visibleText(String(value).slice(0, 500), filters.needle));
  return [element("span", {}, `${name} `, shown)];
}

/** The checkpoint to compare with: the reader's choice, else the parent; for the first, the second. */
function comparedWith(row) {
  if (detail.other !== null && detail.other !== row.checkpoint) return detail.other;
  return rollouts.before[row.checkpoint] ?? rollouts.checkpoints[1];
}

function cardOf(row, isOther) {
  const head = element("h3", {}, element("i", { className: "dot" }), row.checkpoint, badgeOf(row));
  if (isOther) head.append(otherSelect(row));
  const text = element("pre", { className: "completion" });
  fillCompletion(text, row, SHOWN_CHARACTERS);
  const card = element("section", { className: "answer-card" }, head, samplesOf(row), verdictOf(row), promptOf(row), text, numbersOf(row));
  card.style.setProperty("--color", rollouts.colors[row.checkpoint]);
  card.dataset.checkpoint = row.checkpoint;
  return card;
}

/** The prompt; once unfolded, it stays so for the next completions. */
function promptOf(row) {
  const { prompt } = row.problem;
  const text = typeof prompt === "string" ? prompt : prompt[row.checkpoint];
  if (text === undefined) return null;
  const shown = promptDetails(text);
  shown.open = detail.isPromptOpen;
  shown.addEventListener("toggle", () => { detail.isPromptOpen = shown.open; });
  return shown;
}

function otherSelect(row) {
  const select = element("select", { attributes: { "aria-label": "Compare with" } });
  for (const name of rollouts.checkpoints) {
    if (name !== detail.row.checkpoint) select.append(new Option(name, name, false, name === row.checkpoint));
  }
  select.addEventListener("change", () => {
    detail.other = select.value;
    showDetail(detail.row);
  });
  return select;
}

function badgeOf(row) {
  const tone = toneOf(row);
  const title = tone ? rollouts.classes.get(row.label) : reasonOf(row);
  return element("span", { className: `badge ${tone}`, title, textContent: tone || "not graded" });
}

/** A square for each sample of this problem by this checkpoint, green where it is right. */
function samplesOf(row) {
  const samples = siblings(row);
  if (samples.length < 2) return null;
  const squares = samples.map((other) => {
    const square = element("button", {
      type: "button",
      className: toneOf(other),
      textContent: String(other.sample + 1),
      title: `sample ${other.sample + 1}: ${toneOf(other) ? rollouts.classes.get(other.label) : "not graded"}`,
      attributes: { "aria-current": String(other === row) },
    });
    square.addEventListener("click", () => showDetail(counterpart(other, detail.row.checkpoint)));
    return square;
  });
  return element("div", { className: "samples" }, ...squares);
}

function verdictOf(row) {
  const why = element("p", { className: "why" });
  if (!toneOf(row)) why.append("Not graded");
  else if (row.answer === null) why.append("No answer could be extracted");
  else {
    const answer = element("code");
    answer.append(visibleText(row.answer.slice(0, 500)));
    why.append("Extracted answer ", answer, isRight(row) ? ", right" : ", wrong");
  }
  const form = row.label[0] === "1" ? "format right" : "format wrong";
  const reason = element("span", { className: "reason", title: `decided by: ${row.decided_by}`, textContent: reasonOf(row) });
  why.append(": ", reason, `; ${form}.`);
  return why;
}

/** The reason for a grade, in words if the step has a description. */
function reasonOf(row) {
  return rollouts.reasons[row.decided_by] ?? `decided by ${row.decided_by}`;
}

/** The completion's text with the last occurrence of its extracted answer marked. */
function answered(text, answer) {
  const at = answer ? text.lastIndexOf(answer) : -1;
  if (at < 0) return [visibleText(text, filters.needle)];
  const marked = element("mark", { className: "answer", title: "extracted answer" }, visibleText(answer));
  return [visibleText(text.slice(0, at), filters.needle), marked, visibleText(text.slice(at + answer.length), filters.needle)];
}

function fillCompletion(holder, row, limit) {
  holder.replaceChildren(...answered(row.completion.slice(0, limit), row.answer));
  const left = row.completion.length - limit;
  if (left <= 0) return;
  const more = element("button", { type: "button", textContent: `show ${left.toLocaleString("en")} more characters` });
  more.addEventListener("click", () => fillCompletion(holder, row, limit * 5));
  holder.append("\n", more);
}

function numbersOf(row) {
  const parts = Object.entries(row.rewards).flatMap(([name, value]) => fact(name, round(value)));
  return element(
    "div",
    { className: "facts" },
    ...fact("reward", round(row.reward)),
    ...parts,
    ...fact("tokens", row.num_tokens),
    ...(row.truncated ? [element("span", { className: "badge wrong", textContent: "truncated" })] : []),
  );
}

function round(value) {
  return String(Number(value.toFixed(4)));
}

function closeDetail() {
  document.getElementById("browser").classList.remove("reading");
  document.getElementById("list").focus({ preventScroll: true });
}
