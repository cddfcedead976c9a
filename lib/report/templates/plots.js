"use strict";
// DVC's page draws a chart as it is parsed, by `vegaEmbed(selector, spec)`; the library follows.

const waiting = [];
globalThis.vegaEmbed = (...chart) => waiting.push(chart);

addEventListener("DOMContentLoaded", async () => {
  const library = document.createElement("script");
  library.textContent = await unpackText("vega"); // sets window.vegaEmbed
  document.head.append(library);
  const actions = { export: true, source: false, compiled: false, editor: false };
  const options = { config: await unpack("look"), renderer: "svg", actions };
  await Promise.all(waiting.map(([selector, spec]) => vegaEmbed(selector, spec, options)));
  document.body.setAttribute("aria-busy", "false");
});
