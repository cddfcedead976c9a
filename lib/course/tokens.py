"""From text to token ids: prompt and completion with their mask, and whole training documents.

Labels are the input shifted by one: the logits at position t score `labels[:, t]`.

Shapes: B sequences, T = longest prompt + completion in the batch, minus 1.
"""

from typing import Protocol

import torch
from torch import Tensor

# The public course's form of Stanford Alpaca's template, with a line break before the response; the
# prompt format `alpaca` (lib.prompts) has Alpaca's own, without it. Its tests compare token ids.
ALPACA_TEMPLATE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{prompt}\n\n### Response:\n{response}"
)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this library needs."""

    @property
    def pad_token_id(self) -> int | None:
        """Fills short rows."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """Ends a document."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of one text."""
        ...


def tokenize_prompt_and_output(
    prompt_strs: list[str], output_strs: list[str], tokenizer: Tokenizer
) -> dict[str, Tensor]:
    """Join each prompt to its completion, pad to one length, and mark the completion's tokens.

    Both texts are tokenised separately and as they stand, so that a prompt's ids do not depend on
    what follows it: that is how the engine saw it when it generated. No special token is added
    (chat templates write their own BOS; a second one would be wrong), EOS included.

    Args:
        prompt_strs: B prompts.
        output_strs: B completions, one per prompt.
        tokenizer: supplies ids and, if lengths differ, the pad token.

    Returns:
        "input_ids": [B, T] without the last token; "labels": [B, T] without the first;
        "response_mask": [B, T] bool, True where the label belongs to the completion.

    Raises:
        ValueError: no rows, different numbers of prompts and completions, or padding needed and no
            pad token.
    """
    if not prompt_strs or len(prompt_strs) != len(output_strs):
        raise ValueError(
            f"{len(prompt_strs)} prompts and {len(output_strs)} completions: "
            "expected one completion per prompt, at least one"
        )
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in prompt_strs]
    completions = [tokenizer.encode(text, add_special_tokens=False) for text in output_strs]
    rows = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    marks = [
        [False] * len(prompt) + [True] * len(completion)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    ids = _pad(rows, tokenizer.pad_token_id)
    # a completion without a prompt has no logits that score its first token: the shift drops it
    mask = _pad(marks, fill=False)[:, 1:]
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "response_mask": mask}


def _pad(rows: list[list[int]] | list[list[bool]], fill: int | bool | None) -> Tensor:
    """Rows of unequal length as one tensor, filled on the right."""
    width = max(len(row) for row in rows)
    if fill is None:
        if any(len(row) < width for row in rows):
            raise ValueError("the tokenizer has no pad token: set `tokenizer.pad_token` first")
        fill = 0
    dtype = torch.bool if isinstance(fill, bool) else torch.long
    filled = [list(row) + [fill] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=dtype)


def encode_alpaca(tokenizer: Tokenizer, *, prompt: str, response: str) -> list[int]:
    """Token ids of one instruction and its response in Alpaca's template, ended by EOS.

    The tokenizer's own special tokens are kept (Llama's BOS); EOS is never doubled.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token, which ends every document")
    ids = list(tokenizer.encode(ALPACA_TEMPLATE.format(prompt=prompt, response=response)))
    return ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]
