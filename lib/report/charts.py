"""Vega-Lite building blocks: panels, figures, and the one look they share.

A panel has no width: a figure for Markdown gives it one, the page lets its container decide.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import vl_convert

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, object]]

# Mid-tones: each stands out by 3 : 1 or more on white and on a dark page (WCAG 2).
INK = "#7f868f"
PALETTE = ("#7f868f", "#d26a1b", "#2f81f7", "#9b62d6", "#218c5a", "#d1477a")
"""Colours of the checkpoints in the order of training, over and over."""
CLASS_COLORS = {"11": "#218c5a", "10": "#b07d12", "01": "#9b62d6", "00": "#7f868f"}
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
SVG_PANEL_WIDTH = 320

LOOK: Spec = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": INK,
        "tickColor": INK,
        "gridColor": INK,
        "gridOpacity": 0.2,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "labelPadding": 6,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False},
    "legend": {
        "labelColor": INK,
        "title": None,
        "orient": "top",
        "labelFontSize": 11,
        "symbolOpacity": 1,
        "symbolStrokeWidth": 2,
    },
    "header": {"labelColor": INK, "labelFontSize": 12},
    "title": {"color": INK, "anchor": "start", "fontSize": 13, "frame": "group"},
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot with its title."""

    title: str
    spec: Spec

    @property
    def reserve(self) -> int:
        """Pixels that the page keeps free, so that a chart that is drawn late moves nothing.

        As measured in a browser: 53 for the axis below the plot, 25 for a legend above it.
        """
        color = self.spec["encoding"].get("color")
        has_legend = color and color.get("legend", {}) is not None
        return int(self.spec["height"]) + 53 + (25 if has_legend else 0)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels that belong together; `name` is the file's stem."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2


def quantity(name: str, **settings: Any) -> Spec:
    """A channel of a number."""
    return {"field": name, "type": "quantitative", **settings}


def category(name: str, **settings: Any) -> Spec:
    """A channel of a name."""
    return {"field": name, "type": "nominal", **settings}


SHARE: Spec = {"title": None, "axis": {"format": "%"}, "scale": {"domain": [0, 1]}}
"""An axis of shares of 1."""

STEP = quantity("step", title="step", axis={"tickMinStep": 1})
SERIES_COLORS = PALETTE[2:] + PALETTE[:2]

BAND: Spec = {
    "mark": {"type": "area", "opacity": 0.18},
    "encoding": {"y": quantity("low", **SHARE), "y2": {"field": "high"}},
}
POINTS: Spec = {
    "mark": {"type": "line", "point": True, "tooltip": True},
    "encoding": {"y": quantity("value", **SHARE)},
}


def figure_svg(figure: Figure) -> str:
    """The panels side by side as one SVG that reads on a light and on a dark page."""
    sized = [
        {"title": panel.title, "width": SVG_PANEL_WIDTH, **panel.spec} for panel in figure.panels
    ]
    spec = {
        "concat": sized,
        "columns": figure.columns,
        "spacing": 28,
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
    }
    return str(vl_convert.vegalite_to_svg(spec, config=LOOK)) + "\n"


def panel_of(title: str, rows: Rows, height: int, encoding: Spec, **drawing: Any) -> Panel:
    """A panel of `rows`; `drawing` is its mark or its layers."""
    spec = {"height": height, "data": {"values": list(rows)}, "encoding": encoding, **drawing}
    return Panel(title, spec)


def colors_of(names: Sequence[str], colors: Sequence[str] = PALETTE) -> dict[str, str]:
    """A colour for each name, from the beginning again where there are too few."""
    return dict(zip(names, itertools.cycle(colors), strict=False))


def colored_by(name: str, values: Sequence[str], colors: Sequence[str] = PALETTE) -> Spec:
    """Colour by a field whose values keep their colour from figure to figure."""
    legend = {} if len(values) > 1 else {"legend": None}
    scale = {"domain": list(values), "range": list(colors_of(values, colors).values())}
    return category(name, scale=scale, **legend)


def whiskers(rows: Rows, *, title: str, checkpoints: Sequence[str], labels: Sequence[str]) -> Panel:
    """A dot with its 95 % interval for each label and checkpoint; labels run down.

    Args:
        rows: {"label", "checkpoint", "value", "low", "high", "n"}, shares of 1.
        title: what is measured.
        checkpoints: in the order of their colours.
        labels: in the order of the rows.
    """
    encoding = {
        "y": category("label", sort=list(labels), title=None, axis={"labelLimit": 220}),
        "color": colored_by("checkpoint", checkpoints),
        "tooltip": [category(name) for name in ("label", "checkpoint")]
        + [quantity(name, format=".3f") for name in ("value", "low", "high")]
        + [quantity("n")],
    }
    if len(checkpoints) > 1:
        encoding["yOffset"] = category("checkpoint", sort=list(checkpoints))
    across = SHARE | {"axis": {"format": "%", "grid": True}}
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.55},
            "encoding": {"x": quantity("low", **across), "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {"x": quantity("value", **across)},
        },
    ]
    height = len(labels) * (12 + 12 * len(checkpoints))
    return panel_of(title, rows, height, encoding, layer=layers)


def measured(rows: Rows, *, title: str, series: Sequence[str]) -> Panel:
    """Shares measured at a few steps with their 95 % intervals, dashed: what they were at first.

    Args:
        rows: {"step", "series", "value", "low", "high"}, by step.
        title: what is measured.
        series: the names of the lines in the order of their colours.
    """
    encoding = {
        "x": STEP,
        "color": colored_by("series", series, SERIES_COLORS),
    }
    first = {"window": [{"op": "first_value", "field": "value", "as": "first"}]}
    layers = [
        BAND,
        {
            "transform": [first | {"groupby": ["series"], "frame": [None, None]}],
            "mark": {"type": "line", "strokeDash": [4, 4], "opacity": 0.7},
            "encoding": {"y": quantity("first", **SHARE)},
        },
        POINTS,
    ]
    return panel_of(title, rows, 180, encoding, layer=layers)
