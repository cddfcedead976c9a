"""Validation measures the policy as evaluation would, and leaves training as it was."""

import contextlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerState

from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.engines.base import GeneratedCompletion
from lib.engines.policy import load_tokenizer
from lib.engines.registry import ENGINES as ENGINE_FACTS
from lib.problems.generated import GeneratedSets
from lib.training.phase.run import run_phase
from lib.training.phase.validation import (
    Validator,
    means,
    validation_points,
)
from tests.lib.training.runs import changed, outputs_in
from tests.lib.training.steps import plain_grpo
from tests.vllm_server import free_port


@pytest.fixture
def read(sets, base, smoke, tmp_path):
    """Build validators of the smoke preset, on an engine."""
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"{name}.jsonl", problems[:4])

    def made(engine: str = "transformers", *, lora: bool = True) -> Validator:
        changes: dict[str, dict[str, Any]] = {"validation": {"engine": engine}}
        if not lora:
            changes["model"] = {"lora": smoke.model.lora.model_dump() | {"rank": 0}}
        return Validator(changed(smoke, changes), tmp_path, init=base, base=base)

    return made


class Scripted:
    """Engine: answers the first two of a set rightly, with and without reasoning."""

    def __init__(self, tokenizer, sets: GeneratedSets) -> None:
        self.tokenizer = tokenizer
        self.synced: list[object] = []
        self.sets = itertools.cycle([sets.benchmarks["held_out"], sets.benchmarks["harder"]])

    def sync(self, policy) -> None:
        self.synced.append(policy)

    def close(self) -> None:
        self.synced.clear()

    def generate(self, prompts, sampling) -> list[list[GeneratedCompletion]]:
        assert sampling.temperature == 0
        problems = next(self.sets)
        texts = [
            f"ten chars.<end_working_out><SOLUTION>{problems[0].reference}</SOLUTION>",
            f"<end_working_out><SOLUTION>{problems[1].reference}</SOLUTION>",
            "<end_working_out><SOLUTION>-1</SOLUTION>",
            "nothing",
        ]
        return [[GeneratedCompletion(text=text, token_ids=(1,), finish="eos")] for text in texts]


def test_the_metrics_of_a_set_are_those_of_its_completions(read, base, sets):
    answers = read().answers(Scripted(load_tokenizer(base), sets))  # type: ignore[arg-type]
    assert list(answers) == ["held_out", "harder"]
    for values in map(means, answers.values()):
        assert values["format_accuracy"] == 0.75
        assert values["answer_accuracy"] == 0.5
        assert values["reasoning_present"] == 0.25
        assert values["mean_reasoning_chars"] == 2.5
        assert values["mean_reward"] == pytest.approx((1.25 + 1.25 + 0.25 + 0) / 4)
        assert values["answer_accuracy_se"] == pytest.approx((0.25 / 3) ** 0.5)


def test_lines_and_curve_bear_the_same_numbers(read, base, sets):
    lines: list[str] = []
    engine = Scripted(load_tokenizer(base), sets)
    trainer = SimpleNamespace(engine=engine, add_callback=lambda callback: None)
    engine.facts = ENGINE_FACTS["vllm"]
    validator = read("vllm")
    validator.watch(trainer, stage="sft", steps=2, say=lines.append)  # type: ignore[arg-type]
    state = TrainerState(max_steps=5)
    policy = torch.nn.Dropout()
    for state.global_step in range(6):
        hook = validator.on_step_end if state.global_step else validator.on_train_begin
        hook(None, state, None, model=policy)  # type: ignore[arg-type]
    assert engine.synced == [policy] * 4
    validator.close()
    assert not engine.synced
    points = validation_points(state)
    assert [point["step"] for point in points] == [0, 2, 4, 5]
    assert sorted(points[0]) == sorted(["step", *validator.columns])
    assert points[0]["answer_accuracy"] == points[0]["harder/answer_accuracy"] == 0.5
    assert len(lines) == 8
    assert all(text in lines[0] for text in ("step=0/5", "held_out", "answer=50.0%", "28.9"))


ENGINES = [
    ("transformers", "transformers", True),
    ("transformers", "transformers", False),
    *(
        pytest.param(*engines, lora, marks=pytest.mark.vllm)
        for *engines, lora in [
            ("transformers", "vllm", True),
            ("vllm", "vllm", False),
            ("vllm", "transformers", False),
            ("vllm-server", "vllm-server", True),
        ]
    ),
]
"""Engine of rollouts, engine of validation, and True if an adapter is trained."""


@pytest.mark.parametrize(("rolls_out", "validates", "lora"), ENGINES)
def test_validation_changes_no_weight(
    request,
    sets,
    base,
    smoke,
    full,
    read,
    tmp_path,
    rolls_out,
    validates,
    lora,
):
    def longer(completion_ids: list[list[int]], **columns: object) -> list[float]:
        return [float(sum(ids) % 4) for ids in completion_ids]

    if "vllm-server" in (rolls_out, validates):
        request.getfixturevalue("served")
    weights, lines = [], []
    for watched in (False, True):
        torch.manual_seed(0)
        trainer = plain_grpo(
            sets.grpo,
            base,
            smoke,
            tmp_path,
            grpo=smoke.grpo.model_copy(update={"save_steps": 0}),
            rollout=smoke.rollout.model_copy(update={"engine": rolls_out}),
            model=smoke.model if lora else full,
        )
        trainer.grading.rewards = [longer, longer]
        with contextlib.ExitStack() as stack:
            if watched:
                validator = stack.enter_context(contextlib.closing(read(validates, lora=lora)))
                validator.watch(trainer, stage="grpo", steps=2, say=lines.append)
            trainer.train()
        weights.append({name: w.detach().clone() for name, w in trainer.model.named_parameters()})
    assert len(lines) == 6  # steps 0, 2 and 3 on two sets
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


@pytest.fixture
def served(vllm_url, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)


def test_a_server_that_is_down_is_refused_first(read, smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_URL", f"http://127.0.0.1:{free_port()}")

    def build(scratch: Path) -> Any:
        raise AssertionError("the trainer was built")

    with pytest.raises(UserError, match="vLLM server"):
        run_phase(
            build,
            stage="sft",
            section=smoke.sft,
            init=tmp_path,
            outputs=outputs_in(tmp_path / "made", "sft"),
            settings={},
            inputs={},
            validator=read("vllm-server"),
            scratch=tmp_path / "scratch",
        )
    assert not list(tmp_path.glob("made*")) + list(tmp_path.glob("scratch/sft/*/*"))
