"""lm-eval (0.4.13) opens an export and comes to the card's own figure."""

import json
import re

import pytest

from lib.artifacts import write_json
from lib.artifacts.problems import write_problems
from lib.evaluation.completions import complete_checkpoint
from lib.export.model import publish
from lib.grading import external, grade
from lib.models.tiny import write_tiny
from lib.prompts import prompt_format, save_prompt
from tests.conftest import run_lm_eval
from tests.lib.inference.conftest import learn

pytestmark = pytest.mark.slow


def test_lm_eval_comes_to_the_figure_of_the_card(lm_eval, sets, smoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_format, problems = prompt_format("r1_zero"), sets.benchmarks["held_out"][:3]
    base, checkpoint, export = (tmp_path / name for name in ("base", "sft", "export"))
    rendering = {"name": "r1_zero", "tags": (), "layout": "plain"}
    write_tiny(base, sets.sft, prompt_format=own_format, model=smoke.model, seed=smoke.seed)
    save_prompt(base, system="Be brief.", rendering=rendering)
    known = problems[0]
    target = own_format.target(solution=known.solution, reference=known.reference) + "<|end|>"
    learn(base, checkpoint, question=known.problem, completion=target, system="Be brief.")

    evaluate = smoke.evaluate.model_copy(
        update={"benchmarks": ("held_out",), "max_new_tokens": 120, "num_samples": 0}
    )
    prompt = smoke.prompt.model_copy(update={"format": "r1_zero"})
    params = smoke.model_copy(update={"evaluate": evaluate, "prompt": prompt})
    write_problems(tmp_path / "problems/held_out.jsonl", problems)
    complete_checkpoint(
        checkpoint,
        params=params,
        base=base,
        problems=tmp_path / "problems",
        completions=tmp_path / "completions.jsonl",
    )
    metrics, _ = grade.grade_file(
        tmp_path / "completions.jsonl",
        tmp_path / "graded.jsonl",
        reward=params.reward,
    )
    write_json(tmp_path / "measured.json", metrics)
    publish(
        checkpoint,
        export,
        params=params,
        base=base,
        problems=tmp_path / "problems",
        measured=tmp_path / "measured.json",
    )
    row = r"\| held_out \| answer accuracy, greedy \| ([\d.]+) \|"
    (figure,) = re.findall(row, (export / "README.md").read_text())
    assert figure == "33.3"

    run_lm_eval(lm_eval, export, "held_out", tmp_path / "out")
    (results,) = (tmp_path / "out").rglob("results*.json")
    theirs = json.loads(results.read_text())["results"]["held_out"]["exact_match,answer"]
    assert f"{100 * theirs:.1f}" == figure
    (samples,) = (tmp_path / "out").rglob("samples*.jsonl")
    summary = external.grade_external(samples, tmp_path / "again.jsonl", prompt_format=own_format)
    assert "right 0.3333" in list(summary)[2]
    texts = [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]
    ours = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert texts == [row["completion"].removesuffix("</answer>") for row in ours]
