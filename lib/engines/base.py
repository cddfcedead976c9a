"""What an engine is: it turns prompts into completions, and says how each one ended.

P prompts, G completions each.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.errors import UserError
from lib.params.section import EngineName
from lib.prompts import Message

Finish = Literal["eos", "stop", "length"]
"""Why a completion ended: the model's end token, a stop string, or the longest length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn.

    Attributes:
        num_completions: completions per prompt (G).
        max_new_tokens: longest completion.
        temperature: softmax temperature; 0 is greedy decoding.
        top_p: nucleus, 1 for the whole distribution.
        top_k: most probable tokens that are drawn from, 0 for all.
        min_p: least probability relative to the most probable token, 0 for none.
        stop_strings: a completion ends after the first of these, which it keeps.
        seed: of the draws; the same seed and prompts give the same completions.
        log_probs: whether completions bring the log-probs of their tokens.
    """

    num_completions: int
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    log_probs: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """One completion.

    Attributes:
        text: decoded, without special tokens, a stop string included.
        token_ids: as generated, the end-of-sequence token included.
        finish: why it ended.
        log_probs: of each token, with the logits divided by the temperature (greedy: by 1) and
            before top-p, top-k and min-p cut the distribution. A trainer recomputes just that, so
            that the gap between the two (TRL's `sampling_logp_difference`) is rounding alone. None
            where `Sampling` did not ask for them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    log_probs: tuple[float, ...] | None = None

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it, not the model."""
        return self.finish == "length"


class Engine(Protocol):
    """Generates; implementations differ in speed and rounding alone."""

    name: EngineName
    """What params call it."""
    tokenizer: PreTrainedTokenizerBase
    """Of the model that generates."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """`sampling.num_completions` completions for each of the prompts, in their order.

        A completion ends after the first stop string, whatever tokens it is made of: its text with
        the stop string, its token ids with the token that completed it. Where prompt and completion
        fill the model's positions, the completion is truncated.

        Args:
            prompts: token ids (see `encode`).

        Raises:
            UserError: a prompt leaves no position for a completion.
        """
        ...

    def sync(self, policy: PreTrainedModel) -> None:
        """Generate from the weights that `policy` has now."""
        ...

    def close(self) -> None:
        """Give memory and processes back; the engine is not used after it."""
        ...


def encode(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Sequence[Message]]
) -> list[list[int]]:
    """Each conversation as the token ids that a model is asked with."""
    return [
        list(
            tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for messages in conversations
    ]


def longest_completions(
    prompts: Sequence[Sequence[int]], sampling: Sampling, *, positions: int | None
) -> list[int]:
    """Longest completion of each prompt: what is asked for, or the positions that are left.

    Raises:
        UserError: a prompt leaves none.
    """
    if positions is None:
        return [sampling.max_new_tokens] * len(prompts)
    longest = max(map(len, prompts), default=0)
    if longest >= positions:
        raise UserError(
            f"a prompt has {longest} tokens, and the model {positions} positions for prompt and "
            "completion together; shorten it, or let `prepare.lengths` drop it"
        )
    return [min(sampling.max_new_tokens, positions - len(prompt)) for prompt in prompts]
