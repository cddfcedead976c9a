"""Vega-Lite building blocks of the report's charts: channels, panels, figures, common style.

The same panels are drawn twice: into SVG files for `report.md` (`figure_svg`), and by the browser
in `report.html`. A panel has no width: `figure_svg` sets one, the page lets its container decide.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import vl_convert

from lib.core.errors import shorten, visible
from lib.report.text import source

Spec = dict[str, Any]
"""Vega-Lite JSON, or a part of it."""

PlotRows = Sequence[Mapping[str, object]]
"""A panel's data: field name → value, a mapping per point."""

# Mid-tones: each stands out by 3 : 1 or more on white and on a dark page (WCAG 2).
INK = "#7f868f"
"""The colour of text and axes, also in look.json."""
PALETTE = ("#7f868f", "#d26a1b", "#2f81f7", "#9b62d6", "#218c5a", "#d1477a")
"""Checkpoint colours in the order of training, used cyclically."""
SVG_PANEL_WIDTH = 320
OBJECT_PROTOTYPE = {
    *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"),
    *("toString", "valueOf", "__proto__", "__defineGetter__", "__defineSetter__"),
    *("__lookupGetter__", "__lookupSetter__"),
}
"""Keys that every JavaScript object has."""
LEGEND_CHARACTERS = 50
"""Characters of names per legend line; more would run past SVG_PANEL_WIDTH."""

# One SVG for light and dark pages: the background is transparent, since GitHub shows report.md in
# either, and the grid is faint by opacity: a lighter grey would be loud on a dark page.
LOOK: Spec = json.loads(source("look.json"))
"""The common style, a Vega-Lite config."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot with its title."""

    title: str
    spec: Spec


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels that belong together.

    Attributes:
        name: stem of the SVG file.
        columns: panels side by side in the SVG file.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2


def quantity(name: str, **settings: Any) -> Spec:
    """Return the Vega-Lite channel of the numeric field `name`; `settings` are further keys."""
    return {"field": name, "type": "quantitative", **settings}


def category(name: str, **settings: Any) -> Spec:
    """Return the Vega-Lite channel of the text field `name`; `settings` are further keys."""
    return {"field": name, "type": "nominal", **settings}


SHARE_AXIS: Spec = {
    "type": "quantitative",
    "title": None,
    "axis": {"format": "%"},
    "scale": {"domain": [0, 1]},
}
"""Channel of a rate in [0, 1], printed in percent; a layer of `LAYERS` adds its field."""

STEP = quantity("step", title="step", axis={"tickMinStep": 1})
"""Axis of training steps, labelled at whole steps only."""

SERIES_COLORS = PALETTE[2:] + PALETTE[:2]
"""Colours of the lines in a panel over steps: `PALETTE`, rotated to start with blue."""

LAYERS: dict[str, Any] = json.loads(source("layers.json"))
"""Vega-Lite layers by name that several panels share."""


def figure_svg(figure: Figure) -> str:
    """Render the panels as the text of one SVG file, `figure.columns` side by side."""
    # A panel's spec has no width and no title: the page takes its container's width, and writes
    # the title itself.
    views = [
        {"title": panel.title, "width": SVG_PANEL_WIDTH, **panel.spec} for panel in figure.panels
    ]
    spec = {
        "concat": views,
        "columns": figure.columns,
        "spacing": 28,
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
    }
    return str(vl_convert.vegalite_to_svg(spec, config=LOOK)) + "\n"


def panel_of(title: str, rows: PlotRows, height: int, encoding: Spec, **drawing: Any) -> Panel:
    """Return a panel of `rows`; `drawing` is its `mark={…}` or its `layer=[…]`."""
    spec = {"height": height, "data": {"values": list(rows)}, "encoding": encoding, **drawing}
    return Panel(title, spec)


def chart_label(text: str) -> str:
    """Return a label from data, safe as a key of Vega's objects, in which `constructor` exists.

    Control characters, on which the SVG writer aborts the process, become visible.
    """
    label = visible(shorten(text, 60))
    return f"{label}\u2060" if label in OBJECT_PROTOTYPE else label


def colors_of(names: Sequence[str], colors: Sequence[str] = PALETTE) -> dict[str, str]:
    """Assign a colour to each name, cyclically if there are too few."""
    return dict(zip(names, itertools.cycle(colors), strict=False))


def colored_by(name: str, values: Sequence[str], colors: Sequence[str] = PALETTE) -> Spec:
    """Return the colour channel of the field `name`, with a legend if there are several colours.

    Args:
        name: the field of a row.
        values: all values of the field; the i-th has the i-th colour.
        colors: used again from the start if there are more values.
    """
    # Names per line of the legend, each as wide as the longest one: the panel's edge would cut off
    # a line of more than LEGEND_CHARACTERS. `default` is for no values.
    num_columns = max(1, LEGEND_CHARACTERS // max(map(len, values), default=1))
    legend: Spec
    if len(values) < 2:
        legend = {"legend": None}
    elif len(values) > num_columns:
        legend = {"legend": {"columns": num_columns, "labelLimit": 0}}
    else:
        legend = {}
    # An explicit domain, so that colours follow the order of `values`, and a value without a row
    # in this panel keeps its colour. Vega-Lite's default is the sorted values of the rows.
    scale = {"domain": list(values), "range": list(colors_of(values, colors).values())}
    return category(name, scale=scale, **legend)


def whiskers(
    rows: PlotRows, *, title: str, checkpoints: Sequence[str], labels: Sequence[str]
) -> Panel:
    """Draw a forest plot: a line of dots per label, a dot with its interval per checkpoint.

    Args:
        rows: one dot each, {"label", "checkpoint", "value", "low", "high", "n"}: rate and ends of
            the 95 % interval in [0, 1], number of problems.
        title: the panel's title.
        checkpoints: in the order of their colours.
        labels: the `label` values from top to bottom.
    """
    encoding = {
        "x": SHARE_AXIS | {"axis": {"format": "%", "grid": True, "labelSeparation": 6}},
        "y": category("label", sort=list(labels), title=None, axis={"labelLimit": 220}),
        "color": colored_by("checkpoint", checkpoints),
        "tooltip": [
            category("label"),
            category("checkpoint"),
            *(quantity(name, format=".3f") for name in ("value", "low", "high")),
            quantity("n"),
        ],
    }
    # A label's dots are drawn one below the other: at one height, dots of equal rates would hide
    # each other.
    if len(checkpoints) > 1:
        encoding["yOffset"] = category("checkpoint", sort=list(checkpoints))
    height = len(labels) * (12 + 12 * len(checkpoints))
    return panel_of(title, rows, height, encoding, layer=LAYERS["whiskers"])


def learning_curve(
    rows: PlotRows,
    *,
    title: str,
    series: Sequence[str],
    best: Mapping[str, float] | None = None,
) -> Panel:
    """Draw a rate over training steps: a line with its 95 % band for each series.

    A dashed horizontal line marks each series' value at its first step.

    Args:
        rows: one point each, {"step", "series", "value", "low", "high"}, sorted by step: rate and
            ends of the 95 % band in [0, 1].
        title: the panel's title.
        series: names of the lines, in the order of their colours.
        best: a point to draw a ring around, {"step", "answer_accuracy"}; None for no ring.
    """
    encoding = {"x": STEP, "y": SHARE_AXIS, "color": colored_by("series", series, SERIES_COLORS)}
    layers = [LAYERS[name] for name in ("band", "first_value", "points")]
    if best:
        ring: Spec = {
            "data": {"values": [dict(best)]},
            "mark": {"type": "point", "size": 250, "strokeWidth": 2, "tooltip": True},
            "encoding": {"y": {"field": "answer_accuracy"}, "color": {"value": INK}},
        }
        layers.append(ring)
    return panel_of(title, rows, 180, encoding, layer=layers)
