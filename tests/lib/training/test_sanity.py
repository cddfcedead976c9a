"""GRPO turns problems solved now and then into problems always solved (arXiv:2510.26788).

A test of the whole loop: an advantage of the wrong sign or without its centring, a mask that leaves
out half of a completion, or a sampler with weights of the start, each ends below 95 %.
"""

from statistics import fmean

import pytest

from lib.models.tiny import write_tiny
from lib.params import preset_params
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format, save_system
from tests.lib.training.steps import build, plain_sft

PARAMS = preset_params("tiny-cpu")
SYNTHETIC = PARAMS.prepare.synthetic.model_copy(
    update={"num_sft": 2400, "num_grpo": 256, "level_weights": (1.0,)}
)
FORMAT = prompt_format(PARAMS.prompt.format)
NUM_PROBLEMS = 32


@pytest.mark.slow
def test_what_is_solved_now_and_then_comes_to_be_solved(tmp_path):
    sets = synthetic_sets(SYNTHETIC, seed=PARAMS.seed)
    base, checkpoint = tmp_path / "base", tmp_path / "sft"
    write_tiny(base, sets.sft, prompt_format=FORMAT, model=PARAMS.model, seed=PARAMS.seed)
    save_system(base, "")
    sft = PARAMS.sft.model_copy(update={"save_steps": 0, "num_epochs": 2, "learning_rate": 0.002})
    taught = plain_sft(sets.sft, base, PARAMS, tmp_path / "scratch", sft=sft)
    taught.train()
    taught.save_model(str(checkpoint))

    def trainer(problems, **grpo):
        return build(
            problems,
            base,
            PARAMS,
            tmp_path / "scratch",
            init=checkpoint,
            model=PARAMS.model,
            stop="".join(FORMAT.stop_strings),
            # All earn the reward for the format: centring takes it away.
            reward={"weights": (1.0, 1.0)},
            prompts_per_step=len(problems),
            max_grad_norm=1.0,
            **grpo,
        )

    probe = trainer(sets.grpo, group_size=16)
    groups = probe.sample(range(len(probe.problems)), round_=0)
    rates = [fmean(rollout.answer_ok for rollout in group) for group in groups]
    problems = [
        problem for problem, rate in zip(sets.grpo, rates, strict=True) if 0.2 <= rate <= 0.8
    ]
    assert len(problems) >= NUM_PROBLEMS
    reinforced = trainer(problems[:NUM_PROBLEMS], max_steps=60, learning_rate=0.001)
    reinforced.train()
    history = reinforced.state.log_history
    accuracy = [point["answer_accuracy"] for point in history if "answer_accuracy" in point]
    assert len(accuracy) == 60 and 0.2 <= accuracy[0] <= 0.8
    assert fmean(accuracy[-5:]) > 0.95
