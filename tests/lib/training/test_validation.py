"""Validation measures the policy as evaluation would, and leaves training as it was."""

import contextlib
import itertools
from unittest.mock import Mock

import pytest
import torch
from transformers import TrainerState

from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.engines.base import GeneratedCompletion
from lib.models.pretrained import load_tokenizer
from lib.params.engines import ENGINES as ENGINE_FACTS
from lib.problems.generated import GeneratedSets
from lib.training.phase.validation import Validator, means, validation_points
from tests.lib.training.runs import changed, train_phase
from tests.vllm_server import free_port


@pytest.fixture
def read(sets, base, smoke, full, tmp_path):
    """Build validators of the smoke preset, on an engine."""
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"{name}.jsonl", problems[:4])

    def made(engine="transformers", *, lora=True, num_samples=0):
        params = smoke if lora else smoke.model_copy(update={"model": full})
        params = changed(params, {"validation": {"engine": engine, "num_samples": num_samples}})
        return Validator(params, tmp_path, init=base, base=base)

    return made


class Scripted:
    """Engine: answers the first two of a set rightly, with and without reasoning."""

    def __init__(self, tokenizer, sets: GeneratedSets):
        self.tokenizer = tokenizer
        self.synced: list[object] = []
        self.sets = itertools.cycle([sets.benchmarks["held_out"], sets.benchmarks["harder"]])

    def sync(self, policy):
        self.synced.append(policy)

    def rest(self):
        pass

    def close(self):
        self.synced.clear()

    def generate(self, prompts, sampling) -> list[list[GeneratedCompletion]]:
        assert (sampling.temperature == 0) == (sampling.num_completions == 1)
        problems = next(self.sets)
        texts = [
            f"ten chars.<end_working_out><SOLUTION>{problems[0].reference}</SOLUTION>",
            f"<end_working_out><SOLUTION>{problems[1].reference}</SOLUTION>",
            "<end_working_out><SOLUTION>-1</SOLUTION>",
            "nothing",
        ]
        rows = [GeneratedCompletion(text=text, token_ids=(1,), finish="eos") for text in texts]
        if sampling.num_completions == 1:
            return [[row] for row in rows]
        # Of four samples the first problem has 1 right, the second 2; two others are equal.
        return [[rows[0], *rows[2:], rows[3]], [rows[1], rows[1], *rows[2:]], [rows[3]] * 4, rows]


def test_the_metrics_of_a_set_are_those_of_its_completions(read, base, sets):
    answers = read().answers(Scripted(load_tokenizer(base), sets))
    assert list(answers) == ["held_out", "harder"]
    expected = {
        "format_accuracy": 0.75,
        "answer_accuracy": 0.5,
        "reasoning_present": 0.25,
        "mean_reasoning_chars": 2.5,
        "mean_reward": (1.25 + 1.25 + 0.25 + 0) / 4,
        "answer_accuracy_se": (0.25 / 3) ** 0.5,
    }
    for values in map(means, answers.values()):
        assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_samples_are_measured_as_pass_at_k_and_distinct(read, base, sets):
    """Of four samples; the others' answers are right for the first two problems only."""
    validator = read(num_samples=4)
    assert validator.sampled_measures == ["pass_at_1", "pass_at_4", "distinct"]
    values = validator.sample(Scripted(load_tokenizer(base), sets))["harder"]
    assert values == pytest.approx({"pass_at_1": 3 / 16, "pass_at_4": 0.5, "distinct": 11 / 16})


def test_lines_and_curve_bear_the_same_numbers(read, base, sets, capsys):
    engine = Scripted(load_tokenizer(base), sets)
    trainer = Mock(engine=engine)
    engine.facts = ENGINE_FACTS["vllm"]
    validator = read("vllm")
    validator.watch(trainer, stage="sft", steps=2)
    state = TrainerState(max_steps=5)
    policy = torch.nn.Dropout()
    for state.global_step in range(6):
        hook = validator.on_step_end if state.global_step else validator.on_train_begin
        hook(None, state, None, model=policy)
    assert engine.synced == [policy] * 4
    validator.close()
    assert not engine.synced
    points = validation_points(state)
    assert [point["step"] for point in points] == [0, 2, 4, 5]
    assert sorted(points[0]) == sorted(["step", *validator.columns])
    assert points[0]["answer_accuracy"] == points[0]["harder/answer_accuracy"] == 0.5
    lines = capsys.readouterr().out.splitlines()
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


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("rolls_out", "validates", "lora"), ENGINES)
def test_validation_changes_no_weight(request, built, read, capsys, rolls_out, validates, lora):
    def by_tokens(completion_ids, **columns):
        return [float(sum(ids) % 4) for ids in completion_ids]

    if "vllm-server" in (rolls_out, validates):
        request.getfixturevalue("server")
    weights = []
    for watched in (False, True):
        torch.manual_seed(0)
        trainer = built(lora=lora, rollout={"engine": rolls_out}, stop=None)
        trainer.grading.rewards = [by_tokens, by_tokens]
        with contextlib.ExitStack() as stack:
            if watched:
                validator = stack.enter_context(
                    contextlib.closing(read(validates, lora=lora, num_samples=3))
                )
                validator.watch(trainer, stage="grpo", steps=2)
            trainer.train()
        weights.append({name: w.detach().clone() for name, w in trainer.model.named_parameters()})
    # Steps 0, 2 and 3 on two sets.
    out = capsys.readouterr().out
    assert out.count("grpo validation step=") == out.count(" pass@3=") == 6
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_a_server_that_is_down_is_refused_first(read, smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_URL", f"http://127.0.0.1:{free_port()}")
    build = Mock()
    with pytest.raises(UserError, match="vLLM server"):
        train_phase(
            build,
            tmp_path / "made",
            stage="sft",
            params=smoke,
            init=tmp_path,
            validator=read("vllm-server"),
            scratch=tmp_path / "scratch",
        )
    build.assert_not_called()
    assert not list(tmp_path.glob("made*")) + list(tmp_path.glob("scratch/sft/*/*"))
