"""Keep some rollouts of GRPO's steps for reading.

A logged step has its problems with the smallest hashes. Some problems therefore recur in the log,
and show how their answers change. A long run does not log every step (`MAX_BYTES`). The rows are
part of each checkpoint's `trainer_state.json`, so a resumed run has every row once.
"""

import hashlib
import json
import math
import operator
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from lib.artifacts import ENCODING_ERRORS, write_jsonl
from lib.core.errors import visible
from lib.params.training import Grpo
from lib.training.phase.checkpoints import SavedState
from lib.training.phase.console import say

MAX_BYTES = 2**25
"""Approximate limit of a run's log. A run with more rows logs only every second, third, …
generation."""
TEXT_BYTES, TOKEN_BYTES = 2048, 8
"""Estimated bytes of a row: prompt and numbers, and each token of the completion."""
DIGITS = 6
"""Decimal places of logged numbers."""


def kept_generations(grpo: Grpo, *, max_new_tokens: int) -> int:
    """Return the least n ≥ 1 that keeps a log of every n-th generation within about `MAX_BYTES`."""
    rows = grpo.max_steps * grpo.log_problems * grpo.group_size / grpo.num_iterations
    return math.ceil(rows * (TEXT_BYTES + TOKEN_BYTES * max_new_tokens) / MAX_BYTES) or 1


class RolloutLog(SavedState):
    """Logs whole groups: all completions of `grpo.log_problems` problems of a step.

    On several ranks, only the first rank's problems are logged.

    Args:
        trainer: a `PolicyGradientTrainer`.
    """

    def __init__(self, trainer: Any, *, grpo: Grpo, max_new_tokens: int) -> None:
        self.trainer = trainer
        self.grpo = grpo
        self.every = kept_generations(grpo, max_new_tokens=max_new_tokens)
        # JSON texts: a checkpoint would sort the keys of objects, and refuse a tensor in `extra`.
        self.rows: list[str] = []
        self.path: Path | None = None
        """File that gets each row as it happens; None for none."""

    def values(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def restore(self, values: Mapping[str, Any]) -> None:
        self.rows = list(values["rows"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.path and state.is_world_process_zero:
            # Without the rows that a resumed run makes again.
            write_jsonl(self.path, rollout_rows(self.trainer))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log rollouts after the first step on them: the trainer has scored them by then."""
        # The number of the roll-out, and of this step among the `num_iterations` steps on its
        # rollouts, both from 0.
        generation, iteration = divmod(state.global_step - 1, self.grpo.num_iterations)
        if state.is_world_process_zero and iteration == 0 and generation % self.every == 0:
            rows = logged_rollouts(self.trainer, self.grpo.log_problems, step=state.global_step)
            # `default`: a reward function may log values that are no JSON, such as a tensor.
            self.rows += [json.dumps(row, default=str) for row in rows]
            if self.path:
                new = rollout_rows(self.trainer, start=len(self.rows) - len(rows))
                text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new)
                # One call of the system, so that a killed run leaves whole lines.
                with self.path.open("ab", buffering=0) as file:
                    file.write(text.encode(errors=ENCODING_ERRORS))
            self.group = rows[: self.grpo.group_size]
        every = self.grpo.eval_steps
        if state.is_world_process_zero and every and state.global_step % every == 0:
            for line in group_lines(self.group, width=shutil.get_terminal_size().columns):
                say(f"grpo step={state.global_step} {line}")


def group_lines(group: Sequence[Mapping[str, Any]], *, width: int) -> Iterator[str]:
    """Yield a group for reading: the problem, its reference, the best and the worst completion.

    Args:
        width: most characters of a line.
    """
    worst, *_, best = sorted(group, key=operator.itemgetter("reward"))
    lines = {"problem": best["problem"], "reference": best["reference"]}
    for name, row in (("best", best), ("worst", worst)):
        numbers = f"reward={row['reward']:.4g} advantage={row['advantage']:+.3g}"
        lines[f"{name} {numbers}"] = row["completion"]
    for name, text in lines.items():
        # 30 for the stage and the step before it.
        room = max(20, width - len(name) - 30)
        yield f"{name}: {visible(' '.join(text.split()))[:room]}"


def rollout_rows(trainer: Trainer, *, start: int = 0) -> list[Mapping[str, Any]]:
    """Return the rows of a trainer's rollout log from row `start` on; [] without a log."""
    logs = [log for log in trainer.callback_handler.callbacks if isinstance(log, RolloutLog)]
    # NaN and infinity, which a reward function may log too, are no JSON: they become texts.
    return [json.loads(row, parse_constant=str) for log in logs for row in log.rows[start:]]


def logged_rollouts(trainer: Any, num_problems: int, *, step: int) -> list[dict[str, Any]]:
    """Return a step's rollouts of the `num_problems` problems whose texts have the smallest hashes.

    Args:
        trainer: a `PolicyGradientTrainer` after the step. Its `rollouts` hold G consecutive ones
            for each problem.
        step: the number of the step, for the rows.
    """
    size = trainer.grpo.group_size
    # Index of a group's first rollout → the problem's text.
    firsts = range(0, len(trainer.rollouts), size)
    problems = {start: trainer.rollouts[start].problem for start in firsts}
    starts = sorted(problems, key=lambda start: hashlib.sha256(problems[start].encode()).digest())
    scores = _scores(trainer)
    # `extra_columns` has what reward functions logged in their last call. With dynamic sampling
    # that call may have scored a refill's groups only, so its columns belong to other rollouts. A
    # column of another length than the rollouts belongs to others too.
    columns = {} if trainer.grpo.dynamic_sampling else trainer.extra_columns
    extra = {
        name: values for name, values in columns.items() if len(values) == len(trainer.rollouts)
    }
    rows = []
    for start in sorted(starts[:num_problems]):
        for index in range(start, start + size):
            rollout = trainer.rollouts[index]
            rewards = trainer.grading.by_name(rollout)
            row = {
                "step": step,
                **rollout.columns(),
                # With special tokens, as the model has read it.
                "prompt": trainer.processing_class.decode(rollout.prompt_ids),
                "sample": index - start,
                "rewards": {name: round(value, DIGITS) for name, value in rewards.items()},
                "reward": round(rollout.reward, DIGITS),
                "extra": {name: values[index] for name, values in extra.items()},
                **scores[index],
            }
            rows.append(row)
    return rows


def _scores(trainer: Any) -> dict[int, dict[str, Any]]:
    """Return advantage, loss tokens and log-prob gap of each rollout, by its index in the step.

    b rows of a micro-batch, T tokens.
    """
    scores: dict[int, dict[str, Any]] = {}
    for batch in trainer.batches:
        # [b, T] True for tokens in the loss.
        counted = batch.loss_mask
        if batch.correction is not None:
            # A token whose importance weight is 0 has no loss either, but for a KL penalty.
            counted = counted & (batch.correction > 0)
        # [b] None for a micro-batch without gradient, which the trainer did not score.
        gaps = [None] * len(batch.rows)
        if batch.old_log_probs is not None:
            mask = batch.sampled_mask
            # [b] mean of |log π − log q| over a completion's tokens, in nats.
            total = ((batch.old_log_probs - batch.sampler_log_probs).abs() * mask).sum(-1)
            gaps = [round(gap, DIGITS) for gap in (total / mask.sum(-1)).tolist()]
        columns = zip(batch.advantages.tolist(), counted.sum(-1).tolist(), gaps, strict=True)
        for index, (advantage, num_loss_tokens, gap) in zip(batch.rows, columns, strict=True):
            scores[index] = {
                "advantage": round(advantage, DIGITS),
                "num_loss_tokens": num_loss_tokens,
                "log_prob_gap": gap,
            }
    return scores
