"""Grade completions: extract the answer, compare it with the reference, compute the rewards.

Without torch: after a change of reward or verifier, stored completions are graded again in seconds.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import read_records, write_jsonl, write_metrics, write_provenance
from lib.artifacts.code import verifier_code
from lib.artifacts.completions import GradedCompletion, read_graded
from lib.core.errors import shorten, visible
from lib.grading.metrics import headline_lines, headline_metrics, summarise
from lib.prompts import prompt_format
from lib.rewards.functions import FormatError
from lib.rewards.grading import Grading, RewardSettings
from lib.rewards.rollout import Rollout
from reckon_verifier import counters

PLACE = ("checkpoint", "benchmark", "mode", "sample", "problem_id", "subject", "level")
"""Columns that a graded completion copies from its row: origin, subject and level."""

JUDGED = ("completion", "token_ids", "finish", "problem", "reference", "prompt", "tags")
"""Columns of a completion that its `Rollout` has."""

COLUMNS = (*PLACE, *JUDGED, "prompt_format", "sampling")
"""Columns of a completion that grading reads."""

SHOWN_CHARS = 320
"""Characters of a problem and of its completion in the terminal."""

FAULTS = ("timeouts", "over_budget", "worker_failures", "failures")
"""The verifier's counters that provenance records: comparisons that ended without a decision."""


def grade(
    reward: RewardSettings,
    completions: Path,
    *,
    graded: Path,
    rates: Path,
    metrics: Path,
    provenance: Path,
) -> str:
    """Grade a checkpoint's completions; write grades, metrics and provenance.

    Args:
        completions: JSONL of `lib.evaluation.completions`, named after the checkpoint. It is read;
            the other files are written.
        graded: gets a `GradedCompletion` for each completion.
        rates: gets every number, also by level, subject and tag, for the report.
        metrics: gets the headline numbers only, for git and `dvc metrics diff`.

    Returns:
        The headline numbers and the first completion, as lines for the terminal.
    """
    summary, faults = grade_file(completions, graded, reward=reward)
    write_metrics(rates, summary)
    write_metrics(metrics, headline_metrics(summary))
    write_provenance(
        provenance,
        settings={"reward": reward.model_dump()},
        inputs={"completions": completions},
        verifier={"code": verifier_code(), **faults},
    )
    lines = [*headline_lines(completions.stem, summary)]
    if first := next(iter(read_graded(graded)), None):
        lines.append(example_line(completions.stem, first))
    return "\n".join(lines)


def example_line(checkpoint: str, graded: GradedCompletion) -> str:
    """Return a problem and its graded completion on one line."""
    problem, completion = (
        visible(shorten(" ".join(text.split()), SHOWN_CHARS))
        for text in (graded.problem, graded.completion)
    )
    verdict = "right" if graded.answer_ok else f"wrong, not {graded.reference}"
    return f"evaluate checkpoint={checkpoint} example: {problem} -> {completion} ({verdict})"


def grade_file(
    completions: Path, graded: Path, *, reward: RewardSettings
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Grade a JSONL file of completions, and write the grades in the same order.

    Returns:
        The metrics as {benchmark: {mode: {name: value}}}, and how often the verifier ended without
        a decision as {cause in `FAULTS`: count}.
    """
    # The verifier counts over the whole process: the difference is this file's part.
    before = counters()
    lines = read_records(
        completions,
        lambda row: {name: row[name] for name in COLUMNS},
        what="a completion",
        remedy="this file is written by `evaluate`: run `dvc repro`",
    )
    rows = grade_rows(lines, reward=reward)
    # Written and read again, row by row: a whole file may not fit into memory.
    write_jsonl(graded, map(dataclasses.asdict, rows))
    after = counters()
    return summarise(read_graded(graded)), {name: after[name] - before[name] for name in FAULTS}


def grade_rows(
    rows: Iterable[Mapping[str, Any]], *, reward: RewardSettings
) -> Iterator[GradedCompletion]:
    """Grade the rows of a completions file, in order; rows of one problem must be adjacent."""
    # Once for each format and length limit.
    grading_for = functools.cache(functools.partial(_grading, reward))
    # A reward may compare the completions of a problem.
    by_problem = itertools.groupby(
        rows, lambda row: (row["benchmark"], row["mode"], row["problem_id"])
    )
    for _, group in by_problem:
        lines = list(group)
        # The same in all rows of a problem.
        form, sampling = lines[0]["prompt_format"], lines[0]["sampling"]
        # Rewards on length use the limit of this benchmark's evaluation, not of training.
        # Rows of before have no tool.
        tool = sampling.get("tool", "")
        grading = grading_for(form["name"], tuple(form["tags"]), sampling["max_new_tokens"], tool)
        rollouts = [grading.rollout(**{key: line[key] for key in JUDGED}) for line in lines]
        grading.score(rollouts)
        for line, rollout in zip(lines, rollouts, strict=True):
            yield graded_completion(rollout, grading=grading, **{key: line[key] for key in PLACE})


def _grading(
    reward: RewardSettings, name: str, tags: tuple[str, ...], max_new_tokens: int, tool: str
) -> Grading:
    """Return a `Grading` with the rewards of params, for completions in a prompt format.

    If one of the rewards reads other tags than the format has, the `Grading` has no rewards.
    """
    settings = reward.settings(max_completion_tokens=max_new_tokens)
    form = prompt_format(name, tags=tags, tool=tool)
    try:
        return Grading(reward.names, reward.weights, prompt_format=form, **settings)
    except FormatError:
        # A model of another format, such as an external one: only the verifier judges it.
        return Grading(prompt_format=form)


def graded_completion(rollout: Rollout, *, grading: Grading, **place: Any) -> GradedCompletion:
    """Convert a rollout that `grading` scored to a row of data/graded.

    Args:
        place: values of the fields in `PLACE`.
    """
    # None if the reasoning's marks are missing.
    reasoning = rollout.parsed.reasoning or ""
    calls, wrong_calls = rollout.calls
    return GradedCompletion(
        **place,
        **rollout.columns(),
        tags=tuple(rollout.tags),
        answer=rollout.answer,
        format_ok=rollout.format_ok,
        answer_ok=rollout.answer_ok,
        strict_ok=rollout.strict_ok,
        label=rollout.label,
        decided_by=rollout.verdict.decided_by,
        reasoning_present=bool(reasoning),
        reasoning_chars=len(reasoning),
        equations=reasoning.count("="),
        calls=calls,
        wrong_calls=wrong_calls,
        rewards=grading.by_name(rollout),
        reward=rollout.reward,
    )
