"""Run what a study asks for, as DVC experiments; what ran before on the same code is kept."""

import concurrent.futures
import csv
import dataclasses
import hashlib
import json
import math
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dvc.api import DVCFileSystem
from ruamel.yaml import YAML

from lib.artifacts import read_json, write_json
from lib.artifacts.completions import GREEDY, SAMPLED, GradedCompletion
from lib.core.errors import UserError
from lib.report.compare import graded_rows
from lib.report.comparisons import problem_grades
from lib.stats import pass_at_k
from lib.studies.definition import Study, Value, Variant, hydra

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By benchmark and measure: the score of each problem, by its id."""

DISTINCT = "distinct"
"""The share of pairs of right sampled completions to a problem that differ."""

ENTROPY = "entropy"
"""The measure that is no rate: nats per token."""

TRAINING = {"training": "answer_accuracy", ENTROPY: "entropy"}
"""Measures of what GRPO samples, and their columns in its curve."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run of the pipeline: a seed, and the params of one or more variants.

    Attributes:
        variants: by name, with the checkpoint of each.
    """

    name: str
    seed: int
    params: Mapping[str, Value]
    variants: Mapping[str, Variant]

    @property
    def targets(self) -> list[str]:
        """What DVC is to bring up to date."""
        return sorted({f"grade@{variant.checkpoint}" for variant in self.variants.values()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What all experiments of a study gave.

    Attributes:
        scores: by variant and seed.
        validation: by variant and seed, greedy accuracy by training step; empty where the
            checkpoint was not trained.
        training: by variant and seed, what `TRAINING` names; {} where no GRPO ran.
        hours: that the experiments took, added up.
    """

    scores: Mapping[tuple[str, int], Scores]
    validation: Mapping[tuple[str, int], Mapping[str, float]]
    training: Mapping[tuple[str, int], Mapping[str, float]]
    hours: float


def experiments_of(name: str, study: Study) -> list[Experiment]:
    """Seed by seed; of each seed, variants with the same params together."""
    groups: dict[str, dict[str, Variant]] = {}
    for variant_name, variant in study.variants.items():
        key = json.dumps(variant.params, sort_keys=True)
        groups.setdefault(key, {})[variant_name] = variant
    return [
        Experiment(
            name=f"{name}-{'-'.join(variants)}-{seed}",
            seed=seed,
            params=json.loads(key),
            variants=variants,
        )
        for seed in study.seeds
        for key, variants in groups.items()
    ]


def run_study(
    name: str, study: Study, *, scratch: Path, jobs: int, say: Callable[[str], None]
) -> Outcome:
    """What the study's experiments gave; runs those that have not run.

    Of each seed, one experiment runs first and leaves what the others share in DVC's run-cache.

    Args:
        scratch: where scores are kept for the next time, by experiment.
        jobs: experiments at a time.
        say: gets a line for each experiment that ended, with the time left.

    Raises:
        UserError: an experiment failed, or the committed run is not there.
    """
    state = _state()
    experiments = experiments_of(name, study)
    waiting = [each for each in experiments if not _kept(each, scratch, state)]
    first = {each.seed: each.name for each in reversed(waiting)}
    ran: dict[str, concurrent.futures.Future[float]] = {}

    def run_after(shared: concurrent.futures.Future[float] | None, each: Experiment) -> float:
        if shared:
            shared.result()
        return _run(each, scratch, state)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for each in sorted(waiting, key=lambda each: each.name != first[each.seed]):
            ran[each.name] = pool.submit(run_after, ran.get(first[each.seed]), each)
        names = {future: name for name, future in ran.items()}
        seconds: list[float] = []
        for future in concurrent.futures.as_completed(names):
            seconds.append(future.result())
            say(progress_line(names[future], seconds, total=len(waiting), jobs=jobs))
    scores: dict[tuple[str, int], Scores] = {}
    validation: dict[tuple[str, int], Mapping[str, float]] = {}
    training: dict[tuple[str, int], Mapping[str, float]] = {}
    total = 0.0
    for each in experiments:
        kept = _kept(each, scratch, state)
        total += kept["seconds"]
        for variant in each.variants:
            scores[variant, each.seed] = kept["scores"][variant]
            validation[variant, each.seed] = kept["validation"][variant]
            training[variant, each.seed] = kept["training"][variant]
    return Outcome(scores=scores, validation=validation, training=training, hours=total / 3600)


def progress_line(name: str, seconds: Sequence[float], *, total: int, jobs: int) -> str:
    """What just ended, and how long the rest will take at the mean of those that ended."""
    rounds = math.ceil((total - len(seconds)) / jobs)
    return (
        f"study {len(seconds)}/{total} experiment={name} minutes={seconds[-1] / 60:.1f} "
        f"left={fmean(seconds) * rounds / 60:.0f}"
    )


def _state() -> str:
    """The hash of what dvc.lock says of the code, params and data up to the grades.

    Raises:
        UserError: the lock is not committed, so that no commit says what was measured; or its run
            is not there, without which DVC cannot check out what experiments share.
    """
    changed = ["git", "diff", "--quiet", "HEAD", "--", "dvc.lock"]
    if subprocess.run(changed, check=False).returncode:
        raise UserError("study: dvc.lock is not committed; commit it with the code and params")
    status = [sys.executable, "-m", "dvc", "status", "--quiet", "--with-deps", "grade"]
    if subprocess.run(status, capture_output=True, check=False).returncode:
        raise UserError("study: the committed run is not up to date here; run `dvc repro` first")
    stages = YAML(typ="safe").load(Path("dvc.lock"))["stages"]
    measured = {name: stages[name] for name in stages if name not in ("export", "report")}
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:16]


def _kept(experiment: Experiment, scratch: Path, state: str) -> Mapping[str, Any]:
    """What the experiment gave the last time; {} where code or params are others by now."""
    path = scratch / f"{experiment.name}.json"
    content = read_json(path) if path.is_file() else {}
    return content if content.items() >= _identity(experiment, state).items() else {}


def _identity(experiment: Experiment, state: str) -> dict[str, Any]:
    """What decides an experiment's scores."""
    checkpoints = {name: variant.checkpoint for name, variant in experiment.variants.items()}
    return {"state": state, "params": dict(experiment.params), "checkpoints": checkpoints}


def _run(experiment: Experiment, scratch: Path, state: str) -> float:
    """Run in a copy of the checkout, so that the workspace stays as it is; the seconds it took.

    An older one of that name goes first: `--force` would take its name too, and switch off the
    run-cache with it.
    """
    # Two at a time meet at the checkout's lock, which each holds for seconds.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "exp"]
    start = time.monotonic()
    subprocess.run([*command, "remove", experiment.name], capture_output=True, check=False)
    settings = {"seed": experiment.seed, **experiment.params}
    sets: list[str] = []
    for key, value in settings.items():
        setting = f"{key}={hydra(value)}"
        # A mapping is taken for changes within what is there, which may be no mapping.
        sets += [f"-S=~{key}", f"-S=+{setting}"] if isinstance(value, dict) else ["-S", setting]
    run = [*command, "run", "--temp", "--name", experiment.name, *sets, *experiment.targets]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise UserError(f"study: experiment {experiment.name} failed:\n{tail}")
    seconds = time.monotonic() - start
    content = {**_identity(experiment, state), "seconds": seconds, **measurements(experiment)}
    write_json(scratch / f"{experiment.name}.json", content)
    return seconds


def measurements(experiment: Experiment) -> dict[str, Any]:
    """What an experiment that ran gave, by variant."""
    side = DVCFileSystem(rev=experiment.name)
    checkpoints = {name: variant.checkpoint for name, variant in experiment.variants.items()}
    # Where it did not, the checkout has the curve of another run.
    grpo_ran = "grpo" in checkpoints.values()
    return {
        "scores": {
            name: problem_scores(graded_rows(side, Path(f"data/graded/{of}.jsonl")))
            for name, of in checkpoints.items()
        },
        "validation": {
            name: _curve(side, f"{of}_validation", "answer_accuracy")
            for name, of in checkpoints.items()
        },
        "training": {
            name: _sampled(side, of) if grpo_ran else {} for name, of in checkpoints.items()
        },
    }


def _sampled(side: DVCFileSystem, checkpoint: str) -> dict[str, float]:
    """Of GRPO's samples: of SFT those of the first step, of GRPO the mean of the last tenth."""
    measures: dict[str, float] = {}
    for name, column in TRAINING.items():
        steps = list(_curve(side, "grpo", column).values())
        parts = {"sft": steps[:1], "grpo": steps[-math.ceil(len(steps) / 10) :]}
        if part := parts.get(checkpoint):
            measures[name] = fmean(part)
    return measures


def _curve(side: DVCFileSystem, name: str, column: str) -> dict[str, float]:
    """A column by training step; nothing of untrained weights."""
    path = f"reports/curves/{name}.csv"
    if not side.exists(path):
        return {}
    rows = csv.DictReader(side.read_text(path).splitlines())
    return {row["step"]: float(row[column]) for row in rows}


def problem_scores(rows: Sequence[GradedCompletion]) -> dict[str, dict[str, dict[str, float]]]:
    """Per benchmark: greedy accuracy, pass@1, pass@8 and pass@k of every problem.

    And `DISTINCT` of problems with two right ones or more.
    """
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for (benchmark, mode), problems in problem_grades(rows).items():
        for problem, right in problems.items():
            for k in {1, min(8, len(right)), len(right)}:
                measure = "greedy" if mode == GREEDY else f"pass@{k}"
                score = pass_at_k(num_completions=len(right), num_correct=sum(right), k=k)
                scores.setdefault(benchmark, {}).setdefault(measure, {})[problem] = float(score)
    texts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.mode == SAMPLED and row.answer_ok:
            texts[row.benchmark, row.problem_id][row.completion] += 1
    for (benchmark, problem), counts in texts.items():
        if pairs := math.comb(counts.total(), 2):
            same = sum(math.comb(count, 2) for count in counts.values())
            scores[benchmark].setdefault(DISTINCT, {})[problem] = 1 - same / pairs
    return scores
