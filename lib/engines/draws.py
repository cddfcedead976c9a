"""Draw tokens from logits: B rows, V vocabulary.

Each row draws by inverting its cumulative distribution at a uniform number of its own, which
depends on the seed, the prompt and the completion's number alone. So a completion is the same
whatever shares its batch, up to rounding, and a request that is cut in two gives the same ones.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lib.engines.base import Sampling

_BELOW_ONE = 1 - 2.0**-40
"""Largest uniform number; nearer to 1, rounding could reach beyond the last token."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One token for each row.

    Attributes:
        tokens: [B].
        log_probs: [B] float32 (see `Completion`), None where `Sampling` does not ask for them.
    """

    tokens: Tensor
    log_probs: Tensor | None


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Drawn:
    """Draw a token for each row.

    Args:
        logits: [B, V] any floating type.
        uniforms: [B] float64 in [0, 1); not read when `sampling` is greedy.
    """
    greedy = sampling.temperature == 0
    scores = logits.float() if greedy else logits.float() / sampling.temperature
    if greedy:
        tokens = scores.argmax(-1)
    else:
        tokens = _invert(truncated(scores, sampling).softmax(-1), uniforms)
    if not sampling.log_probs:
        return Drawn(tokens, None)
    chosen = scores.gather(-1, tokens[:, None])[:, 0]
    return Drawn(tokens, chosen - scores.logsumexp(-1))


def truncated(scores: Tensor, sampling: Sampling) -> Tensor:
    """[B, V] with -inf for what top-k, top-p and min-p leave out, as transformers does it."""
    warpers = LogitsProcessorList()
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    kept: Tensor = warpers(None, scores)
    return kept


def keys(prompts: Sequence[Sequence[int]], *, seed: int) -> list[int]:
    """What keys each prompt's draws; a prompt that is asked again gets another one."""
    asked: Counter[tuple[int, ...]] = Counter()
    found = []
    for prompt in map(tuple, prompts):
        digest = hashlib.sha256(f"{seed}/{asked[prompt]}/{prompt}".encode()).digest()
        found.append(int.from_bytes(digest[:16], "big"))
        asked[prompt] += 1
    return found


def uniforms(keys: Sequence[int], *, num_completions: int, num_draws: int) -> Tensor:
    """[P, G, num_draws] float64 in [0, 1)."""
    drawn = np.empty((len(keys), num_completions, num_draws))
    for row, key in zip(drawn, keys, strict=True):
        np.random.Generator(np.random.Philox(key=key)).random(out=row)
    return torch.from_numpy(np.minimum(drawn, _BELOW_ONE, out=drawn))


def _invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    """[B] the token at which the cumulative distribution first exceeds the uniform number."""
    cumulative = probs.double().cumsum(-1)
    reached = (uniforms * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, reached, right=True)[:, 0]
