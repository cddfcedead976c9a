"""TRL's trainer as it is: the oracle of a whole step of ours, and a phase of its own."""

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from lib.core.errors import UserError
from lib.engines.base import encode
from lib.params import preset_params
from lib.params.load import parse_params
from lib.training.grpo import grpo_arguments
from lib.training.grpo.trl import build_trl
from tests.conftest import S1
from tests.lib.objectives.losses import assert_gradients
from tests.lib.training.ranks import Script, scripted
from tests.lib.training.steps import Gradients, train

STEP = {"max_steps": 1, "micro_batch_size": 4, "learning_rate": 0.02, "warmup_ratio": 0.0}

OBJECTIVES = {
    "dapo": {"loss": "dapo"},
    "grpo": {"loss": "grpo"},
    "dr_grpo, no deviation": {"loss": "dr_grpo", "advantage": "mean"},
    "batch deviation": {"loss": "grpo", "advantage": "batch"},
    "gdpo": {"loss": "grpo", "reward_aggregation": "gdpo"},
    "gspo": {"loss": "grpo", "importance_level": "sequence"},
    "cispo": {"loss": "cispo", "epsilon_high": 4.0},
    # TRL averages the micro-batches' mean entropies, and ours sorts rows by length.
    "entropy bonus": {"loss": "dapo", "entropy_coef": 0.05, "micro_batch_size": 16},
    "two-sided clip, head in float32": {"delta": 4.0, "cast_lm_head_to_fp32": True},
}


def rollouts(prompts: list[Any], trainer) -> dict[str, Any]:
    """Return the scripted completions as TRL's `rollout_func`."""
    tokenizer = trainer.processing_class
    ids = encode(tokenizer, prompts)
    size = trainer.num_generations
    completions = [
        list(scripted(prompt, number % size, tokenizer.eos_token_id))
        for number, prompt in enumerate(ids)
    ]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_of_ours_is_a_step_of_trls(built, base, name):
    def run(trainer_name):
        trainer = built(**STEP | OBJECTIVES[name], trainer=trainer_name)
        if trainer_name == "trl":
            trainer.rollout_func = rollouts
        else:
            trainer.roll_out_with(Script(base), live=True)
        seen = Gradients(trainer)
        return train(trainer)[0], seen.gradients[0]

    (point, ours), (their_point, theirs) = run("reckon"), run("trl")
    assert_gradients(ours, theirs, within=1e-5, least=1e-3)
    for column in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length"):
        assert point[column] == pytest.approx(their_point[column], abs=1e-6, rel=1e-4), column
    # TRL takes the functions' names when it is built, before the test puts others there.
    own = {"cispo_clip_ratio", "policy_loss"}
    extremes = re.compile(r"rewards/|.*(/|_)(min|max)(_|$)")
    assert {name for name in their_point if not extremes.match(name)} - own <= {*point}


def test_trls_reading_of_the_sources_batch_can_be_had(tmp_path, monkeypatch):
    content = preset_params(S1).model_dump(mode="json")
    own = {"prompts_per_step": 1, "updates_per_rollout": 4, "micro_batch_size": 1}
    content["grpo"] |= {"trainer": "trl", **own}
    content["validation"]["engine"] = "transformers"
    params = parse_params(content, origin="params.yaml")
    arguments = grpo_arguments(params, scratch=tmp_path)
    monkeypatch.setattr("lib.training.grpo.trl.GRPOTrainer", lambda **kwargs: kwargs["args"])
    config = build_trl(
        [],
        params,
        grading=SimpleNamespace(weights=[1.0], rewards=[]),
        arguments=arguments,
    )
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (1, 4)
    assert config.num_generations == config.generation_batch_size == 16
    content["grpo"]["trainer"] = "reckon"
    with pytest.raises(UserError, match="updates_per_rollout"):
        parse_params(content, origin="params.yaml")


@pytest.mark.parametrize("lora", [True, False])
def test_trl_generates_and_trains_by_itself(built, smoke, lora):
    knobs = {"learning_rate": 0.1, "warmup_ratio": 0.0, "epsilon_high": 0.28, "beta": 0.04}
    trainer = built(lora=lora, trainer="trl", **knobs)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    points = train(trainer)
    assert trainer.state.global_step == smoke.grpo.max_steps
    assert any(not p.equal(before[n]) for n, p in trainer.model.named_parameters())
    assert (trainer.args.epsilon_high, trainer.args.beta) == (0.28, 0.04)
    assert points[-1]["kl"] > 1e-4
    # On full weights the reference is a model of its own, which stays where GRPO starts.
    if not lora:
        reference = trainer.ref_model.state_dict()
        assert all(weight.equal(reference[name]) for name, weight in before.items())


def test_trls_vllm_has_memory_for_the_params_lengths(built, smoke, monkeypatch):
    monkeypatch.setattr("lib.training.grpo.check_engine", lambda *_, **__: None)
    # TRL's trainer would open vLLM. The mock only keeps its arguments.
    monkeypatch.setattr("lib.training.grpo.trl.GRPOTrainer", MagicMock)
    config = built(trainer="trl", rollout={"engine": "vllm"}).args
    assert (config.use_vllm, config.vllm_mode) == (True, "colocate")
    assert config.vllm_max_model_length == smoke.model.max_seq_length


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("grpo", "loss", "reinforce"),
        ("grpo", "advantage", "rloo"),
        ("grpo", "dynamic_sampling", 2),
        ("model", "tag_tokens", True),  # with a penalty, and all weights trained
        ("validation", "engine", "vllm"),
        ("prompt", "format", "r1_zero"),
        ("rollout", "engine", "vllm-server"),
    ],
)
def test_what_trl_lacks_is_refused_before_a_run(smoke, section, key, value):
    content = smoke.model_dump(mode="json")
    content["grpo"] |= {"trainer": "trl", "beta": 0.1}
    content["model"]["lora"]["rank"] = 0
    content["rollout"]["engine"] = "vllm"
    content[section][key] = value
    expected = rf"(?s){key}.*{'' if value is True else value}"
    with pytest.raises(UserError, match=expected) as error:
        parse_params(content, origin="params.yaml")
    assert "trainer" in error.value.message
