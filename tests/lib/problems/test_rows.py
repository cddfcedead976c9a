"""An unreadable row is named, and the other rows stay readable."""

import json

import pytest

from lib.problems.rows import RowFault, read_csv_rows, read_json_rows


def _reasons(rows):
    return [
        (row.number, row.fields.reason if isinstance(row.fields, RowFault) else "good")
        for row in rows
    ]


def test_a_bad_line_of_jsonl_leaves_its_neighbours_readable(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"problem": "1?"}\n\n{"problem": \n[1]\n'
        b'{"problem": "\xff"}\r\n{"problem": "2?"}'
    )
    assert _reasons(read_json_rows(path)) == [
        (1, "good"),
        (3, "unreadable"),
        (4, "wrong_type"),
        (5, "bad_utf8"),
        (6, "good"),
    ]


def test_line_separators_inside_a_string_do_not_end_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "a\u2028b\x85c"}, ensure_ascii=False) + "\n")
    (row,) = read_json_rows(path)
    assert row.fields == {"problem": "a\u2028b\x85c"}


def test_json_may_be_an_array_or_lines(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(' [{"a": 1}, 2, {"a": 3}]')
    assert _reasons(read_json_rows(path)) == [(1, "good"), (2, "wrong_type"), (3, "good")]
    path.rename(tmp_path / "rows.jsonl")
    assert _reasons(read_json_rows(tmp_path / "rows.jsonl")) == [(1, "wrong_type")]
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert _reasons(read_json_rows(path)) == [(1, "good"), (2, "good")]


@pytest.mark.parametrize(
    ("content", "reason"), [(b'[{"a": 1}, ', "unreadable"), (b'["\xff"]', "bad_utf8")]
)
def test_a_broken_json_array_is_one_fault_of_the_file(tmp_path, content, reason):
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    assert _reasons(read_json_rows(path)) == [(0, reason)]


def test_csv_values_stay_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('question,A\n"What, is ""it""?",0.10\n')
    (row,) = read_csv_rows(path)
    assert row.fields == {"question": 'What, is "it"?', "A": "0.10"}


def test_csv_without_a_header_takes_names(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n3,4\n")
    assert [row.fields for row in read_csv_rows(path, names=("a", "b"))] == [
        {"file": "rows", "a": "1", "b": "2"},
        {"file": "rows", "a": "3", "b": "4"},
    ]


def test_bad_csv_rows_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\n1\n1,2,3\n\xff,2\n4,5\n6,"open\n')
    faults = _reasons(read_csv_rows(path))
    assert faults[:2] == [(2, "unreadable"), (3, "unreadable")]
    assert (5, "good") in faults
    assert faults[-1] == (6, "unreadable")
