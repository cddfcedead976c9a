"""Validate by generation: measure the policy's accuracy while it trains, without disturbing it.

At step 0, every `eval_steps` and at the end the policy answers the problems of `validation.sets`
greedily, and with `validation.num_samples` also by sampling. The points are entries of the log,
like the loss's, so checkpoints hold them.
"""

import copy
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from lib.artifacts.completions import VALIDATION, GradedCompletion
from lib.artifacts.problems import read_problems
from lib.engines.base import Engine, Sampling, open_engine
from lib.evaluation.sampling import sample_groups
from lib.grading.grade import graded_completion
from lib.grading.metrics import RATES, estimate_rate
from lib.models.runtime import random_states_kept
from lib.params.engines import ENGINES
from lib.params.schema import Params
from lib.params.section import HELD_BACK_SET
from lib.rewards.functions import rewards_of
from lib.rewards.grading import Grading
from lib.training.phase.console import say, timed
from lib.training.phase.setup import prompt_settings

MEASURES = (
    "format_accuracy",
    "answer_accuracy",
    "reasoning_present",
    "mean_reasoning_chars",
    "mean_reward",
)
"""Metrics of a point, by their names in `lib.grading.metrics`."""

MAX_ROWS = 256
"""Most completions of a set that are written, from the last point, for reading."""

PREFIX = "validation/"
"""Prefix of validation's columns in the trainer's log."""


class Validator(TrainerCallback):
    """Measures the policy on sets of problems at step 0, every few steps and at the end.

    Every rank generates all completions. A sharded model can only generate on all ranks together,
    and with a whole model, a rank without validation would only wait for the others.

    Args:
        problems: folder with a file for each of `validation.sets`, written by `prepare`. The first
            set is the main one: its columns have no prefix.
        init: the checkpoint at the start of training.
        base: the model that an adapter is trained on, with the system prompt beside it.
    """

    def __init__(self, params: Params, problems: Path, *, init: Path, base: Path) -> None:
        self.params, self.settings, self.init, self.base = params, params.validation, init, base
        longest = self.settings.max_new_tokens
        self.sets = {
            name: list(read_problems(problems / f"{name}.jsonl")) for name in self.settings.sets
        }
        self.prompt_format, self.system = prompt_settings(params, base)
        self.sampling = Sampling(
            num_completions=1,
            max_new_tokens=longest,
            # Greedy, so that points differ by the weights only.
            temperature=0.0,
            stop_strings=self.prompt_format.stop_strings,
            tool=self.prompt_format.tool,
        )
        self.grading = Grading(
            rewards_of(self.settings.stack),
            self.settings.weights,
            prompt_format=self.prompt_format,
            max_completion_tokens=longest,
        )
        # Set by `watch`; the engine may be opened later.
        self.stage = ""
        self.engine: Engine | None = None
        self.heartbeat: Callable[[int, int, int], None] | None = None
        """See `Engine.heartbeat`."""
        self.rows: list[GradedCompletion] = []
        """Completions of the last point, at most `MAX_ROWS` of each set."""

    def watch(
        self,
        trainer: Trainer,
        *,
        stage: str,
        steps: int,
        keep: Callable[[int], None] | None = None,
    ) -> None:
        """Measure the policy of `trainer` from now on; the caller closes this validator afterwards.

        Args:
            stage: first word of each line.
            steps: number of steps between two points.
            keep: called on every rank with a step whose point is the best so far; None to keep no
                weights.
        """
        self.trainer, self.stage, self.steps, self.keep = trainer, stage, steps, keep
        # `PolicyGradientTrainer` has an engine for rollouts. If params name the same engine for
        # validation, it is used for that too, since a process can hold only one vLLM. A live engine
        # (`transformers`) is not shared: it generates with the policy's own weights, so that a
        # second one needs no copy of them, and can have validation's batch size.
        engine, facts = getattr(trainer, "engine", None), ENGINES[self.settings.engine]
        is_shared = engine and engine.facts is facts and not facts.live
        # None: opened at the first point.
        self.engine = engine if is_shared else None
        trainer.add_callback(self)

    def prefix(self, name: str) -> str:
        """Return the start of a set's column names: none for the first set, else `<name>/`."""
        return "" if name == next(iter(self.sets)) else f"{name}/"

    @property
    def columns(self) -> list[str]:
        """The columns of the validation curve, the same with and without points.

        Such as `answer_accuracy` for the first set, and `gsm8k/answer_accuracy` for another.
        """
        measures = (*MEASURES, "answer_accuracy_se", *self.sampled_measures)
        return [self.prefix(name) + measure for name in self.sets for measure in measures]

    @property
    def sampled_measures(self) -> list[str]:
        """The measures of the sampled completions; none without samples."""
        k = self.settings.num_samples
        return [*dict.fromkeys(["pass_at_1", f"pass_at_{k}"]), "distinct"] if k else []

    def open_engine(self, policy: PreTrainedModel) -> Engine:
        """Open validation's engine: live or Unsloth's vLLM on `policy`, any other on a copy."""
        return open_engine(
            self.settings.engine,
            self.init,
            base=self.base,
            **self.params.model.loading,
            batch_size=self.settings.batch_size,
            policy=policy,
            memory_share=self.settings.gpu_memory_utilization,
            # The GPU of a vLLM for rollouts or validation; '' for the policy's GPU.
            device=self.params.rollout.device,
        )

    def close(self) -> None:
        """Close the engine if one is open, and let the trainer go: it outlives training else."""
        if self.engine:
            self.engine.close()
        self.engine = self.keep = self.heartbeat = None
        del self.trainer

    def answers(self, engine: Engine) -> dict[str, list[GradedCompletion]]:
        answers = {}
        for name, problems in self.sets.items():
            groups = sample_groups(
                engine,
                problems,
                grading=self.grading,
                system=self.system,
                sampling=self.sampling,
            )
            answers[name] = [
                graded_completion(
                    rollout,
                    grading=self.grading,
                    checkpoint=self.stage,
                    benchmark=name,
                    mode=VALIDATION,
                    sample=0,
                    problem_id=problem.id,
                    subject=problem.subject,
                    level=problem.level,
                )
                for problem, (rollout,) in zip(problems, groups, strict=True)
            ]
        return answers

    def sample(self, engine: Engine) -> dict[str, dict[str, float]]:
        """Sample `num_samples` completions of each problem; return `sampled_measures` by set."""
        k = self.settings.num_samples
        # One seed for all points, so that they differ by the weights only.
        sampling = dataclasses.replace(
            self.sampling, num_completions=k, temperature=1.0, seed=self.params.seed
        )
        values = {}
        for name, problems in self.sets.items() if k else ():
            groups = sample_groups(
                engine, problems, grading=self.grading, system=self.system, sampling=sampling
            )
            right = [sum(one.answer_ok for one in group) for group in groups]
            values[name] = {
                "pass_at_1": statistics.fmean(each / k for each in right),
                f"pass_at_{k}": statistics.fmean(each > 0 for each in right),
            }
            distinct = [len({one.completion for one in group}) / k for group in groups]
            values[name]["distinct"] = statistics.fmean(distinct)
        return values

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure step 0 of a new run.

        A run resumed after its last step has all points in its log. It only generates again, for
        `rows`: the completions of the last point, which no checkpoint holds.
        """
        if state.global_step == 0:
            self._measure(state, kwargs["model"])
        elif state.global_step == state.max_steps:
            self._sync_and_answer(kwargs["model"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure every `steps` and at the end, before the step's checkpoint saves the point."""
        if state.global_step % self.steps == 0 or state.global_step == state.max_steps:
            self._measure(state, kwargs["model"])

    def _sync_and_answer(self, model: PreTrainedModel) -> dict[str, dict[str, float]]:
        """Answer all problems with the model's current weights; return the measures by set.

        Also set `rows`, the first `MAX_ROWS` completions of each set, which are written for
        reading. The random states of training are the same afterwards.
        """
        # An engine may disturb the generators: vLLM seeds all of them while it starts.
        with timed("validation"), random_states_kept():
            # Opened at the first point: the policy is not on its device before.
            if self.engine is None:
                self.engine = self.open_engine(model)
            self.engine.heartbeat = self.heartbeat
            self.engine.sync(model)
            answers, samples = self.answers(self.engine), self.sample(self.engine)
            self.engine.rest()
        self.rows = [row for rows in answers.values() for row in rows[:MAX_ROWS]]
        return {name: means(rows) | samples.get(name, {}) for name, rows in answers.items()}

    def _measure(self, state: TrainerState, model: PreTrainedModel) -> None:
        # All sets' measures in one entry of the log, such as `validation/gsm8k/answer_accuracy`.
        point: dict[str, float] = {}
        for name, values in self._sync_and_answer(model).items():
            say(self._line(state, name, values))
            prefix = PREFIX + self.prefix(name)
            point |= {prefix + measure: value for measure, value in values.items()}
        # A part of the trainer's state, which a checkpoint saves and a resumed run restores.
        state.log_history.append({**point, "step": state.global_step})
        # For the trackers. On a copy, since this event would switch off the log of the step itself.
        control = copy.copy(self.trainer.control)
        self.trainer.callback_handler.on_log(self.trainer.args, state, control, point)
        if self.keep:
            # Rank 0 decides: ranks that disagreed would wait for each other for ever.
            (best,) = broadcast_object_list([self.best_point(state)["step"]])
            if best == state.global_step:
                self.keep(best)

    def best_point(self, state: TrainerState) -> dict[str, float]:
        """Select the first point with the highest answer accuracy on the held-back set.

        The highest of several noisy accuracies is too optimistic for new problems, so the result
        has the numbers of points and problems too.

        Returns:
            Its step and accuracy with the standard error, the run's last step, and the numbers of
            points and problems.
        """
        column = f"{self.prefix(HELD_BACK_SET)}answer_accuracy"
        points = validation_points(state)
        # Of equal points `max` returns the first: the policy that was trained least.
        best = max(points, key=lambda point: point[column])
        selected = {
            "step": best["step"],
            "last_step": state.max_steps,
            "num_points": len(points),
            "num_problems": len(self.sets[HELD_BACK_SET]),
            "answer_accuracy": best[column],
        }
        # Not finite for a single problem.
        error = best[f"{column}_se"]
        if math.isfinite(error):
            selected["answer_accuracy_se"] = error
        return selected

    def _line(self, state: TrainerState, name: str, values: Mapping[str, float]) -> str:
        """Format a set's measures as one greppable line; accuracies and shares in percent.

        Args:
            name: of the set.
            values: mean of each measure over the set; accuracies and shares from 0 to 1.
        """
        sampled = "".join(
            f" {name.replace('pass_at_', 'pass@')}={100 * values[name]:.1f}%"
            for name in self.sampled_measures
        )
        return (
            f"{self.stage} validation step={state.global_step}/{state.max_steps} set={name} "
            f"n={len(self.sets[name])} format={100 * values['format_accuracy']:.1f}% "
            f"answer={100 * values['answer_accuracy']:.1f}% "
            f"± {100 * values['answer_accuracy_se']:.1f} "
            f"reasoning={100 * values['reasoning_present']:.1f}% "
            f"reasoning_chars={values['mean_reasoning_chars']:.1f} "
            f"reward={values['mean_reward']:.4g}{sampled}"
        )


def means(rows: Sequence[GradedCompletion]) -> dict[str, float]:
    """Return the mean of each of `MEASURES`, and the standard error of the answer accuracy."""
    measured = {name: estimate_rate(rows, RATES[name]) for name in MEASURES}
    values = {name: estimate.value for name, estimate in measured.items()}
    return {**values, "answer_accuracy_se": measured["answer_accuracy"].se}


def validation_points(state: TrainerState) -> list[dict[str, float]]:
    """Return the points of the validation curve, one per measured step, from the trainer's log."""
    return [
        {name.removeprefix(PREFIX): value for name, value in entry.items()}
        for entry in state.log_history
        if any(name.startswith(PREFIX) for name in entry)
    ]
