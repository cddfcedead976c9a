"""Probe whether a micro-batch fits: two steps of the phase's own trainer on the longest rows.

The stage's own setup builds the trainer, with reference policy and engine. The second step decides:
by then the optimiser holds its state. In GRPO the engine generates completions, which are extended
to the longest length. Their rewards differ, so that no micro-batch is skipped.

On a GPU, too large a batch raises an out-of-memory error. On a CPU, a limit on the process's data
makes torch's allocator fail before the machine runs out of memory.
"""

import contextlib
import dataclasses
import functools
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils.memory import should_reduce_batch_size

from lib.artifacts.completions import GeneratedCompletion
from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.params import Params
from lib.planning.memory import batch_of
from lib.problems.selection import token_counter
from lib.prompts import prompt_format, saved_system
from lib.training.grpo import grpo_setup
from lib.training.phase.console import ProgressLines
from lib.training.phase.warning_signs import WarningSigns
from lib.training.sft import sft_setup

STEPS = 2
"""Optimiser steps of a probe."""

OUT_OF_MEMORY = 3
"""Exit code of a probe process that ran out of memory."""


def longest_first(
    params: Params, phase: str, *, base: Path, problems: Path
) -> tuple[list[Problem], int]:
    """Return the phase's problems, longest row first, and the tokens of the longest row.

    A row is an SFT example, or a GRPO prompt with a completion of full length, of at most
    `model.max_seq_length` tokens.

    Args:
        phase: sft or grpo.
        base: the base model, with its tokenizer and system prompt.
        problems: the folder that `prepare` wrote.
    """
    answer_format = prompt_format(**params.prompt.rendering)
    counter = token_counter(base, prompt_format=answer_format, system=saved_system(base))
    rows = list(read_problems(problems / f"{phase}.jsonl"))
    lengths = counter.prompts(rows)
    if phase == "sft":
        lengths = list(map(sum, zip(lengths, counter.completions(rows), strict=True)))
    else:
        lengths = [length + params.rollout.max_new_tokens for length in lengths]
    order = sorted(range(len(rows)), key=lambda index: -lengths[index])
    # GRPO cuts a longer row, and SFT refuses it.
    return [rows[index] for index in order], min(max(lengths), params.model.max_seq_length)


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
    """Train `STEPS` steps with micro-batches of `size`; return True if they fit into memory.

    Call it once per process: a failed attempt leaves fragments in memory, and vLLM leaves
    global state.

    Args:
        phase: sft or grpo.
        problems: the phase's problems, longest first.
        tokens: length of the first problem's row, prompt and completion together.
        size: rows of a micro-batch.
        limit: bytes that the steps may use on a CPU; not used on a GPU.

    Raises:
        RuntimeError: a failure of another cause.
    """
    rows = problems[: params.grpo.prompts_per_step]
    if phase == "sft":
        # An SFT step gets copies of the longest example. With packing, a row of max_seq_length
        # holds several of them.
        per_row = params.model.max_seq_length // tokens if params.sft.packing else 1
        rows = [problems[0]] * (batch_of(params, phase) * per_row)
    try:
        with _memory_limit(limit):
            _take_steps(params, phase, base=base, rows=rows, size=size)
    except (RuntimeError, MemoryError) as error:
        # Any other error is a bug or a bad param, and must not look like a large batch.
        if not _short_of_memory(error):
            raise
        return False
    return True


def _short_of_memory(error: Exception) -> bool:
    # Under the limit on data, starting a thread can fail first: its stack counts as data too.
    threads = "can't start new thread" in str(error)
    # accelerate's function knows torch's out-of-memory errors.
    return threads or isinstance(error, MemoryError) or should_reduce_batch_size(error)


@contextlib.contextmanager
def _memory_limit(limit: int) -> Iterator[None]:
    """Limit this process to `limit` more bytes of data within the block; no limit with a GPU."""
    if torch.accelerator.is_available():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # RLIMIT_DATA counts private mappings (Linux 4.7 and newer), those made before this call too.
    used = psutil.Process().memory_info().data
    # Only the soft limit is set: a process may raise that again, up to the hard limit.
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _take_steps(
    params: Params, phase: str, *, base: Path, rows: Sequence[Problem], size: int
) -> None:
    """Train the phase for `STEPS` steps on `rows`, with micro-batches of `size` rows.

    Args:
        phase: sft or grpo.
        base: the model to start from.

    Raises:
        RuntimeError, MemoryError: among others, if the steps need too much memory.
    """
    changes: dict[str, Any] = {
        "micro_batch_size": size,
        # Validation and checkpoints have memory of their own, which is not probed.
        "eval_steps": 0,
        "save_steps": 0,
        "keep_checkpoints": 0,
        # SFT's length is in epochs, and its rows are one step; GRPO's is in steps.
        "num_epochs": STEPS,
        "max_steps": STEPS,
        # reckon's trainer needs as much memory as TRL's, which has no engine to extend completions.
        "trainer": "reckon",
        "dynamic_sampling": 0,
        # All completions count as truncated: if they were masked, nothing would be trained on.
        "mask_truncated": False,
    }
    section = getattr(params, phase)
    changes = {key: value for key, value in changes.items() if hasattr(section, key)}
    short = params.replaced(**{phase: changes})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        paths = {"problems": Path(name) / "rows.jsonl", "base": base, "scratch": Path(name)}
        write_problems(paths["problems"], rows)
        if phase == "sft":
            trainer: Any = sft_setup(short, **paths).trainer
        else:
            trainer = with_signal(grpo_setup(short, init=base, **paths).trainer)
            stack.callback(trainer.engine.close)
        # These callbacks would print the artificial rewards, and warnings about them.
        for callback in (ProgressLines, WarningSigns):
            trainer.remove_callback(callback)
        trainer.train()


def with_signal(trainer: Any) -> Any:
    """Change a GRPO trainer in place so that its memory use is the largest, and return it.

    Rewards differ in every group, so that every micro-batch has a gradient. Completions get full
    length, except in TRL's trainer, which has no engine to replace.
    """
    trainer.reward_funcs[:] = [_alternating for _ in trainer.reward_funcs]
    if hasattr(trainer, "engine"):
        trainer.engine.generate = functools.partial(_full_length, trainer.engine.generate)
    return trainer


def _alternating(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Reward completions with 0, 1, 0, 1, …: the rewards of every group of two or more differ."""
    return [float(number % 2) for number in range(len(completions))]


def _full_length(
    generate: Callable[..., list[list[GeneratedCompletion]]],
    prompts: Sequence[Sequence[int]],
    sampling: Any,
) -> list[list[GeneratedCompletion]]:
    """Generate completions of max_new_tokens, without stopping before."""
    # The engine samples past end tokens, so that it has a log-prob for each token.
    return generate(
        prompts, dataclasses.replace(sampling, stop_strings=(), tool="", ignore_eos=True)
    )
