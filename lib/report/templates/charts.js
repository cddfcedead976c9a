"use strict";
// Draws a figure's charts when they come near the screen, and the rest when the browser is idle, since
// printing does not wait for them. Draws all again when the colours change.

const FLUID = { width: "container", autosize: { type: "fit-x", contains: "padding" } };

const charts = { figures: new Map(), look: null, library: null, drawn: new Set() };

/** Evaluates Vega, Vega-Lite and Vega-Embed, once. */
function chartLibrary() {
  charts.library ??= unpackText("vega").then((source) => {
    document.head.append(element("script", { textContent: source }));
  });
  return charts.library;
}

/** The shared look with the page's text colour, which has more contrast than the figures' grey. */
function chartLook() {
  const muted = element("i", { attributes: { style: "color: var(--muted)" } });
  document.body.append(muted);
  const color = getComputedStyle(muted).color;
  muted.remove();
  return JSON.parse(JSON.stringify(charts.look.config).replaceAll(charts.look.ink, color));
}

async function drawFigure(holder) {
  await chartLibrary();
  const config = chartLook();
  const panels = charts.figures.get(holder.dataset.figure);
  const plots = holder.querySelectorAll(".plot");
  charts.drawn.add(holder);
  holder.style.setProperty("--drawn", `${plots[0].clientWidth}px`); // on paper, where it is scaled
  await Promise.all(
    panels.map(({ spec }, number) =>
      vegaEmbed(plots[number], { ...FLUID, ...spec }, { config, renderer: "svg", actions: false }),
    ),
  );
  holder.dataset.state = "drawn";
}

async function startCharts() {
  await painted();
  charts.look = await unpack("look");
  for (const figure of await unpack("charts")) charts.figures.set(figure.name, figure.panels);
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      drawFigure(target);
    }
  }, { rootMargin: "600px" });
  const holders = [...document.querySelectorAll(".charts")];
  const drawRest = () => holders.filter((holder) => !charts.drawn.has(holder)).map(drawFigure);
  holders.forEach((holder) => seen.observe(holder));
  addEventListener("beforeprint", drawRest);
  (window.requestIdleCallback ?? setTimeout)(drawRest);
  document.addEventListener("theme", () => charts.drawn.forEach(drawFigure));
}

startCharts();
