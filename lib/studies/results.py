"""A study's numbers over seeds, the verdicts on its claims, and its Markdown and HTML pages."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.report.charts import Figure, figure_svg, learning_curve, whiskers
from lib.report.text import Table, markdown_table, p_value, percent, points, render_template
from lib.stats import (
    SeedsMean,
    holm,
    mean_estimate,
    paired_difference,
    seeds_mean,
)
from lib.stats.estimates import Estimate, Z, padded_mean
from lib.studies.definition import Contrast, Study
from lib.studies.experiments import DISTINCT, ENTROPY, TRAINING, UNSEEN, Outcome

START = "<!-- python -m stages.study --study {} --pages -->"
END = "<!-- /study -->"
"""Marks around a study's table in the README."""

ALPHA = 0.05
"""Largest chance that any claim of a study is accepted by accident (family-wise, after Holm)."""

FEW_STEPS = 3
"""A curve with at most this many points is not drawn."""


def study_metrics(
    study: Study, outcome: Outcome, *, num_validated: Mapping[str, int]
) -> dict[str, Any]:
    """Return the rates of each variant and the differences of each comparison, over seeds.

    Intervals are over seeds, and never narrower than an interval over the problems only
    (`lib.stats.seeds_mean`). A seed's difference compares two models on the same problems.

    Args:
        num_validated: by variant: problems per seed in each validation during training.

    Returns:
        The content of study.json. `variants` and `comparisons` have name → measure → numbers
        (`_over_seeds`), `validation` has variant → training step → numbers; `hours`.
    """
    seeds = study.seeds
    # (variant, seed) → measure, such as "harder pass@8" → problem id → score.
    scores = {
        key: {
            study.named(benchmark, measure): problems
            for benchmark in (*study.benchmarks, "")
            for measure, problems in sets.get(benchmark, {}).items()
        }
        for key, sets in outcome.scores.items()
    }
    # Only measures that every run has: one without right answers has no DISTINCT.
    first, *others = scores.values()
    measures = [name for name in first if all(name in each for each in others)]
    # Without a problem that both runs of a comparison have, there is no difference.
    measures = [
        name
        for name in measures
        if all(
            scores[claim.before, seed][name].keys() & scores[claim.after, seed][name].keys()
            for claim in study.comparisons
            for seed in seeds
        )
    ]
    rates: dict[str, dict[str, Any]] = {}
    validation = {}
    for variant in study.variants:
        # A mean for each seed first: generated problems differ between seeds.
        rates[variant] = {
            measure: _rate(
                seeds,
                [mean_estimate([*scores[variant, seed][measure].values()]) for seed in seeds],
                # Entropy has no largest value.
                highest=math.inf if measure == ENTROPY else 1.0,
            )
            for measure in measures
        }
        curves = [outcome.validation[variant, seed] for seed in seeds]
        # Only steps that all seeds validated at.
        if steps := set.intersection(*map(set, curves)):
            n = num_validated[variant]
            validation[variant] = {
                # NaN: unknown. `padded_mean` then takes the error of scores that are all 0 or 1.
                step: _rate(seeds, [Estimate(curve[step], math.nan, n) for curve in curves])
                for step in sorted(steps, key=int)
            }
    comparisons: dict[str, dict[str, Any]] = {}
    for claim in study.comparisons:
        comparisons[claim.name] = {}
        for measure in measures:
            changes = []
            for seed in seeds:
                before = scores[claim.before, seed][measure]
                after = scores[claim.after, seed][measure]
                if DISTINCT in measure:
                    # Only problems with two right completions have it: pair those of both.
                    shared = before.keys() & after.keys()
                    before = {key: before[key] for key in sorted(shared)}
                    after = {key: after[key] for key in sorted(shared)}
                changes.append(paired_difference(before=before, after=after))
            intervals = [change.interval for change in changes]
            # The standard errors, from the 95 % intervals.
            errors = [(each.high - each.low) / (2 * Z) for each in intervals]
            estimates = [change.difference for change in changes]
            comparisons[claim.name][measure] = _over_seeds(seeds, estimates, errors)
    return {
        "variants": rates,
        "comparisons": comparisons,
        "validation": validation,
        "hours": outcome.hours,
    }


def _rate(
    seeds: Sequence[int], estimates: Sequence[Estimate], *, highest: float = 1.0
) -> dict[str, Any]:
    """Return the mean over seeds of a rate (`_over_seeds`), its interval cut to [0, `highest`]."""
    # Padded as in `share_interval`: a rate of 0 or 1 has an error above 0 too.
    errors = [
        float(padded_mean(each.value, each.se, each.n, extremes=(0.0, 1.0), padding=Z**2)[1])
        for each in estimates
    ]
    rate = _over_seeds(seeds, estimates, errors)
    return rate | {"low": max(0.0, rate["low"]), "high": min(highest, rate["high"])}


def _over_seeds(
    seeds: Sequence[int], estimates: Sequence[Estimate], errors: Sequence[float]
) -> dict[str, Any]:
    """Return the mean over seeds with its error and interval, and each seed's value.

    {"mean", "se", "problem_se", "low", "high", "n", "seed_0", "seed_1", …}: 95 % interval; `n`
    problems per seed, left out for a measure without problems.

    Args:
        estimates: [S] each seed's mean over its problems.
        errors: [S] each seed's standard error over its problems.
    """
    # A measure of training is one number per seed (n = 1), without an error over problems.
    of_problems = estimates[0].n > 1
    mean = seeds_mean([each.value for each in estimates], problem_se=errors if of_problems else ())
    return {
        "mean": mean.value,
        "se": mean.se,
        "problem_se": mean.problem_se,
        "low": mean.interval.low,
        "high": mean.interval.high,
        **({"n": estimates[0].n} if of_problems else {}),
        **{f"seed_{seed}": each.value for seed, each in zip(seeds, estimates, strict=True)},
    }


def claim_verdicts(study: Study, metrics: Mapping[str, Any]) -> list[str]:
    """Judge each comparison in one sentence.

    A claim holds if its p-value, corrected for all claims of the study (Holm), is below 0.05.
    "No difference" is a claim too. It holds if the difference is shown to be smaller than the
    margin; an interval that contains 0 is not enough.
    """
    measures = _measures(metrics)
    headline = "pass@1" if "pass@1" in measures else measures[0]
    numbers = [
        metrics["comparisons"][each.name][each.measure or headline] for each in study.comparisons
    ]
    # `metrics` holds plain numbers: make `SeedsMean` objects of them, whose methods compute the
    # p-values.
    means = [
        SeedsMean(own["mean"], own["se"], len(study.seeds), own["problem_se"]) for own in numbers
    ]
    # Exploratory comparisons are not tested, so that they cost the claims no power.
    claims = [place for place, each in enumerate(study.comparisons) if not each.exploratory]
    corrected = holm([_p_value(study.comparisons[place], means[place]) for place in claims])
    p_values = dict(zip(claims, corrected, strict=True))
    return [
        _verdict(each, numbers[place], means[place], p_values.get(place), headline)
        for place, each in enumerate(study.comparisons)
    ]


def _p_value(claim: Contrast, mean: SeedsMean) -> float:
    """Return the p-value of a claim's null hypothesis; small if the claim holds."""
    # Percentage points to a rate.
    margin = claim.margin / 100
    match claim.expect:
        case "no difference":
            return mean.p_equivalent(margin)
        case "not better":
            return mean.p_below(margin)
        case "not worse":
            return mean.p_above(-margin)
    # better and worse: two-sided; the sign of the mean decides between the two.
    return mean.p_value


# "not better" is refuted by "better", and so on.
REFUTED_BY = {"better": ("worse",), "worse": ("better",)} | {
    f"not {seen}": (seen,) for seen in ("better", "worse")
}
"""Claim → what refutes it; any clear difference refutes "no difference"."""

WANTED = {
    "no difference": "less than {:g} points either way",
    "not better": "worse, or better by less than {:g} points",
    "not worse": "better, or worse by less than {:g} points",
}
"""Claim with a margin → its wording."""


def _verdict(
    claim: Contrast,
    numbers: Mapping[str, float],
    mean: SeedsMean,
    p: float | None,
    headline: str,
) -> str:
    """Return the sentence for one comparison; `p` is corrected, None if exploratory.

    "**As claimed**: `grpo` against `sft` in pass@1: +20.4 points (+18.5 to +22.3), above on 10 of
    10 seeds; expected better; p < 0.001."
    """
    interval = mean.interval
    seen = "better" if interval.low > 0 else "worse" if interval.high < 0 else "no difference"
    # The two-sided test of better and worse ignores the sign.
    expected = {"better": mean.value > 0, "worse": mean.value < 0}.get(claim.expect, True)
    if p is None:
        verdict = "Exploratory"
    elif p < ALPHA and expected:
        verdict = "As claimed"
    else:
        refuted = seen in REFUTED_BY.get(claim.expect, ("better", "worse"))
        verdict = "Not as claimed" if refuted else "Not settled"
    of_seeds = [value for key, value in numbers.items() if key.startswith("seed_")]
    wanted = WANTED.get(claim.expect, claim.expect).format(claim.margin)
    chance = "" if p is None else f"; p {p_value(p, digits=3)}"
    return (
        f"**{verdict}**: `{claim.after}` against `{claim.before}` in {claim.measure or headline}: "
        f"{points(mean.value)} points ({points(interval.low)} to {points(interval.high)}), above "
        f"on {sum(value > 0 for value in of_seeds)} of {len(of_seeds)} seeds; expected "
        f"{wanted}{chance}."
    )


def _measures(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the measures: first benchmark, other benchmarks, then training."""
    names = next(iter(metrics["variants"].values()))
    # False sorts before True. A name with a space has a prefix: another benchmark, or `UNSEEN`. By
    # length, pass@8 comes before pass@32.
    return sorted(
        names, key=lambda name: (name in TRAINING, " " in name, DISTINCT in name, len(name), name)
    )


def study_markdown(
    name: str, study: Study, metrics: Mapping[str, Any], changed: Sequence[str] = ()
) -> str:
    """Render the study as a Markdown page.

    Args:
        changed: names of the study's inputs that have changed since its experiments ran.
    """
    return render_template(
        "study.md.j2",
        title=name,
        study=study,
        verdicts=claim_verdicts(study, metrics),
        tables=(rates_table(study, metrics), differences_table(study, metrics)),
        table=markdown_table,
        figures=study_figures(study, metrics),
        hours=metrics["hours"],
        made_from=metrics.get("made_from", {}),
        changed=changed,
    )


def study_figures(study: Study, metrics: Mapping[str, Any]) -> list[Figure]:
    """Plot each variant's mean rates, a panel per measure, and GRPO's accuracy by step."""
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
        # Entropy is in nats, and the axis is in percent.
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
    """Plot greedy accuracy while GRPO trains; an SFT that no curve starts from is a level line."""
    # The first point of a curve is its SFT checkpoint, which needs no level line. {}: neither does
    # the SFT of params.yaml.
    starts = [{}, *(study.variants[variant].params for variant in curves)]
    # The last validation of each other SFT, on the same problems as the curves.
    levels = {
        name: steps[max(steps, key=int)]
        for name, steps in metrics["validation"].items()
        if study.variants[name].checkpoint == "sft" and study.variants[name].params not in starts
    }
    rows: list[dict[str, Any]] = [
        {"step": step, "series": variant, **_bounds(curve[str(step)])}
        for variant, curve in curves.items()
        for step in sorted(map(int, curve))
    ]
    validated = [row["step"] for row in rows]
    for variant, numbers in levels.items():
        for step in (min(validated), max(validated)):
            rows.append({"step": step, "series": variant, **_bounds(numbers)})
    title = f"greedy accuracy on {study.benchmarks[0].replace('_', '-')} problems"
    panel = learning_curve(rows, title=title, series=[*curves, *levels])
    return Figure("curve", "While GRPO trains", "Means over seeds, 95 % bands.", (panel,), 1)


def _bounds(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return {"value", "low", "high"} for a chart, and "n" if it is known."""
    bounds = {"value": numbers["mean"], "low": numbers["low"], "high": numbers["high"]}
    return bounds | ({"n": numbers["n"]} if "n" in numbers else {})


def write_pages(
    name: str,
    study: Study,
    folder: Path,
    *,
    changed: Sequence[str] = (),
    readme: Path | None = None,
) -> list[str]:
    """Write the study's page and figures and the page over all studies; return the verdicts.

    Args:
        folder: the folder of all studies; its `<name>/study.json` has the numbers.
        changed: see `study_markdown`.
        readme: its table of this study is replaced, if it has one.

    Raises:
        UserError: the study has no numbers, or numbers of another definition.
    """
    own = folder / name
    # Read from the file, whose numbers are rounded, so that page and file agree.
    metrics = read_json(own / "study.json") if (own / "study.json").is_file() else {}
    rates = metrics.get("variants", {})
    # Every measure has every seed.
    first: Mapping[str, float] = next(
        (numbers for measures in rates.values() for numbers in measures.values()), {}
    )
    seeds = {key for key in first if key.startswith("seed_")}
    # An edited definition has other variants or seeds than the numbers.
    if (set(rates), seeds) != (set(study.variants), {f"seed_{seed}" for seed in study.seeds}):
        raise UserError(
            f"{own / 'study.json'} does not have the variants and seeds of studies/{name}.yaml; "
            f"run `make study STUDY={name}`"
        )
    for figure in study_figures(study, metrics):
        (own / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    page = study_markdown(name, study, metrics, changed)
    (own / "study.md").write_text(page, encoding="utf-8")
    (folder / "index.html").write_text(studies_page(folder), encoding="utf-8")
    if readme:
        text = with_rates(readme.read_text("utf-8"), name, study, metrics)
        readme.write_text(text, encoding="utf-8")
    return claim_verdicts(study, metrics)


def with_rates(readme: str, name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """Return `readme` with the study's table between its marks; unchanged if it has no marks."""
    # If the README lacks this study's marks, `start` is empty.
    before, start, rest = readme.partition(START.format(name))
    if not start:
        return readme
    table = markdown_table(rates_table(study, metrics, what="held-out problems, "))
    return f"{before}{start}\n{table}\n{rest[rest.index(END) :]}"


def rates_table(study: Study, metrics: Mapping[str, Any], *, what: str = "") -> Table:
    """Build the table of rates: a row per measure, a column per variant."""
    rates = metrics["variants"]
    rows = tuple(
        (
            f"{measure}, nats" if measure == ENTROPY else measure,
            *(
                _range(rates[name][measure], measure, percent).replace(" to ", "–")
                for name in study.variants
            ),
        )
        # The measures on unseen equations come first.
        for measure in sorted(_measures(metrics), key=lambda name: not name.startswith(UNSEEN))
    )
    header = f"{what}%, mean of {len(study.seeds)} seeds (95 % interval)"
    return Table("Rates", (header, *study.variants), rows)


def differences_table(study: Study, metrics: Mapping[str, Any]) -> Table:
    """Build the table of differences: a row per pair of variants and measure, a column per seed."""
    rows = []
    # Each pair once: two claims may be about one pair.
    for pair in dict.fromkeys(each.name for each in study.comparisons):
        for measure in _measures(metrics):
            numbers = metrics["comparisons"][pair][measure]
            mean = _range(numbers, measure, points)
            seeds = [_number(numbers[f"seed_{seed}"], measure, points) for seed in study.seeds]
            rows.append((pair.replace(" to ", " → "), measure, mean, *seeds))
    header = ("comparison", "measure", "mean", *(f"seed {seed}" for seed in study.seeds))
    return Table("Differences in points", header, tuple(rows))


def studies_page(folder: Path) -> str:
    """Render all studies below `folder` as one HTML page that needs no network."""
    pages = {}
    for page in sorted(folder.glob("*/study.md")):
        # HTML is off: study.md has none, but text of YAML files, which could have some.
        markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        content = markdown.render(page.read_text("utf-8"))
        # Figures are embedded, so that the page is one file.
        for image, figure in re.findall(r'(<img src="(\w+\.svg)"[^>]*>)', content):
            content = content.replace(image, (page.parent / figure).read_text("utf-8"))
        pages[page.parent.name] = content
    return render_template("studies.html.j2", pages=pages)


def _range(numbers: Mapping[str, float], measure: str, form: Callable[[float], str]) -> str:
    """Format a measure's mean and interval: "53.4 (50.7 to 56.2)", entropy "0.260 (…)" in nats."""
    mean, low, high = (_number(numbers[key], measure, form) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _number(value: float, measure: str, form: Callable[[float], str]) -> str:
    """Format a rate by `percent`, or a difference by `points`; entropy in nats, signed alike."""
    if measure != ENTROPY:
        return form(value)
    return f"{value:{'+' if form is points else ''}.3f}".replace("-", "−")
