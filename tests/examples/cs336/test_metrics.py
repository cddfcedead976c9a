"""Responses are parsed as in the course's own suite; it runs as examples/cs336/README.md says."""

import re
import sys
from functools import partial

import pytest

from examples.cs336 import adapters
from tests.conftest import ROOT, run_command, run_python

SUITE = """
from .adapters import run_parse_gsm8k_response, run_parse_mmlu_response
from .adapters import get_packed_sft_dataset, run_masked_mean

def test_parse():
    example = {"subject": "virology", "options": ["100", "1", "10", "unknown"], "answer": "A"}
    assert run_parse_mmlu_response(mmlu_example=example, model_output="The answer is B.") == "B"
    assert run_parse_gsm8k_response(model_output="48 + 24 = 72 clips.") == "72"
"""


MMLU = partial(
    adapters.run_parse_mmlu_response,
    mmlu_example={"subject": "virology", "question": "?", "options": [*"1234"], "answer": "A"},
)
GSM8K = adapters.run_parse_gsm8k_response


@pytest.mark.parametrize(
    ("parse", "response", "parsed"),
    [
        (MMLU, "The correct answer is B. There is only one known at present.", "B"),
        (MMLU, "The correct answer is 10000 polyomaviruses.", None),
        (GSM8K, "She sold 48/2 = 24 clips in May, and 48+24 = 72 altogether.", "72"),
        (GSM8K, "She sold twenty-four clips in May, and seventy-two altogether.", None),
    ],
)
def test_a_response_is_a_letter_or_its_last_number(parse, response, parsed):
    assert parse(model_output=response) == parsed


@pytest.mark.slow
def test_the_course_needs_torch_and_transformers_only():
    code = """
import sys, torch, transformers
before = {*sys.modules, *sys.stdlib_module_names, "lib", "examples", "reckon_verifier"}
from examples.cs336 import adapters
print({name.partition(".")[0] for name in {*sys.modules} - before} - before)
"""
    done = run_python(code)
    assert done.stdout == "set()\n", done.stdout + done.stderr


@pytest.mark.slow
def test_the_course_s_suite_runs_as_the_page_says(tmp_path):
    page = (ROOT / "examples/cs336/README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    suite = tmp_path / "assignment5-alignment/tests"
    suite.mkdir(parents=True)
    (suite / "__init__.py").touch()
    (suite / "test_metrics.py").write_text(SUITE)

    for place, here in {
        "make -C ~/reckon setup EXTRA=dev": "true",
        "~/reckon/.venv/bin/python": sys.executable,
        "~/reckon": str(ROOT),
        "~": str(tmp_path),
    }.items():
        script = script.replace(place, here)
    done = run_command("bash", "-euc", script)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
