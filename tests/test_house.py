"""What `make check` counts."""

from tests.house import num_tokens


def test_comments_docstrings_and_layout_count_nothing() -> None:
    code = 'def one():\n    """The\n    number."""\n\n    return 1  # not two\n'
    assert num_tokens(code) == 7
