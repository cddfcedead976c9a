"use strict";
// The rollout browser: a list that draws only the rows on the screen, and the keyboard.

const ROW_HEIGHT = 64;
const SNIPPET = 160;

const rollouts = {
  checkpoints: [], benchmarks: [], classes: new Map(), reasons: {}, colors: {}, before: {}, exported: "",
  rows: [], groups: new Map(), shown: [], selected: -1,
};

function groupKey(row, checkpoint) {
  return `${checkpoint} ${row.mode} ${row.place}`;
}

/** All samples of a row's problem by its checkpoint in its mode. */
function siblings(row) {
  return rollouts.groups.get(groupKey(row, row.checkpoint)) ?? [];
}

/** The same problem and sample by another checkpoint, or its first sample; null without any. */
function counterpart(row, checkpoint) {
  const samples = rollouts.groups.get(groupKey(row, checkpoint)) ?? [];
  return samples.find((other) => other.sample === row.sample) ?? samples[0] ?? null;
}

async function unpackRollouts() {
  const { problems, ...header } = await unpack("problems");
  Object.assign(rollouts, header, { classes: new Map(header.classes) });
  for (const checkpoint of header.checkpoints) {
    const columns = await unpack(`rollouts-${checkpoint}`);
    for (const row of rowsOf(columns, problems)) {
      row.checkpoint = checkpoint;
      rollouts.rows.push(row);
      const key = groupKey(row, checkpoint);
      if (!rollouts.groups.has(key)) rollouts.groups.set(key, []);
      rollouts.groups.get(key).push(row);
    }
  }
}

/** Applies the filters and starts the list anew. */
function refresh() {
  const byClass = matchingByClass(rollouts.rows);
  showCounts(byClass);
  rollouts.shown = rollouts.rows.filter((row) => filters.classes.has(row.label) && matches(row));
  if (filters.order) rollouts.shown.sort(COMPARE[filters.order]);
  const [matching, all] = [rollouts.shown.length, rollouts.rows.length].map((n) => n.toLocaleString("en"));
  document.getElementById("count").textContent = `${matching} of ${all}`;
  document.getElementById("spacer").style.height = `${rollouts.shown.length * ROW_HEIGHT}px`;
  document.getElementById("list").scrollTop = 0;
  select(rollouts.shown.length ? 0 : -1);
}

/** Draws the rows that are on the screen, and a few around them. */
function drawList() {
  const list = document.getElementById("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
  const last = Math.min(rollouts.shown.length, first + Math.ceil(list.clientHeight / ROW_HEIGHT) + 8);
  list.querySelectorAll(".row").forEach((row) => row.remove());
  for (let place = first; place < last; place += 1) list.append(rowOf(rollouts.shown[place], place));
}

function rowOf(row, place) {
  const isSelected = place === rollouts.selected;
  const made = element("div", {
    className: "row",
    id: `row-${place}`,
    attributes: { role: "option", "aria-selected": String(isSelected), style: `top: ${place * ROW_HEIGHT}px` },
  });
  const dot = element("i", { className: "dot" });
  dot.style.setProperty("--color", rollouts.colors[row.checkpoint]);
  const answer = element("span", { className: "given" });
  answer.append(visibleText((row.answer ?? "–").slice(0, 40)));
  const { problem } = row;
  const level = problem.level === "" ? "" : ` · level ${problem.level}`;
  const sample = row.mode === "sampled" ? ` ${row.sample + 1}` : "";
  const meta = `${row.checkpoint} · ${row.mode}${sample}${level}`;
  made.append(
    element("div", { className: "line" }, badgeOf(row), dot, element("span", { className: "meta", textContent: meta }), answer),
    element("div", { className: "what" }, visibleText(problem.problem.slice(0, SNIPPET).replaceAll("\n", " "), filters.needle)),
  );
  made.addEventListener("click", () => {
    select(place);
    document.getElementById("browser").classList.add("reading");
  });
  return made;
}

/** Selects a row of the list and shows its completion. */
function select(place) {
  rollouts.selected = place;
  const list = document.getElementById("list");
  const top = place * ROW_HEIGHT;
  if (place >= 0) {
    list.setAttribute("aria-activedescendant", `row-${place}`);
    if (top < list.scrollTop) list.scrollTop = top;
    const bottom = top + ROW_HEIGHT - list.clientHeight;
    if (bottom > list.scrollTop) list.scrollTop = bottom;
  } else list.removeAttribute("aria-activedescendant");
  drawList();
  showDetail(place < 0 ? null : rollouts.shown[place]);
}

function move(step) {
  if (!rollouts.shown.length) return;
  select(Math.min(rollouts.shown.length - 1, Math.max(0, rollouts.selected + step)));
}

function moveSample(step) {
  if (!detail.row) return;
  const samples = siblings(detail.row);
  const place = samples.indexOf(detail.row) + step;
  if (samples[place]) showDetail(samples[place]);
}

function nextComparison() {
  if (!detail.row) return;
  const others = rollouts.checkpoints.filter((name) => name !== detail.row.checkpoint);
  detail.other = others[(others.indexOf(comparedWith(detail.row)) + 1) % others.length];
  showDetail(detail.row);
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  PageDown: () => move(10),
  PageUp: () => move(-10),
  Home: () => move(-rollouts.shown.length),
  End: () => move(rollouts.shown.length),
  Enter: () => document.getElementById("browser").classList.add("reading"),
  l: () => moveSample(1),
  h: () => moveSample(-1),
  ArrowRight: () => moveSample(1),
  ArrowLeft: () => moveSample(-1),
  c: nextComparison,
  Escape: closeDetail,
};
const ANYWHERE = ["j", "k", "h", "l", "c"];

/** Letters work except while typing; arrows only in the list, since elsewhere they scroll the page. */
function startKeyboard() {
  const list = document.getElementById("list");
  const search = document.getElementById("search");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape") closeDetail();
    else if (!isTyping && (ANYWHERE.includes(event.key) || (event.target === list && event.key in KEYS))) {
      event.preventDefault();
      KEYS[event.key]();
      document.getElementById("browser").scrollIntoView({ block: "nearest" });
    }
  });
}

async function startRollouts() {
  await painted();
  await unpackRollouts();
  startFilters(refresh);
  startKeyboard();
  const list = document.getElementById("list");
  list.addEventListener("scroll", () => requestAnimationFrame(drawList), { passive: true });
  new ResizeObserver(drawList).observe(list);
  await startTraining();
  refresh();
  followAddress();
  addEventListener("hashchange", followAddress);
  document.getElementById("browser").setAttribute("aria-busy", "false");
}

startRollouts();
