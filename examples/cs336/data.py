"""The public course's data functions: token ids, packed rows, and parsers of MMLU and GSM8K
responses.

    stream = BOS d_1 EOS BOS d_2 EOS …   (BOS where the tokenizer adds one)
    row k: inputs stream[kT : kT+T], labels stream[kT+1 : kT+T+1]

Labels are the input shifted by one: the logits at position t score `labels[:, t]`. A packed row has
no padding. It may begin inside a document, its tokens attend to earlier documents across their EOS,
and the tokens after the last full row are dropped.

Shapes: B sequences, N packed rows, T tokens: the longest prompt + completion in the batch, minus 1,
or `seq_length`.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lib.core.errors import UserError
from reckon_verifier import parse_gsm8k_number, parse_mmlu_letter

if TYPE_CHECKING:
    # For annotations only: a student's environment may lack transformers.
    from transformers import PreTrainedTokenizerBase

# The public course's form of Stanford Alpaca's template, with a line break before the response; the
# prompt format `alpaca` (lib.prompts) has Alpaca's own, without it. Its tests compare token ids.
ALPACA_TEMPLATE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{prompt}\n\n### Response:\n{response}"
)


def tokenize_prompt_and_output(
    prompt_strs: list[str], output_strs: list[str], tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, Tensor]:
    """Return token ids of prompt plus completion, labels, and a mask of the completion's tokens.

    Rows are padded on the right to the longest. Prompt and completion are tokenised separately and
    unchanged, so that a prompt's ids do not depend on the completion: the engine has read the same
    ids. No special token is added, not even EOS (chat templates write their own BOS, and a second
    one would be wrong).

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
    # Token ids, one list per row.
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in prompt_strs]
    completions = [tokenizer.encode(text, add_special_tokens=False) for text in output_strs]
    # [B, 1]: position of the first completion token, and of the first token after the completion.
    starts = torch.tensor([[len(prompt)] for prompt in prompts])
    ends = starts + torch.tensor([[len(completion)] for completion in completions])
    rows = [
        torch.tensor(prompt + completion, dtype=torch.long)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    pad = tokenizer.pad_token_id
    # Rows of equal length need no padding, and no pad token: the 0 below is then not used.
    if pad is None and len(set(map(len, rows))) > 1:
        raise ValueError("the tokenizer has no pad token: set `tokenizer.pad_token` first")
    # [B, T + 1]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad or 0)
    # [T] positions of the labels. Position 0 is left out: no logits score a row's first token.
    positions = torch.arange(1, ids.shape[1])
    # [B, T]
    mask = (positions >= starts) & (positions < ends)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "response_mask": mask}


def encode_alpaca(tokenizer: "PreTrainedTokenizerBase", *, prompt: str, response: str) -> list[int]:
    """Return the token ids of one instruction and its response in Alpaca's template, with EOS.

    The tokenizer's own special tokens are kept, such as Llama's BOS.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token, which ends every document")
    ids = list(tokenizer.encode(ALPACA_TEMPLATE.format(prompt=prompt, response=response)))
    # A tokenizer with `add_eos_token` has added EOS already; it is not doubled.
    return ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def cut_rows(documents: Iterable[Sequence[int]], *, seq_length: int) -> list[dict[str, Tensor]]:
    """Join documents to one stream of tokens, and cut it into rows of T = `seq_length`.

    With T = 2, the stream 1 2 3 4 5 6 gives the rows 1 2 (labels 2 3) and 3 4 (labels 4 5). Tokens
    that do not fill a row and its last label are dropped.

    Args:
        documents: token ids, each ending with EOS.

    Returns:
        Rows {"input_ids": [T], "labels": [T]}, the labels shifted by one.

    Raises:
        ValueError: `seq_length` < 1.
    """
    if seq_length < 1:
        raise ValueError(f"seq_length={seq_length}; a row holds at least one token")
    stream = torch.tensor([*chain.from_iterable(documents)], dtype=torch.long)
    # The label of a row's last token is the token after the row.
    inputs = torch.split(stream[:-1], seq_length)
    labels = torch.split(stream[1:], seq_length)
    return [
        {"input_ids": row, "labels": shifted}
        for row, shifted in zip(inputs, labels, strict=True)
        # The last row may be shorter.
        if len(row) == seq_length
    ]


def get_packed_sft_dataset(
    tokenizer: "PreTrainedTokenizerBase",
    dataset_path: str | os.PathLike[str],
    seq_length: int,
    shuffle: bool,
    *,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Pack a file of instructions and responses, in Alpaca's template, into rows of one length.

    Args:
        tokenizer: supplies ids and EOS.
        dataset_path: JSONL with "prompt" and "response" in each line.
        seq_length: T.
        shuffle: change the order of the documents before packing them.
        seed: decides that order.

    Returns:
        N rows {"input_ids": [T], "labels": [T]}, the labels shifted by one.

    Raises:
        UserError: a line is not such an object, or the file does not fill one row.
        ValueError: `seq_length` < 1, or the tokenizer has no EOS token.
    """
    documents = [
        encode_alpaca(tokenizer, prompt=prompt, response=response)
        for prompt, response in _pairs(Path(dataset_path))
    ]
    if shuffle:
        # A separate generator, so that the global random state does not change.
        order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))
        documents = [documents[i] for i in order.tolist()]
    packed = cut_rows(documents, seq_length=seq_length)
    if not packed:
        num_tokens = sum(map(len, documents))
        raise UserError(
            f"{dataset_path}: {num_tokens} tokens do not fill one row of seq_length={seq_length} "
            "and its last label: use a smaller seq_length or more data"
        )
    return packed


def iterate_batches(
    dataset: Sequence[dict[str, Tensor]], batch_size: int, shuffle: bool, *, seed: int = 0
) -> DataLoader[dict[str, Tensor]]:
    """Return a loader; each iteration over it is one pass, whose last batch may be smaller.

    Args:
        dataset: rows of equal shape.
        batch_size: rows per batch.
        shuffle: another order in each pass.
        seed: decides the orders.
    """
    # A generator of its own: the global random state would depend on what ran before.
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, generator=generator)  # type: ignore[arg-type]


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (prompt, response) of each line of a JSONL file.

    Raises:
        UserError: a line is no object with "prompt" and "response" as texts.
    """
    # `lib.artifacts.read_records` would import packages that a student's environment lacks.
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                match json.loads(line):
                    case {"prompt": str(prompt), "response": str(response)}:
                        yield prompt, response
                    case _:
                        raise ValueError("another shape")
            # Raised above, or by `json.loads` for a line that is no JSON.
            except ValueError as error:
                raise UserError(
                    f'{path}:{number}: expected {{"prompt": text, "response": text}}: {error}'
                ) from error


def parse_mmlu_response(mmlu_example: Mapping[str, Any], model_output: str) -> str | None:
    """Return the chosen option of a response, "A" to "D"; None if there is none.

    Args:
        mmlu_example: "question", "options" and the like; not read, since the answer is a letter.
    """
    return parse_mmlu_letter(model_output)


def parse_gsm8k_response(model_output: str) -> str | None:
    """Return the last number in a response; None if there is none."""
    return parse_gsm8k_number(model_output)
