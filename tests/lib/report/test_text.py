import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lib.core.errors import visible
from lib.report.text import (
    markdown_block,
    markdown_inline,
    p_value,
    percent,
    points,
)

markup = st.sampled_from([*"\\`*_[]()<>|~$#&!-+:@\n\t ", "</b>", "&lt;", "](x)", "```", "\u202e"])
anything = st.lists(markup | st.characters(codec=None), max_size=30).map("".join)
GITHUB = MarkdownIt("gfm-like", {"linkify": False, "html": True})


def kinds(markdown):
    return [
        child.type for token in GITHUB.parse(markdown) for child in [token, *(token.children or [])]
    ]


@given(anything)
def test_escaped_text_in_a_cell_is_text_and_nothing_else(text):
    tokens = kinds(f"| a |\n| :-- |\n| x {markdown_inline(text)} y |")
    assert set(tokens) <= {
        "table_open", "thead_open", "tr_open", "th_open", "inline", "text", "th_close",
        "tr_close", "thead_close", "tbody_open", "td_open", "td_close", "tbody_close",
        "table_close", "text_special",
    }  # fmt: skip
    assert tokens.count("td_open") == 1


@given(anything.filter(lambda text: "\r" not in text))
def test_a_block_holds_its_text_and_ends_where_it_should(text):
    tokens = GITHUB.parse(f"before\n\n{markdown_block(text)}\n\nafter")
    fence = next(token for token in tokens if token.type == "fence")
    assert fence.content.rstrip("\n") == visible(text).rstrip("\n")
    assert kinds(f"{markdown_block(text)}\n\nafter")[-2:] == ["text", "paragraph_close"]


@given(anything)
def test_visible_text_has_no_hidden_character(text):
    shown = visible(text)
    hidden = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    assert not hidden & {unicodedata.category(c) for c in shown if c not in "\n\t"}
    assert visible(shown) == shown and visible("a\u202eb\x1b[31m") == "a⟨U+202E⟩b⟨U+001B⟩[31m"
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (percent(0.616, 0.0218), "61.6 ± 2.2"),
        (percent(1.0, 0.0, 500), "100.0 (≥ 99.1)"),
        (percent(0.0, 0.0, 500), "0.0 (≤ 0.9)"),
        (points(-0.02), "−2.0"),
        (p_value(0.00001), "< 0.0001"),
    ],
)
def test_numbers_are_printed_with_their_error(printed, expected):
    assert printed == expected
