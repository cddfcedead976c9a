"""Metrics of graded completions: rates with n and a standard error clustered by problem."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED, UNGRADED, GradedCompletion, num_attempts
from lib.stats import (
    Estimate,
    clustered_mean,
    maj_at_k,
    mean_estimate,
    pass_at_k,
    pass_hat_k,
)

GradedRows = Sequence[GradedCompletion]
Rate = Callable[[GradedCompletion], float]

RATES: dict[str, Rate] = {
    "answer_accuracy": lambda row: row.answer_ok,
    "strict_accuracy": lambda row: row.strict_ok,
    "format_accuracy": lambda row: row.format_ok,
    "reasoning_present": lambda row: row.reasoning_present,
    "truncated": lambda row: row.truncated,
    "mean_reasoning_chars": lambda row: row.reasoning_chars,
    "mean_equations": lambda row: row.equations,
    "mean_response_tokens": lambda row: row.num_tokens,
    "mean_reward": lambda row: row.reward,
    # The first digit is the format, the second the answer: "01" is right in the wrong form.
    "class_00": lambda row: row.label == "00",
    "class_01": lambda row: row.label == "01",
    "class_10": lambda row: row.label == "10",
    "class_11": lambda row: row.label == "11",
}

ANSWER_RATES = tuple(name for name in RATES if name.startswith(("answer_", "strict_", "class_")))
"""Rates that are left out for instructions, which have no right answer."""


def summarise(rows: Iterable[GradedCompletion]) -> dict[str, dict[str, Any]]:
    """Compute metrics as {benchmark: {mode: {name: value}}}; a mode is `greedy` or `sampled`."""
    groups: dict[str, dict[str, list[GradedCompletion]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        # No metric uses the texts. Kept for a whole benchmark, they would fill the memory.
        lean = dataclasses.replace(row, problem="", completion="")
        groups[row.benchmark][row.mode].append(lean)
    return {
        benchmark: {
            mode: _summarise_mode(benchmark, mode, mode_rows) for mode, mode_rows in modes.items()
        }
        for benchmark, modes in groups.items()
    }


def _summarise_mode(benchmark: str, mode: str, rows: GradedRows) -> dict[str, Any]:
    """Compute the metrics of one benchmark in one mode, also by level, subject and tag.

    Each rate has a value and, if there are several problems, a standard error: `truncated` and
    `truncated_se`. Example of a breakdown: {"by_level": {"3": {"answer_accuracy": 0.4, "n": 10}}}.

    Raises:
        UserError: the problems have different numbers of completions.
    """
    by_problem = _grouped(rows, lambda row: [row.problem_id])
    num_samples = num_attempts(by_problem, what=f"{benchmark}, {mode}")  # completions per problem
    # n counts problems, the independent units, not completions.
    metrics: dict[str, Any] = {"n": len(by_problem)}
    judged = not any(row.decided_by == UNGRADED for row in rows)
    left_out = () if judged else ANSWER_RATES
    # A model of another format has no rewards, for which a mean of 0 would mislead.
    if not rows[0].rewards:
        left_out = (*left_out, "mean_reward")
    for name, rate in RATES.items():
        if name not in left_out:
            metrics |= _with_error(name, estimate_rate(rows, rate))
    metrics |= _calls(rows)
    if mode == SAMPLED:
        metrics["num_samples"] = num_samples
    if not judged:
        return metrics
    if mode == SAMPLED:
        metrics |= _attempts(by_problem.values(), num_samples)
    accuracy = RATES["answer_accuracy"]
    breakdowns: dict[str, Callable[[GradedCompletion], Sequence[str]]] = {
        "by_level": lambda row: [str(row.level)],
        "by_subject": lambda row: [row.subject],
        # A row has several tags: the numbers of tags do not add up to n.
        "by_tag": lambda row: row.tags,
    }
    for key, groups_of_row in breakdowns.items():
        metrics[key] = {
            # '' is an unknown level or subject.
            group or "none": {
                **_with_error("answer_accuracy", estimate_rate(members, accuracy)),
                "n": len({row.problem_id for row in members}),
            }
            for group, members in _grouped(rows, groups_of_row).items()
        }
    return metrics


def _calls(rows: GradedRows) -> dict[str, float]:
    """Compute the calls of a completion, and the shares of wrong calls and of right answers with a
    call; {} without any call.
    """
    if not any(row.calls for row in rows):
        return {}
    numbers = _with_error("mean_calls", estimate_rate(rows, lambda row: row.calls))
    # One value for each call.
    calls = [row for row in rows for _ in range(row.calls)]
    wrong = [number < row.wrong_calls for row in rows for number in range(row.calls)]
    share = clustered_mean(list(map(float, wrong)), [row.problem_id for row in calls])
    numbers |= _with_error("wrong_calls", share)
    if right := [row for row in rows if row.answer_ok]:
        numbers |= _with_error("right_with_call", estimate_rate(right, lambda row: row.calls > 0))
    return numbers


def _attempts(by_problem: Collection[GradedRows], k: int) -> dict[str, float]:
    """Compute pass@1, pass@k, pass^k and maj@k over P problems, each with its standard error.

    Keys: `pass_at_1`, `pass_at_1_se`, `pass_at_8`, `pass_hat_8`, `maj_at_8` and so on.

    Args:
        by_problem: [P] the graded completions of each problem.
        k: number of completions of each problem.
    """
    numbers: dict[str, float] = {}
    # [P] of (N, c): completions of a problem, and how many of them are right. N is `k`.
    counts = [(len(samples), sum(row.answer_ok for row in samples)) for samples in by_problem]
    for attempts in sorted({1, k}):
        chances = [pass_at_k(num_completions=n, num_correct=c, k=attempts) for n, c in counts]
        numbers |= _with_error(f"pass_at_{attempts}", mean_estimate(chances))
    # pass^k, all k are right; pass^1 equals pass@1.
    if k > 1:
        chances = [pass_hat_k(num_completions=n, num_correct=c, k=k) for n, c in counts]
        numbers |= _with_error(f"pass_hat_{k}", mean_estimate(chances))
    votes = [
        maj_at_k(
            answers=[row.answer for row in samples],
            correct=[row.answer_ok for row in samples],
            k=k,
        )
        for samples in by_problem
    ]
    return numbers | _with_error(f"maj_at_{k}", mean_estimate(votes))


def _grouped(
    rows: GradedRows, keys: Callable[[GradedCompletion], Sequence[str]]
) -> Mapping[str, GradedRows]:
    groups: dict[str, list[GradedCompletion]] = defaultdict(list)
    for row in rows:
        for key in keys(row):
            groups[key].append(row)
    return groups


def estimate_rate(rows: GradedRows, value: Rate) -> Estimate:
    """Average a rate over completions, with the standard error clustered by problem."""
    return clustered_mean([float(value(row)) for row in rows], [row.problem_id for row in rows])


def _with_error(name: str, estimate: Estimate) -> dict[str, float]:
    """Return `{name: value, name_se: error}`; the error is left out for a single problem."""
    error = {} if math.isnan(estimate.se) else {f"{name}_se": estimate.se}
    return {name: estimate.value, **error}


def headline_metrics(summary: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Select the metrics that compare checkpoints, for `dvc metrics diff`.

    Returns {benchmark: {mode: {name: value, "standard_errors": [{"<name>_se": value}]}}}. Standard
    errors go into a one-element list: `dvc metrics diff` does not show lists
    (`lib.artifacts.unlisted` reads them back).
    """
    metrics: dict[str, Any] = {}
    for benchmark, modes in summary.items():
        for mode, numbers in modes.items():
            # For sampled answers, answer_accuracy equals pass_at_1.
            rates = "answer_accuracy" if mode == GREEDY else r"(pass_at|pass_hat|maj_at)_\d+"
            # The format is reported for greedy answers, or for sampled ones if there are no greedy.
            if mode == GREEDY or GREEDY not in modes:
                rates += "|format_accuracy|mean_equations"
            selected = {
                key: value
                for key, value in numbers.items()
                if re.fullmatch(f"n|num_samples|{rates}", key)
            }
            errors = {
                key: value for key, value in numbers.items() if re.fullmatch(f"({rates})_se", key)
            }
            metrics.setdefault(benchmark, {})[mode] = selected | {"standard_errors": [errors]}
    return metrics


def headline_lines(checkpoint: str, summary: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line per benchmark, in a fixed form for grep.

    `evaluate checkpoint=grpo benchmark=held_out n=50 format=98.0% greedy=40.0% pass@1=38.5%`
    """
    for benchmark, modes in summary.items():
        greedy, sampled = modes.get(GREEDY, {}), modes.get(SAMPLED, {})
        k = sampled.get("num_samples", 1)
        numbers = {
            "format": (greedy or sampled)["format_accuracy"],
            "greedy": greedy.get("answer_accuracy"),
            "pass@1": sampled.get("pass_at_1"),
            f"pass@{k}": sampled.get(f"pass_at_{k}"),
        }
        known = {name: value for name, value in numbers.items() if value is not None}
        values = " ".join(f"{name}={100 * value:.1f}%" for name, value in known.items())
        prefix = f"evaluate checkpoint={checkpoint} benchmark={benchmark}"
        yield f"{prefix} n={(greedy or sampled)['n']} {values}"
