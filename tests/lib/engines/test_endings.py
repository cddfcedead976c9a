"""Ends that the contract cannot provoke at will."""

from pathlib import Path

import pytest

from lib.engines.endings import Endings
from lib.engines.policy import load_tokenizer


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("1 + 2 = 3, so", ("3", "= 3", "2"), "1 + 2"),
        ("ein weißes ½ ist", ("½",), "ein weißes ½"),
        ("a line \nand more", ("\n",), "a line \n"),
    ],
    ids=["the first of several", "of several bytes", "white space"],
)
def test_a_completion_ends_with_the_token_that_completes_the_first_stop_string(
    base: Path, text: str, stops: tuple[str, ...], kept: str
) -> None:
    tokenizer = load_tokenizer(base)
    endings = Endings(tokenizer, end_tokens={1}, stop_strings=stops, vocab_size=len(tokenizer) + 64)
    tokens = tokenizer(text)["input_ids"]
    ends = [n for n in range(1, len(tokens) + 1) if endings.finish(tokens[:n]) == "stop"]
    assert kept in tokenizer.decode(tokens[: ends[0]])
    assert kept not in tokenizer.decode(tokens[: ends[0] - 1])
    assert endings.completion(tokens, "stop").text == kept


def test_text_is_looked_at_after_few_tokens(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    endings = Endings(
        tokenizer, end_tokens={1}, stop_strings=("</answer>",), vocab_size=len(tokenizer)
    )
    assert 0 < int(endings.may_end.sum()) < 20
