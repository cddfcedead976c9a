"""A param that was changed and cannot act is named, with what would make it act."""

from typing import Any

import pytest

from lib.params import Params, preset_names, preset_params
from lib.planning.doctor import findings, this_machine
from lib.planning.plan import idle_params, plan_lines
from tests.lib.params.test_params import accepted

ON_POLICY = {"grpo.num_iterations": 2}
COSINE = {"reward.extra": ["cosine_length"], "reward.weights": [0.25, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("grpo.epsilon", 0.1, ON_POLICY),
        ("grpo.epsilon_high", 0.28, ON_POLICY),
        ("grpo.delta", 4.0, ON_POLICY),
        ("grpo.importance_level", "sequence", ON_POLICY),
        ("grpo.kl_weighted", False, {"grpo.beta": 0.1}),
        ("grpo.correction_cap", 2.0, {"rollout.engine": "vllm"}),
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
def test_a_knob_that_waits_for_another_is_named(key: str, value: Any, remedy: Any) -> None:
    waiting = {"evaluate.num_samples": 0, "model.lora.rank": 0, key: value}
    (line,) = idle_params(accepted(waiting))
    assert line.startswith(f"{key}=")
    assert any(name in line for name in remedy)
    assert list(idle_params(accepted({**waiting, **remedy}))) == []


def test_beside_an_adapter_only_the_knobs_of_sft_are_idle() -> None:
    changes = {"sft.adapter": "data/raw/adapter", "sft.learning_rate": 0.001}
    (line,) = idle_params(accepted(changes, "s0-qwen3-4b"))
    assert line.startswith("sft.learning_rate=0.001")
    assert "sft.adapter" in line


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_is_blamed_for_its_own_values(name: str) -> None:
    assert list(idle_params(preset_params(name))) == []


def test_an_edit_of_a_preset_is_held_against_that_preset() -> None:
    (line,) = idle_params(accepted({"grpo.epsilon": 0.15}, "s1-qwen2.5-0.5b"))
    assert line.startswith("grpo.epsilon=0.15")


def test_plan_and_check_name_it() -> None:
    params: Params = accepted({"grpo.epsilon_high": 0.28})
    (line,) = idle_params(params)
    assert f"warning: {line}" in list(plan_lines(params))
    assert line in [each.text for each in findings(params, this_machine())]
