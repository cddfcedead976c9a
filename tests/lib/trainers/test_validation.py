"""Validation measures the policy as evaluation would, and leaves training as it was."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerState

from lib.engines.base import Completion
from lib.engines.policy import load_policy, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.params import Params
from lib.params.schema import Model
from lib.problems.generated import GeneratedSets
from lib.problems.schema import write_problems
from lib.prompts import prompt_format
from lib.trainers.grpo import build_grpo
from lib.trainers.validation import (
    ValidateByGeneration,
    Validator,
    read_validator,
    undisturbed,
    validation_columns,
    validation_points,
)


@pytest.fixture
def validator(sets: GeneratedSets, smoke: Params, tmp_path: Path) -> Validator:
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"{name}.jsonl", problems[:4])
    chosen = prompt_format(smoke.prompt.format)
    return read_validator(smoke.validation, tmp_path, prompt_format=chosen, system="")


class Scripted:
    """An engine that answers the first two of each set rightly, with and without working."""

    def __init__(self, tokenizer, sets: GeneratedSets) -> None:
        self.tokenizer = tokenizer
        self.sets = [sets.benchmarks["held_out"], sets.benchmarks["harder"]]

    def generate(self, prompts, sampling) -> list[list[Completion]]:
        assert sampling.temperature == 0
        problems = self.sets.pop(0)
        texts = [
            f"ten chars.<end_working_out><SOLUTION>{problems[0].reference}</SOLUTION>",
            f"<end_working_out><SOLUTION>{problems[1].reference}</SOLUTION>",
            "<end_working_out><SOLUTION>-1</SOLUTION>",
            "nothing",
        ]
        return [[Completion(text=text, token_ids=(1,), finish="eos")] for text in texts]


def test_the_five_metrics_of_each_set_are_those_of_its_completions(
    validator: Validator, base: Path, sets: GeneratedSets
) -> None:
    measured = validator.measure(Scripted(load_tokenizer(base), sets))  # type: ignore[arg-type]
    assert list(measured) == ["held_out", "harder"]
    for values in measured.values():
        assert values["format_accuracy"] == 0.75
        assert values["answer_accuracy"] == 0.5
        assert values["reasoning_present"] == 0.25
        assert values["mean_reasoning_chars"] == 2.5
        assert values["mean_reward"] == pytest.approx((1.25 + 1.25 + 0.25 + 0) / 4)
        assert values["answer_accuracy_se"] == pytest.approx((0.25 / 3) ** 0.5)


def test_what_is_said_and_what_is_plotted_bear_the_same_numbers(
    validator: Validator, base: Path, full: Model, sets: GeneratedSets
) -> None:
    said: list[str] = []
    tokenizer = load_tokenizer(base)
    callback = ValidateByGeneration(
        validator,
        stage="sft",
        steps=2,
        say=said.append,
        open_engine=lambda model, tokenizer: Scripted(tokenizer, sets),  # type: ignore[arg-type, return-value]
    )
    state = TrainerState(max_steps=5)
    policy = load_policy(base, base=base, settings=full)
    for state.global_step in range(6):
        if state.global_step == 0:
            callback.on_train_begin(None, state, None, model=policy, processing_class=tokenizer)  # type: ignore[arg-type]
        else:
            callback.on_step_end(None, state, None, model=policy, processing_class=tokenizer)  # type: ignore[arg-type]
    points = validation_points(state)
    assert [point["step"] for point in points] == [0, 2, 4, 5]
    assert sorted(points[0]) == sorted(["step", *validation_columns(list(validator.sets))])
    assert points[0]["answer_accuracy"] == points[0]["harder/answer_accuracy"] == 0.5
    assert len(said) == 8
    assert said[0] == (
        "sft validation step=0/5 set=held_out n=4 format=75.0% answer=50.0% ± 28.9 "
        "reasoning=25.0% reasoning_chars=2.5 reward=0.6875"
    )


def test_the_modules_modes_and_every_random_state_are_put_back() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    model[1].eval()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with undisturbed(model):
        model.eval()
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


@pytest.mark.parametrize("lora", [True, False])
def test_grpo_ends_with_the_same_weights_with_and_without_validation(
    sets: GeneratedSets,
    base: Path,
    smoke: Params,
    full: Model,
    validator: Validator,
    tmp_path: Path,
    lora: bool,
) -> None:
    def longer(completion_ids: list[list[int]], **columns: object) -> list[float]:
        return [float(sum(ids) % 4) for ids in completion_ids]

    weights, said = [], []
    for watched in (True, False):
        torch.manual_seed(0)
        trainer = build_grpo(
            sets.grpo,
            init=base,
            base=base,
            prompt_format=prompt_format(smoke.prompt.format),
            system="",
            grpo=smoke.grpo.model_copy(update={"save_steps": 0}),
            rollout=smoke.rollout,
            reward=smoke.reward,
            model=smoke.model if lora else full,
            seed=smoke.seed,
            scratch=tmp_path,
        )
        trainer.reward_funcs = [longer, longer]
        if watched:
            trainer.add_callback(
                ValidateByGeneration(validator, stage="grpo", steps=2, say=said.append)
            )
        trainer.train()
        weights.append({name: w.detach().clone() for name, w in trainer.model.named_parameters()})
    assert len(said) == 6  # steps 0, 2 and 3 on two sets
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_the_last_point_is_what_the_trained_policy_answers(
    validator: Validator, base: Path, full: Model
) -> None:
    policy, tokenizer = load_policy(base, base=base, settings=full), load_tokenizer(base)
    state = TrainerState(max_steps=1, global_step=1)
    callback = ValidateByGeneration(validator, stage="sft", steps=1, say=lambda line: None)
    callback.on_step_end(None, state, None, model=policy.train(), processing_class=tokenizer)  # type: ignore[arg-type]
    measured = validator.measure(TransformersEngine(policy, tokenizer, batch_size=2))
    assert validation_points(state)[0]["mean_reward"] == measured["held_out"]["mean_reward"]
    assert policy.training
