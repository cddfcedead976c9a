"""Sequence packing: documents end to end, cut into rows of one length.

    stream = BOS d_1 EOS BOS d_2 EOS …   (BOS where the tokenizer adds one)
    row k: inputs stream[kT : kT+T], labels stream[kT+1 : kT+T+1]

No token is spent on padding. A row may begin inside a document, and attention reaches across the
EOS into the document before it; what does not fill the last row is dropped.

Shapes: N rows, T tokens (seq_length).
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lib.core.errors import UserError
from lib.course.tokens import Tokenizer, encode_alpaca


class PackedDataset(Dataset[dict[str, Tensor]]):
    """Rows cut from one stream of tokens.

    Item k is {"input_ids": [T], "labels": [T]}, the labels shifted by one.
    """

    def __init__(self, documents: Iterable[Sequence[int]], *, seq_length: int) -> None:
        """Join documents (token ids that already end with EOS) and cut rows of `seq_length`.

        Raises:
            ValueError: `seq_length` < 1.
        """
        if seq_length < 1:
            raise ValueError(f"seq_length={seq_length}; a row holds at least one token")
        tokens = [torch.tensor(document, dtype=torch.long) for document in documents]
        self._stream = torch.cat(tokens) if tokens else torch.empty(0, dtype=torch.long)
        self._seq_length = seq_length

    def __len__(self) -> int:
        # the label of a row's last token is the token after the row
        return max(len(self._stream) - 1, 0) // self._seq_length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        start, stop = index * self._seq_length, (index + 1) * self._seq_length
        return {
            "input_ids": self._stream[start:stop],
            "labels": self._stream[start + 1 : stop + 1],
        }


def get_packed_sft_dataset(
    tokenizer: Tokenizer,
    dataset_path: str | os.PathLike[str],
    seq_length: int,
    shuffle: bool,
    *,
    seed: int = 0,
) -> PackedDataset:
    """Pack a file of instructions and responses, rendered in Alpaca's template.

    Args:
        tokenizer: supplies ids and EOS.
        dataset_path: JSONL with "prompt" and "response" in each row.
        seq_length: T.
        shuffle: change the order of the documents before packing them.
        seed: decides that order.

    Raises:
        UserError: a row is not such an object, or the file does not fill one row.
        ValueError: `seq_length` < 1, or the tokenizer has no EOS token.
    """
    documents = [
        encode_alpaca(tokenizer, prompt=pair["prompt"], response=pair["response"])
        for pair in _read_pairs(Path(dataset_path))
    ]
    if shuffle:
        order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))
        documents = [documents[i] for i in order.tolist()]
    packed = PackedDataset(documents, seq_length=seq_length)
    if not len(packed):
        num_tokens = sum(map(len, documents))
        raise UserError(
            f"{dataset_path}: {num_tokens} tokens do not fill one row of seq_length={seq_length} "
            "and its last label: use a smaller seq_length or more data"
        )
    return packed


def iterate_batches(
    dataset: Dataset[dict[str, Tensor]], batch_size: int, shuffle: bool, *, seed: int = 0
) -> DataLoader[dict[str, Tensor]]:
    """Go through a dataset once, in batches; the last one may be smaller.

    Args:
        dataset: rows of equal shape.
        batch_size: rows per batch.
        shuffle: another order in each pass.
        seed: decides the orders.
    """
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, generator=generator)


def _read_pairs(path: Path) -> Iterable[Mapping[str, str]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse_pair(line, f"{path}, line {number}")


def _parse_pair(line: str, where: str) -> Mapping[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    for field in ("prompt", "response"):
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise UserError(
                f'{where}: expected {{"prompt": text, "response": text}}, no text in `{field}`'
            )
    return dict(row)
