"""What the stages wrote, read and checked."""

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lib.artifacts import read_json
from lib.artifacts.completions import GradedCompletion, TrainingRollout, read_graded, read_rollouts
from lib.core.errors import UserError
from lib.prompts import render, special_tokens
from lib.prompts.formats import conversation

Metrics = Mapping[str, Any]
"""Of one checkpoint: benchmark → mode ("greedy", "sampled") → measure → number."""

Prompts = Mapping[tuple[str, str], str]
"""By benchmark and problem id, the text of the prompt: chat template and system prompt included."""

Curve = Mapping[str, Sequence[tuple[int, float]]]
"""A training curve: by logged name, the steps at which it was logged and its values there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the pipeline, or models that were evaluated together.

    Attributes:
        checkpoints: in the order of training, the untrained one first.
        starts: by checkpoint, the one that it was trained from.
        benchmarks: the first is the headline.
        exported: the checkpoint that `export` published.
        metrics: by checkpoint.
        completions: by checkpoint, in the order of the file.
        prompts: by checkpoint, what its completions answer.
        graded: folder of their files, as a reader of the page is told.
        provenance: by stage, what the stage noted about how it ran.
        rollouts: what `grpo` kept of its steps' completions.
        validated: by checkpoint, completions of the last validation while it was trained.
        curves: by training stage; empty for a stage that logged nothing.
        validations: the same of what validation measured.
        skipped: the training stages that passed their checkpoint on unchanged.
        stage_metrics: flat numbers by stage.
        trained: whether the checkpoints are those of one training, each made from another.
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
    rollouts: Sequence[TrainingRollout] = ()
    validated: Mapping[str, Sequence[GradedCompletion]] = dataclasses.field(default_factory=dict)
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    validations: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    stage_metrics: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    trained: bool = True

    @property
    def origins(self) -> dict[str, str]:
        """By trained checkpoint, what it is compared with: the one that it was trained from.

        Where that was not evaluated, or is unknown, the checkpoint before it.
        """
        return {
            after: self.starts[after] if self.starts.get(after) in self.checkpoints else previous
            for previous, after in pairwise(self.checkpoints)
        }


STAGES = ("prepare", "sft", "grpo", "pairs", "dpo", "export")


def load_run(
    *,
    checkpoints: Sequence[str],
    starts: Mapping[str, str],
    benchmarks: Sequence[str],
    exported: str,
    base: Path = Path("data/models/base"),
    graded: Path = Path("data/graded"),
    metrics: Path = Path("reports/metrics"),
    rollouts: Path = Path("data/rollouts"),
    curves: Path = Path("reports/curves"),
    provenance: Path = Path("reports/provenance"),
) -> Run:
    """Read all that the report needs from the folders that the stages wrote.

    Args:
        checkpoints: in the order of training, the untrained one first.
        starts: by checkpoint, the one that it was trained from.
        benchmarks: the first is the headline.
        exported: the checkpoint that was exported.
        base: the base model, for the chat template of its tokenizer.

    Raises:
        UserError: a file is missing or damaged.
    """
    # Without the checkpoint, files of DPO are an older run's.
    stages = [stage for stage in STAGES if "dpo" in checkpoints or stage not in ("pairs", "dpo")]
    trained = [stage for stage in ("sft", "grpo", "dpo") if stage in stages]
    records = {
        name: _optional_json(provenance / f"{name}.json")
        for name in (*stages, *(f"evaluate/{checkpoint}" for checkpoint in checkpoints))
    }
    completions = {name: tuple(read_graded(graded / f"{name}.jsonl")) for name in checkpoints}
    validated: dict[str, tuple[GradedCompletion, ...]] = {
        stage: tuple(read_graded(file))
        for stage in trained
        if stage in checkpoints and (file := rollouts / f"{stage}_validation.jsonl").exists()
    }
    return Run(
        checkpoints=tuple(checkpoints),
        starts=dict(starts),
        benchmarks=tuple(benchmarks),
        exported=exported,
        metrics={name: read_json(graded / f"{name}.json") for name in checkpoints},
        completions=completions,
        prompts={
            name: rendered_prompts(
                (*rows, *validated.get(name, ())),
                base=base,
                system=records[f"evaluate/{name}"].get("prompt", {}).get("system", ""),
            )
            for name, rows in completions.items()
        },
        graded=graded,
        validated=validated,
        rollouts=tuple(read_rollouts(rollouts / "grpo.jsonl")),
        curves={stage: read_curve(curves / f"{stage}.csv") for stage in trained},
        validations={stage: read_curve(curves / f"{stage}_validation.csv") for stage in trained},
        skipped=frozenset(stage for stage in stages if records[stage].get("skipped")),
        stage_metrics={stage: _optional_json(metrics / f"{stage}.json") for stage in stages},
        provenance={name: record for name, record in records.items() if record},
    )


def read_models(metrics: Mapping[str, Metrics], folder: Path) -> Run:
    """Models that anybody trained as a run: each is compared with the first.

    Args:
        metrics: by model.
        folder: of their graded completions, prompts and provenance.
    """
    names = tuple(metrics)
    prompts = {name: read_json(folder / f"prompts/{name}.json") for name in names}
    return Run(
        checkpoints=names,
        starts=dict.fromkeys(names[1:], names[0]),
        benchmarks=tuple(dict.fromkeys(name for of in metrics.values() for name in of)),
        exported=names[-1],
        metrics=metrics,
        completions={name: tuple(read_graded(folder / f"graded/{name}.jsonl")) for name in names},
        prompts={
            name: {
                (benchmark, problem): text
                for benchmark, texts in of.items()
                for problem, text in texts.items()
            }
            for name, of in prompts.items()
        },
        graded=Path("graded"),  # from the page, which is in `folder`
        provenance={
            f"evaluate/{name}": read_json(folder / f"provenance/{name}.json") for name in names
        },
        trained=False,
    )


def rendered_prompts(rows: Iterable[GradedCompletion], *, base: Path, system: str) -> Prompts:
    """The prompts that a checkpoint's completions answer, as the model read them.

    Args:
        rows: its completions.
        base: the base model, whose tokenizer brings the chat template to all checkpoints.
        system: its system prompt, '' for none.

    Raises:
        UserError: the tokenizer's files are missing or damaged.
    """
    try:
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


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def read_curve(path: Path) -> Curve:
    """A CSV whose first column is `step`; a missing or empty file is an empty curve.

    Raises:
        UserError: another first column, or a cell that is no number; names file and row.
    """
    if not path.exists():
        return {}
    curve: dict[str, list[tuple[int, float]]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                step = int(row.pop("step"))
                for name, value in row.items():
                    points = curve.setdefault(name, [])
                    if value:  # empty where that number was not logged at that step
                        points.append((step, float(value)))
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"{path}:{number}: {error!r}; run `dvc repro` to write it again"
                ) from error
    return curve
