"""A changed param without effect is named, with the params it waits for."""

from typing import Any

import pytest
import torch

from lib.params import Params, preset_names, preset_params
from lib.params.load import doubts
from lib.params.rules import have_one_gradient, unusual_rates, warnings
from lib.planning.doctor import findings, this_machine
from lib.planning.plan import plan_lines
from tests.conftest import S1
from tests.lib.objectives.losses import loss_of
from tests.lib.params.changes import accepted


def idle(params: Params) -> list[str]:
    others = {*warnings(params), *unusual_rates(params)}
    return [line for line in doubts(params) if line not in others]


ON_POLICY = {"grpo.num_iterations": 2}
TEACHER = {"grpo.teacher": "sft", "grpo.teacher_coef": 1.0}
COSINE = {"reward.extra": ["cosine_length"], "reward.weights": [0.25, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("grpo.epsilon", 0.1, ON_POLICY),
        ("grpo.epsilon_high", 0.28, ON_POLICY),
        ("grpo.delta", 4.0, ON_POLICY),
        ("grpo.loss", "cispo", ON_POLICY),
        ("grpo.importance_level", "sequence", ON_POLICY),
        ("grpo.kl_weighted", False, {"grpo.beta": 0.1}),
        ("grpo.teacher_kl", "full", TEACHER),
        ("grpo.teacher_top_k", 20, {**TEACHER, "grpo.teacher_kl": "full"}),
        ("grpo.correction_cap", 2.0, {"rollout.engine": "vllm"}),
        ("grpo.correction_floor", 0.5, {"rollout.engine": "vllm"}),
        ("reward.cosine_wrong", [-0.5, 0.0], COSINE),
        ("rollout.gpu_memory_utilization", 0.5, {"rollout.engine": "vllm"}),
        ("model.lora.alpha", 7, {"model.lora.rank": 4}),
        ("prepare.validation_from", ["sft"], {"prepare.validation_share": 0.1}),
        (
            "dpo.beta",
            0.3,
            {"dpo.init": ["sft"], "evaluate.checkpoints": ["base", "sft", "grpo", "dpo"]},
        ),
        ("evaluate.temperature", 0.3, {"evaluate.num_samples": 2}),
    ],
)
def test_a_knob_that_waits_for_another_is_named(key, value, remedy):
    waiting = {"evaluate.num_samples": 0, "model.lora.rank": 0, key: value}
    (line,) = idle(accepted(waiting))
    assert line.startswith(f"{key}=")
    assert any(name in line for name in remedy)
    assert idle(accepted({**waiting, **remedy})) == []


@pytest.mark.parametrize(
    "changes",
    [
        # With several updates on one generation, the clip acts.
        {"grpo.trainer": "trl", "grpo.updates_per_rollout": 2, "grpo.epsilon": 0.1},
        {
            "reward.extra": ["overlong", "cosine_length"],
            "reward.weights": [1.0] * 4,
            "reward.overlong_cache_tokens": 7,
            "reward.cosine_wrong": [-0.5, 0.0],
        },
        {"rollout.engine": "vllm-server", "rollout.gpu_memory_utilization": 0.5},
        # The weight of a token is not that of its completion.
        {
            "rollout.engine": "vllm-server",
            "grpo.sampler_correction": "token_mask",
            "grpo.importance_level": "sequence",
        },
    ],
    ids=lambda changes: list(changes)[-1],
)
def test_a_knob_in_use_is_not_named(changes):
    assert idle(accepted(changes)) == []


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"grpo.loss": "cispo", "grpo.epsilon_high": 4.0}, "grpo.epsilon"),
        ({"grpo.loss": "plugins/objectives/examples.py:squared"}, "grpo.epsilon"),
        ({"grpo.trainer": "trl"}, "grpo.log_problems"),
    ],
)
def test_a_knob_that_this_loss_or_trainer_does_not_read_is_named(changes, key):
    off_policy = {"grpo.num_iterations": 2, "grpo.save_steps": 0, "grpo.keep_checkpoints": 0}
    value = {"grpo.epsilon": 0.1, "grpo.log_problems": 7}[key]
    (line,) = idle(accepted({**off_policy, **changes, key: value}))
    assert line.startswith(f"{key}=")


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny-cpu", {"rollout.engine": "vllm-server"}),
        ("s0-qwen3-4b", {"sft.eval_steps": 0}),  # the vLLM below Unsloth's policy
        ("s3-cs336", {"rollout.engine": "transformers", "validation.engine": "vllm-server"}),
        ("s2-math-sft", {"sft.eval_steps": 0}),
        (S1, {"grpo.trainer": "trl", "grpo.beta": 0.0, "validation.engine": "transformers"}),
    ],
)
def test_a_device_that_no_engine_takes_is_named(preset, changes):
    lines = idle(accepted({**changes, "rollout.device": "cuda:1"}, preset))
    assert any(line.startswith("rollout.device=cuda:1 ") for line in lines)


@pytest.mark.parametrize("preset", [S1, "s2-math-sft", "s3-cs336"])
def test_a_device_that_an_engine_takes_is_in_use(preset):
    assert idle(accepted({"rollout.device": "cuda:1"}, preset)) == []


def test_beside_an_adapter_only_the_knobs_of_sft_are_idle():
    changes = {"sft.adapter": "data/raw/adapter", "sft.learning_rate": 0.001}
    (line,) = idle(accepted(changes, "s0-qwen3-4b"))
    assert line.startswith("sft.learning_rate=0.001")
    assert "sft.adapter" in line


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_is_blamed_for_its_own_values(name):
    assert idle(preset_params(name)) == []


def test_levels_by_set_are_one_value():
    params = accepted(
        {"prepare.synthetic.level_weights": {"sft": [1.0], "grpo": [1.0]}}, "s4-gsm8k-lora"
    )
    (line,) = idle(params)
    assert line.startswith("prepare.synthetic.level_weights={'sft'")
    assert any("level_weights: {" in each for each in plan_lines(params))


def test_an_edit_of_a_preset_is_held_against_that_preset():
    (line,) = idle(accepted({"grpo.epsilon": 0.15}, S1))
    assert line.startswith("grpo.epsilon=0.15")


def test_plan_and_check_name_it():
    params = accepted({"grpo.epsilon_high": 0.28})
    (line,) = idle(params)
    assert f"warning: {line}" in list(plan_lines(params))
    assert line in [each.text for each in findings(params, this_machine())]


def gradient(*, away: float, **settings: Any) -> torch.Tensor:
    """Return the loss's gradient on a tiny batch, its old log-probs `away` from the policy's."""
    torch.manual_seed(0)
    log_probs, noise = torch.randn(6, 5).requires_grad_(), torch.randn(6, 5)
    loss_of(
        log_probs,
        torch.linspace(-1, 1, 6),
        torch.arange(5) < torch.tensor([[5], [2], [4], [1], [5], [3]]),
        old_log_probs=(log_probs - away * noise).detach(),
        max_completion_length=5,
        num_tokens=20,
        **{"loss": "dapo", "clip_low": 0.2, "clip_high": 0.2, **settings},
    ).loss.backward()
    return log_probs.grad


@pytest.mark.parametrize(
    "changes",
    [{"clip_low": 0.01}, {"clip_high": 0.5}, {"delta": 1.3}, {"ratio_level": "sequence"}],
    ids=str,
)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_on_policy_a_clip_changes_no_gradient(changes, loss_type):
    alike, apart = (
        [gradient(away=away, loss=loss_type, **each) for each in ({}, changes)]
        for away in (0.0, 0.5)
    )
    torch.testing.assert_close(*alike)
    assert not torch.allclose(*apart)


@pytest.mark.parametrize("losses", [("dapo", "cispo"), ("grpo", "reinforce"), ("dapo", "grpo")])
def test_on_policy_losses_that_average_alike_are_one(losses):
    alike, apart = ([gradient(away=away, loss=loss) for loss in losses] for away in (0.0, 0.5))
    assert torch.equal(*alike) == have_one_gradient(*losses)
    assert not torch.allclose(*apart)
