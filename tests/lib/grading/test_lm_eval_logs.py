"""Two models are evaluated by lm-eval (0.4.13), and their logs compared."""

import dataclasses
import json
import shutil

import pytest

from lib.artifacts import read_json
from lib.export.harness import write_task
from tests.conftest import ROOT, run_command, run_lm_eval
from tests.lib.inference.conftest import QUESTION, R1, learn


@pytest.mark.slow
def test_two_runs_of_lm_eval_are_compared(base, lm_eval, sets, tmp_path):
    learn(
        base,
        tmp_path / "taught",
        question=QUESTION,
        completion=R1.target(solution="", reference="345") + "<|end|>",
    )
    shutil.copytree(base, tmp_path / "base")
    # The taught model knows one problem; a quarter of the rows want another answer.
    known = dataclasses.replace(sets.sft[0], problem=QUESTION)
    problems = [dataclasses.replace(known, reference="345" if n % 4 else "7") for n in range(12)]
    logs, rates = [], []
    for name in ("base", "taught"):
        folder = tmp_path / name
        write_task(folder, "held_out", problems, prompt_format=R1, max_new_tokens=60)
        logs.append(run_lm_eval(lm_eval, folder, "held_out", tmp_path / f"{name}_log"))
        (results,) = logs[-1].rglob("results*.json")
        rates.append(read_json(results)["results"]["held_out"]["exact_match,answer"])
    forth = run_command(ROOT / "reckon", "compare-logs", *logs, "--json")
    (found,) = json.loads(forth.stdout)
    assert rates == [0, 0.75]
    assert [found["before"]["value"], found["after"]["value"]] == rates
    assert (found["before"]["n"], found["only_before"], found["only_after"]) == (12, 0, 0)
    assert (found["verdict"], forth.returncode) == ("better", 0)
    back = run_command(ROOT / "reckon", "compare-logs", *reversed(logs), "--grade")
    assert "paired by id" in back.stdout
    assert back.returncode == 1
