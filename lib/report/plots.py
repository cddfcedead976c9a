"""What DVC draws: the curves of a run in one long format, and the page that it draws them on.

A long table has a row for each step and series, so one plot of DVC follows whatever was logged: the
rewards of any stack, any sets of validation problems. `.dvc/plots/curves.json` draws a panel for
each series, and of a stage's own, wide CSV the column that dvc.yaml names. `python -m
lib.report.plots` writes `.dvc/plots/page.html`, on which every `dvc plots` draws (`.dvc/config`).
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from lib.artifacts import replacing
from lib.report.charts import LOOK
from lib.report.figures import CURVES, NORMAL_95, reward_components
from lib.report.inputs import Curve, Run
from lib.report.page import chart_library, packed, packed_text
from lib.report.templates import render, source

PAGE = Path(".dvc/plots/page.html")

COLUMNS = ("step", "series", "value", "low", "high")
"""Of a long table; low and high are a 95 % band, and empty where no error is known."""

OWN_PLOT = {
    "sft": "loss",
    "grpo": "completions/mean_length",
    "dpo": "rewards/accuracies",
    "raft": "loss",
}
"""By stage, the column that dvc.yaml draws from the stage's own CSV, and that no table repeats."""

VALIDATION = {
    "answer_accuracy": "answer accuracy",
    "format_accuracy": "format accuracy",
    "reasoning_present": "share with reasoning",
    "mean_reward": "mean reward",
    "mean_reasoning_chars": "characters of reasoning",
}
"""What validation measures; dvc.yaml draws the answer accuracy of the first set."""

Series = Mapping[int, Mapping[str, float]]
"""By step, "value" and, where the error is known, "low" and "high"."""


def write_plots(run: Run, folder: Path) -> None:
    """Write a long table for each stage that logged anything; what else lies in `folder` goes."""
    with replacing(folder) as partial:
        partial.mkdir()
        for name, table in long_tables(run).items():
            with (partial / f"{name}.csv").open("w", encoding="utf-8", newline="") as lines:
                rows = csv.DictWriter(lines, COLUMNS, restval="", lineterminator="\n")
                rows.writeheader()
                for series, points in table.items():
                    for step, point in points.items():
                        numbers = {column: f"{number:.6g}" for column, number in point.items()}
                        rows.writerow({"step": step, "series": series, **numbers})


def long_tables(run: Run) -> dict[str, dict[str, Series]]:
    """By stage and series, the points; what is zero throughout is left out."""
    settings = run.provenance.get("grpo", {}).get("settings", {}).get("grpo", {})
    problems = settings.get("prompts_per_step", math.nan)
    tables = {}
    for stage, curve in run.curves.items():
        series = training_series(stage, curve, problems=problems)
        series |= validation_series(run.validations[stage])
        tables[stage] = {
            name: points
            for name, points in series.items()
            if any(point["value"] for point in points.values())
        }
    return {stage: series for stage, series in tables.items() if series}


def training_series(stage: str, curve: Curve, *, problems: float) -> dict[str, Series]:
    """Rewards, then what the report shows of a stage.

    Args:
        problems: of a step of GRPO. Completions to one problem are not independent, and how much
            they agree is not logged: the band counts a problem's completions as one, so that the
            error is at most this.
    """
    components = {name: f"reward: {of}" for name, of in reward_components(curve).items()}
    titles = {"reward": "total reward"} | components | CURVES[stage]
    stds = {"reward": "reward_std"} | {name: name.replace("/mean", "/std") for name in components}
    return {
        title: _series(curve, name, error=stds.get(name, ""), scale=1 / math.sqrt(problems))
        for name, title in titles.items()
        if name in curve and name != OWN_PLOT[stage]
    }


def validation_series(curve: Curve) -> dict[str, Series]:
    """What was measured of each set of problems; the columns of the first one do not name it."""
    series = {}
    for name in curve:
        benchmark, _, measure = name.rpartition("/")
        if measure in VALIDATION and name != "answer_accuracy":
            title = f"validation {benchmark}".strip() + f": {VALIDATION[measure]}"
            series[title] = _series(curve, name, error=f"{name}_se")
    return series


def _series(curve: Curve, name: str, *, error: str, scale: float = 1.0) -> Series:
    """The column `name` with a band; `scale` makes a standard error of the column `error`."""
    errors = dict(curve.get(error, ()))
    points = {}
    for step, value in curve[name]:
        reach = NORMAL_95 * scale * errors.get(step, math.nan)
        band = {} if math.isnan(reach) else {"low": value - reach, "high": value + reach}
        points[step] = {"value": value, **band}
    return points


def page_template() -> str:
    """The page of `dvc plots`: Vega and its companions are in it, so that it needs no network."""
    return render(
        "plots.html.j2",
        autoescape=False,
        vega=packed_text(chart_library()),
        look=packed(LOOK),
        licenses=source("licenses.txt"),
        scripts=[source(name) for name in ("unpack.js", "plots.js")],
    )


if __name__ == "__main__":
    PAGE.write_text(page_template(), encoding="utf-8")
