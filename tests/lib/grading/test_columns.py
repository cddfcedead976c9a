import pytest

from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.grading.grade import grade_file


def test_a_row_without_a_column_is_named(tmp_path):
    write_jsonl(tmp_path / "grpo.jsonl", [{"completion": "4"}])
    with pytest.raises(UserError, match=r"grpo\.jsonl:1: not a completion \(KeyError"):
        grade_file(tmp_path / "grpo.jsonl", tmp_path / "out.jsonl", reward=None)
    assert not (tmp_path / "out.jsonl").exists()
