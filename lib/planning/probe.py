"""Probe whether a micro-batch fits: two steps of the phase's own trainer on the longest rows.

The stage's own setup builds the trainer, with reference policy and engine. The second step decides:
by then the optimiser holds its state. In GRPO the engine generates completions, which are extended
to the longest length. Their rewards differ, so that no micro-batch is skipped.

On a GPU, too large a batch raises an out-of-memory error. On a CPU, a limit on the process's data
makes torch's allocator fail before the machine runs out of memory.
"""

import contextlib
import dataclasses
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
"""Optimiser steps of a probe."""

OUT_OF_MEMORY = 3
"""Exit code of a probe process that ran out of memory."""


def longest_first(
    params: Params, phase: str, *, base: Path, problems: Path
) -> tuple[list[Problem], int]:
    """Return the phase's problems, longest row first, and the tokens of the longest row.

    A row is an SFT example, or a GRPO prompt with a completion of full length.
    """
    answer_format = prompt_format(**params.prompt.rendering)
    counter = token_counter(base, prompt_format=answer_format, system=saved_system(base))
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
    """Train `STEPS` steps with micro-batches of `size`; return True if they fit into memory.

    Call it once per process: a failed attempt leaves fragments in memory, and vLLM leaves
    global state.

    Args:
        problems: the phase's problems, longest first.
        tokens: length of the first problem's row, as `longest_first` counts it.
        limit: bytes that the steps may use on a CPU; not used on a GPU.
    """
    # A GRPO step gets the longest problems; an SFT step gets only copies of the longest row, as
    # many as fill its (packed) rows.
    rows, batch = problems[: params.grpo.prompts_per_step], batch_of(params, phase)
    if phase == "sft":
        packed = params.model.max_seq_length // tokens if params.sft.packing else 1
        rows = [problems[0]] * (batch * packed)
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
    """Return True if the cause of the error is too little memory."""
    # A thread's stack counts as data too, so that starting one can fail first.
    threads = "can't start new thread" in str(error)
    return threads or isinstance(error, MemoryError) or should_reduce_batch_size(error)


@contextlib.contextmanager
def _memory_limit(limit: int) -> Iterator[None]:
    """Limit this process to `limit` more bytes of data if there is no GPU."""
    if torch.accelerator.is_available():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    # RLIMIT_DATA counts private mappings (Linux 4.7 and newer), those made before this call too.
    now = psutil.Process().memory_info().data
    # Only the soft limit is set: a process may raise that again, up to the hard limit.
    resource.setrlimit(resource.RLIMIT_DATA, (now + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _take_steps(
    params: Params, phase: str, *, base: Path, rows: Sequence[Problem], size: int
) -> None:
    """Train the phase for `STEPS` steps on `rows`, with micro-batches of `size`."""
    section = getattr(params, phase)
    changes: dict[str, Any] = {
        "micro_batch_size": size,
        # Validation and checkpoints have memory of their own, which is not probed.
        "eval_steps": 0,
        "save_steps": 0,
        "keep_checkpoints": 0,
    }
    # reckon's trainer needs as much memory as TRL's, which has no engine to extend completions.
    changes |= {"num_epochs": STEPS, "max_steps": STEPS, "trainer": "reckon"}
    # All completions count as truncated: if they were masked, nothing would be trained on.
    changes |= {"dynamic_sampling": 0, "mask_truncated": False}
    changes = {key: value for key, value in changes.items() if hasattr(section, key)}
    short = params.replaced(**{phase: changes})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        places = {"problems": Path(name) / "rows.jsonl", "base": base, "scratch": Path(name)}
        write_problems(places["problems"], rows)
        if phase == "sft":
            trainer: Any = sft_setup(short, **places).trainer
        else:
            trainer = with_signal(grpo_setup(short, init=base, **places).trainer)
            stack.callback(trainer.engine.close)
        # These callbacks would print warnings about the artificial rewards.
        for callback in (ProgressLines, WarningSigns):
            trainer.remove_callback(callback)
        trainer.train()


def with_signal(trainer: Any) -> Any:
    """Change a GRPO trainer so that rewards differ in every group, and return it.

    Completions get full length too, except in TRL's trainer, which has no engine.
    """

    def alternating(completions: Sequence[Any], **columns: Any) -> list[float]:
        """Reward completions with 0, 1, 0, 1, …."""
        # Within every group of two or more the rewards differ.
        return [float(number % 2) for number in range(len(completions))]

    trainer.reward_funcs[:] = [alternating for _ in trainer.reward_funcs]
    if not hasattr(trainer, "engine"):
        return trainer
    generate: Callable[..., list[list[GeneratedCompletion]]] = trainer.engine.generate

    def full_length(
        prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Generate completions of max_new_tokens, without stopping before."""
        # The engine samples past end tokens, so that it has a log-prob for each token.
        return generate(prompts, dataclasses.replace(sampling, stop_strings=(), ignore_eos=True))

    trainer.engine.generate = full_length
    return trainer
