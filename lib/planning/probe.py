"""The largest micro-batch that fits: two steps of the phase's own trainer on the longest rows.

The trainer is the one that the stage builds, reference policy and engine included. The second step
is the one that counts: the optimiser holds its state by then. GRPO's engine generates the rows,
which are filled up to the longest length; their rewards differ, so that no micro-batch is left out.

On a GPU too large a batch runs out of memory by itself. On a CPU the process is held to a limit of
its data, so that torch's allocator fails in place of the machine.
"""

import contextlib
import ctypes
import dataclasses
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.engines.base import GeneratedCompletion, Sampling
from lib.errors import UserError
from lib.params import Params
from lib.problems.lengths import Rendering
from lib.trainers.grpo import grpo_setup
from lib.trainers.sft import sft_setup
from lib.training.tracking import ProgressLines
from lib.training.warning_signs import WarningSigns

PHASES = ("sft", "grpo")

STEPS = 2
"""Optimiser steps that have to fit."""


def probe(
    params: Params,
    phase: str,
    *,
    base: Path,
    problems: Sequence[Problem],
    tokens: int,
    limit: int,
) -> int:
    """The largest divisor of the phase's batch that fits as its micro_batch_size.

    Args:
        problems: of the phase, the longest first.
        tokens: of the first of them, as `longest_first` counts them.
        limit: bytes that the steps may take on a CPU.

    Raises:
        UserError: not even one row fits.
    """
    rows = _fullest(params, phase, problems, tokens=tokens)
    with _limited(limit):
        for size in divisors(batch_of(params, phase)):
            try:
                _take_steps(params, phase, base=base, rows=rows, size=size)
            except (RuntimeError, MemoryError) as error:
                if not _short_of_memory(error):
                    raise
            else:
                return size
            # Only here, behind the error, does nothing hold the trainer any more.
            clear_device_cache(garbage_collection=True)
            _give_back()
    raise UserError(
        f"{phase}: not even one row of {tokens} tokens fits; shorten model.max_seq_length or "
        "rollout.max_new_tokens, or set model.gradient_checkpointing to true"
    )


def _short_of_memory(error: Exception) -> bool:
    # Under a limit, a thread may be what there is no room for: its stack counts as data.
    threads = "can't start new thread" in str(error)
    return threads or isinstance(error, MemoryError) or should_reduce_batch_size(error)


def _give_back() -> None:
    """Return freed memory to the system: glibc keeps it, and it would count against the limit."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _fullest(
    params: Params, phase: str, problems: Sequence[Problem], *, tokens: int
) -> Sequence[Problem]:
    """One step's problems: in SFT the longest one alone, in GRPO the longest that differ."""
    if phase == "grpo":
        return problems[: params.grpo.prompts_per_step]
    in_a_row = params.model.max_seq_length // tokens if params.sft.packing else 1
    return [problems[0]] * (params.sft.batch_size * in_a_row)


def _take_steps(
    params: Params, phase: str, *, base: Path, rows: Sequence[Problem], size: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_problems(scratch / "rows.jsonl", rows)
        places = {"problems": scratch / "rows.jsonl", "base": base, "scratch": scratch}
        short = _two_steps(params, phase, size)
        if phase == "sft":
            trainer: Any = sft_setup(short, **places).trainer
        else:
            trainer = grpo_setup(short, init=base, **places).trainer
            trainer.engine.generate = _full_length(trainer.engine.generate)
            trainer.reward_funcs = [_alternating for _ in trainer.reward_funcs]
        for callback in (ProgressLines, WarningSigns):
            trainer.remove_callback(callback)
        try:
            trainer.train()
        finally:
            if phase == "grpo":
                trainer.engine.close()


def _two_steps(params: Params, phase: str, size: int) -> Params:
    changes: dict[str, Any] = {
        "micro_batch_size": size,
        "save_steps": 0,
        "keep_checkpoints": 0,
        "eval_steps": 0,
    }
    if phase == "sft":
        changes["num_epochs"] = STEPS
    else:  # TRL's trainer holds as much, and generates by itself
        changes |= {"trainer": "reckon", "max_steps": STEPS}
        changes |= {"dynamic_sampling": 0, "mask_truncated": False}
    section = getattr(params, phase).model_copy(update=changes)
    return params.model_copy(update={phase: section})


def _alternating(completions: Sequence[Any], **columns: Any) -> list[float]:
    return [float(number % 2) for number in range(len(completions))]


Generate = Callable[[Sequence[Sequence[int]], Sampling], list[list[GeneratedCompletion]]]


def _full_length(generate: Generate) -> Generate:
    """Every completion with its last token, and that token's log-prob, up to the longest length."""

    def filled(one: GeneratedCompletion, tokens: int) -> GeneratedCompletion:
        missing, log_probs = tokens - len(one.token_ids), one.log_probs or ()
        return dataclasses.replace(
            one,
            token_ids=one.token_ids + one.token_ids[-1:] * missing,
            log_probs=log_probs + log_probs[-1:] * missing,
        )

    def generate_full(
        prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        # Nothing but the end token stops early, which leaves the cache its size.
        groups = generate(prompts, dataclasses.replace(sampling, stop_strings=()))
        return [[filled(one, sampling.max_new_tokens) for one in group] for group in groups]

    return generate_full


def divisors(batch: int) -> list[int]:
    """What cuts a batch evenly, the largest first."""
    return [size for size in range(batch, 0, -1) if batch % size == 0]


def batch_of(params: Params, phase: str) -> int:
    """Rows of one optimiser step."""
    if phase == "sft":
        return params.sft.batch_size
    return params.grpo.prompts_per_step * params.grpo.group_size


def longest_first(
    params: Params,
    phase: str,
    problems: Path,
    *,
    rendering: Rendering,
    count_tokens: Callable[[Sequence[str]], list[int]],
) -> tuple[list[Problem], int]:
    """The phase's problems, and the tokens of the first: of an SFT example, or of a prompt and all
    that may be generated."""
    rows = list(read_problems(problems / f"{phase}.jsonl"))
    tokens = count_tokens([rendering.prompt(row) for row in rows])
    if phase == "sft":
        answers = count_tokens([rendering.completion(row) for row in rows])
        tokens = [prompt + answer for prompt, answer in zip(tokens, answers, strict=True)]
    else:
        tokens = [prompt + params.rollout.max_new_tokens for prompt in tokens]
    order = sorted(range(len(rows)), key=lambda row: -tokens[row])
    return [rows[row] for row in order], tokens[order[0]]


@contextlib.contextmanager
def _limited(limit: int) -> Iterator[None]:
    """Hold this process to `limit` more bytes of data than it has, where there is no GPU."""
    if torch.accelerator.is_available():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (held + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
