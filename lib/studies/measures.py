"""The measures of one experiment: scores of graded completions, and values of training curves."""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean

from dvc.api import DVCFileSystem

from lib.artifacts.completions import GREEDY, SAMPLED, GradedCompletion
from lib.artifacts.problems import UNSEEN_EQUATIONS
from lib.report.comparisons import problem_grades
from lib.stats import pass_at_k

Scores = dict[str, dict[str, dict[str, float]]]
"""Benchmark → measure → problem id → score. The measures of `TRAINING` are in the benchmark "",
with one score under the id "all"."""

DISTINCT = "distinct"
"""Measure of diversity: share of pairs with different texts, among a problem's right samples."""

UNSEEN = "unseen"
"""Prefix of a measure on only those problems whose sequence of equations is in no training set."""

ENTROPY = "entropy"
"""The only measure in nats per token; all others are rates."""

TRAINING = {"training": "answer_accuracy", ENTROPY: "entropy"}
"""Measures of GRPO's training samples → their columns in its curve."""


def problem_scores(rows: Sequence[GradedCompletion]) -> Scores:
    """Score every problem of each benchmark: greedy accuracy, pass@1, pass@8 and pass@k.

    k is the number of samples per problem. Problems with at least two right samples also get
    "distinct", the share of pairs of these with different texts. If some problems of a benchmark
    are unseen, greedy accuracy and pass@1 are repeated on these: "unseen greedy".

    Returns:
        Benchmark → measure → problem id → score.
    """
    scores: Scores = {}
    for (benchmark, mode), problems in problem_grades(rows).items():
        for problem, grades in problems.items():
            # A set, since the three values of k may be equal: always for greedy, with one
            # completion, whose pass@1 is its grade.
            for k in {1, min(8, len(grades)), len(grades)}:
                measure = "greedy" if mode == GREEDY else f"pass@{k}"
                score = pass_at_k(num_completions=len(grades), num_correct=sum(grades), k=k)
                scores.setdefault(benchmark, {}).setdefault(measure, {})[problem] = score
    texts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.mode == SAMPLED and row.answer_ok:
            texts[row.benchmark, row.problem_id][row.completion] += 1
    for (benchmark, problem), counts in texts.items():
        num_pairs = math.comb(counts.total(), 2)
        num_equal = sum(math.comb(count, 2) for count in counts.values())
        if num_pairs:
            scores[benchmark].setdefault(DISTINCT, {})[problem] = 1 - num_equal / num_pairs
    # Problems whose sequence of equations is in no training set; `prepare` tags them.
    unseen = {(row.benchmark, row.problem_id) for row in rows if UNSEEN_EQUATIONS in row.tags}
    for benchmark, measures in scores.items():
        for measure in {"greedy", "pass@1"} & measures.keys():
            of_all = measures[measure]
            of_unseen = {key: of_all[key] for key in of_all if (benchmark, key) in unseen}
            # Left out if no problem is unseen, or all are: it would then repeat the measure itself.
            if 0 < len(of_unseen) < len(of_all):
                measures[f"{UNSEEN} {measure}"] = of_unseen
    return scores


def training_scores(files: DVCFileSystem, checkpoint: str) -> dict[str, dict[str, float]]:
    """Return accuracy and entropy of GRPO's training samples at a checkpoint.

    {"training": {"all": 0.8}, "entropy": {"all": 0.26}}. For "sft" they are those of the first
    step, which samples from the SFT checkpoint; for "grpo", means over the last tenth of the steps.
    {} for any other checkpoint.
    """
    measures = {}
    for name, column in TRAINING.items():
        values = list(curve_column(files, "grpo", column).values())
        if checkpoint == "sft":
            values = values[:1]
        elif checkpoint == "grpo":
            values = values[-math.ceil(len(values) / 10) :]
        else:
            values = []
        if values:
            measures[name] = {"all": fmean(values)}
    return measures


def curve_column(files: DVCFileSystem, name: str, column: str) -> dict[str, float]:
    """Read a column of a curve's CSV as training step → value, in the order of the file.

    "grpo_validation", "answer_accuracy" -> {"0": 0.31, "10": 0.35}; {} without this file, for a
    checkpoint that was not trained, or without this column: TRL logs no accuracy of its samples.
    """
    path = f"reports/curves/{name}.csv"
    if not files.exists(path):
        return {}
    rows = csv.DictReader(files.read_text(path).splitlines())
    # A second update on the same rollouts logs no accuracy: its cell is empty.
    return {row["step"]: float(row[column]) for row in rows if row.get(column)}
