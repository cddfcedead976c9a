import pytest

from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.grading.grade import example_line, grade_file, grade_rows
from lib.params import preset_params
from tests.lib.grading.rows import written_row


def test_a_row_without_a_column_is_named(tmp_path):
    write_jsonl(tmp_path / "grpo.jsonl", [{"completion": "4"}])
    with pytest.raises(UserError, match=r"grpo\.jsonl:1: not a completion \(KeyError"):
        grade_file(tmp_path / "grpo.jsonl", tmp_path / "out.jsonl", reward=None)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(("reference", "verdict"), [("72", "right"), ("70", "wrong, not 70")])
def test_the_example_of_a_checkpoint_is_one_line(reference, verdict):
    text = "6 · 12 = 72\n<end_working_out><SOLUTION>72</SOLUTION>" + "\x1b" + "." * 400
    (graded,) = grade_rows(
        [written_row(text, reference=reference)], reward=preset_params("tiny-cpu").reward
    )
    line = example_line("sft", graded)
    assert line.startswith("evaluate checkpoint=sft example: 6 · 12? -> 6 · 12 = 72 <end_")
    assert line.endswith(f"({verdict})")
    assert line.isprintable()
    assert len(line) < 450
