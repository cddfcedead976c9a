"use strict";
// The address of what is shown: #checkpoint/benchmark/problem/mode/sample for a completion,
// #training/step/12 or #training/problem/3 for training rollouts.

const address = { isLive: false };

/** Puts the shown completion into the address, once the page has followed its own. */
function showAddress() {
  if (!address.isLive || !detail.row) return;
  const { checkpoint, mode, sample, problem } = detail.row;
  const parts = [checkpoint, problem.benchmark, problem.id, mode, String(sample + 1)];
  history.replaceState(null, "", `#${parts.map(encodeURIComponent).join("/")}`);
}

/** The completion that an address names; mode and sample may be left out. */
function rowAt(hash) {
  const [checkpoint, benchmark, id, mode, sample] = hash.slice(1).split("/").map(decoded);
  return rollouts.rows.find(
    (row) =>
      row.checkpoint === checkpoint &&
      row.problem.benchmark === benchmark &&
      row.problem.id === id &&
      (!mode || row.mode === mode) &&
      (!sample || row.sample + 1 === Number(sample)),
  );
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Opens the completion, step or problem that the address names; for a completion, resets all filters. */
function followAddress() {
  const isDeep = location.hash.includes("/");
  const [first, ...rest] = location.hash.slice(1).split("/").map(decoded);
  const row = isDeep ? rowAt(location.hash) : undefined;
  const isFound = !isDeep || row || (first === "training" && followTraining(rest));
  document.getElementById("unknown").hidden = Boolean(isFound);
  document.getElementById("unknown-link").textContent = isFound ? "" : location.hash;
  if (!isFound) document.getElementById("unknown").scrollIntoView();
  if (row) {
    liftFilters(row);
    refresh();
    select(rollouts.shown.indexOf(row));
    const browser = document.getElementById("browser");
    browser.classList.add("reading");
    browser.scrollIntoView();
  }
  address.isLive = true;
}

function liftFilters(row) {
  const kept = { checkpoint: row.checkpoint, benchmark: row.problem.benchmark };
  for (const select of document.querySelectorAll("[data-filter]")) {
    const { filter } = select.dataset;
    select.value = kept[filter] ?? "";
    filters.values[filter] = select.value;
  }
  document.getElementById("search").value = filters.needle = "";
  for (const chip of document.querySelectorAll(".chip")) {
    filters.classes.add(chip.dataset.class);
    chip.setAttribute("aria-pressed", "true");
  }
}
