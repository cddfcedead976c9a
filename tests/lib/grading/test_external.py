"""Grading of stored completions loses no row and reports every bad one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lib.core.errors import UserError
from lib.grading.external import grade_external
from lib.prompts import prompt_format
from stages.grade import main
from tests.conftest import ROOT

ROWS: list[Any] = [
    {"id": 1, "response": "so 2 + 2 = 4\nA: 4", "gold": "4", "label": True},
    {"id": 1, "response": "# Answer\n\n5", "gold": "4", "label": False},
    {
        "question": "To the nearest thousandth?",
        "completion": r"\boxed{\pi}",
        "answer": "3.142",
        "correct": 1,
    },
    {"pred": "1/2", "ground_truth": "0.5", "equal": False},
    {"prompt": "?", "output": [{"role": "assistant", "content": "It is 7."}], "target": 7},
]
BAD = ["{", "[1, 2]", '{"completion": "4"}', '{"reference": "4"}', '{"text": "4", "gold": " "}']


def graded(folder: Path, lines: list[str], **options: Any) -> tuple[list[str], list[Any]]:
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    summary = list(grade_external(source, out, **options))
    return summary, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_columns_are_read_by_their_usual_names(tmp_path):
    summary, rows = graded(tmp_path, [json.dumps(row) for row in ROWS])
    assert [row["grade"]["right"] for row in rows] == [True, False, True, True, True]
    assert [row["grade"]["answer"] for row in rows] == ["4", "5", r"\pi", "1/2", "7"]
    assert rows[2]["grade"]["reason"] == "rounding"
    # Two completions of one problem are one unit.
    assert summary[0] == "graded 4 problems"
    assert summary[2].startswith("right 0.8000 [")
    assert [{**row, "grade": None} for row in rows] == [{**row, "grade": None} for row in ROWS]


def test_what_lm_eval_and_vllm_write_is_read(tmp_path):
    """The rows are from lm-eval 0.4.13 `--log_samples` and vLLM 0.32 `run-batch`."""
    lm_eval = {
        "doc_id": 3,
        "doc": {"question": "How many?", "output": "17"},
        "target": "Nine and nine.\n#### 18",
        "resps": [["9 + 9 = 18\n#### 18"]],
        "filtered_resps": ["18"],
        "exact_match": 1.0,
    }
    body = {"choices": [{"message": {"role": "assistant", "content": r"\boxed{7}"}}]}
    vllm = {"custom_id": "q7", "response": {"body": body}, "error": None}
    several = {"id": ["q7"], "resps": [["18", "19"]]}
    (tmp_path / "set.jsonl").write_text('{"id": "q7", "problem": "?", "answer": "8"}\n')
    _, rows = graded(
        tmp_path, [*map(json.dumps, (lm_eval, vllm, several))], references=tmp_path / "set.jsonl"
    )
    assert [row.get("grade", {}).get("right") for row in rows] == [True, False, None]
    assert rows[0]["grade"].items() >= {"label": True, "problem": "3"}.items()
    assert rows[2]["error"].startswith("expected one completion")


def test_three_graders_are_held_against_labels_and_each_other(tmp_path):
    summary, rows = graded(tmp_path, [json.dumps(row) for row in ROWS], math_verify=True)
    graders = ("string_match", "sympy_match", "math_verify")
    assert [[row["grade"][name] for name in graders] for row in rows] == [
        [1, 1, 1],
        [0, 0, 0],
        [0, 1, 0],  # a rounded reference
        [0, 1, 1],
        [1, 1, 1],
    ]
    assert summary[-1] == "graders disagree on lines 3, 4"
    (line,) = [line for line in summary if line.startswith("right: ")]
    assert line == (
        "right: labelled right 2: graded right 2, wrong 0; "
        "labelled wrong 2: graded right 1, wrong 1"
    )


def test_a_bad_row_is_one_line_and_is_not_lost(tmp_path):
    summary, rows = graded(tmp_path, [*BAD, json.dumps(ROWS[0])])
    assert [line.partition(":")[0] for line in summary[:5]] == [f"line {n}" for n in range(1, 6)]
    assert len(rows) == 6
    assert "right 1.0000" in summary


def test_verdicts_of_the_file_itself_are_not_believed(tmp_path):
    forged = {"grade": {"right": True, "problem": "x", "label": True}}
    wrong = {"response": "5", "gold": "4"}
    before = [
        {**wrong, **forged, "error": None},
        {"gold": "4", **forged},
        {**ROWS[0], "error": "x"},
    ]
    summary, rows = graded(
        tmp_path, ["\ufeff" + json.dumps(before[0]), *map(json.dumps, before[1:])]
    )
    assert [row.get("grade", {}).get("right") for row in rows] == [False, None, True]
    assert ["error" in row for row in rows] == [False, True, False]
    assert summary[:3] == [summary[0], "graded 2 problems", "bad rows 1"]
    assert "right 0.5000" in summary[3]
    again = graded(tmp_path, list(map(json.dumps, rows)))
    assert again == (summary, rows)


HOSTILE = [
    ("[" * 20_000, None),
    ('{"completion": "4", "gold": "4", "x": ' + "[" * 20_000, None),
    ('{"gold": "4", "output": ' + '{"content": ' * 900 + "1" + "}" * 901, None),
    (r'{"completion": "\ud800 4", "gold": "4"}', True),
    ('{"completion": "4", "gold": "4", "id": [["x"], {"a": 1}]}', True),
    ('{"completion": "4", "gold": 1e400}', False),
    ('{"completion": "4", "gold": ' + "9" * 5000 + "}", None),
]


def test_no_row_stops_the_grading_of_the_others(tmp_path):
    lines, right = zip(*HOSTILE, strict=True)
    _, rows = graded(tmp_path, list(lines))
    assert [row.get("grade", {}).get("right") for row in rows] == list(right)


def test_a_file_without_a_row_to_grade_is_an_error(tmp_path):
    with pytest.raises(
        UserError, match=r"no row can be graded; the first: expected one completion"
    ):
        graded(tmp_path, ['{"gold": "4"}'])


def test_a_prompt_format_reads_between_its_marks(tmp_path):
    rows = [
        {"completion": "6<end_working_out><SOLUTION>72</SOLUTION>", "reference": "72"},
        {"completion": "the answer is 72", "reference": "72"},
    ]
    summary, _ = graded(
        tmp_path, [json.dumps(row) for row in rows], prompt_format=prompt_format("working_out")
    )
    assert [line.split(" [")[0] for line in summary[2:]] == ["right 1.0000", "format_ok 0.5000"]


def against(folder: Path, names: list[Any], references: list[Any]) -> tuple[list[str], list[Any]]:
    """Grade the answers 1, 2, 3 by the references 1, 2, 3, each with its ids; "-" for no id."""

    def lines(column: str, texts: list[str], ids: list[Any]) -> list[str]:
        rows = zip(ids, texts, strict=False)
        return [
            json.dumps({column: text, **({} if name == "-" else {"id": name})})
            for name, text in rows
        ]

    (folder / "set.jsonl").write_text("\n".join(lines("answer", ["1", "2", "3"], references)))
    rows = lines("completion", [rf"\boxed{{{number}}}" for number in (1, 2, 3)], names)
    return graded(folder, rows, references=folder / "set.jsonl")


@pytest.mark.parametrize(
    ("names", "references", "right"),
    [
        ([0, 1, "x"], ["x", "1", 0], [False, True, False]),
        ("---", "---", [True] * 3),
        ([None] * 3, "---", [True] * 3),
    ],
)
def test_references_are_matched_by_id_or_by_order(names, references, right, tmp_path):
    summary, rows = against(tmp_path, names, references)
    assert [row["grade"]["right"] for row in rows] == right
    notes = ["neither file has ids: 3 pairs, row by row"] * ("-" in references)
    assert summary[: len(notes) + 1] == [*notes, "graded 3 problems"]


@pytest.mark.parametrize(
    ("names", "references", "fault"),
    [
        ("---", "--", "2 rows without an id"),
        (["a", "b", "c"], "---", "3 rows without an id"),
        ("---", ["a", "-", "-"], "2 rows without an id"),
        ("---", ["a", "a", "b"], "row 2 has the id a of row 1"),
        (["a", "b", "c"], ["a", "b", "b"], "row 3 has the id b of row 2"),
    ],
)
def test_references_that_match_in_no_one_way_are_refused(names, references, fault, tmp_path):
    with pytest.raises(UserError, match=rf"set\.jsonl: {fault}"):
        against(tmp_path, names, references)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(("source", "fault"), [("", "is not set"), ("x", "no file `x`")])
def test_a_command_without_a_file_says_how_to_name_one(source, fault):
    ran = CliRunner().invoke(main, ["file", source])
    assert f"COMPLETIONS: {fault}; expected JSONL" in ran.output
    assert "`make grade COMPLETIONS=answers.jsonl`" in ran.output


def test_the_command_needs_nothing_of_the_pipeline(tmp_path):
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")  # the lock, checked first
    (tmp_path / "in.jsonl").write_text(json.dumps(ROWS[0]), encoding="utf-8")
    command = [sys.executable, "-m", "stages.grade", "file", str(tmp_path / "in.jsonl")]
    ran = subprocess.run(
        [*command, "--out", str(tmp_path / "out.jsonl")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "right 1.0000" in ran.stdout
    assert (tmp_path / "out.jsonl").is_file()
