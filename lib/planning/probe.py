"""Whether a micro-batch fits: two steps of the phase's own trainer on the longest rows.

The trainer is the one that the stage builds, reference policy and engine included. The second step
is the one that counts: the optimiser holds its state by then. GRPO's engine generates the rows,
which are filled up to the longest length; their rewards differ, so that no micro-batch is left out.

On a GPU too large a batch runs out of memory by itself. On a CPU the process is held to a limit of
its data, so that torch's allocator fails in place of the machine.
"""

import contextlib
import dataclasses
import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils.memory import should_reduce_batch_size

from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.engines.base import GeneratedCompletion, Sampling
from lib.params import Params
from lib.planning.memory import batch_of
from lib.problems.selection import token_counter
from lib.prompts import prompt_format, saved_system
from lib.training.grpo import grpo_setup
from lib.training.phase.tracking import ProgressLines
from lib.training.phase.warning_signs import WarningSigns
from lib.training.sft import sft_setup

STEPS = 2
"""Optimiser steps that have to fit."""

SHORT = 3
"""Exit code of a process in which they did not."""


def longest_first(
    params: Params, phase: str, *, base: Path, problems: Path
) -> tuple[list[Problem], int]:
    """The phase's problems, and the tokens of the first: of an SFT example, or of a prompt and all
    that may be generated."""
    used_format = prompt_format(**params.prompt.rendering)
    counter = token_counter(base, prompt_format=used_format, system=saved_system(base))
    rows = list(read_problems(problems / f"{phase}.jsonl"))
    completions = [params.rollout.max_new_tokens] * len(rows)
    if phase == "sft":
        completions = counter.completions(rows)
    lengths = list(map(sum, zip(counter.prompts(rows), completions, strict=True)))
    order = sorted(range(len(rows)), key=lambda row: -lengths[row])
    return [rows[row] for row in order], max(lengths)


def fits(
    params: Params,
    phase: str,
    *,
    base: Path,
    problems: Sequence[Problem],
    tokens: int,
    size: int,
    limit: int,
) -> bool:
    """Whether the phase's steps fit with micro-batches of `size`.

    To be asked once of a process: what ran out of memory leaves fragments, and vLLM a state.

    Args:
        problems: of the phase, the longest first.
        tokens: of the first of them, as `longest_first` counts them.
        limit: bytes that the steps may take on a CPU.
    """
    # In GRPO, the longest problems; in SFT the longest row, as often as a step takes it.
    rows, batch = problems[: params.grpo.prompts_per_step], batch_of(params, phase)
    if phase == "sft":
        packed = params.model.max_seq_length // tokens if params.sft.packing else 1
        rows = [problems[0]] * (batch * packed)
    try:
        with _limited(limit):
            _take_steps(params, phase, base=base, rows=rows, size=size)
    except (RuntimeError, MemoryError) as error:
        if not _short_of_memory(error):
            raise
        return False
    return True


def _short_of_memory(error: Exception) -> bool:
    # Under a limit, a thread may be what there is no room for: its stack counts as data.
    threads = "can't start new thread" in str(error)
    return threads or isinstance(error, MemoryError) or should_reduce_batch_size(error)


@contextlib.contextmanager
def _limited(limit: int) -> Iterator[None]:
    """Hold this process to `limit` more bytes of data than it has, where there is no GPU."""
    if torch.accelerator.is_available():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    now = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (now + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _take_steps(
    params: Params, phase: str, *, base: Path, rows: Sequence[Problem], size: int
) -> None:
    section = getattr(params, phase)
    changes: dict[str, Any] = {
        "micro_batch_size": size,
        "eval_steps": 0,
        "save_steps": 0,
        "keep_checkpoints": 0,
    }
    # TRL's trainer holds as much as ours, and generates by itself.
    changes |= {"num_epochs": STEPS, "max_steps": STEPS, "trainer": "reckon"}
    changes |= {"dynamic_sampling": 0, "mask_truncated": False}
    changes = {key: value for key, value in changes.items() if hasattr(section, key)}
    short = params.model_copy(update={phase: section.model_copy(update=changes)})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        places = {"problems": Path(name) / "rows.jsonl", "base": base, "scratch": Path(name)}
        write_problems(places["problems"], rows)
        if phase == "sft":
            trainer: Any = sft_setup(short, **places).trainer
        else:
            trainer = with_signal(grpo_setup(short, init=base, **places).trainer)
            stack.callback(trainer.engine.close)
        for callback in (ProgressLines, WarningSigns):
            trainer.remove_callback(callback)
        trainer.train()


def with_signal(trainer: Any) -> Any:
    """GRPO whose rewards differ within every group, and whose completions are all of the longest
    length; TRL's trainer has no engine, and ends its completions by itself."""

    def alternating(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(number % 2) for number in range(len(completions))]

    trainer.reward_funcs = [alternating for _ in trainer.reward_funcs]
    if not hasattr(trainer, "engine"):
        return trainer
    generate = trainer.engine.generate

    def full_length(
        prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Each with its last token, and that token's log-prob, up to the longest length."""

        def filled(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return values + values[-1:] * (sampling.max_new_tokens - len(values))

        # Nothing but the end token stops early, which leaves the cache its size.
        groups = generate(prompts, dataclasses.replace(sampling, stop_strings=()))
        return [
            [
                dataclasses.replace(
                    each, token_ids=filled(each.token_ids), log_probs=filled(each.log_probs or ())
                )
                for each in group
            ]
            for group in groups
        ]

    trainer.engine.generate = full_length
    return trainer
