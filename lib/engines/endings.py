"""Where a completion ends, and where a tool's result is forced into it."""

from collections.abc import Collection, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Finish, result_tokens, text_until
from lib.prompts.tools import find_tool


class Endings:
    """Decides if a completion has ended: by an end token, a stop string, or the longest length.

    A stop string is searched in the decoded text, since it may span tokens. It is searched only
    after a token that can complete it (`may_stop`), as few tokens can.

    Args:
        end_tokens: ids that end a completion; they are special tokens, which have no text.
        stop_strings: texts that end a completion.
        vocab_size: number of ids that the model can generate.
        tool: see `Sampling`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        end_tokens: Collection[int],
        stop_strings: Sequence[str],
        vocab_size: int,
        tool: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.end_tokens = frozenset(end_tokens)
        self.stop_strings = tuple(stop_strings)
        self.may_stop = self._may_stop(vocab_size)
        self.tool = tool
        definition = find_tool(tool)
        # Finds the end of a call.
        self.calls = definition and Endings(
            tokenizer, end_tokens=(), stop_strings=(definition.close,), vocab_size=vocab_size
        )

    def find(self, token_ids: Sequence[int], *, at_limit: bool) -> tuple[Finish, str] | None:
        """Return finish reason and text if the last of a completion's tokens ends it, else None.

        Args:
            at_limit: True if the completion has its maximum length, and ends in any case.
        """
        # Earlier tokens were checked when they were sampled. `may_stop` has the tokens with a stop
        # string's last character: only they can complete it.
        last = token_ids[-1]
        if last not in self.end_tokens and last not in self.may_stop and not at_limit:
            return None
        # Decoded as a whole: a token's text depends on those before it, which may be a part of the
        # same character.
        text = self.text(token_ids)
        if last in self.end_tokens:
            return "eos", text
        if last in self.may_stop and any(stop in text for stop in self.stop_strings):
            return "stop", text_until(self.stop_strings, text)
        return ("length", text) if at_limit else None

    def text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def forced(self, token_ids: Sequence[int], sampled: Sequence[bool]) -> list[int]:
        """Return the tokens of a call's result if the last of a completion's tokens ends a call.

        Args:
            sampled: for each token, False if it was forced; those since then are searched.
        """
        if not self.calls:
            return []
        start = len(sampled) - sampled[::-1].index(False) if False in sampled else 0
        if not self.calls.find(token_ids[start:], at_limit=False):
            return []
        return result_tokens(self.tokenizer, self.text(token_ids), self.tool)

    def _may_stop(self, vocab_size: int) -> Collection[int]:
        """Return the tokens after which the text must be searched: those with a stop string's end.

        They are all tokens if a last character is a space (which decoding may remove) or not ASCII
        (its bytes may span tokens), and none without stop strings.
        """
        lasts = {stop[-1] for stop in self.stop_strings}
        if any(last.isspace() or not last.isascii() for last in lasts):
            return range(vocab_size)
        if not lasts:
            return ()
        texts = self.tokenizer.batch_decode([[token] for token in range(vocab_size)])
        return {token for token, text in enumerate(texts) if not lasts.isdisjoint(text)}


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids that end a completion: the tokenizer's EOS and the model's `eos_token_id`."""
    # The generation config has one id, a list (Llama 3, Qwen) or None.
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = configured if isinstance(configured, list | tuple) else [configured]
    return {end for end in (*ends, tokenizer.eos_token_id) if end is not None}
