"""Validation by generation: what the policy answers while it trains, without disturbing it.

At step 0, every `eval_steps` and at the end the policy answers the problems of `validation.sets`
greedily. The points stand in the trainer's log beside the loss's, so that they outlive an
interruption with it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from lib.artifacts.completions import VALIDATION, GradedCompletion
from lib.artifacts.problems import Problem, read_problems
from lib.engines.base import Engine, Sampling, encode, open_engine
from lib.engines.registry import ENGINES
from lib.engines.runtime import random_states_kept
from lib.grading.grade import grade_completions
from lib.grading.metrics import RATES
from lib.params.model import Model
from lib.params.schema import Params
from lib.params.training import Validation
from lib.rewards.functions import Grading, rewards_of
from lib.stats import clustered_mean
from lib.training.phase.setup import prompt_settings
from lib.training.phase.tracking import timed

MEASURED = (
    "format_accuracy",
    "answer_accuracy",
    "reasoning_present",
    "mean_reasoning_chars",
    "mean_reward",
)
"""Names in `lib.grading.metrics`."""

KEPT = 256
"""Completions of a set that are kept of the last point, to be read."""

PREFIX = "validation/"
"""Of the columns in the trainer's log."""

OpenEngine = Callable[[PreTrainedModel], Engine]
"""Around a policy, or with room for a copy of its weights, which `sync` brings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validator:
    """Measures a policy on sets of problems.

    Attributes:
        sets: problems by name; the first set is the headline.
        sampling: greedy, as long as params allow.
        settings: which engine, and its size.
        init: the checkpoint that training starts from.
        base: the weights that an adapter is trained on.
        device: of an engine with a copy of the weights, as `open_engine` takes it.
    """

    sets: Mapping[str, Sequence[Problem]]
    system: str
    sampling: Sampling
    grading: Grading
    settings: Validation
    model: Model
    init: Path
    base: Path
    device: str = ""

    def open_engine(self, policy: PreTrainedModel) -> Engine:
        """See `OpenEngine`; the caller closes it."""
        return open_engine(
            self.settings.engine,
            self.init,
            base=self.base,
            **self.model.loading,
            batch_size=self.settings.batch_size,
            policy=policy,
            memory_share=self.settings.gpu_memory_utilization,
            device=self.device,
        )

    def measure(self, engine: Engine) -> dict[str, dict[str, float]]:
        """`MEASURED` and the standard error of the answer accuracy, by set."""
        return {name: means(rows) for name, rows in self.answers(engine).items()}

    def answers(self, engine: Engine) -> dict[str, list[GradedCompletion]]:
        """A graded completion of each problem, by set."""
        return {name: self._answer_set(engine, problems) for name, problems in self.sets.items()}

    def _answer_set(self, engine: Engine, problems: Sequence[Problem]) -> list[GradedCompletion]:
        formats = self.grading.prompt_format
        prompts = [formats.prompt(problem.problem, system=self.system) for problem in problems]
        completions = engine.generate(encode(engine.tokenizer, prompts), self.sampling)
        return [
            row
            for problem, prompt, group in zip(problems, prompts, completions, strict=True)
            for row in grade_completions(problem, prompt, group, grading=self.grading)
        ]


def means(rows: Sequence[GradedCompletion]) -> dict[str, float]:
    """`MEASURED` and the standard error of the answer accuracy."""
    ids = [row.problem_id for row in rows]
    measured = {
        name: clustered_mean([float(RATES[name](row)) for row in rows], ids) for name in MEASURED
    }
    values = {name: estimate.value for name, estimate in measured.items()}
    return {**values, "answer_accuracy_se": measured["answer_accuracy"].se}


def read_validator(params: Params, problems: Path, *, init: Path, base: Path) -> Validator:
    """What params ask for.

    Args:
        problems: folder that `prepare` filled with a set for each of `validation.sets`.
        init: the checkpoint that training starts from.
        base: the weights below an adapter, with the system prompt beside them.
    """
    validation = params.validation
    prompt_format, system = prompt_settings(params, base)
    return Validator(
        sets={name: list(read_problems(problems / f"{name}.jsonl")) for name in validation.sets},
        system=system,
        sampling=Sampling(
            num_completions=1,
            max_new_tokens=validation.max_new_tokens,
            temperature=0.0,
            stop_strings=prompt_format.stop_strings,
        ),
        grading=Grading(
            rewards_of(validation.stack),
            validation.weights,
            prompt_format=prompt_format,
            max_completion_tokens=validation.max_new_tokens,
        ),
        settings=validation,
        model=params.model,
        init=init,
        base=base,
        device=params.rollout.device,
    )


class ValidateByGeneration(TrainerCallback):
    """Measures the policy at step 0, every `steps` and at the end; whoever adds it closes it.

    Every rank generates all of it: a rank that went on alone would wait in the next collective, and
    a sharded model generates on all ranks or on none.

    Args:
        say: told one line per set.
        open_engine: asked at the first measurement; what the validator names, if not given.
    """

    def __init__(
        self,
        validator: Validator,
        *,
        stage: str,
        steps: int,
        say: Callable[[str], None],
        open_engine: OpenEngine | None = None,
    ) -> None:
        self.validator = validator
        self.stage = stage
        self.steps = steps
        self.say = say
        self.open_engine = open_engine or validator.open_engine
        self.engine: Engine | None = None
        self.rows: list[GradedCompletion] = []
        """Of the last point, `KEPT` of each set at most."""

    def close(self) -> None:
        """Let go of the engine."""
        if self.engine:
            self.engine.close()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Step 0, unless this run goes on with another; one that was stopped after its last step
        lacks only the completions."""
        if state.global_step == 0:
            self._measure(state, kwargs["model"])
        elif state.global_step == state.max_steps:
            self._answers(kwargs["model"])

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Before the step's checkpoint is written, which therefore holds the point."""
        if state.global_step % self.steps == 0 or state.global_step == state.max_steps:
            self._measure(state, kwargs["model"])

    def _answers(self, model: PreTrainedModel) -> dict[str, list[GradedCompletion]]:
        with timed("validation"), undisturbed(model):
            if self.engine is None:
                self.engine = self.open_engine(model)
            self.engine.sync(model)
            answers = self.validator.answers(self.engine)
        self.rows = [
            dataclasses.replace(row, checkpoint=self.stage, benchmark=name, mode=VALIDATION)
            for name, rows in answers.items()
            for row in rows[:KEPT]
        ]
        return answers

    def _measure(self, state: TrainerState, model: PreTrainedModel) -> None:
        measured = {name: means(rows) for name, rows in self._answers(model).items()}
        point: dict[str, float] = {"step": state.global_step}
        for number, (name, values) in enumerate(measured.items()):
            self.say(self._line(state, name, values))
            prefix = PREFIX if number == 0 else f"{PREFIX}{name}/"
            point |= {prefix + measure: value for measure, value in values.items()}
        state.log_history.append(point)

    def _line(self, state: TrainerState, name: str, values: Mapping[str, float]) -> str:
        error = f" ± {100 * values['answer_accuracy_se']:.1f}"
        return (
            f"{self.stage} validation step={state.global_step}/{state.max_steps} set={name} "
            f"n={len(self.validator.sets[name])} format={100 * values['format_accuracy']:.1f}% "
            f"answer={100 * values['answer_accuracy']:.1f}%{error} "
            f"reasoning={100 * values['reasoning_present']:.1f}% "
            f"reasoning_chars={values['mean_reasoning_chars']:.1f} "
            f"reward={values['mean_reward']:.4g}"
        )


def opener(validator: Validator, trainer: Trainer) -> OpenEngine:
    """What the validator opens, or GRPO's own engine where that bears the same name.

    A process has room for one vLLM. `transformers` is nothing but the policy: validation keeps a
    batch size of its own there.
    """
    engine, name = getattr(trainer, "engine", None), validator.settings.engine
    if engine and not ENGINES[name].live and engine.facts is ENGINES[name]:
        return lambda policy: engine
    return validator.open_engine


@contextlib.contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Put back, after the block, the modules' train mode and every random state."""
    modes = {module: module.training for module in model.modules()}
    try:
        with random_states_kept(gpus=range(torch.cuda.device_count())):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def validation_points(state: TrainerState) -> list[dict[str, float]]:
    """The points of the curves, one per measured step; the other sets' columns bear their name."""
    return [
        {name.removeprefix(PREFIX): value for name, value in entry.items()}
        for entry in state.log_history
        if any(name.startswith(PREFIX) for name in entry)
    ]


def validation_columns(sets: Sequence[str]) -> list[str]:
    """Columns of the curves, also where nothing was measured."""
    names = [*MEASURED, "answer_accuracy_se"]
    return [*names, *(f"{name}/{measure}" for name in sets[1:] for measure in names)]
