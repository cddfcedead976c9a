"""Lengths in tokens: what fits, and how long a completion may get.

A prompt may be as long as the percentile `prepare.lengths.prompt_percentile` of all prompts, and
prompt and completion together as long as `model.max_seq_length`. Both are counted with the
tokenizer that trains, the prompt as the prompt format renders it, the completion with its EOS.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params.data import LengthSettings
from lib.problems.store import ProblemTable, batches
from lib.prompts import PromptFormat, prompt_text, special_tokens
from lib.prompts.targets import target_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenCounter:
    """Counts what problems become when a model is trained on them.

    Attributes:
        count: tokens of each text, no special tokens added.
        prompt_format: renders prompts and targets.
        system: system prompt, '' for none.
        bos_token: '' for a tokenizer that has none.
        eos_token: ends every completion.
    """

    count: Callable[[Sequence[str]], list[int]]
    prompt_format: PromptFormat
    system: str
    bos_token: str
    eos_token: str

    def prompts(self, problems: Sequence[Problem]) -> list[int]:
        """Tokens of each prompt."""
        bos, system = self.bos_token, self.system
        return self.count(
            [
                prompt_text(self.prompt_format, each.problem, system=system, bos_token=bos)
                for each in problems
            ]
        )

    def completions(self, problems: Sequence[Problem]) -> list[int]:
        """Tokens of each completion that SFT learns."""
        return self.count(
            [target_of(each, self.prompt_format) + self.eos_token for each in problems]
        )


def token_counter(checkpoint: Path, *, prompt_format: PromptFormat, system: str) -> TokenCounter:
    """Counts with the `tokenizer.json` of a checkpoint, without torch or transformers."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    return TokenCounter(
        count=count, prompt_format=prompt_format, system=system, **special_tokens(checkpoint)
    )


def drop_too_long(
    name: str,
    table: ProblemTable,
    counter: TokenCounter,
    settings: LengthSettings,
    *,
    max_seq_length: int,
    completions: bool,
) -> tuple[ProblemTable, dict[str, int]]:
    """The rows within all limits, each other row counted under the first it exceeds; and the most
    tokens that a prompt, and prompt and completion together (`total`), may have.

    Args:
        name: the set's, for errors.
        completions: whether SFT learns from the rows: their solutions have to fit too.

    Raises:
        UserError: that percentile of the prompts leaves no room for a completion.
    """
    prompts: list[int] = []
    answers: list[int] = []
    for batch in batches(table):
        prompts += counter.prompts(batch)
        answers += counter.completions(batch) if completions else [0] * len(batch)
    # The nearest rank: a length that occurs.
    longest = int(np.percentile(prompts, settings.prompt_percentile, method="inverted_cdf"))
    if longest >= max_seq_length:
        raise UserError(
            f"{name}: {settings.prompt_percentile:g} % of the prompts need up to {longest} tokens, "
            f"which leaves none for a completion in model.max_seq_length={max_seq_length}; raise "
            "it, or lower prepare.lengths.prompt_percentile"
        )
    most = min(max_seq_length, settings.max_tokens or max_seq_length)

    def too_long(index: int, _: Problem) -> tuple[str, str] | None:
        prompt, total = prompts[index], prompts[index] + answers[index]
        if prompt > longest:
            return "prompt_too_long", f"{prompt} prompt tokens; at most {longest}"
        return ("too_long", f"{total} tokens; at most {most}") if total > most else None

    return table.keep(too_long), {"prompt": longest, "total": most}
