"""The verifier as a package of its own: installed, under others' names, and as a command."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import mpmath
import pytest
import sympy

import reckon_verifier
from reckon_verifier import accuracy_reward, compare, parse, verify
from reckon_verifier.__main__ import main

SOURCE = Path(reckon_verifier.__file__).parent

TRL_CALL = r"""
import sys
import reckon_verifier as verifier
assert not {"torch", "sympy", "lib"} & {*sys.modules}, "imported before they are needed"
say = lambda text: [{"role": "assistant", "content": text}]
print(verifier.accuracy_reward(
    completions=[*map(say, (r"It is $\boxed{\frac13}$.", r"\boxed{\int_0^1 x^2 dx}", "2", "1"))],
    solution=[r"\frac{1}{3}", r"$\frac{1}{3}$", r"\frac{1}{3}", "proof"],
    prompts=[say("?")] * 4, completion_ids=[[1]] * 4, trainer_state=None, log_extra=print,
))
assert verifier.counters()["worker_calls"] == 1 == verifier.accuracy_reward(["1"], ["1"])[0]
"""


def run(*command: object, cwd: Path) -> str:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.slow
def test_it_installs_by_itself_and_serves_trls_call(tmp_path):
    """Nothing but sympy is beside it: no torch, and no checkout on the path."""
    shutil.copytree(SOURCE, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    quiet = ["--no-deps", "--no-index"]
    wheels = ["wheel", *quiet, "--no-build-isolation", "-w", tmp_path, tmp_path / "source"]
    run(*pip, *wheels, cwd=tmp_path)
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(*pip, "--python", python, "install", *quiet, *tmp_path.glob("*.whl"), cwd=tmp_path)
    packages = next((tmp_path / "empty").glob("lib/python*/site-packages"))
    for library in (sympy, mpmath):
        folder = Path(library.__file__).parent
        (packages / folder.name).symlink_to(folder)
    assert run(python, "-I", "-c", TRL_CALL, cwd=tmp_path) == "[1.0, 1.0, 0.0, None]\n"
    command = [python, "-I", "-m", "reckon_verifier", "72", "x = 72"]
    assert run(*command, cwd=tmp_path).startswith("equal: name")


def test_completions_may_be_texts_chats_or_parts():
    chat = [{"role": "user", "content": r"\boxed{6}"}, {"role": "assistant", "content": "It is 5."}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{5}"}]}]
    silent = [{"role": "assistant", "content": None, "tool_calls": []}]
    completions = [r"\boxed{5}", chat, parts, silent, []]
    assert accuracy_reward(completions, solution=["5"] * 5) == [1, 1, 1, 0, 0]
    solutions = ["2 + 3 = 5\n#### 5", r"It is \boxed{5}, since $2+3=5$.", "$5$", "6", "N/A"]
    assert accuracy_reward([r"\boxed{5}"] * 5, solution=solutions) == [1, 1, 1, 0, None]
    problem = ["How many centimetres?", "How many grams?"]
    assert accuracy_reward([r"\boxed{5\text{ cm}}"] * 2, ["5"] * 2, problem=problem) == [1, 0]


def test_a_reward_for_other_rows_than_it_got_is_an_error():
    with pytest.raises(ValueError):
        accuracy_reward(["5"], solution=["5", "6"])


def test_parse_and_verify_take_math_verifys_arguments():
    gold = parse("${1,3} \\cup {2,4}$", extraction_config=())
    assert verify(gold, parse("so $\\{1,2,3,4\\}$", parsing_timeout=None), float_rounding=3)
    assert verify("3.142", r"\pi") and not verify(r"\pi", "3.14"), "the reference comes first"
    assert verify("5 cm", "5") and verify(parse("no solution"), parse("No solution."))
    assert not verify(parse(""), "5") and not verify("5", parse("I do not know."))


def test_the_command_grades_the_rows_of_a_file(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    rows = [{"reference": "5", "answer": "5.0"}, {"reference": "5", "completion": r"\boxed{6}"}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    main([str(path)])
    out, err = capsys.readouterr()
    graded = [json.loads(line) for line in out.splitlines()]
    assert [(row["answer"], row["equal"]) for row in graded] == [("5.0", True), ("6", False)]
    assert err == "1 of 2 are equal to their references\n"


@pytest.mark.parametrize(
    ("content", "place"),
    [("{", "line 1"), ('{"reference": 5}', "`reference`"), ('{"reference": "5"}', "`answer`")],
)
def test_a_row_that_cannot_be_graded_is_named(tmp_path, content, place):
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=place):
        main([str(path)])
    with pytest.raises(SystemExit, match="cannot be read"):
        main([str(tmp_path / "absent.jsonl")])


def test_the_readmes_conventions_hold():
    section = (SOURCE / "README.md").read_text(encoding="utf-8").partition("## Conventions")[2]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line[:1] == "|"][2:]
    assert len(rows) > 20
    for convention, problem, *texts in rows:
        reference, right, wrong = (text.strip("`") for text in texts)
        for answer, equal in ((right, True), (wrong, False)):
            verdict = compare(reference=reference, answer=answer, problem=problem or None)
            assert verdict.equal == equal, (convention, answer, verdict)
