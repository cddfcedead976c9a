from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from examples.cs336 import cut_rows, encode_alpaca, get_packed_sft_dataset, iterate_batches
from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from tests.lib.objectives.tiny import EOS

PAIRS = [{"prompt": f"p{i}", "response": "r" * (i + 1)} for i in range(12)]


@pytest.fixture
def path(tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", PAIRS)
    return tmp_path / "pairs.jsonl"


def rows(batches: Iterable[dict[str, Tensor]], column: str = "input_ids") -> list[Any]:
    """Return a column of each row, or of each batch's rows."""
    return [batch[column].tolist() for batch in batches]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


@given(
    documents=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), max_size=6),
    seq_length=st.integers(1, 7),
)
def test_rows_are_the_stream_cut_and_labels_the_next_token(documents, seq_length):
    stream = flat(documents)
    packed = cut_rows(documents, seq_length=seq_length)
    inputs, labels = (flat(rows(packed, column)) for column in ("input_ids", "labels"))
    assert inputs == stream[: len(inputs)]
    assert labels == stream[1 : len(inputs) + 1]
    # The last tokens are dropped where they cannot fill a row and its last label.
    assert 0 <= len(stream) - 1 - len(inputs) < seq_length or not stream


def test_documents_stand_end_to_end_with_eos_between(path, tokenizer):
    stream = flat(rows(get_packed_sft_dataset(tokenizer, path, 1, False)))
    expected = flat(encode_alpaca(tokenizer, **pair) for pair in PAIRS)
    assert stream == expected[:-1]
    assert stream.count(EOS) == len(PAIRS) - 1


def test_shuffling_changes_the_order_of_documents_only(path, tokenizer):
    def documents(shuffle, seed=0):
        packed = get_packed_sft_dataset(tokenizer, path, 1, shuffle, seed=seed)
        stream = [*flat(rows(packed)), EOS]
        return "".join(chr(token) for token in stream).split(chr(EOS))

    shuffled, plain = documents(True), documents(False)
    assert shuffled != plain
    assert sorted(shuffled) == sorted(plain)
    assert documents(True) == shuffled != documents(True, seed=1)


def test_batches_cover_the_dataset_once(path, tokenizer):
    packed = get_packed_sft_dataset(tokenizer, path, 16, False)
    for shuffle in (False, True):
        loader = iterate_batches(packed, 8, shuffle)
        batches = list(loader)
        assert len(loader) == len(batches) == -(-len(packed) // 8)
        assert {batch["labels"].shape[0] for batch in batches[:-1]} == {8}
        seen = flat(rows(batches))
        assert (seen == rows(packed)) is not shuffle
        assert sorted(seen) == sorted(rows(packed))
    assert rows(loader) != rows(loader)  # each pass is shuffled anew


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"prompt": "p"}', "response"),
        ('{"prompt": 3, "response": "r"}', "prompt"),
        ("{", "column"),
    ],
)
def test_a_row_that_is_no_pair_is_named(path, tokenizer, line, key):
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(UserError, match=rf"pairs\.jsonl:13: expected .*{key}"):
        get_packed_sft_dataset(tokenizer, path, 8, False)


@pytest.mark.parametrize(("length", "error"), [(100_000, UserError), (0, ValueError)])
def test_a_length_that_gives_no_row_is_an_error(path, tokenizer, length, error):
    with pytest.raises(error, match=f"seq_length={length}"):
        get_packed_sft_dataset(tokenizer, path, length, False)
