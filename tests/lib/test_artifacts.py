"""Files are whole or absent, and the same content has the same bytes."""

import os
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.artifacts import (
    hash_path,
    json_lines,
    read_json,
    read_records,
    replacing,
    write_curve,
    write_json,
    write_jsonl,
    write_metrics,
)
from lib.core.errors import UserError


def test_metrics_are_sorted_and_of_fixed_precision(tmp_path):
    write_metrics(tmp_path / "m.json", {"b": 1 / 3, "a": {"n": 2}, "c": [{"se": 2 / 3}]})
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    assert text == (
        '{\n  "a": {\n    "n": 2\n  },\n  "b": 0.333333,\n'
        '  "c": [\n    {\n      "se": 0.666667\n    }\n  ]\n}\n'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", None])
def test_metrics_hold_finite_numbers_only(tmp_path, value):
    for top in ({"deep": value}, [{"deep": value}]):
        with pytest.raises(ValueError, match="metric deep must be a finite number"):
            write_metrics(tmp_path / "m.json", {"top": top})
    assert not list(tmp_path.iterdir())


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_block_that_fails_leaves_the_old_folder(tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "export/model").write_text("old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "export") as folder:
        folder.mkdir()
        (folder / "model").write_text("half")
        raise RuntimeError
    assert (tmp_path / "export/model").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_ctrl_c_while_a_file_is_replaced_leaves_the_old_one(tmp_path, monkeypatch, call):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "file", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "old")]


def test_of_two_writers_of_a_path_each_publishes_its_own(tmp_path):
    path = tmp_path / "file"
    with ThreadPoolExecutor(1) as other, replacing(path) as partial:
        partial.write_text("first")
        other.submit(write_json, path, "second").result()
        assert path.read_text() == '"second"\n'
    assert path.read_text() == "first"


def test_a_killed_writers_partial_file_is_removed(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        pass
    for pid in (ended.pid, os.getppid()):
        (tmp_path / f".file.{pid}-1.partial").touch()
    write_json(tmp_path / "file", 1)
    # The parent process lives, so that its partial file stays.
    assert {path.name for path in tmp_path.iterdir()} == {"file", f".file.{os.getppid()}-1.partial"}


def test_a_curve_starts_with_the_step_and_leaves_gaps_empty(tmp_path):
    write_curve(tmp_path / "c.csv", [{"step": 1, "loss": 2.0}, {"step": 2, "kl": 0.1}])
    assert (tmp_path / "c.csv").read_text(encoding="utf-8") == "step,kl,loss\n1,,2.0\n2,0.1,\n"


def test_a_folders_hash_sees_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("x")
    first = hash_path(tmp_path)
    (tmp_path / "a").write_text("y")
    changed = hash_path(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, changed, hash_path(tmp_path)}) == 3


def test_a_file_is_hashed_without_being_held(tmp_path):
    with (tmp_path / "shard").open("wb") as file:
        file.truncate(2**26)
    tracemalloc.start()
    hash_path(tmp_path / "shard")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_bad_line_of_jsonl_spoils_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"a": 1}\r\n\n{"a":\n"\xff"\n' + b"[" * 20_000 + b"\n[2]\n" + b"9" * 5000
    )
    lines = list(json_lines(path))
    assert [line.number for line in lines] == [1, 3, 4, 5, 6, 7]
    assert [line.value for line in lines] == [{"a": 1}, None, None, None, [2], None]
    assert [bool(line.fault) for line in lines] == [False, True, True, True, False, True]
    assert [line.text for line in lines[:3]] == ['{"a": 1}', '{"a":', '"\ufffd"']
    rows = read_records(path, dict, what="a JSON object", remedy="`dvc repro`")
    with pytest.raises(UserError, match=rf"{path}:3: not a JSON object .*dvc repro"):
        list(rows)


def test_half_a_character_is_written_as_json_escapes_it(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"a": "é \ud83d"}])
    assert (tmp_path / "rows.jsonl").read_bytes() == b'{"a": "\xc3\xa9 \\ud83d"}\n'
    rows = read_records(tmp_path / "rows.jsonl", dict, what="a JSON object", remedy="")
    assert list(rows) == [{"a": "é \ud83d"}]
    write_json(tmp_path / "file.json", "\ud83d")
    assert read_json(tmp_path / "file.json") == "\ud83d"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[" * 20_000, "nested"), (b"\xff", "utf-8"), (b"{", "not JSON"), (None, "no such file")],
)
def test_a_file_without_json_is_named(tmp_path, content, words):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=rf"{tmp_path / 'file'}: .*{words}"):
        read_json(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path)
    with pytest.raises(UserError, match="expected a JSONL file"):
        list(json_lines(tmp_path))
