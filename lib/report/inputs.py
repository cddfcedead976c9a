"""The report's input: a `Run`, read and checked from the stages' files."""

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from lib.artifacts import read_json
from lib.artifacts.completions import GradedCompletion, read_graded, read_rollouts
from lib.core.errors import UserError
from lib.prompts import render, special_tokens
from lib.prompts.formats import conversation

Metrics = Mapping[str, Any]
"""One checkpoint's numbers: benchmark → mode ("greedy", "sampled") → measure → number."""

Prompts = Mapping[tuple[str, str], str]
"""(benchmark, problem id) → prompt text, with chat template and system prompt."""

LoggedCurve = Mapping[str, Sequence[tuple[int, float]]]
"""A training curve: logged name → (step, value) pairs; a name may skip steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the pipeline, or models that were evaluated together.

    Attributes:
        checkpoints: in the order of training, the untrained one, if any, first.
        starts: checkpoint → its parent, the checkpoint that training started from.
        benchmarks: the first is the headline.
        exported: the checkpoint that `export` published.
        metrics: by checkpoint.
        completions: by checkpoint, in the order of the file.
        prompts: by checkpoint.
        graded: folder of the graded completions, as the page names it to its reader.
        provenance: by stage: settings, versions, hashes, warnings.
        rollouts: the training completions that `grpo` logged.
        validation_completions: by checkpoint, from its last validation during training.
        curves: by training stage; empty for a stage that logged nothing.
        validations: validation curves by training stage.
        skipped: the training stages that passed their checkpoint on unchanged.
        stage_metrics: by stage: its metrics file, {} for a stage that has not run.
        trained: True for the checkpoints of one pipeline run, False for unrelated models.
    """

    checkpoints: tuple[str, ...]
    starts: Mapping[str, str]
    benchmarks: tuple[str, ...]
    exported: str
    metrics: Mapping[str, Metrics]
    completions: Mapping[str, Sequence[GradedCompletion]]
    prompts: Mapping[str, Prompts]
    graded: Path
    provenance: Mapping[str, Mapping[str, Any]]
    rollouts: Sequence[Mapping[str, Any]] = ()
    validation_completions: Mapping[str, Sequence[GradedCompletion]] = dataclasses.field(
        default_factory=dict
    )
    curves: Mapping[str, LoggedCurve] = dataclasses.field(default_factory=dict)
    validations: Mapping[str, LoggedCurve] = dataclasses.field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    stage_metrics: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    trained: bool = True

    @property
    def selections(self) -> dict[str, Mapping[str, float]]:
        metrics = self.stage_metrics.items()
        return {stage: each["selected"] for stage, each in metrics if "selected" in each}

    @property
    def all_completions(self) -> dict[str, Sequence[GradedCompletion]]:
        """Checkpoint → its completions of the benchmarks, then those of its last validation.

        The rollout browser shows them all. The report's numbers use the benchmarks only.
        """
        return {
            name: (*rows, *self.validation_completions.get(name, ()))
            for name, rows in self.completions.items()
        }

    @cached_property
    def origins(self) -> dict[str, str]:
        """Checkpoint → the checkpoint to compare it with: its parent, if this was evaluated too.

        If the parent is unknown or not in `checkpoints`, the preceding checkpoint takes its place.
        The first checkpoint has no entry.
        """
        return {
            after: self.starts[after] if self.starts.get(after) in self.checkpoints else previous
            for previous, after in pairwise(self.checkpoints)
        }


STAGES = ("prepare", "sft", "grpo", "pairs", "dpo", "export")
"""Stages with one provenance and one metrics file; `evaluate` has them for each checkpoint."""


def load_run(
    *,
    checkpoints: Sequence[str],
    starts: Mapping[str, str],
    benchmarks: Sequence[str],
    exported: str,
    base: Path = Path("data/models/base"),
    graded: Path = Path("data/graded"),
    stage_metrics: Path = Path("reports/metrics"),
    rollouts: Path = Path("data/rollouts"),
    curves: Path = Path("reports/curves"),
    provenance: Path = Path("reports/provenance"),
) -> Run:
    """Read the stages' folders into a `Run`.

    Args:
        checkpoints: in any order; the run has them in that of training.
        starts: checkpoint → its parent.
        benchmarks: the first is the headline.
        exported: the checkpoint that was exported.
        base: the base model; its tokenizer has the chat template.
        graded: the checkpoints' graded completions, and their metrics.
        stage_metrics: the stages' metrics; those of checkpoints are beside their graded
            completions.
        rollouts: the training completions that `grpo` logged, and the completions of the last
            validation of `sft` and of `grpo`.
        curves: the training stages' logged curves and validation curves.
        provenance: a record per stage, and per checkpoint for `evaluate`.

    Raises:
        UserError: a file is missing or damaged. Only provenance, stage metrics, curves, rollouts
            and validation completions may be missing.
    """
    # Params may list them in any order, in which `base` would be compared with `sft`.
    checkpoints = sorted(checkpoints, key=["base", *starts].index)
    # If this run has no DPO checkpoint, DPO's files come from an older run.
    stages = [stage for stage in STAGES if "dpo" in checkpoints or stage not in ("pairs", "dpo")]
    trained = [stage for stage in ("sft", "grpo", "dpo") if stage in stages]
    records = {
        name: _optional_json(provenance / f"{name}.json")
        for name in (*stages, *(f"evaluate/{checkpoint}" for checkpoint in checkpoints))
    }
    # Tuples, since tables, figures and the page iterate over them again and again.
    completions = {name: tuple(read_graded(graded / f"{name}.jsonl")) for name in checkpoints}
    validation_completions: dict[str, tuple[GradedCompletion, ...]] = {}
    for stage in trained:
        file = rollouts / f"{stage}_validation.jsonl"
        # DPO writes no such file.
        if stage in checkpoints and file.exists():
            validation_completions[stage] = tuple(read_graded(file))
    return Run(
        checkpoints=tuple(checkpoints),
        starts=dict(starts),
        benchmarks=tuple(benchmarks),
        exported=exported,
        metrics={name: read_json(graded / f"{name}.json") for name in checkpoints},
        completions=completions,
        prompts={
            name: rendered_prompts(
                (*rows, *validation_completions.get(name, ())),
                base=base,
                system=records[f"evaluate/{name}"].get("prompt", {}).get("system", ""),
            )
            for name, rows in completions.items()
        },
        graded=graded,
        validation_completions=validation_completions,
        rollouts=tuple(read_rollouts(rollouts / "grpo.jsonl")),
        curves={stage: read_curve(curves / f"{stage}.csv") for stage in trained},
        validations={stage: read_curve(curves / f"{stage}_validation.csv") for stage in trained},
        skipped=frozenset(stage for stage in stages if records[stage].get("skipped")),
        stage_metrics={stage: _optional_json(stage_metrics / f"{stage}.json") for stage in stages},
        provenance={name: record for name, record in records.items() if record},
    )


def read_models(metrics: Mapping[str, Metrics], folder: Path) -> Run:
    """Return evaluated models as a run, in which every other model is compared with the first.

    Args:
        metrics: by model.
        folder: contains the models' graded completions, prompts and provenance.
    """
    names = tuple(metrics)
    prompts = {name: read_json(folder / f"prompts/{name}.json") for name in names}
    return Run(
        checkpoints=names,
        starts=dict.fromkeys(names[1:], names[0]),
        benchmarks=tuple(dict.fromkeys(name for sets in metrics.values() for name in sets)),
        exported=names[-1],
        metrics=metrics,
        completions={name: tuple(read_graded(folder / f"graded/{name}.jsonl")) for name in names},
        prompts={
            name: {
                (benchmark, problem): text
                for benchmark, texts in by_benchmark.items()
                for problem, text in texts.items()
            }
            for name, by_benchmark in prompts.items()
        },
        graded=Path("graded"),
        provenance={
            f"evaluate/{name}": read_json(folder / f"provenance/{name}.json") for name in names
        },
        trained=False,
    )


def rendered_prompts(rows: Iterable[GradedCompletion], *, base: Path, system: str) -> Prompts:
    """Render the prompts of a checkpoint's completions as the model read them.

    Args:
        rows: the checkpoint's completions.
        base: folder of the base model; all checkpoints share its tokenizer and chat template.
        system: the checkpoint's system prompt, '' for none.

    Raises:
        UserError: the tokenizer's files are missing or damaged.
    """
    try:
        # From files: loading the tokenizer would import transformers, which takes seconds.
        template = (base / "chat_template.jinja").read_text(encoding="utf-8")
        tokens = special_tokens(base)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{base}: no tokenizer with a chat template ({error}); `prepare` writes it: "
            "run `dvc repro`"
        ) from error
    problems = {(row.benchmark, row.problem_id): row.problem for row in rows}
    return {
        key: render(
            conversation(problem, system=system),
            template=template,
            add_generation_prompt=True,
            **tokens,
        )
        for key, problem in problems.items()
    }


def _optional_json(path: Path) -> Any:
    return read_json(path) if path.exists() else {}


def read_curve(path: Path) -> LoggedCurve:
    """Read logged numbers from a CSV with a column `step`; {} if the file is missing or empty.

    ::

        step,loss,kl
        1,0.5,          ->  {"loss": [(1, 0.5), (2, 0.4)], "kl": [(2, 0.01)]}
        2,0.4,0.01

    Raises:
        UserError: there is no column `step`, or a cell is not a number; names file and row.
    """
    if not path.exists():
        return {}
    # Columns are logged at different steps, so each has steps of its own.
    curve: dict[str, list[tuple[int, float]]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                step = int(row.pop("step"))
                for name, value in row.items():
                    points = curve.setdefault(name, [])
                    if value:  # empty where that number was not logged at that step
                        points.append((step, float(value)))
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{path}:{number}: {error!r}; run `dvc repro` to write it again"
                ) from error
    return curve
