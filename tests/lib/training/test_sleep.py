"""vLLM sleeps while the policy trains, on a stand-in that fails on use while asleep."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

from lib.engines.transformers import TransformersEngine
from lib.engines.vllm import VllmEngine
from tests.lib.engines import fake_vllm
from tests.lib.training.steps import train


class SleepingLlm:
    """vLLM's `LLM` on the policy, with two parts that sleep; `did` lists its calls."""

    def __init__(self, policy, tokenizer) -> None:
        self.engine = TransformersEngine(policy, tokenizer, batch_size=64)
        self.awake, self.did = {"weights", "kv_cache"}, []
        self.model_config = SimpleNamespace(dtype=torch.float32)
        self.version = "default"
        self.llm_engine = SimpleNamespace(remove_lora=lambda number: None)

    def sleep(self, level: int) -> None:
        assert self.awake == {"weights", "kv_cache"}
        self.awake.clear()
        self.did.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        assert not self.awake.intersection(tags)
        self.awake.update(tags)
        self.did.append(f"wake {tags[0]}")

    def receive(self) -> None:
        assert "weights" in self.awake
        self.did.append("weights")

    def generate(self, prompts, params, *, use_tqdm, lora_request):
        assert self.awake == {"weights", "kv_cache"}
        self.did.append("generate")
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        groups = self.engine.generate(ids, fake_vllm.sampling_of(params[0]))
        return [
            SimpleNamespace(outputs=[fake_vllm.answer_of(one, self.version) for one in group])
            for group in groups
        ]

    def reset_prefix_cache(self) -> bool:
        return True

    def update_weight_version(self, version: str) -> None:
        self.version = version

    def get_weight_version(self) -> str:
        return self.version


class AsleepWhileTraining(TrainerCallback):
    def __init__(self, llm: SleepingLlm) -> None:
        self.llm = llm

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        assert not self.llm.awake
        self.llm.did.append("step")


@pytest.fixture
def trainer(built, monkeypatch):
    """Build a trainer of all weights with a sleeping vLLM as its engine."""
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(VllmEngine, "close", lambda self: None)
    transfer = ModuleType("lib.engines.transfer")
    transfer.HOST, transfer.PolicyWeights = "host", lambda policy, dtype: policy
    transfer.trainer_init = lambda backend, *, client, source: SimpleNamespace(
        send_weights=client.receive
    )
    monkeypatch.setitem(sys.modules, "lib.engines.transfer", transfer)
    trainer = built(max_steps=2)
    llm = SleepingLlm(trainer.model, trainer.processing_class)
    engine = VllmEngine(llm, trainer.processing_class, max_seq_length=256, sleeps=True)
    trainer.roll_out_with(engine, live=False)
    trainer.add_callback(AsleepWhileTraining(llm))
    return trainer


def test_vllm_sleeps_while_the_policy_trains(trainer):
    train(trainer)
    sleeps = ["generate", "sleep 2", "step"]
    wakes = ["wake weights", "weights", "wake kv_cache"]
    assert trainer.engine._llm.did == ["weights", *sleeps, *wakes, *sleeps]


def test_the_weights_below_an_adapter_are_kept(trainer):
    trainer.engine._adapter = object()
    trainer.engine.rest()
    assert trainer.engine._llm.did == ["sleep 1"]


def test_a_sleeping_vllm_generates_nothing(trainer):
    trainer.engine.rest()
    trainer.engine.rest()
    sampling = dataclasses.replace(trainer.sampling, num_completions=1)
    with pytest.raises(RuntimeError, match="sleeps until `sync`"):
        trainer.engine.generate([[1]], sampling)
    assert trainer.engine._llm.did == ["sleep 2"]
