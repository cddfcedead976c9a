"""Measure models outside the pipeline and write, for each, the files that the stages write."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import ROOT, hash_code, write_json, write_metrics, write_provenance
from lib.artifacts.completions import read_graded
from lib.artifacts.problems import INSTRUCTION
from lib.engines.base import Engine
from lib.engines.open import loading, open_engine
from lib.engines.policy import read_max_positions
from lib.errors import UserError
from lib.evaluation.alpaca import write_outputs
from lib.evaluation.completions import TooLong, complete
from lib.evaluation.outside import PromptedModel
from lib.evaluation.stream import rows_fingerprint, scratch_of
from lib.grading.files import grade_file
from lib.grading.metrics import summarise
from lib.params.measuring import Evaluate
from lib.params.model import Model
from lib.params.training import Reward
from lib.problems.sources import BenchmarkSet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What every model is measured on, and how.

    Attributes:
        limit: problems per benchmark, 0 for all; `sets` hold no more already.
        too_long: see `complete`.
    """

    sets: Sequence[BenchmarkSet]
    evaluate: Evaluate
    reward: Reward
    model: Model
    seed: int
    limit: int
    too_long: TooLong

    def settings(self, model: PromptedModel) -> dict[str, Any]:
        """All of it for one model, for fingerprint and provenance."""
        return {
            "evaluate": self.evaluate.model_dump(mode="json", exclude={"checkpoints"}),
            "attention": self.model.attention,
            "dtype": model.dtype,
            "seed": self.seed,
            "limit": self.limit,
            "prompt": {
                "format": model.prompt_format.name,
                "template": model.template or "the model's own",
                "system": model.system,
            },
        }


def measure_model(model: PromptedModel, measurement: Measurement, *, out: Path) -> dict[str, Any]:
    """Let one model answer, grade it, and write all files under `out`; returns its metrics.

    Raises:
        UserError: the model cannot be loaded.
    """
    settings, label, evaluate = measurement.settings(model), model.label, measurement.evaluate
    reward, sets = measurement.reward, measurement.sets
    inputs = {"model": model.folder, "base": model.base} | {each.name: each.path for each in sets}
    name = rows_fingerprint({**settings, "label": label}, inputs=inputs)
    completions, graded = (out / kind / f"{label}.jsonl" for kind in ("completions", "graded"))
    # What was generated is kept until it is graded: grading again costs seconds, generating hours.
    with scratch_of(name) as scratch:
        with contextlib.closing(_open(model, measurement)) as engine:
            facts = complete(
                engine,
                {each.name: list(each.problems) for each in sets},
                label=label,
                prompt_format=model.prompt_format,
                system=model.system,
                evaluate=evaluate,
                seed=measurement.seed,
                scratch=scratch,
                completions=completions,
                positions=read_max_positions(model.base),
                too_long=measurement.too_long,
            )
            prompts = {each.name: _prompts(each, model, engine) for each in sets}
        faults = grade_file(
            completions, graded, reward=reward, max_new_tokens=evaluate.max_new_tokens
        )
    write_json(out / "prompts" / f"{label}.json", prompts)
    metrics = summarise(read_graded(graded))
    write_metrics(out / "metrics" / f"{label}.json", metrics)
    write_provenance(
        out / "provenance" / f"{label}.json",
        settings={**settings, "reward": reward.model_dump(mode="json")},
        inputs=inputs,
        benchmarks={
            each.name: {
                "adapter": each.adapter,
                "num_problems": len(each.problems),
                "num_repeated": each.num_repeated,
            }
            for each in sets
        },
        verifier={"code": hash_code(ROOT / "lib/verifier"), **faults},
        **facts,
    )
    for each in sets:
        if any(INSTRUCTION in problem.tags for problem in each.problems):
            path = out / each.name / f"{label}.json"
            write_outputs(path, read_graded(graded), benchmark=each.name, generator=label)
    return metrics


def _prompts(benchmark: BenchmarkSet, model: PromptedModel, engine: Engine) -> dict[str, str]:
    """By problem, what the model reads: a template of its own may be more than ours can be."""
    prompts = {
        problem.id: model.prompt_format.prompt(problem.problem, system=model.system)
        for problem in benchmark.problems
    }
    return {
        key: str(
            engine.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        )
        for key, prompt in prompts.items()
    }


def _open(model: PromptedModel, measurement: Measurement) -> Engine:
    with loading(model.folder):
        engine = open_engine(
            measurement.evaluate.engine,
            model.folder,
            base=model.base,
            **measurement.model.model_copy(update={"dtype": model.dtype}).loading,
            batch_size=measurement.evaluate.batch_size,
        )
    tokenizer = engine.tokenizer
    if model.template is not None:
        tokenizer.chat_template = model.template
    if tokenizer.chat_template is None:
        raise UserError(f"{model.folder} has no chat template; give PROMPT_FORMAT without /own")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return engine
