"""Measure models outside the pipeline and write, for each, the files that the stage writes."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lib.artifacts import read_jsonl, write_metrics, write_provenance
from lib.engines.base import Engine
from lib.engines.open import open_engine
from lib.errors import UserError
from lib.evaluation.alpaca import alpaca_outputs, write_outputs
from lib.evaluation.checkpoint import Measured, grading_by, measure, positions_of
from lib.evaluation.outside import AskedModel
from lib.evaluation.stream import rows_fingerprint, scratch_of
from lib.params.measuring import Evaluate
from lib.params.model import Model
from lib.params.training import Reward
from lib.problems.adapters import INSTRUCTION
from lib.problems.sources import BenchmarkSet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examination:
    """What every model goes through alike.

    Attributes:
        limit: problems per benchmark, 0 for all; `sets` hold no more already.
    """

    sets: Sequence[BenchmarkSet]
    evaluate: Evaluate
    reward: Reward
    model: Model
    seed: int
    limit: int

    def settings(self, asked: AskedModel) -> dict[str, Any]:
        """All of it for one model, for fingerprint and provenance."""
        return {
            "evaluate": self.evaluate.model_dump(mode="json", exclude={"checkpoints"}),
            "reward": self.reward.model_dump(mode="json"),
            "attention": self.model.attention,
            "dtype": asked.dtype,
            "seed": self.seed,
            "limit": self.limit,
            "prompt": {
                "format": asked.prompt_format.name,
                "template": asked.template or "the model's own",
                "system": asked.system,
            },
        }


def examine(asked: AskedModel, examination: Examination, *, out: Path) -> Measured:
    """Let one model answer, and write its completions, metrics, provenance and AlpacaEval outputs.

    Raises:
        UserError: the model cannot be loaded.
    """
    settings, label = examination.settings(asked), asked.label
    inputs = {"model": asked.folder, "base": asked.base}
    inputs |= {chosen.name: chosen.path for chosen in examination.sets}
    name = rows_fingerprint({**settings, "label": label}, inputs=inputs)
    completions = out / "completions" / f"{label}.jsonl"
    with contextlib.closing(_open(asked, examination)) as engine, scratch_of(name) as scratch:
        measured = measure(
            engine,
            {chosen.name: list(chosen.problems) for chosen in examination.sets},
            label=label,
            system=asked.system,
            evaluate=examination.evaluate,
            grading=grading_by(
                examination.reward,
                prompt_format=asked.prompt_format,
                evaluate=examination.evaluate,
            ),
            seed=examination.seed,
            scratch=scratch,
            completions=completions,
            positions=positions_of(asked.base),
        )
    write_metrics(out / "metrics" / f"{label}.json", measured.summary)
    write_provenance(
        out / "provenance" / f"{label}.json",
        settings=settings,
        inputs=inputs,
        benchmarks={chosen.name: _set_facts(chosen) for chosen in examination.sets},
        **measured.facts,
    )
    _write_alpaca(completions, examination, label=label, out=out)
    return measured


def examine_all(
    models: Sequence[AskedModel],
    examination: Examination,
    *,
    out: Path,
    done: Callable[[str, Measured], None],
) -> dict[str, Mapping[str, Any]]:
    """Metrics by model; `done` is called with each one's name and numbers."""
    metrics: dict[str, Mapping[str, Any]] = {}
    for asked in models:
        measured = examine(asked, examination, out=out)
        metrics[asked.label] = measured.summary
        done(asked.label, measured)
    return metrics


def _open(asked: AskedModel, examination: Examination) -> Engine:
    try:
        engine = open_engine(
            examination.evaluate.engine,
            asked.folder,
            base=asked.base,
            model=examination.model.model_copy(update={"dtype": asked.dtype}),
            batch_size=examination.evaluate.batch_size,
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{asked.folder} cannot be loaded as a model: {reason}") from error
    tokenizer = engine.tokenizer
    if asked.template is not None:
        tokenizer.chat_template = asked.template
    if tokenizer.chat_template is None:
        raise UserError(f"{asked.folder} has no chat template; give PROMPT_FORMAT without /own")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return engine


def _set_facts(chosen: BenchmarkSet) -> dict[str, Any]:
    return {
        "adapter": chosen.adapter,
        "num_problems": len(chosen.problems),
        "num_repeated": chosen.num_repeated,
    }


def _write_alpaca(completions: Path, examination: Examination, *, label: str, out: Path) -> None:
    for chosen in examination.sets:
        if any(INSTRUCTION in problem.tags for problem in chosen.problems):
            outputs = alpaca_outputs(
                read_jsonl(completions), benchmark=chosen.name, generator=label
            )
            write_outputs(out / chosen.name / f"{label}.json", outputs)
