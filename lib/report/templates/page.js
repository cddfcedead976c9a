"use strict";
// Shared by all scripts: safe text, and the choice of colours.

/** An element with properties and children; strings become text nodes, never markup. */
function element(tag, { attributes = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Turns columns (lists by field name) into rows, each with its problem. */
function rowsOf(columns, problems) {
  return columns.place.map((place, number) => {
    const row = { problem: problems[place] };
    for (const [name, values] of Object.entries(columns)) row[name] = values[number];
    return row;
  });
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u;

/** Untrusted text as nodes: invisible characters are written out, `needle` is marked. */
function visibleText(text, needle = "") {
  const made = document.createDocumentFragment();
  const parts = needle ? splitAround(text, needle) : [text];
  parts.forEach((part, number) => {
    const target = number % 2 ? made.appendChild(document.createElement("mark")) : made;
    appendVisible(target, part);
  });
  return made;
}

function appendVisible(target, text) {
  let plain = "";
  for (const character of text) {
    if (character === "\n" || character === "\t" || !HIDDEN.test(character)) {
      plain += character;
      continue;
    }
    const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    target.append(plain, element("span", { className: "hidden-character", textContent: `U+${code}` }));
    plain = "";
  }
  target.append(plain);
}

/** [before, match, between, match, …, after], ignoring case. */
function splitAround(text, needle) {
  const lower = text.toLowerCase();
  if (lower.length !== text.length) return [text];
  const parts = [];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    parts.push(text.slice(from, at), text.slice(at, at + needle.length));
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}

/** The whole prompt, folded. */
function promptDetails(text) {
  const shown = element("pre", { className: "prompt" }, visibleText(text));
  return element("details", {}, element("summary", { textContent: "prompt as the model read it" }), shown);
}

const THEMES = [
  { name: "", symbol: "◐", label: "same as system" },
  { name: "light", symbol: "☀", label: "light" },
  { name: "dark", symbol: "☾", label: "dark" },
];

function startTheme() {
  const button = document.getElementById("theme");
  let number = 0;
  button.addEventListener("click", () => {
    number = (number + 1) % THEMES.length;
    const { name, symbol, label } = THEMES[number];
    document.documentElement.dataset.theme = name;
    button.textContent = symbol;
    button.setAttribute("aria-label", `Colours: ${label}`);
    document.dispatchEvent(new Event("theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.dispatchEvent(new Event("theme"));
  });
}

/** Resolves once the page has been painted. */
function painted() {
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

// The report has no date, so that equal runs have equal bytes; the date shown is the file's.
const written = document.getElementById("written");
const modified = new Date(document.lastModified); // in the reader's time zone
if (Number(modified)) {
  const parts = [modified.getFullYear(), modified.getMonth() + 1, modified.getDate()];
  written.textContent = parts.map((part) => String(part).padStart(2, "0")).join("-");
  written.parentElement.hidden = false;
}

// Print the folded parts too, and fold them again afterwards.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details.fold:not([open])")];
  for (const details of folded) details.open = true;
});
addEventListener("afterprint", () => folded.forEach((details) => (details.open = false)));
startTheme();
