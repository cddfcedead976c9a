"""Completions for TRL's trainer from an engine of ours.

TRL calls whatever stands at `trainer.vllm_generation` as it calls its own vLLM client:
`sync_weights()` after each optimiser step, then `generate(…)`. Here an `Engine` answers, and why
each completion ended is kept, which TRL's protocol has no room for.

G completions of each problem (a group), those of one problem next to each other; B = P·G
completions, T tokens, F reward functions.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lib.engines.base import Engine, Finish, Sampling

Policy = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the policy in training: without wrappers, all of its weights at hand."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One completion on its way from the engine to the loss.

    Attributes:
        problem: the dataset's row.
        message: the completion as TRL hands it to reward functions.
        finish: why it ended.
        rewards: [F] of each reward function; empty where it has not been scored yet.
    """

    problem: dict[str, Any]
    prompt_ids: list[int]
    token_ids: list[int]
    message: Any
    log_probs: list[float]
    finish: Finish
    rewards: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it."""
        return self.finish == "length"


def length_metrics(lengths: Tensor, truncated: Tensor) -> dict[str, float]:
    """The columns that TRL logs, where a completion is truncated if the engine says so.

    Args:
        lengths: [B] in tokens.
        truncated: [B] bool.

    Returns:
        0 for the lengths of those that ended by themselves, where none did.
    """
    ended = torch.zeros(1) if truncated.all() else lengths[~truncated].float()
    metrics = {"clipped_ratio": truncated.float().mean()}
    for name, values in (("length", lengths.float()), ("terminated_length", ended)):
        metrics |= {
            f"mean_{name}": values.mean(),
            f"min_{name}": values.min(),
            f"max_{name}": values.max(),
        }
    return {f"completions/{name}": value.item() for name, value in metrics.items()}


def keyed_seed(*parts: object) -> int:
    """A seed that shares nothing with those of neighbouring keys."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Rollouts:
    """What TRL takes for its vLLM client.

    Args:
        engine: what generates.
        sampling: how; the number of completions and the seed are the caller's in each call.
        policy: see `Policy`.
        live: the engine computes with the policy's own weights, of which it holds no copy.
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, policy: Policy, live: bool) -> None:
        self.engine = engine
        self.sampling = dataclasses.replace(sampling, log_probs=True)
        self.policy = policy
        self.live = live
        self.seed = 0
        self.finishes: list[Finish] = []

    def sync_weights(self) -> None:
        """Hand the policy's weights to the engine."""
        with self.policy() as policy:
            self.engine.sync(policy)

    def generate(
        self,
        prompts: list[list[int]],
        images: Sequence[Any] | None,
        num_generations: int,
        profiler: AbstractContextManager[Any],
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]:
        """Complete each prompt once; `finishes` then says why each completion ended.

        Args:
            prompts: token ids, each prompt G times in a row.
            images: none; the models here read text.
            num_generations: G.
            profiler: entered around the generation.

        Returns:
            prompts, completions, log-probs [B][T][1] of their tokens, and what TRL does not read.
        """
        groups = prompts[::num_generations]
        if images or [group for group in groups for _ in range(num_generations)] != prompts:
            raise ValueError(f"expected text prompts in whole groups of {num_generations}")
        sampling = dataclasses.replace(
            self.sampling, num_completions=num_generations, seed=self.seed
        )
        with profiler, self.policy() if self.live else nullcontext():
            drawn = [one for group in self.engine.generate(groups, sampling) for one in group]
        self.finishes = [completion.finish for completion in drawn]
        log_probs = [[[value] for value in completion.log_probs or ()] for completion in drawn]
        return prompts, [list(completion.token_ids) for completion in drawn], log_probs, None
