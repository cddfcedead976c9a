"""What DVC draws: the curves of a run in one long format, and the page that it draws them on.

A long table has a row for each step and series, so one plot of DVC follows whatever was logged: the
rewards of any stack, any sets of validation problems. `.dvc/plots/curves.json` draws a panel for
each series, and of a stage's own, wide CSV the column that dvc.yaml names. `python -m
lib.report.plots` writes `.dvc/plots/page.html`, on which every `dvc plots` draws (`.dvc/config`).
"""

import csv
import math
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.report.charts import LOOK
from lib.report.figures import CURVES, reward_components, series_rows
from lib.report.inputs import Run
from lib.report.page import chart_library, packed, packed_text
from lib.report.templates import render, source

PAGE = Path(".dvc/plots/page.html")

COLUMNS = ("step", "series", "value", "low", "high")
"""Of a long table; low and high are a 95 % band, and empty where no error is known."""

OWN_PLOT = {
    "sft": "loss",
    "grpo": "completions/mean_length",
    "dpo": "rewards/accuracies",
}
"""By stage, the column that dvc.yaml draws from the stage's own CSV, and that no table repeats."""

VALIDATION = {
    "answer_accuracy": "answer accuracy",
    "format_accuracy": "format accuracy",
    "reasoning_present": "share with reasoning",
    "mean_reward": "mean reward",
    "mean_reasoning_chars": "characters of reasoning",
}
"""What validation measures."""


def write_plots(run: Run, folder: Path) -> None:
    """Write a long table for each stage that logged anything; what else lies in `folder` goes."""
    with replacing(folder) as partial:
        partial.mkdir()
        for stage in run.curves:
            if table := long_table(run, stage):
                with (partial / f"{stage}.csv").open("w", encoding="utf-8", newline="") as lines:
                    rows = csv.DictWriter(lines, COLUMNS, restval="", lineterminator="\n")
                    rows.writeheader()
                    for row in table:
                        numbers = {key: f"{row[key]:.6g}" for key in COLUMNS[2:] if key in row}
                        rows.writerow(row | numbers)


def long_table(run: Run, stage: str) -> list[dict[str, Any]]:
    """`COLUMNS` of a stage: its rewards, what the report shows of it, and its validation.

    What is zero throughout is left out.
    """
    curve, validation = run.curves[stage], run.validations[stage]
    settings = run.provenance.get("grpo", {}).get("settings", {}).get("grpo", {})
    # Completions to one problem are not independent, and how much they agree is not logged: the
    # band counts a problem's completions as one, so that the error of a step is at most this.
    scale = 1 / math.sqrt(settings.get("prompts_per_step", math.nan))
    components = {name: f"reward: {of}" for name, of in reward_components(curve).items()}
    titles = {"reward": "total reward"} | components | CURVES[stage]
    stds = {"reward": "reward_std"} | {name: name.replace("/mean", "/std") for name in components}
    series = [
        series_rows(curve, name, title, error=stds.get(name, ""), scale=scale)
        for name, title in titles.items()
        if name != OWN_PLOT[stage]
    ]
    for name in validation:
        benchmark, _, measure = name.rpartition("/")
        # dvc.yaml draws the answer accuracy of the first set, whose columns do not name it.
        if measure in VALIDATION and name != "answer_accuracy":
            title = f"validation {benchmark}".strip() + f": {VALIDATION[measure]}"
            series.append(series_rows(validation, name, title, error=f"{name}_se"))
    return [row for rows in series if any(row["value"] for row in rows) for row in rows]


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
