"""A study's numbers, its verdict in words, and its page."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from markdown_it import MarkdownIt

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.report.charts import Figure, figure_svg, measured, whiskers
from lib.report.text import Table, markdown_table, percent, points, render
from lib.stats import mean_estimate, seeds_interval
from lib.studies.definition import Study
from lib.studies.experiments import DISTINCT, ENTROPY, TRAINING, Outcome

START = "<!-- python -m stages.study --study {} --pages -->"
END = "<!-- /study -->"
"""Around what a study writes into the README."""

FEW_STEPS = 3
"""A curve of so many points or fewer is not drawn."""


def study_metrics(study: Study, outcome: Outcome, *, num_validated: int) -> dict[str, Any]:
    """Rates of each variant and differences of each comparison, by seed and their means.

    A rate's interval and a difference's are over seeds, and never of zero width
    (`lib.stats.seeds_interval`); a seed's difference is of two models on the same problems.

    Args:
        num_validated: problems of a seed that validation asked while training.
    """
    seeds = study.seeds
    scores = {
        key: {
            study.named(benchmark, measure): problems
            for benchmark in study.benchmarks
            for measure, problems in sets[benchmark].items()
        }
        for key, sets in outcome.scores.items()
    }
    # Those that all have: where nothing is right, no two right completions differ.
    measures = [
        name for name in next(iter(scores.values())) if all(name in of for of in scores.values())
    ]
    sampled = [name for name in TRAINING if all(name in of for of in outcome.training.values())]
    rates, comparisons, validation = {}, {}, {}
    for variant in study.variants:
        rates[variant] = {
            measure: _over_seeds(
                {seed: fmean(scores[variant, seed][measure].values()) for seed in seeds},
                n=len(scores[variant, seeds[0]][measure]),
            )
            for measure in measures
        }
        for name in sampled:
            own = {seed: outcome.training[variant, seed][name] for seed in seeds}
            rates[variant][name] = _over_seeds(own)
        curves = {seed: outcome.validation[variant, seed] for seed in seeds}
        # Of the steps that all seeds have.
        if steps := set.intersection(*map(set, curves.values())):
            validation[variant] = {
                step: _over_seeds({seed: of[step] for seed, of in curves.items()}, n=num_validated)
                for step in sorted(steps, key=int)
            }
    for each in study.comparisons:
        before, after = rates[each.before], rates[each.after]
        keys = {seed: f"seed_{seed}" for seed in seeds}
        comparisons[each.name] = {
            measure: _over_seeds(
                {seed: after[measure][key] - before[measure][key] for seed, key in keys.items()},
                n=before[measure].get("n"),
                lowest=-math.inf,
            )
            for measure in before
        }
    return {
        "variants": rates,
        "comparisons": comparisons,
        "validation": validation,
        "hours": outcome.hours,
    }


def _over_seeds(
    values: Mapping[int, float], *, n: int | None = None, lowest: float = 0.0
) -> dict[str, Any]:
    """The mean over seeds with its interval, and what each seed gave.

    Args:
        n: problems of each seed; None where the value is no rate.
        lowest: that there can be: 0 of what is no difference.
    """
    each = list(values.values())
    interval = seeds_interval(each, n=n) if n else mean_estimate(each).interval
    return {
        "mean": fmean(each),
        "low": max(lowest, interval.low),
        "high": interval.high,
        **({"n": n} if n else {}),
        **{f"seed_{seed}": value for seed, value in values.items()},
    }


def verdicts(study: Study, metrics: Mapping[str, Any]) -> list[str]:
    """Of each comparison, in a sentence: whether it came out as the claim says."""
    measures = _measures(metrics)
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


def _measures(metrics: Mapping[str, Any]) -> list[str]:
    """Those of the first set, of other sets, and of training: study.json has them by name."""
    names = next(iter(metrics["variants"].values()))
    return sorted(
        names, key=lambda name: (name in TRAINING, " " in name, DISTINCT in name, len(name), name)
    )


def study_markdown(name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """The study as a page."""
    rates, measures = metrics["variants"], _measures(metrics)
    sets: dict[str, list[str]] = {}
    for measure in measures:
        benchmark = measure.rpartition(" ")[0] or study.benchmarks[0]
        on = "what GRPO samples" if measure in TRAINING else benchmark
        sets.setdefault(on, []).append(measure)
    variants = [
        Table(
            f"Variants on {on}",
            ("variant", "checkpoint", *names),
            tuple(
                (variant, of.checkpoint, *(_range(rates[variant], measure) for measure in names))
                for variant, of in study.variants.items()
            ),
        )
        for on, names in sets.items()
    ]
    differences = Table(
        "Differences in points",
        ("comparison", "measure", "mean", *(f"seed {seed}" for seed in study.seeds)),
        tuple(
            (
                name.replace(" to ", " → "),
                measure,
                _range(numbers, measure, points),
                *(_form(measure, points)(numbers[measure][f"seed_{seed}"]) for seed in study.seeds),
            )
            for name in dict.fromkeys(each.name for each in study.comparisons)
            for numbers in [metrics["comparisons"][name]]
            for measure in measures
        ),
    )
    first, *others = (of.params for of in study.variants.values())
    shared = dict(item for item in first.items() if all(item in of.items() for of in others))
    own = {
        variant: {key: value for key, value in of.params.items() if key not in shared}
        for variant, of in study.variants.items()
    }
    return render(
        "study.md.j2",
        title=name,
        study=study,
        verdicts=verdicts(study, metrics),
        tables=(*variants, differences),
        table=markdown_table,
        figures=study_figures(study, metrics),
        params={variant: values for variant, values in {"all": shared, **own}.items() if values},
        json=json.dumps,
        hours=metrics["hours"],
    )


def study_figures(study: Study, metrics: Mapping[str, Any]) -> list[Figure]:
    """Each variant's mean rate, a panel for each measure; and how GRPO got there, step by step."""
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
        for measure in _measures(metrics)
        if measure != ENTROPY
    ]
    caption = "Means over seeds with 95 % intervals."
    figures = [Figure("figure", "Rates of each variant", caption, tuple(panels), columns=3)]
    curves = {
        variant: steps
        for variant, steps in metrics["validation"].items()
        if study.variants[variant].checkpoint == "grpo"
    }
    if curves and max(map(len, curves.values())) > FEW_STEPS:
        figures.append(_curve_figure(study, metrics, curves))
    return figures


def _curve_figure(
    study: Study, metrics: Mapping[str, Any], curves: Mapping[str, Mapping[str, Any]]
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
    title = f"greedy accuracy on {study.benchmarks[0].replace('_', '-')} problems"
    panel = measured(rows, title=title, series=[*curves, *finished])
    return Figure("curve", "While GRPO trains", "Means over seeds, 95 % bands.", (panel,), 1)


def _bounds(numbers: Mapping[str, Any]) -> dict[str, float]:
    bounds = {"value": numbers["mean"], "low": numbers["low"], "high": numbers["high"]}
    return bounds | ({"n": numbers["n"]} if "n" in numbers else {})


def write_pages(name: str, study: Study, folder: Path, *, readme: Path | None = None) -> list[str]:
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
    expected = {(variant, f"seed_{seed}") for variant in study.variants for seed in study.seeds}
    if expected != {
        (variant, key)
        for variant, rates in metrics.get("variants", {}).items()
        for numbers in rates.values()
        for key in numbers
        if key.startswith("seed_")
    }:
        raise UserError(
            f"{own / 'study.json'} has not the variants and seeds of studies/{name}.yaml; run "
            f"`make study STUDY={name}`"
        )
    for figure in study_figures(study, metrics):
        (own / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    page = study_markdown(name, study, metrics)
    (own / "study.md").write_text(page, encoding="utf-8")
    (folder / "index.html").write_text(studies_page(folder), encoding="utf-8")
    if readme:
        text = with_rates(readme.read_text("utf-8"), name, study, metrics)
        readme.write_text(text, encoding="utf-8")
    return verdicts(study, metrics)


def with_rates(readme: str, name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """`readme` with the study's rates between its marks, a column a variant; as it is without."""
    before, start, rest = readme.partition(START.format(name))
    if not start:
        return readme
    rates = metrics["variants"]
    header = f"held-out problems, %, mean of {len(study.seeds)} seeds (95 % interval)"
    rows = [
        (measure, *(_range(rates[name], measure).replace(" to ", "–") for name in study.variants))
        for measure in _measures(metrics)
    ]
    table = markdown_table(Table("", (header, *study.variants), tuple(rows)))
    return f"{before}{start}\n{table}\n{rest[rest.index(END) :]}"


def studies_page(folder: Path) -> str:
    """All studies below `folder` as one HTML page that needs no network."""
    pages = {}
    for page in sorted(folder.glob("*/study.md")):
        content = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
        for figure in re.findall(r'<img src="\w+\.svg"[^>]*>', content):
            svg = page.parent / figure.split('"')[1]
            content = content.replace(figure, svg.read_text("utf-8"))
        pages[page.parent.name] = content
    return render("studies.html.j2", pages=pages)


def _range(rates: Mapping[str, Any], measure: str, form: Callable[[float], str] = percent) -> str:
    """A measure's mean and interval; what is no rate has a form of its own."""
    own = _form(measure, form)
    return "{} ({} to {})".format(*(own(rates[measure][of]) for of in ("mean", "low", "high")))


def _form(measure: str, form: Callable[[float], str]) -> Callable[[float], str]:
    signed = "+" if form is points else ""
    return form if measure != ENTROPY else lambda nats: f"{nats:{signed}.3f}".replace("-", "−")
