"""Completions to numbers: each rate beside its standard error, clustered by problem, and n."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED, UNGRADED, GradedCompletion
from lib.stats import Estimate, clustered_mean, maj_at_k, mean_estimate, pass_at_k, pass_hat_k

Rows = Sequence[GradedCompletion]
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
    "class_00": lambda row: row.label == "00",
    "class_01": lambda row: row.label == "01",
    "class_10": lambda row: row.label == "10",
    "class_11": lambda row: row.label == "11",
}

HEADLINE = r"answer_accuracy|(pass_at|pass_hat|maj_at)_\d+"
"""What checkpoints are compared by, beside the format: each with its error."""

OF_ANSWERS = ("answer_accuracy", "strict_accuracy", "class_00", "class_01", "class_10", "class_11")
"""Rates that mean nothing where there is no right answer."""


def summarise(rows: Iterable[GradedCompletion]) -> dict[str, dict[str, Any]]:
    """Metrics by benchmark and mode (`greedy`, `sampled`)."""
    groups: dict[str, dict[str, list[GradedCompletion]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        # No number is made of the texts, and they would fill the memory.
        lean = dataclasses.replace(row, problem="", completion="")
        groups[row.benchmark][row.mode].append(lean)
    return {
        benchmark: {mode: _summarise_mode(mode, of_mode) for mode, of_mode in modes.items()}
        for benchmark, modes in groups.items()
    }


def _summarise_mode(mode: str, rows: Rows) -> dict[str, Any]:
    metrics: dict[str, Any] = {"n": len({row.problem_id for row in rows})}
    judged = not any(row.decided_by == UNGRADED for row in rows)
    for name, value in RATES.items():
        if (judged or name not in OF_ANSWERS) and (rows[0].rewards or name != "mean_reward"):
            metrics |= _with_error(name, _clustered(rows, value))
    if mode == SAMPLED:
        metrics |= _attempts(rows) if judged else {"num_samples": _num_samples(rows)}
    if not judged:
        return metrics
    accuracy = RATES["answer_accuracy"]
    for key, of_row in {
        "by_level": lambda row: [str(row.level)],
        "by_subject": lambda row: [row.subject],
        "by_tag": lambda row: row.tags,
    }.items():
        metrics[key] = {
            group or "none": {
                **_with_error("answer_accuracy", _clustered(of_group, accuracy)),
                "n": len({row.problem_id for row in of_group}),
            }
            for group, of_group in _grouped(rows, of_row).items()
        }
    return metrics


def _attempts(rows: Rows) -> dict[str, float]:
    """pass@1, pass@k, pass^k and maj@k for k = all samples of a problem."""
    by_problem = _grouped(rows, lambda row: [row.problem_id]).values()
    k = _num_samples(rows)
    numbers: dict[str, float] = {"num_samples": k}
    counts = [(len(samples), sum(row.answer_ok for row in samples)) for samples in by_problem]
    for name, chance, attempts in (
        *(("pass_at", pass_at_k, attempts) for attempts in sorted({1, k})),
        *(("pass_hat", pass_hat_k, attempts) for attempts in {k} - {1}),
    ):
        chances = [chance(num_completions=n, num_correct=c, k=attempts) for n, c in counts]
        numbers |= _with_error(f"{name}_{attempts}", mean_estimate(chances))
    votes = [
        maj_at_k(
            answers=[row.answer for row in samples],
            correct=[row.answer_ok for row in samples],
            k=k,
        )
        for samples in by_problem
    ]
    return numbers | _with_error(f"maj_at_{k}", mean_estimate(votes))


def _num_samples(rows: Rows) -> int:
    first = rows[0].problem_id
    return sum(row.problem_id == first for row in rows)


def _grouped(rows: Rows, keys: Callable[[GradedCompletion], Sequence[str]]) -> Mapping[str, Rows]:
    groups: dict[str, list[GradedCompletion]] = defaultdict(list)
    for row in rows:
        for key in keys(row):
            groups[key].append(row)
    return groups


def _clustered(rows: Rows, value: Rate) -> Estimate:
    return clustered_mean([float(value(row)) for row in rows], [row.problem_id for row in rows])


def _with_error(name: str, estimate: Estimate) -> dict[str, float]:
    """The value, and its error where there is one: a single problem tells nothing of spread."""
    error = {} if math.isnan(estimate.se) else {f"{name}_se": estimate.se}
    return {name: estimate.value, **error}


def headline_metrics(summary: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of `summarise`, what checkpoints are compared by: what `dvc metrics diff` shows.

    Errors are in a list, which it does not show (`lib.artifacts.unlisted`).
    """
    metrics: dict[str, Any] = {}
    for benchmark, modes in summary.items():
        for mode, numbers in modes.items():
            # Greedy answers tell of the form; where there are none, the sampled ones do.
            form = (
                "|format_accuracy|mean_equations" if mode == GREEDY or GREEDY not in modes else ""
            )
            name = re.compile(rf"n|num_samples|({HEADLINE}{form})(_se)?")
            kept = {key: value for key, value in numbers.items() if name.fullmatch(key)}
            if mode == SAMPLED:  # once more as pass_at_1
                kept = {key: kept[key] for key in kept if not key.startswith("answer_accuracy")}
            errors = {key: value for key, value in kept.items() if key.endswith("_se")}
            rates = {key: value for key, value in kept.items() if key not in errors}
            metrics.setdefault(benchmark, {})[mode] = rates | {"standard_errors": [errors]}
    return metrics


def headline(checkpoint: str, summary: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One greppable line per benchmark: what a reader looks for first."""
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
        what = f"evaluate checkpoint={checkpoint} benchmark={benchmark}"
        yield f"{what} n={(greedy or sampled)['n']} {values}"
