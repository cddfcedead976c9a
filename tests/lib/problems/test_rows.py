"""An unreadable row is named, and the other rows stay readable."""

import json
from decimal import Decimal

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from lib import artifacts
from lib.problems import rows
from lib.problems.rows import RowFault, read_csv_rows, read_json_rows, read_parquet_rows


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
        ("rows.json", b'[{"a": 1}, ', {1: "good", 2: "unreadable"}),
        ("rows.json", b'[{"a": 1}] {', {1: "good", 2: "unreadable"}),
        ("rows.json", b"[ ]", {}),
        ("rows.json", b'["\xff"]', {0: "bad_utf8"}),
        ("rows.json", b'[{"a": 1, "a": 2}]', {1: "unreadable"}),
        ("rows.jsonl", b'{"a": 1, "a": 2}\n{"a": 1}', {1: "unreadable", 2: "good"}),
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
        ("1,2\n", ("a", "b"), [{"file": "rows", "a": "1", "b": "2"}]),
    ],
)
def test_csv_values_stay_text(tmp_path, content, names, rows):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert [row.fields for row in read_csv_rows(path, names=names)] == rows


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False))))
def test_an_array_gives_what_json_parses(content):
    read = [row for _, row in rows._array_rows(json.dumps(content, indent=1).encode())]
    assert read == content


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
@pytest.mark.parametrize("size", [90, 200, 5000])
def test_a_row_over_the_limit_is_a_fault_not_memory(tmp_path, monkeypatch, name, size):
    for module in (artifacts, rows):
        monkeypatch.setattr(module, "MAX_JSON", 100)
    good, long = ({"a": "x" * length} for length in (80, size))
    path = tmp_path / name
    read = read_json_rows
    if name == "rows.csv":
        path.write_text("a\n" + "".join(f"{row['a']}\n" for row in (good, long)))
        read = read_csv_rows
    elif name == "rows.json":
        path.write_text(json.dumps([good, long]))
    else:
        path.write_text(f"{json.dumps(good)}\n{json.dumps(long)}\n{json.dumps(good)}\n")
    first, second, *_ = read(path)
    assert first.fields == good
    assert isinstance(second.fields, RowFault) == (size > 90)


def _parquet(path, **columns):
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_float_has_the_digits_of_its_own_type(tmp_path):
    inner = pyarrow.struct([("x", pyarrow.float32())])
    path = _parquet(
        tmp_path / "a.parquet",
        single=pyarrow.array([0.1, None], pyarrow.float32()),
        half=pyarrow.array([0.1, 2.5], pyarrow.float16()),
        decimal=pyarrow.array([Decimal("19.20"), None]),
        listed=pyarrow.array([[0.1], None], pyarrow.list_(pyarrow.float32())),
        nested=pyarrow.array([{"x": 19.2}, None], inner),
        plain=pyarrow.array([{"x": 1}, None]),
    )
    first, second = (row.fields for row in read_parquet_rows(path))
    assert first == {
        "single": 0.1,
        "half": 0.1,
        "decimal": Decimal("19.20"),
        "listed": [0.1],
        "nested": {"x": 19.2},
        "plain": {"x": 1},
    }
    assert second["half"] == 2.5
    assert {value for name, value in second.items() if name != "half"} == {None}


def test_only_the_columns_that_are_used_are_read(tmp_path):
    pairs = pyarrow.array([[("a", "b")]], pyarrow.map_(pyarrow.string(), pyarrow.string()))
    path = _parquet(tmp_path / "a.parquet", extra=pairs, question=["1 + 1?"], answer=["2"])
    (row,) = read_parquet_rows(path, columns={"question", "answer", "missing"})
    assert list(row.fields.items()) == [("extra", None), ("question", "1 + 1?"), ("answer", "2")]
    (row,) = read_parquet_rows(path, columns={"missing"})
    assert list(row.fields) == ["extra", "question", "answer"]
    empty = _parquet(tmp_path / "b.parquet", question=pyarrow.array([], pyarrow.string()))
    assert list(read_parquet_rows(empty)) == []


def test_one_long_text_in_every_row_is_in_memory_once(tmp_path):
    text = "a" * 2**22
    index = pyarrow.array([0] * 100, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(index, pyarrow.array([text]))
    # Without Arrow's schema in the file, its reader would write the text out for every row.
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"question": column}), path, store_schema=False)
    before = pyarrow.default_memory_pool().max_memory()
    assert sum(len(row.fields["question"]) for row in read_parquet_rows(path)) == 100 * 2**22
    assert pyarrow.default_memory_pool().max_memory() - before < 50 * 2**20
