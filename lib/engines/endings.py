"""Where completions end: at an end token, after a stop string, or at the longest length."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Completion, Finish


class Endings:
    """Finds the end of completions, and reads what stands before it.

    A stop string is looked for in the decoded text, so that it is found however tokens cut it. Text
    is decoded only after tokens that can complete one (`may_end`): a few of a vocabulary.

    Args:
        end_tokens: ids that end a completion; they are special tokens, which have no text.
        stop_strings: see `Sampling`.
        vocab_size: ids that the model can draw.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        end_tokens: Collection[int],
        stop_strings: Sequence[str],
        vocab_size: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.end_tokens = frozenset(end_tokens)
        self.stop_strings = tuple(stop_strings)
        self.may_end = self._may_end(vocab_size)

    def finish(self, token_ids: Sequence[int]) -> Finish | None:
        """Why a completion ends with the last of these tokens, None where it goes on."""
        if token_ids[-1] in self.end_tokens:
            return "eos"
        if not self.may_end[token_ids[-1]]:
            return None
        text = self._decode(token_ids)
        return "stop" if any(stop in text for stop in self.stop_strings) else None

    def completion(
        self,
        token_ids: Sequence[int],
        finish: Finish,
        log_probs: Sequence[float] | None = None,
    ) -> Completion:
        """A completion that has ended; its text goes no further than its first stop string."""
        text = text_until(self.stop_strings if finish == "stop" else (), self._decode(token_ids))
        drawn = None if log_probs is None else tuple(log_probs)
        return Completion(text=text, token_ids=tuple(token_ids), finish=finish, log_probs=drawn)

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _may_end(self, vocab_size: int) -> Tensor:
        """[V] whether text has to be looked at after a token.

        The token that completes a stop string brings its last character, unless that is a space
        (which decoding may take away) or is put together from several tokens' bytes.
        """
        flags = torch.zeros(vocab_size, dtype=torch.bool)
        flags[[end for end in self.end_tokens if end < vocab_size]] = True
        lasts = {stop[-1] for stop in self.stop_strings}
        if any(last.isspace() or not last.isascii() for last in lasts):
            flags[:] = True
        elif lasts:
            texts = self.tokenizer.batch_decode([[token] for token in range(vocab_size)])
            flags |= torch.tensor([not lasts.isdisjoint(text) for text in texts])
        return flags


def text_until(stop_strings: Sequence[str], text: str) -> str:
    """What stands up to the first stop string, that included; all of it where there is none."""
    ends = [text.find(stop) + len(stop) for stop in stop_strings if stop in text]
    return text[: min(ends)] if ends else text


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end a completion: the tokenizer's EOS and those of the model's config."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = configured if isinstance(configured, list | tuple) else [configured]
    return {end for end in (*ends, tokenizer.eos_token_id) if end is not None}
