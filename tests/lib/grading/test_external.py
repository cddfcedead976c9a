"""Grading of stored completions loses no row and reports every bad one."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commands.grade import main
from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.grading.external import grade_external
from lib.prompts import prompt_format
from tests.conftest import ROOT, read_jsonl

ROWS = [
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


def graded(folder: Path, rows: list[Any], **options) -> tuple[list[str], list[Any]]:
    """Grade rows, or texts in place of rows; return the summary and the graded rows."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    source.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    summary = list(grade_external(source, out, **options))
    return summary, read_jsonl(out)


def verdicts(rows: list[Any]) -> list[bool | None]:
    """Return each row's verdict, None for one without a grade."""
    return [row.get("grade", {}).get("right") for row in rows]


def test_columns_are_read_by_their_usual_names(tmp_path):
    summary, rows = graded(tmp_path, ROWS)
    assert verdicts(rows) == [True, False, True, True, True]
    assert [row["grade"]["answer"] for row in rows] == ["4", "5", r"\pi", "1/2", "7"]
    assert rows[2]["grade"]["reason"] == "rounding"
    # Two completions of one problem are one unit.
    assert summary[0] == "graded 4 problems"
    assert summary[2].startswith("right 0.8000 [")
    assert [{**row, "grade": None} for row in rows] == [{**row, "grade": None} for row in ROWS]


def test_what_lm_eval_vllm_and_grade_write_is_read(tmp_path):
    """The rows are from lm-eval 0.4.13 `--log_samples`, vLLM 0.32 `run-batch` and our `grade`."""
    doc = {"question": "How many?", "output": "17"}
    lm_eval = {"doc_id": 3, "doc": doc, "target": "Nine and nine.\n#### 18", "exact_match": 1.0}
    lm_eval |= {"resps": [["9 + 9 = 18\n#### 18"]], "filtered_resps": ["18"]}
    body = {"choices": [{"message": {"role": "assistant", "content": r"\boxed{7}"}}]}
    vllm = {"id": "vllm-1", "custom_id": "q7", "response": {"body": body}, "error": None}
    several = {"id": ["q7"], "resps": [["18", "19"]]}
    (tmp_path / "set.jsonl").write_text('{"id": "q7", "problem": "?", "answer": "8"}\n')
    ours = {"problem_id": "a", "completion": "7", "reference": "7"}
    ours |= {"label": "01", "answer_ok": True}
    lines = [lm_eval, vllm, several, ours]
    _, rows = graded(tmp_path, lines, references=tmp_path / "set.jsonl")
    assert verdicts(rows) == [True, False, None, True]
    assert rows[3]["grade"]["label"] is True
    # Not doc_id and custom_id: another task's or request's may be of the same or another problem.
    assert rows[0]["grade"].items() >= {"label": True, "problem": "How many?"}.items()
    assert rows[1]["grade"]["problem"] == "?"
    assert rows[2]["error"].startswith("expected one completion")


def test_three_graders_are_held_against_labels_and_each_other(tmp_path):
    # Four counts that differ from each other.
    more = [ROWS[1]] * 3 + [{**ROWS[1], "label": True}] * 3
    summary, rows = graded(tmp_path, [*ROWS, *more], math_verify=True)
    graders = ("string_match", "sympy_match", "math_verify")
    assert [[row["grade"][name] for name in graders] for row in rows[:5]] == [
        [1, 1, 1],
        [0, 0, 0],
        [0, 1, 0],  # a rounded reference
        [0, 1, 1],
        [1, 1, 1],
    ]
    assert summary[-1] == "graders disagree on lines 3, 4"
    assert [line for line in summary if line.startswith("right: ")] == [
        "right: labelled right 5: graded right 2, wrong 3; "
        "labelled wrong 5: graded right 1, wrong 4"
    ]


def test_a_bad_row_is_one_line_and_is_not_lost(tmp_path):
    summary, rows = graded(tmp_path, [*BAD, ROWS[0]])
    assert [line.partition(":")[0] for line in summary[:5]] == [f"line {n}" for n in range(1, 6)]
    assert len(rows) == 6
    assert "right 1.0000" in summary


def test_verdicts_of_the_file_itself_are_not_believed(tmp_path):
    forged = {"grade": {"right": True, "problem": "x", "label": True}}
    wrong = {"response": "5", "gold": "4"}
    first = "\ufeff" + json.dumps({**wrong, **forged, "error": None})
    others = [{"gold": "4", **forged}, {**ROWS[0], "error": "x"}]
    summary, rows = graded(tmp_path, [first, *others])
    assert verdicts(rows) == [False, None, True]
    assert ["error" in row for row in rows] == [False, True, False]
    assert summary[:3] == [summary[0], "graded 2 problems", "bad rows 1"]
    assert "right 0.5000" in summary[3]
    assert graded(tmp_path, rows) == (summary, rows)


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
    assert verdicts(rows) == list(right)


def test_a_file_without_a_row_to_grade_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no row can be graded; the first: expected one completion"):
        graded(tmp_path, [{"gold": "4"}])


@pytest.mark.parametrize(
    ("reference", "right"),
    [(["4"], True), ([4], True), (["4", "5"], None), ({"value": "4"}, None), (math.nan, None)],
)
def test_a_reference_is_one_value(reference, right, tmp_path):
    rows = [{"completion": "4", "gold": reference}, {"pred": ["4"], "gold": "4"}]
    assert verdicts(graded(tmp_path, rows)[1]) == [right, True]


def test_a_prompt_format_reads_between_its_marks(tmp_path):
    rows = [
        {"completion": "6<end_working_out><SOLUTION>72</SOLUTION>", "reference": "72"},
        {"completion": "the answer is 72", "reference": "72"},
    ]
    summary, _ = graded(tmp_path, rows, prompt_format=prompt_format("working_out"))
    assert [line.split(" [")[0] for line in summary[2:]] == ["right 1.0000", "format_ok 0.5000"]


def against(folder: Path, names: list[Any], references: list[Any]) -> tuple[list[str], list[Any]]:
    """Grade the answers 1, 2, 3 by the references 1, 2, 3, each with its ids; "-" for no id."""

    def rows(column, text, ids):
        return [
            {column: text % number} | ({} if name == "-" else {"id": name})
            for number, name in enumerate(ids, 1)
        ]

    write_jsonl(folder / "set.jsonl", rows("answer", "%d", references))
    answers = rows("completion", r"\boxed{%d}", names)
    return graded(folder, answers, references=folder / "set.jsonl")


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
    assert verdicts(rows) == right
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


def test_the_references_are_not_replaced(tmp_path):
    write_jsonl(tmp_path / "set.jsonl", ROWS)
    options = [f"--{name}={tmp_path / 'set.jsonl'}" for name in ("out", "references")]
    ran = CliRunner().invoke(main, [str(tmp_path / "set.jsonl"), *options])
    assert (ran.exit_code, "--references" in ran.output) == (1, True)


def test_the_command_needs_nothing_of_the_pipeline(tmp_path):
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")  # the lock, checked first
    (tmp_path / "in.jsonl").write_text(json.dumps(ROWS[0]), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "commands", "grade", "in.jsonl", "--out", "out.jsonl"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "right 1.0000" in ran.stdout
    assert (tmp_path / "out.jsonl").is_file()


def test_the_references_file_counts_before_the_rows_own(tmp_path):
    """What differs, is missing or repeated is in the summary."""
    references = tmp_path / "references.jsonl"
    write_jsonl(references, [{"id": n, "answer": f"#### {n}"} for n in range(10)])
    rows = [
        {"id": 1, "response": "A: 1", "target": "9"},
        {"id": 1, "response": "A: 9", "target": "9"},
        {"id": 2, "response": "A: 2", "doc": {"target": "2"}},
    ]
    summary, graded_rows = graded(tmp_path, rows, references=references)
    assert verdicts(graded_rows) == [True, False, True]
    assert summary[0].startswith("8 of 10 references have no completion, the first: id 0")
    assert summary[1].startswith("1 ids have several completions, the first: id 1")
    assert summary[2].startswith("2 rows have another reference")
    assert "line 1: '9' for '1'" in summary[2]


def test_a_json_array_of_objects_is_read_as_its_rows(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    list(grade_external(tmp_path / "rows.json", tmp_path / "out.jsonl"))
    assert verdicts(read_jsonl(tmp_path / "out.jsonl")) == [True, False, True, True, True]


def test_a_batch_without_references_is_told_of_the_option(tmp_path):
    message = {"choices": [{"message": {"content": "A: 4"}}]}
    batch = {"custom_id": "a", "response": {"body": message}}
    with pytest.raises(UserError, match="--references FILE"):
        graded(tmp_path, [batch])


def test_samples_of_one_text_are_one_problem_whatever_their_ids(tmp_path):
    rows = [{"id": i, "question": "2 + 2?", "response": "4", "gold": "4"} for i in range(8)]
    assert graded(tmp_path, rows)[0][0] == "graded 1 problems"
