"""TRL's trainer as it is: the oracle of a whole step of ours, and a phase of its own."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.policy import load_tokenizer
from lib.errors import UserError
from lib.params import Params
from lib.params.load import parse_params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from lib.training.phase.tracking import curve_points
from tests.lib.training.steps import build, letters, reward_with

STEP = {"max_steps": 1, "micro_batch_size": 4, "learning_rate": 0.02, "warmup_ratio": 0.0}

OBJECTIVES: dict[str, dict[str, Any]] = {
    "dapo": {"loss": "dapo"},
    "grpo": {"loss": "grpo"},
    "dr_grpo, no deviation": {"loss": "dr_grpo", "advantage": "mean"},
    "batch deviation": {"loss": "grpo", "advantage": "batch"},
    "gspo": {"loss": "grpo", "importance_level": "sequence"},
    "cispo": {"loss": "cispo", "epsilon_high": 4.0},
    # TRL averages the micro-batches' mean entropies, and ours sorts rows by length.
    "entropy bonus": {"loss": "dapo", "entropy_coef": 0.05, "micro_batch_size": 16},
    "two-sided clip, head in float32": {"delta": 4.0, "cast_lm_head_to_fp32": True},
}


class Gradients(TrainerCallback):
    """Of the first optimiser step."""

    def __init__(self) -> None:
        self.first: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.first = {n: p.grad.clone() for n, p in named if p.grad is not None}


def scripted(prompt: Sequence[int], number: int, end: int) -> list[int]:
    """A completion that depends on its prompt and its place in the group alone."""
    draw = random.Random(f"{list(prompt)}/{number}")
    return [*draw.choices(range(20, 200), k=draw.randint(2, 10)), end]


class Script:
    """An engine of such completions."""

    def __init__(self, base: Path) -> None:
        self.tokenizer = load_tokenizer(base)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        return [
            [self._completion(prompt, number) for number in range(sampling.num_completions)]
            for prompt in prompts
        ]

    def sync(self, policy: Any) -> str:
        return "the only one"

    def close(self) -> None: ...

    def _completion(self, prompt: Sequence[int], number: int) -> GeneratedCompletion:
        ids = scripted(prompt, number, self.tokenizer.eos_token_id)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return GeneratedCompletion(
            text=text, token_ids=tuple(ids), finish="eos", log_probs=(0.0,) * len(ids)
        )


def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """The same completions through TRL's `rollout_func`."""
    tokenizer = trainer.processing_class
    ids = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        for prompt in prompts
    ]
    size = trainer.num_generations
    completions = [
        scripted(prompt, number % size, tokenizer.eos_token_id) for number, prompt in enumerate(ids)
    ]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_of_ours_is_a_step_of_trls(
    sets: GeneratedSets,
    base: Path,
    smoke: Params,
    full: Model,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(trainer_name: str) -> tuple[dict[str, Tensor], dict[str, float]]:
        trainer = build(
            sets.grpo,
            base,
            smoke,
            tmp_path,
            model=full,
            **STEP | OBJECTIVES[name],
            trainer=trainer_name,
        )
        if trainer_name == "trl":
            trainer.rollout_func = rollouts
        else:
            trainer.roll_out_with(Script(base), live=True)
        reward_with(trainer, letters)
        gradients = Gradients()
        trainer.add_callback(gradients)
        trainer.train()
        return gradients.first, curve_points(trainer.state)[0]

    ours, point = run("reckon")
    theirs, their_point = run("trl")
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-3
    torch.testing.assert_close(ours, theirs, atol=1e-5 * largest, rtol=1e-4)
    for column in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length"):
        assert point[column] == pytest.approx(their_point[column], abs=1e-6, rel=1e-4), column
    # TRL takes the functions' names when it is built, before the test puts others there.
    own = {"cispo_clip_ratio", "policy_loss"}
    assert {name for name in their_point if not name.startswith("rewards/")} - own <= {*point}


def test_trl_generates_and_trains_by_itself(
    sets: GeneratedSets, base: Path, smoke: Params, tmp_path: Path
) -> None:
    from lib.prompts import prompt_format

    trainer = build(
        sets.grpo, base, smoke, tmp_path, model=smoke.model, format=prompt_format("working_out"),
        trainer="trl", learning_rate=0.1, warmup_ratio=0.0, epsilon_high=0.28, beta=0.04,
    )  # fmt: skip
    reward_with(trainer, letters)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == smoke.grpo.max_steps
    assert any(not torch.equal(before[n], p) for n, p in trainer.model.named_parameters())
    assert (trainer.args.epsilon_high, trainer.args.beta) == (0.28, 0.04)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"grpo": {"loss": "reinforce"}}, "loss=reinforce"),
        ({"grpo": {"advantage": "rloo"}}, "advantage=rloo"),
        ({"grpo": {"dynamic_sampling": 2}}, "dynamic_sampling=2"),
        ({"prompt": {"format": "r1_zero"}}, "prompt.format: r1_zero"),
        (
            {"prompt": {"format": "r1_zero"}, "rollout": {"engine": "vllm"}},
            "prompt.format: r1_zero",
        ),
        ({"rollout": {"engine": "vllm-server"}}, "rollout.engine: vllm-server"),
        ({"grpo": {"beta": 0.1}, "model": {"lora": {"rank": 0}}}, "grpo.beta"),
    ],
)
def test_what_trl_lacks_is_refused_before_a_run(
    smoke: Params, changes: dict[str, dict[str, Any]], key: str
) -> None:
    content = smoke.model_dump(mode="json")
    content["grpo"]["trainer"] = "trl"
    for section, values in changes.items():
        for name, value in values.items():
            if isinstance(value, dict):
                content[section][name].update(value)
            else:
                content[section][name] = value
    with pytest.raises(UserError) as error:
        parse_params(content, origin="params.yaml")
    assert key in str(error.value)
    assert "trainer" in str(error.value)
