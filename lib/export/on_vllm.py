"""What vLLM reads from the files that were written: another loader, with kernels of its own.

P prompts, V vocabulary. vLLM gives no logits, so log-probs are compared, in nats: that of the token
that it finds likeliest at the first and the last place of each of the checkpoint's completions.
"""

import dataclasses
import gc
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig

from lib.engines.base import Engine, LoadSettings, Sampling
from lib.engines.open import open_engine
from lib.export.compare import BATCH, Said

TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 2e-1}
"""Largest difference of a log-prob, between two ways to compute with equal weights."""


@dataclasses.dataclass(frozen=True)
class Deviation:
    """How what vLLM says differs from what it has to say.

    Attributes:
        num_prompts: prompts compared.
        differing: indices of the prompts whose greedy completions differ.
        log_prob_error: largest difference of a log-prob, in nats.
    """

    num_prompts: int
    differing: list[int]
    log_prob_error: float

    def fault(self, *, dtype: str) -> str:
        """What is wrong in words, '' where all is well.

        Args:
            dtype: in 16 bits two tokens that are nearly as likely may change places.
        """
        if self.differing and dtype == "float32":
            return (
                f"{len(self.differing)} of {self.num_prompts} greedy completions differ from the "
                f"checkpoint's, the first at prompt {self.differing[0]}"
            )
        if not self.log_prob_error <= TOLERANCE[dtype]:
            return (
                f"log-probs are off by {self.log_prob_error:.2g}, at most {TOLERANCE[dtype]:g} "
                f"in {dtype}"
            )
        return ""


def deviation(
    folder: Path,
    expected: Said,
    *,
    dtype: str,
    attention: str,
    max_new_tokens: int,
    stop_strings: Sequence[str],
) -> Deviation:
    """Load the model in `folder` with vLLM and compare it with what `expected` says.

    Raises:
        UserError: vLLM cannot run this model here.
    """
    # What transformers left on a GPU would count as taken.
    gc.collect()
    torch.cuda.empty_cache()
    longest = _longest(folder, expected, max_new_tokens=max_new_tokens)
    engine = open_engine(
        "vllm",
        folder,
        base=folder,
        model=LoadSettings(dtype=dtype, attention=attention, max_seq_length=longest),
        batch_size=BATCH,
        memory_share=_free_share(),
    )
    try:
        greedy = Sampling(
            num_completions=1,
            max_new_tokens=max_new_tokens,
            temperature=0.0,
            stop_strings=tuple(stop_strings),
        )
        said = [list(one.token_ids) for (one,) in engine.generate(expected.prompts, greedy)]
        error = _log_prob_error(engine, expected)
    finally:
        engine.close()
    pairs = enumerate(zip(said, expected.completions, strict=True))
    differing = [number for number, (left, right) in pairs if left != right]
    return Deviation(len(said), differing, error)


def _log_prob_error(engine: Engine, expected: Said) -> float:
    """Over the first and the last token of each completion in `expected.read`."""
    lasts = [
        prompt + completion[:-1]
        for prompt, completion in zip(expected.prompts, expected.read, strict=True)
    ]
    next_token = Sampling(num_completions=1, max_new_tokens=1, temperature=0.0, log_probs=True)
    found = [one for (one,) in engine.generate([*expected.prompts, *lasts], next_token)]
    tokens = torch.tensor([one.token_ids[0] for one in found])
    log_probs = torch.tensor([(one.log_probs or (float("nan"),))[0] for one in found])
    # [P, 2, V] to [2P, V]: all first tokens, then all last ones, as they were asked.
    rows = expected.logits.transpose(0, 1).flatten(0, 1).log_softmax(-1)
    return float((log_probs - rows.gather(-1, tokens[:, None])[:, 0]).abs().max())


def _longest(folder: Path, expected: Said, *, max_new_tokens: int) -> int:
    """Tokens of the longest prompt with its completion, within the model's positions."""
    longest = max(map(len, expected.prompts)) + max_new_tokens
    text = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    return min(longest, getattr(text, "max_position_embeddings", None) or longest)


def _free_share() -> float:
    """Of a GPU's memory: the exporting process still holds its models there."""
    if not torch.cuda.is_available():
        return 0.9
    free, total = torch.cuda.mem_get_info()
    return 0.9 * free / total
