"""An unreadable row is named, and the other rows stay readable."""

import json

import pytest

from lib.problems.rows import RowFault, read_csv_rows, read_json_rows


@pytest.mark.parametrize(
    ("name", "content", "reasons"),
    [
        (
            "rows.jsonl",
            b'\xef\xbb\xbf{"problem": "1?"}\n\n{"problem": \n[1]\n'
            b'{"problem": "\xff"}\r\n{"problem": "2?"}',
            {1: "good", 3: "unreadable", 4: "wrong_type", 5: "bad_utf8", 6: "good"},
        ),
        ("rows.json", b' [{"a": 1}, 2, {"a": 3}]', {1: "good", 2: "wrong_type", 3: "good"}),
        ("rows.jsonl", b' [{"a": 1}, 2, {"a": 3}]', {1: "wrong_type"}),
        ("rows.json", b'{"a": 1}\n{"a": 2}\n', {1: "good", 2: "good"}),
        ("rows.json", b'{\n  "a": 1\n}\n', {1: "good"}),
        ("rows.json", b'[{"a": 1}, ', {0: "unreadable"}),
        ("rows.json", b'["\xff"]', {0: "bad_utf8"}),
        (
            "rows.csv",
            b'a,b\n1\n1,2,3\n\xff,2\n4,5\n6,"open\n',
            {
                2: "unreadable",
                3: "unreadable",
                # Its bytes are at fault when they become text.
                4: "good",
                5: "good",
                6: "unreadable",
            },
        ),
        ("rows.csv", b'"a"x,b\n1,2\n3,4\n', {0: "unreadable"}),
        ("rows.csv", b"answer,answer\n1,2\n", {0: "unreadable"}),
        ("rows.csv", b"answer,,\n1,2,\n", {2: "good"}),
    ],
    ids=[
        "a bad line leaves its neighbours readable",
        "an array",
        "an array is no lines",
        "lines in a .json",
        "an object on several lines",
        "a broken array is one fault of the file",
        "bad bytes in an array",
        "csv",
        "a csv whose header cannot be read",
        "a csv with two columns of one name",
        "a csv with columns without a name",
    ],
)
def test_each_row_is_good_or_named_with_its_fault(tmp_path, name, content, reasons):
    path = tmp_path / name
    path.write_bytes(content)
    read = read_csv_rows if path.suffix == ".csv" else read_json_rows
    assert [
        (row.number, row.fields.reason if isinstance(row.fields, RowFault) else "good")
        for row in read(path)
    ] == list(reasons.items())


def test_line_separators_inside_a_string_do_not_end_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "a\u2028b\x85c"}, ensure_ascii=False) + "\n")
    (row,) = read_json_rows(path)
    assert row.fields == {"problem": "a\u2028b\x85c"}


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        (
            'question,A\n"What, is ""it""?",0.10\n',
            (),
            [{"question": 'What, is "it"?', "A": "0.10"}],
        ),
        (
            "1,2\n3,4\n",
            ("a", "b"),
            [{"file": "rows", "a": "1", "b": "2"}, {"file": "rows", "a": "3", "b": "4"}],
        ),
    ],
    ids=["with a header", "with names for the columns"],
)
def test_csv_values_stay_text(tmp_path, content, names, rows):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert [row.fields for row in read_csv_rows(path, names=names)] == rows
