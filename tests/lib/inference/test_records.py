"""Appended rows survive other writers."""

import json
import subprocess
import sys

from lib.inference import save_prompt_and_response
from tests.conftest import ROOT

WRITER = """
import sys
from pathlib import Path
from lib.inference.generator import save_prompt_and_response
for number in range(150):
    save_prompt_and_response(
        Path(sys.argv[1]), prompt=sys.argv[2], response="x" * 50_000, number=number
    )
"""


def test_a_row_holds_prompt_response_and_facts(tmp_path):
    path = tmp_path / "new" / "solutions.jsonl"
    save_prompt_and_response(path, prompt="π\n\u2028", response='"3"', answer=None)
    save_prompt_and_response(path, prompt="half \ud83d", response="", seed=1)
    first, second = (json.loads(line) for line in path.read_bytes().splitlines())
    assert first == {"prompt": "π\n\u2028", "response": '"3"', "answer": None}
    assert second == {"prompt": "half \ud83d", "response": "", "seed": 1}


def test_rows_of_two_writers_never_mix(tmp_path):
    """The rows are longer than one `write` of Python's buffer."""
    path = tmp_path / "solutions.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name], cwd=ROOT) for name in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for name in "ab":
        assert [row["number"] for row in rows if row["prompt"] == name] == list(range(150))
