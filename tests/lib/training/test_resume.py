"""GRPO resumed from a checkpoint's files takes the steps of a whole run, bit by bit."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.prompts.tools import TOOLS
from lib.training.phase.rollout_log import rollout_rows
from tests.lib.engines.contract import TOY
from tests.lib.training.steps import Gradients

POOLS = {"prompts_per_step": 2, "curriculum_high": 0.5, "rollout": {"max_new_tokens": 8}}
TEACHER = {"teacher_coef": 1.0, "prompts_per_step": 2}
STEERED = {"entropy_coef": 0.1, "entropy_target": 99.0}

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "pool": ("curriculum/hard", {"curriculum": "pool", **POOLS}),
    "retire": ("curriculum/easy", {"curriculum": "retire", **POOLS}),
    "teacher": ("teacher_kl", TEACHER),
    "teacher, full": ("teacher_kl", {"teacher_kl": "full", **TEACHER}),
    "tool": ("entropy", {"stop": ""}),
    "entropy bonus": ("entropy_coef", STEERED),
}
"""A column that changes from step to step, and the params of the run."""


@pytest.fixture
def run(built, monkeypatch):
    """Train to the end, from the start or from a checkpoint; some answers count as right."""
    right = property(lambda each: sum(each.token_ids) % 3 == 0)
    monkeypatch.setattr("lib.rewards.rollout.Rollout.answer_ok", right)
    monkeypatch.setitem(TOOLS, "toy", TOY)
    common = {"problems": 6, "max_steps": 4, "save_steps": 1, "keep_checkpoints": 1}
    common |= {"micro_batch_size": 8, "learning_rate": 0.01}

    def train(start: Path | None = None, *, tool: str = "", **params):
        trainer = built(**{**common, **params})
        trainer.sampling = dataclasses.replace(trainer.sampling, tool=tool)
        steps = Gradients(trainer)
        trainer.train(resume_from_checkpoint=start and str(start))
        return trainer, steps

    return train


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_takes_the_steps_of_a_whole_one(name, run, base, tmp_path):
    column, params = RUNS[name]
    params = {**params, "tool": "toy" if name == "tool" else ""}
    params |= {"teacher": str(base)} if "teacher" in name else {}
    whole, steps = run(**params)
    values = [entry[column] for entry in whole.state.log_history if column in entry]
    assert len(values) == 4 and len({*values}) > 1
    assert any(one.sampled for one in whole.rollouts) == (name == "tool")
    for start in (1, 3):
        resumed, later = run(tmp_path / f"checkpoint-{start}", **params)
        assert later.completions == steps.completions[start:]
        torch.testing.assert_close(later.gradients, steps.gradients[start:], rtol=0, atol=0)
        for key, weight in whole.model.state_dict().items():
            assert torch.equal(weight, resumed.model.state_dict()[key]), key
        assert resumed.bonus == whole.bonus


def test_a_run_resumed_with_other_params_has_the_params_own(run, tmp_path):
    """A fixed coefficient is the params', and a checkpoint may have no rollouts."""
    run(**STEERED, log_problems=0)
    resumed, _ = run(tmp_path / "checkpoint-2", entropy_coef=0.5, log_problems=1)
    assert resumed.bonus.coefficient == 0.5
    assert {row["step"] for row in rollout_rows(resumed)} == {3, 4}
