"""Appended rows survive other writers, kills and a full disk."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lib.inference import save_prompt_and_response
from tests.conftest import ROOT

WRITER = """
import itertools, sys
from pathlib import Path
from lib.inference.records import save_prompt_and_response
name, rows = sys.argv[2], int(sys.argv[3])
for number in itertools.islice(itertools.count(), rows or None):
    save_prompt_and_response(Path(sys.argv[1]), prompt=name, response="x" * 5000, number=number)
"""


def writer(path: Path, name: str, rows: int) -> subprocess.Popen[bytes]:
    """A process that appends `rows` rows, or for ever with 0."""
    return subprocess.Popen([sys.executable, "-c", WRITER, path, name, str(rows)], cwd=ROOT)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_row_holds_prompt_response_and_facts_whatever_their_characters(tmp_path: Path) -> None:
    path = tmp_path / "new" / "solutions.jsonl"
    save_prompt_and_response(path, prompt="π\n\u2028", response='"3"', answer=None)
    save_prompt_and_response(path, prompt="two", response="", seed=1)
    content = path.read_bytes()
    assert content.count(b"\n") == 2
    first, second = (json.loads(line) for line in content.splitlines())
    assert first == {"prompt": "π\n\u2028", "response": '"3"', "answer": None}
    assert second == {"prompt": "two", "response": "", "seed": 1}


def test_rows_of_two_writers_never_mix_and_a_kill_costs_no_finished_row(tmp_path: Path) -> None:
    path = tmp_path / "solutions.jsonl"
    killed, kept = writer(path, "killed", 0), writer(path, "kept", 150)
    while not (path.exists() and b'"killed"' in path.read_bytes()):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert kept.wait() == 0
    save_prompt_and_response(path, prompt="after", response="")
    found = rows(path)
    for name in ("killed", "kept"):
        numbers = [row["number"] for row in found if row["prompt"] == name]
        assert numbers == list(range(len(numbers)))
    assert sum(row["prompt"] == "kept" for row in found) == 150
    assert found[-1]["prompt"] == "after"


def test_a_line_that_is_being_written_is_not_taken_for_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "solutions.jsonl"
    with path.open("wb", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"prompt": "fir')
        second = threading.Thread(
            target=save_prompt_and_response,
            args=[path],
            kwargs={"prompt": "second", "response": ""},
        )
        second.start()
        # Without the lock the second writer is through long before this.
        second.join(timeout=0.3)
        other.write(b'st"}\n')
        fcntl.flock(other, fcntl.LOCK_UN)
        second.join()
    assert [row["prompt"] for row in rows(path)] == ["first", "second"]


@pytest.mark.parametrize(
    "half", [b'{"prompt": "a', b'{"prompt": "' + b"x" * 200_000, b"\xff", b"4"]
)
def test_half_a_line_is_removed_and_reported(
    half: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "solutions.jsonl"
    save_prompt_and_response(path, prompt="first", response="")
    path.write_bytes(path.read_bytes() + half)
    save_prompt_and_response(path, prompt="second", response="")
    assert [row["prompt"] for row in rows(path)] == ["first", "second"]
    (record,) = caplog.records
    assert "ended in half a line" in record.getMessage()
    assert half[:80].decode("utf-8", "replace") in record.getMessage()


def test_a_whole_row_that_only_lacks_its_line_end_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "solutions.jsonl"
    path.write_text('{"prompt": "first"}')
    save_prompt_and_response(path, prompt="second", response="")
    assert [row["prompt"] for row in rows(path)] == ["first", "second"]
    assert not caplog.records


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "solutions.jsonl"
    save_prompt_and_response(path, prompt="first", response="")
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:10]))
    with pytest.raises(OSError, match="wrote 10 of"):
        save_prompt_and_response(path, prompt="second", response="")
    assert path.read_bytes() == before
