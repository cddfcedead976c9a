"""A study's numbers, its verdict in words, and its page."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from lib.artifacts import read_json
from lib.errors import UserError
from lib.report.charts import Figure, figure_svg, measured, whiskers
from lib.report.templates import render, source
from lib.report.text import Table, markdown_table, percent, points
from lib.stats import mean_estimate, paired_difference, seeds_interval
from lib.studies.definition import Contrast, Study
from lib.studies.experiments import Outcome, Scores

START = "<!-- python -m stages.study --study {} --pages -->"
END = "<!-- /study -->"
"""Around what a study writes into the README."""

FEW_STEPS = 3
"""A curve of so many points or fewer is not drawn."""

LIMITS = (
    "What it is about: a model of 0.48 million parameters, trained from random weights on one "
    "generator of word problems. It says what happens here, and what to look for elsewhere."
)


def study_metrics(
    study: Study, outcome: Outcome, *, benchmark: str, num_validated: int
) -> dict[str, Any]:
    """Rates of each variant and differences of each comparison, by seed and their means.

    A rate's interval and a difference's are over seeds, and never of zero width
    (`lib.stats.seeds_interval`); a seed's difference is paired over its problems.

    Args:
        num_validated: problems of a seed that validation asked while training.
    """
    scores = outcome.scores
    rates = {
        variant: {
            measure: _over_seeds(
                {seed: _mean(scores[variant, seed][benchmark][measure]) for seed in study.seeds},
                n=len(scores[variant, study.seeds[0]][benchmark][measure]),
                lowest=0.0,
            )
            for measure in scores[variant, study.seeds[0]][benchmark]
        }
        for variant in study.variants
    }
    return {
        "variants": rates,
        "comparisons": {
            each.name: _compared(each, study, scores, benchmark) for each in study.comparisons
        },
        "validation": {
            variant: steps
            for variant in study.variants
            if (steps := _validated(variant, study, outcome, num_validated))
        },
        "hours": outcome.hours,
    }


def _validated(
    variant: str, study: Study, outcome: Outcome, num_validated: int
) -> dict[str, dict[str, Any]]:
    """Greedy accuracy by training step, of the steps that all seeds have."""
    curves = {seed: outcome.validation[variant, seed] for seed in study.seeds}
    common = set.intersection(*(set(curve) for curve in curves.values()))
    return {
        step: _over_seeds(
            {seed: curve[step] for seed, curve in curves.items()}, n=num_validated, lowest=0.0
        )
        for step in sorted(common, key=int)
    }


def _compared(
    comparison: Contrast,
    study: Study,
    scores: Mapping[tuple[str, int], Scores],
    benchmark: str,
) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for measure in scores[comparison.after, study.seeds[0]][benchmark]:
        changes = {
            seed: paired_difference(
                before=scores[comparison.before, seed][benchmark][measure],
                after=scores[comparison.after, seed][benchmark][measure],
            )
            for seed in study.seeds
        }
        n = next(iter(changes.values())).difference.n
        values = {seed: change.difference.value for seed, change in changes.items()}
        intervals = {
            f"seed_{seed}": {"low": change.interval.low, "high": change.interval.high}
            for seed, change in changes.items()
        }
        measures[measure] = {**_over_seeds(values, n=n, lowest=-1.0), "intervals": intervals}
    return measures


def _mean(scores: Mapping[str, float]) -> float:
    return mean_estimate(list(scores.values())).value


def _over_seeds(values: Mapping[int, float], *, n: int, lowest: float) -> dict[str, Any]:
    """The mean over seeds with its interval, and what each seed gave; n problems each.

    Args:
        lowest: that there can be: 0 of a rate, −1 of a difference.
    """
    interval = seeds_interval(list(values.values()), n=n)
    return {
        "mean": mean_estimate(list(values.values())).value,
        "low": max(lowest, interval.low),
        "high": interval.high,
        "n": n,
        **{f"seed_{seed}": value for seed, value in values.items()},
    }


def verdicts(study: Study, metrics: Mapping[str, Any]) -> list[str]:
    """Of each comparison, in a sentence: whether it came out as the claim says."""
    measures = list(next(iter(metrics["variants"].values())))
    headline = "pass@1" if "pass@1" in measures else measures[0]
    lines = []
    for each in study.comparisons:
        measure = each.measure or headline
        numbers = metrics["comparisons"][each.name][measure]
        low, high = numbers["low"], numbers["high"]
        seen = "better" if low > 0 else "worse" if high < 0 else "no difference"
        settled = low > 0 or high < 0
        verdict = "As claimed" if seen == each.expect else "Not as claimed"
        seeds = [numbers[f"seed_{seed}"] for seed in study.seeds]
        above = sum(value > 0 for value in seeds)
        lines.append(
            f"**{verdict if settled or seen == each.expect else 'Not settled'}**: `{each.after}` "
            f"against `{each.before}` in {measure}: {points(numbers['mean'])} points "
            f"({points(low)} to {points(high)}), above on {above} of {len(seeds)} seeds; expected "
            f"{each.expect}, {f'seen {seen}' if settled else 'the interval holds 0'}."
        )
    return lines


def study_markdown(name: str, study: Study, metrics: Mapping[str, Any], *, benchmark: str) -> str:
    """The study as a page."""
    measures = list(next(iter(metrics["variants"].values())))
    first, *others = (of.params for of in study.variants.values())
    shared = {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }
    own = {
        variant: {key: of.params[key] for key in of.params if key not in shared}
        for variant, of in study.variants.items()
    }
    variants = Table(
        f"Variants on {benchmark}",
        ("variant", "checkpoint", *measures),
        tuple(
            (
                variant,
                of.checkpoint,
                *(_share(metrics["variants"][variant][measure]) for measure in measures),
            )
            for variant, of in study.variants.items()
        ),
    )
    differences = Table(
        "Differences in points",
        ("comparison", "measure", "mean", *(f"seed {seed}" for seed in study.seeds)),
        tuple(
            (
                f"{each.before} → {each.after}",
                measure,
                _interval(numbers := metrics["comparisons"][each.name][measure]),
                *(points(numbers[f"seed_{seed}"]) for seed in study.seeds),
            )
            for each in {each.name: each for each in study.comparisons}.values()
            for measure in measures
        ),
    )
    params = "".join(
        f"{variant}:\n" + "".join(f"  {key}: {json.dumps(values[key])}\n" for key in values)
        for variant, values in {"all": shared, **own}.items()
        if values
    )
    source = f" Source: {study.source}." if study.source else ""
    return (
        "\n\n".join(
            [
                f"# {name}",
                f"{study.claim}{source}",
                *verdicts(study, metrics),
                LIMITS,
                *(
                    f"## {table.title}\n\n{markdown_table(table)}"
                    for table in (variants, differences)
                ),
                *(
                    f"![{each.title}]({each.name}.svg)"
                    for each in study_figures(study, metrics, benchmark)
                ),
                "Means and 95 % intervals are over seeds, by Student's t; "
                "differences are paired over problems.",
                *([f"Params in place of the default's:\n\n```yaml\n{params}```"] if params else []),
                f"`make study STUDY={name}` repeats it: {len(study.seeds)} seeds, "
                f"{metrics['hours']:.1f} hours of experiments the last time.",
            ]
        )
        + "\n"
    )


def study_figures(study: Study, metrics: Mapping[str, Any], benchmark: str) -> list[Figure]:
    """Each variant's mean rate, a panel for each measure; and how GRPO got there, step by step."""
    figures = [_rates_figure(study, metrics)]
    curves = {
        variant: steps
        for variant, steps in metrics["validation"].items()
        if study.variants[variant].checkpoint == "grpo"
    }
    if curves and max(map(len, curves.values())) > FEW_STEPS:
        figures.append(_curve_figure(study, metrics, curves, benchmark))
    return figures


def _curve_figure(
    study: Study,
    metrics: Mapping[str, Any],
    curves: Mapping[str, Mapping[str, Any]],
    benchmark: str,
) -> Figure:
    """Greedy accuracy while GRPO trains; variants of other SFT than its own as level lines."""
    rows: list[dict[str, Any]] = [
        {"step": int(step), "series": variant, **_bounds(numbers)}
        for variant, steps in curves.items()
        for step, numbers in sorted(steps.items(), key=lambda point: int(point[0]))
    ]
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    starts = [{}, *(study.variants[variant].params for variant in curves)]
    finished = [
        variant
        for variant, of in study.variants.items()
        if of.checkpoint == "sft" and of.params not in starts
    ]
    rows += [
        {"step": step, "series": variant, **_bounds(metrics["variants"][variant]["greedy"])}
        for variant in finished
        for step in (first, last)
    ]
    title = f"greedy accuracy on {benchmark.replace('_', '-')} problems"
    panel = measured(rows, title=title, series=[*curves, *finished])
    return Figure("curve", "While GRPO trains", "Means over seeds, 95 % bands.", (panel,), 1)


def _rates_figure(study: Study, metrics: Mapping[str, Any]) -> Figure:
    rates = metrics["variants"]
    panels = [
        whiskers(
            [
                {"label": variant, "checkpoint": measure, **_bounds(rates[variant][measure])}
                for variant in study.variants
            ],
            title=measure,
            checkpoints=[measure],
            labels=list(study.variants),
        )
        for measure in next(iter(rates.values()))
    ]
    caption = "Means over seeds with 95 % intervals."
    return Figure("figure", "Rates of each variant", caption, tuple(panels), columns=3)


def _bounds(numbers: Mapping[str, Any]) -> dict[str, float]:
    bounds = {"value": numbers["mean"], "low": numbers["low"], "high": numbers["high"]}
    return {**bounds, "n": numbers["n"]}


def write_pages(
    name: str, study: Study, folder: Path, *, benchmark: str, readme: Path | None = None
) -> list[str]:
    """Write the study's page and figures, and the page over all studies; its verdicts.

    Args:
        folder: of all studies; `study.json` in the study's own has the numbers.
        readme: gets the study's table, where it has one of this study.

    Raises:
        UserError: the study has no numbers, or those of another definition.
    """
    own = folder / name
    # From the file, so that a page says what the file says, rounded once.
    metrics = read_json(own / "study.json") if (own / "study.json").is_file() else {}
    measured_of = {variant: set(study.seeds) for variant in study.variants}
    if measured_of != {variant: _seeds(of) for variant, of in metrics.get("variants", {}).items()}:
        raise UserError(
            f"{own / 'study.json'} has not the variants and seeds of studies/{name}.yaml; run "
            f"`make study STUDY={name}`"
        )
    for figure in study_figures(study, metrics, benchmark):
        (own / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    page = study_markdown(name, study, metrics, benchmark=benchmark)
    (own / "study.md").write_text(page, encoding="utf-8")
    (folder / "index.html").write_text(studies_page(folder), encoding="utf-8")
    if readme:
        text = with_rates(readme.read_text("utf-8"), name, study, metrics)
        readme.write_text(text, encoding="utf-8")
    return verdicts(study, metrics)


def _seeds(rates: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """That the measures of a variant have."""
    return {
        int(key.removeprefix("seed_"))
        for numbers in rates.values()
        for key in numbers
        if key.startswith("seed_")
    }


def with_rates(readme: str, name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """`readme` with the study's rates between its marks, a column a variant; as it is without."""
    before, start, rest = readme.partition(START.format(name))
    if not start:
        return readme
    rates = metrics["variants"]
    header = f"held-out problems, %, mean of {len(study.seeds)} seeds (95 % interval)"
    rows = [
        (measure, *(_share(rates[name][measure]).replace(" to ", "–") for name in study.variants))
        for measure in next(iter(rates.values()))
    ]
    table = markdown_table(Table("", (header, *study.variants), tuple(rows)))
    return f"{before}{start}\n{table}\n{rest[rest.index(END) :]}"


def studies_page(folder: Path) -> str:
    """All studies below `folder` as one HTML page that needs no network."""
    pages = {}
    for page in sorted(folder.glob("*/study.md")):
        content = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
        for figure in page.parent.glob("*.svg"):
            image = re.search(rf'<img src="{figure.name}"[^>]*>', content)
            if image:
                content = content.replace(image[0], figure.read_text("utf-8"))
        pages[page.parent.name] = content
    return render("studies.html.j2", autoescape=True, pages=pages, style=source("page.css"))


def _share(numbers: Mapping[str, float]) -> str:
    return f"{percent(numbers['mean'])} ({percent(numbers['low'])} to {percent(numbers['high'])})"


def _interval(numbers: Mapping[str, float]) -> str:
    low, high = points(numbers["low"]), points(numbers["high"])
    return f"{points(numbers['mean'])} ({low} to {high})"
