import json
from collections.abc import Iterable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lib.core.errors import UserError
from lib.course import cut_rows, encode_alpaca, get_packed_sft_dataset, iterate_batches
from tests.lib.objectives.tiny import EOS

PAIRS = [{"prompt": f"p{i}", "response": "r" * (i + 1)} for i in range(12)]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(pair) for pair in PAIRS) + "\n")
    return file


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def rows(packed: list[dict[str, Tensor]]) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in packed]


@given(
    documents=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), max_size=6),
    seq_length=st.integers(1, 7),
)
def test_rows_are_the_stream_cut_and_labels_the_next_token(documents, seq_length):
    stream = flat(documents)
    packed = cut_rows(documents, seq_length=seq_length)
    inputs = flat(rows(packed))
    labels = flat(row["labels"].tolist() for row in packed)
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
    def documents(shuffle: bool, seed: int = 0) -> list[str]:
        packed = get_packed_sft_dataset(tokenizer, path, 1, shuffle, seed=seed)
        stream = [*flat(rows(packed)), EOS]
        return "".join(chr(token) for token in stream).split(chr(EOS))

    assert documents(True) != documents(False)
    assert sorted(documents(True)) == sorted(documents(False))
    assert documents(True) == documents(True)
    assert documents(True) != documents(True, seed=1)


def test_batches_cover_the_dataset_once(path, tokenizer):
    packed = get_packed_sft_dataset(tokenizer, path, 16, False)
    for shuffle in (False, True):
        loader = iterate_batches(packed, 8, shuffle)
        batches = list(loader)
        assert len(loader) == len(batches) == -(-len(packed) // 8)
        assert {batch["labels"].shape[0] for batch in batches[:-1]} == {8}
        seen = [row for batch in batches for row in batch["input_ids"].tolist()]
        assert (seen == rows(packed)) is not shuffle
        assert sorted(seen) == sorted(rows(packed))
    passes = [[batch["input_ids"].tolist() for batch in loader] for _ in range(2)]
    assert passes[0] != passes[1]  # each is shuffled anew


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"prompt": "p"}', "response"),
        ('{"prompt": 3, "response": "r"}', "prompt"),
        ("{", "column"),
    ],
)
def test_a_row_that_is_no_pair_is_named(tmp_path, tokenizer, line, key):
    file = tmp_path / "pairs.jsonl"
    file.write_text(f"{json.dumps(PAIRS[0])}\n{line}\n")
    with pytest.raises(UserError, match=rf"pairs\.jsonl:2: expected .*{key}"):
        get_packed_sft_dataset(tokenizer, file, 8, False)


def test_a_file_that_fills_no_row_is_an_error(path, tokenizer):
    with pytest.raises(UserError, match="seq_length=100000"):
        get_packed_sft_dataset(tokenizer, path, 100_000, False)
    with pytest.raises(ValueError, match="seq_length=0"):
        get_packed_sft_dataset(tokenizer, path, 0, False)
