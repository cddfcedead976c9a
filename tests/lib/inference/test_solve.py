"""The command: one question, a pipe, a conversation, and one line for each mistake."""

import json
import shutil
from unittest.mock import Mock, patch

import pytest
from click.testing import CliRunner

from commands.solve import main
from lib.core.errors import UserError
from lib.inference.generator import Solution
from lib.inference.terminal import Terminal
from tests.conftest import ROOT
from tests.lib.inference.conftest import QUESTION, WORKING


@pytest.fixture
def solve(taught):
    def run(*arguments, stdin=""):
        options = ["--model", str(taught), *arguments]
        return CliRunner().invoke(main, options, input=stdin, catch_exceptions=False)

    return run


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_question_prints_reasoning_and_answer(solve):
    assert solve(QUESTION).stdout == f"{WORKING}\nAnswer: 345\n"


def test_an_answer_that_was_cut_off_says_so(solve):
    shown = solve(QUESTION, "--max-new-tokens", "4").stdout
    assert shown.endswith(" (cut off after 4 tokens)\n")


def test_a_pipe_is_answered_line_by_line_and_appended(solve, tmp_path, taught):
    out = tmp_path / "out.jsonl"
    shown = rows(solve("--json", "--out", str(out), stdin=f"{QUESTION}\n\n{QUESTION}\n").stdout)
    assert [row["answer"] for row in shown] == ["345", "345"]
    solve(QUESTION, "--out", str(out))
    kept = rows(out.read_text())
    assert [row["response"] for row in kept] == [shown[0]["completion"]] * 3
    assert kept[0]["prompt"] == f"{QUESTION}\n<start_working_out>"
    assert (kept[0]["model"], kept[0]["temperature"]) == (str(taught), 0.0)


def test_a_conversation_survives_a_mistake(solve, monkeypatch):
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    shown = solve(stdin=f"{'7 ' * 300}\n\n{QUESTION}\n")
    assert "Error: the question is too long" in shown.stderr
    assert f"{WORKING}<end_working_out><SOLUTION>345</SOLUTION>\nAnswer: 345\n" in shown.stdout
    assert shown.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        ([" "], "", 1, "Error: the question is empty"),
        ([QUESTION, "--model", "no/such/model"], "", 1, "Error: no model at no/such/model"),
        ([], b"2 + 2?\n\xff\xfe\n", 1, "line 2: not UTF-8"),
        (["--temperature", "nan"], "", 2, "nan is no number"),
        (["--temperature", "inf"], "", 2, "inf is no number"),
        (["--out", "."], "", 2, "is a directory"),
    ],
)
def test_a_mistake_is_one_line(arguments, stdin, code, words, solve):
    shown = solve(*arguments, stdin=stdin)
    *usage, line = shown.stderr.splitlines()
    assert line.startswith("Error: ") and words in line
    assert (shown.exit_code, bool(usage)) == (code, code == 2)
    # A pipe's earlier line was answered.
    assert bool(shown.stdout) == bool(stdin)


def test_a_model_cannot_steer_the_terminal():
    """Nor can a path in a message; JSON output escapes control characters."""
    steering = "\x1b[2J\x9b1m\u202e"
    solution = Solution(
        question="?", prompt="?", completion=steering, reasoning=None, answer=steering,
        finish="eos", num_tokens=3,
    )  # fmt: skip

    def stream(question, settings, show):
        show(steering)
        return solution

    generator = Mock(spec_set=["stream", "generate"], stream=stream, generate=lambda *_: [solution])
    for streamed, as_json in ((False, False), (True, False), (False, True)):
        terminal = Terminal(generator=generator, settings=None, model="m", as_json=as_json)
        with CliRunner().isolation() as (out, *_), patch("sys.stdout.isatty", lambda: True):
            terminal.answer("?", streamed=streamed)
        shown = out.getvalue().decode()
        assert not set(steering) - set("[2J1m") & set(shown) and shown.strip()
    error = UserError(f"{steering}: no such file")
    assert not set("\x1b\x9b\u202e") & set(error.format_message())


def test_the_example_from_python_runs(taught, tmp_path, monkeypatch, capsys):
    shutil.copytree(taught, tmp_path / "data/models/export")
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "examples/from_python/ask.py").read_text(encoding="utf-8")
    exec(compile(code.replace("temperature=0.9", "temperature=0"), "ask.py", "exec"), {})
    assert capsys.readouterr().out.startswith(f"{WORKING} 345\n")
    assert len(rows((tmp_path / "solutions.jsonl").read_text())) == 1
