"""The largest micro-batch that fits: one step of forward, backward and AdamW on the longest rows.

On a GPU too large a batch runs out of memory by itself. On a CPU the process is held to a limit of
its data, so that torch's allocator fails in place of the machine.
"""

import contextlib
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils import find_executable_batch_size

from lib.engines.policy import trainable_policy
from lib.errors import UserError
from lib.objectives import MemoryEfficientAdamW
from lib.params import Params
from lib.problems.lengths import Rendering
from lib.problems.schema import read_problems

PHASES = ("sft", "grpo")


def probe(params: Params, phase: str, *, base: Path, tokens: int, limit: int) -> int:
    """The largest divisor of the phase's batch that fits as its micro_batch_size.

    Args:
        tokens: length of every row, the longest that the phase will see.
        limit: bytes that the step may take on a CPU.

    Raises:
        UserError: not even one row fits.
    """
    sizes = iter(divisors(batch_of(params, phase)))
    fits = find_executable_batch_size(
        _step(params, phase, base=base, tokens=tokens),
        starting_batch_size=next(sizes),
        reduce_batch_size_fn=lambda: next(sizes, 0),
    )
    with _limited(limit):
        try:
            return int(fits())
        except RuntimeError as error:
            if "No executable batch size found" not in str(error):
                raise
            raise UserError(
                f"{phase}: not even one row of {tokens} tokens fits; shorten "
                "model.max_seq_length, or set model.gradient_checkpointing to true"
            ) from error


def _step(params: Params, phase: str, *, base: Path, tokens: int) -> Callable[[int], int]:
    model, section = params.model, getattr(params, phase)
    optimizer_class: Any = torch.optim.AdamW
    if section.optimizer == "memory_efficient_adamw":
        optimizer_class = MemoryEfficientAdamW
    device = torch.accelerator.current_accelerator() or torch.device("cpu")

    def step(batch_size: int) -> int:
        policy = trainable_policy(base, base=base, settings=model, seed=params.seed).to(device)
        if model.gradient_checkpointing:
            policy.gradient_checkpointing_enable()
            policy.enable_input_require_grads()
        policy.train()
        rows = torch.ones((batch_size, tokens), dtype=torch.long, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=model.mixed_precision == "bf16"):
            loss = policy(input_ids=rows, labels=rows).loss
        loss.backward()
        trained = [weight for weight in policy.parameters() if weight.requires_grad]
        optimizer_class(trained, lr=0.0).step()
        return batch_size

    return step


def divisors(batch: int) -> list[int]:
    """What cuts a batch evenly, the largest first."""
    return [size for size in range(batch, 0, -1) if batch % size == 0]


def batch_of(params: Params, phase: str) -> int:
    """Rows of one optimiser step."""
    if phase == "sft":
        return params.sft.batch_size
    return params.grpo.prompts_per_step * params.grpo.group_size


def longest(
    params: Params,
    phase: str,
    problems: Path,
    *,
    rendering: Rendering,
    count_tokens: Callable[[Sequence[str]], list[int]],
) -> int:
    """Tokens of the longest row: an SFT example, or a prompt and all that may be generated."""
    rows = list(read_problems(problems / f"{phase}.jsonl"))
    prompts = count_tokens([rendering.prompt(row) for row in rows])
    if phase == "grpo":
        return max(prompts) + params.rollout.max_new_tokens
    answers = count_tokens([rendering.completion(row) for row in rows])
    return max(prompt + answer for prompt, answer in zip(prompts, answers, strict=True))


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
