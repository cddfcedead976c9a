"""A study's numbers over seeds, and the verdicts on its claims."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lib.report.text import p_value, points
from lib.stats import (
    SeedsMean,
    holm,
    mean_estimate,
    paired_difference,
    seeds_mean,
)
from lib.stats.estimates import Estimate, Z, padded_mean
from lib.studies.definition import Contrast, Study
from lib.studies.experiments import Outcome
from lib.studies.measures import DISTINCT, ENTROPY, TRAINING, UNSEEN

ALPHA = 0.05
"""Largest chance that any claim of a study is accepted by accident (family-wise, after Holm)."""

RunScores = Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]]
"""(variant, seed) → measure, such as "harder pass@8" → problem id → score."""


def study_metrics(
    study: Study, outcome: Outcome, *, num_validated: Mapping[str, int]
) -> dict[str, Any]:
    """Return the content of study.json: rates of variants and differences between them, over seeds.

    Intervals are over seeds, and never narrower than an interval over the problems only
    (`lib.stats.seeds_mean`). A seed's difference compares two models on the same problems.

    Args:
        num_validated: by variant: problems per seed in each validation during training. If a set
            has fewer, the intervals of "validation" are slightly too narrow.

    Returns:
        ::

            {"variants": variant → measure → numbers,
             "comparisons": "sft to grpo" → measure → numbers,
             "validation": variant → training step → numbers,
             "hours": hours of experiments}

        Numbers are {"mean", "se", "low", "high", "seed_0", …} (`_over_seeds`).
    """
    # (variant, seed) → measure → problem id → score. `named` puts a benchmark's name before the
    # measure, "harder pass@8", but not that of the first benchmark.
    scores = {
        run: {
            study.named(benchmark, measure): problems
            for benchmark in (*study.benchmarks, "")
            for measure, problems in benchmarks.get(benchmark, {}).items()
        }
        for run, benchmarks in outcome.scores.items()
    }
    measures = _common_measures(study, scores)
    return {
        "variants": {
            variant: {name: _variant_rate(study, variant, name, scores) for name in measures}
            for variant in study.variants
        },
        "comparisons": {
            pair.name: {name: _difference(study, pair, name, scores) for name in measures}
            for pair in study.comparisons
        },
        "validation": _validation_rates(study, outcome, num_validated),
        "hours": outcome.hours,
    }


def _common_measures(study: Study, scores: RunScores) -> list[str]:
    """List the measures that all runs have, and in which every comparison is possible.

    Args:
        scores: (variant, seed) → measure → problem id → score.
    """
    first, *others = scores.values()
    # A run without right answers, for example, has no DISTINCT.
    measures = [name for name in first if all(name in run for run in others)]
    # A partial measure (`DISTINCT`, `UNSEEN`) scores only some problems, others in each run. Both
    # runs of each comparison must have a scored problem in common, for every seed.
    return [
        name
        for name in measures
        if not _is_partial(name)
        or all(
            scores[pair.before, seed][name].keys() & scores[pair.after, seed][name].keys()
            for pair in study.comparisons
            for seed in study.seeds
        )
    ]


def _is_partial(measure: str) -> bool:
    """Return True for a measure on a part of a benchmark's problems, which depends on the run.

    `DISTINCT` needs two right completions of a problem, and `UNSEEN` depends on the training set.
    """
    return DISTINCT in measure or UNSEEN in measure


def _variant_rate(study: Study, variant: str, measure: str, scores: RunScores) -> dict[str, Any]:
    """Return a variant's mean over seeds in one measure: {"mean", "low", "high", "seed_0", …}.

    Args:
        scores: (variant, seed) → measure → problem id → score.
    """
    # A mean for each seed first: generated problems differ between seeds.
    means = [mean_estimate([*scores[variant, seed][measure].values()]) for seed in study.seeds]
    highest = math.inf if measure == ENTROPY else 1.0
    return _rate(study.seeds, means, highest=highest, of_problems=measure not in TRAINING)


def _difference(study: Study, pair: Contrast, measure: str, scores: RunScores) -> dict[str, Any]:
    """Return the mean over seeds of `after` minus `before` in one measure.

    Args:
        scores: (variant, seed) → measure → problem id → score.

    Returns:
        The numbers of `_over_seeds`: {"mean", "low", "high", "seed_0", …}.
    """
    changes = []
    for seed in study.seeds:
        before, after = scores[pair.before, seed][measure], scores[pair.after, seed][measure]
        if _is_partial(measure):
            shared = sorted(before.keys() & after.keys())
            before = {problem: before[problem] for problem in shared}
            after = {problem: after[problem] for problem in shared}
        changes.append(paired_difference(before=before, after=after))
    # Standard errors over problems, from the 95 % intervals: unlike the plain ones, they are above
    # 0 even if no problem changed.
    errors = [(each.interval.high - each.interval.low) / (2 * Z) for each in changes]
    differences = [each.difference for each in changes]
    return _over_seeds(study.seeds, differences, errors, of_problems=measure not in TRAINING)


def _validation_rates(
    study: Study, outcome: Outcome, num_validated: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return variant → training step → {"mean", "low", "high", "seed_0", …} of greedy accuracy.

    Variants without a step that all seeds validated at, like an untrained checkpoint, are left out.

    Args:
        num_validated: by variant: problems per seed in each validation.
    """
    validation = {}
    for variant in study.variants:
        curves = [outcome.validation[variant, seed] for seed in study.seeds]
        # The steps at which all seeds have a validation. They are text, sorted as numbers.
        steps = sorted(set.intersection(*map(set, curves)), key=int)
        if steps:
            n = num_validated[variant]
            validation[variant] = {
                # NaN, an unknown error: `_rate` then computes the error of scores that are all 0
                # or 1, as those of greedy completions are.
                step: _rate(study.seeds, [Estimate(curve[step], math.nan, n) for curve in curves])
                for step in steps
            }
    return validation


def _rate(
    seeds: Sequence[int],
    estimates: Sequence[Estimate],
    *,
    highest: float = 1.0,
    of_problems: bool = True,
) -> dict[str, Any]:
    """Return the mean over seeds of a rate, its interval cut to [0, `highest`].

    Args:
        estimates: [S] each seed's rate, its error and its number of problems.
        highest: largest possible value of the rate.
        of_problems: see `_over_seeds`.

    Returns:
        The numbers of `_over_seeds`: {"mean", "se", "low", "high", "seed_0", …}.
    """
    # Each seed's standard error over its problems, after adding z² problems, half with score 0 and
    # half with score 1, as `share_interval` does: a rate of 0 or 1 then has an error above 0 too.
    # `padded_mean` returns (mean, standard error).
    errors = [
        float(padded_mean(each.value, each.se, each.n, extremes=(0.0, 1.0), padding=Z**2)[1])
        for each in estimates
    ]
    rate = _over_seeds(seeds, estimates, errors, of_problems=of_problems)
    return rate | {"low": max(0.0, rate["low"]), "high": min(highest, rate["high"])}


def _over_seeds(
    seeds: Sequence[int],
    estimates: Sequence[Estimate],
    errors: Sequence[float],
    *,
    of_problems: bool,
) -> dict[str, Any]:
    """Return the mean over seeds with its error and interval, and each seed's value.

    {"mean", "se", "problem_se", "low", "high", "n", "seed_0", "seed_1", …}: `se` is over seeds,
    `problem_se` over problems, `low` and `high` the 95 % interval, `n` the first seed's problems. A
    measure of training has no `n`, and a `problem_se` of 0.

    Args:
        estimates: [S] each seed's mean over its problems.
        errors: [S] each seed's standard error over its problems.
        of_problems: False for a measure of training, one number per seed, whose `errors` are
            ignored.
    """
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
    """Return one sentence per comparison of the study, with its verdict.

    A claim holds if its p-value, corrected for all claims of the study (Holm), is below 0.05.
    "No difference" is a claim too. It holds if the difference is shown to be smaller than the
    margin; an interval that contains 0 is not enough.

    Args:
        metrics: the content of study.json.
    """
    measures = measure_names(metrics)
    # The measure of claims that name none. Without pass@1 nothing was sampled, and the first
    # measure is greedy accuracy.
    headline = "pass@1" if "pass@1" in measures else measures[0]
    numbers = [
        metrics["comparisons"][each.name][each.measure or headline] for each in study.comparisons
    ]
    means = [
        SeedsMean(each["mean"], each["se"], len(study.seeds), each["problem_se"])
        for each in numbers
    ]
    # Index of a comparison → p-value. Exploratory comparisons are not tested, so that they cost the
    # claims no power.
    p_values = {
        index: _p_value(each, means[index])
        for index, each in enumerate(study.comparisons)
        if not each.exploratory
    }
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return [
        _verdict(each, numbers[index], means[index], corrected.get(index), headline)
        for index, each in enumerate(study.comparisons)
    ]


def _p_value(claim: Contrast, mean: SeedsMean) -> float:
    """Return the p-value of a claim's opposite (the null hypothesis): small for a true claim."""
    margin = claim.margin / 100
    match claim.expect:
        case "no difference":
            # Null hypothesis: the mean is a margin or more from 0.
            return mean.p_equivalent(margin)
        case "not better":
            # Null hypothesis: the mean is at least the margin.
            return mean.p_below(margin)
        case "not worse":
            # Null hypothesis: the mean is at most the negative margin.
            return mean.p_above(-margin)
    return mean.p_value


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
    """Return the sentence on one comparison.

    "**As claimed**: `grpo` against `sft` in pass@1: +20.4 points (+18.5 to +22.3), above on 10 of
    10 seeds; expected better; p < 0.001."

    Args:
        numbers: the comparison's numbers in study.json, with `seed_0` and so on.
        mean: the same difference, in [-1, 1].
        p: the p-value corrected for all claims; None for an exploratory comparison.
        headline: the measure of a claim that names none.
    """
    interval = mean.interval
    margin = claim.margin / 100
    # True if the claim holds for no value of the interval.
    excluded = {
        "better": interval.high < 0,
        "worse": interval.low > 0,
        "not better": interval.low > margin,
        "not worse": interval.high < -margin,
        "no difference": interval.low > margin or interval.high < -margin,
    }[claim.expect]
    # The two-sided test of better and worse ignores the sign; other claims have one-sided tests.
    sign_fits = {"better": mean.value > 0, "worse": mean.value < 0}.get(claim.expect, True)
    if p is None:
        verdict = "Exploratory"
    elif p < ALPHA and sign_fits:
        verdict = "As claimed"
    elif excluded:
        verdict = "Not as claimed"
    else:
        verdict = "Not settled"
    per_seed = [value for key, value in numbers.items() if key.startswith("seed_")]
    wanted = WANTED.get(claim.expect, claim.expect).format(claim.margin)
    chance = "" if p is None else f"; p {p_value(p, digits=3)}"
    return (
        f"**{verdict}**: `{claim.after}` against `{claim.before}` in {claim.measure or headline}: "
        f"{points(mean.value)} points ({points(interval.low)} to {points(interval.high)}), above "
        f"on {sum(value > 0 for value in per_seed)} of {len(per_seed)} seeds; expected "
        f"{wanted}{chance}."
    )


def measure_names(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the measures: first benchmark, other benchmarks, then training."""
    names = next(iter(metrics["variants"].values()))
    # False sorts before True. A name with a space has a prefix: another benchmark, or `UNSEEN`. By
    # length, pass@8 comes before pass@32.
    return sorted(
        names, key=lambda name: (name in TRAINING, " " in name, DISTINCT in name, len(name), name)
    )
