"""The plan's memory equals torch's allocations.

Peaks count the sizes of live tensors, on a CPU the same as the memory of torch's allocator; the
resident size of a process adds libraries and the blocks that malloc keeps.
"""

import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from bench.gpu.rows import precisions
from lib.artifacts import read_json, write_jsonl
from lib.artifacts.problems import Problem
from lib.models.pretrained import load_tokenizer
from lib.objectives import CHUNK_NUMEL, MAX_WHOLE_LOGITS
from lib.objectives.logprobs import fused_scores
from lib.params import Params, parse_params, preset_params
from lib.planning.memory import Shape, forward_pass, memory_at_peak, shape_in, shape_of
from lib.planning.probe import with_signal
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.training.dpo import dpo_setup
from lib.training.sft import sft_dataset
from tests.conftest import ROOT, S1
from tests.lib.training.runs import changed
from tests.lib.training.steps import plain_grpo, plain_sft

FORMAT = prompt_format("working_out")
ALL_WEIGHTS = preset_params("tiny-cpu").model.lora.model_dump(mode="json")
UNSAVED = {"save_steps": 0, "keep_checkpoints": 0, "eval_steps": 0}


class LiveTensors(TorchDispatchMode):
    """Bytes of live tensors: `now`, and their maximum `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, address: int) -> None:
        self.now -= self._sizes.pop(address)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for each in tree_leaves(results):
            if isinstance(each, Tensor):
                self.count(each)
        return results


def widened(base: Path, folder: Path, **sizes: int) -> Shape:
    """Write a larger model for smoke's tokenizer: its own weights are few beside its logits."""
    shutil.copytree(base, folder)
    written = read_json(folder / "config.json")
    config = Qwen3Config(**{k: v for k, v in written.items() if k != "layer_types"} | sizes)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return shape_in(config.to_dict())


def peak_of(trainer: Any) -> int:
    live = LiveTensors()
    teacher = getattr(getattr(trainer, "teacher", None), "policy", None)
    for model in (trainer.model, getattr(trainer, "ref_model", None), teacher):
        for weight in model.parameters() if model is not None else ():
            live.count(weight)
    for weight in getattr(getattr(trainer, "reference", None), "_weights", ()):
        live.count(weight)
    with live:
        trainer.train()
    return live.peak


ROW = Problem.create(problem="What is 1 + 2?", reference="3", solution="one " * 180)


def trainer_of(kind: str, params: Params, base: Path, scratch: Path, sets: GeneratedSets) -> Any:
    if kind == "dpo":
        new, pairs = params.model.max_seq_length - 20, scratch / "pairs.jsonl"
        pair = {"prompt_ids": [5] * 20, "chosen_ids": [6] * new, "rejected_ids": [7] * new}
        write_jsonl(pairs, [pair] * params.dpo.batch_size)
        return dpo_setup(params, pairs=pairs, init=base, base=base, scratch=scratch).trainer
    if kind == "sft":
        return plain_sft([ROW] * params.sft.batch_size, base, params, scratch)
    longest = sorted(sets.grpo, key=lambda problem: -len(problem.problem))[:4]
    return with_signal(plain_grpo(longest, base, params, scratch))


def tokens_of_row(base: Path) -> int:
    dataset = sft_dataset([ROW], load_tokenizer(base), prompt_format=FORMAT, system="")
    return len(dataset[0]["input_ids"])


@pytest.fixture(autouse=True)
def chunks_of_a_cpu(monkeypatch):
    monkeypatch.setattr("lib.planning.memory.CHUNK", CHUNK_NUMEL["cpu"])


CASES: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "sft, chunked": (
        "chunked",
        {"vocab_size": 6000, "num_hidden_layers": 3, "hidden_size": 160, "intermediate_size": 512},
        {"sft": {"batch_size": 6, "micro_batch_size": 3, "num_epochs": 2, **UNSAVED}},
    ),
    # The peak is in the update, whose gradients are no more than the weights.
    "sft, untied": (
        "chunked",
        {
            "vocab_size": 6000,
            "num_hidden_layers": 1,
            "hidden_size": 512,
            "intermediate_size": 256,
            "tie_word_embeddings": False,
        },
        {"sft": {"batch_size": 1, "micro_batch_size": 1, "num_epochs": 2, **UNSAVED}},
    ),
    "grpo, whole": (
        "whole",
        {"vocab_size": 2000, "num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 768},
        {
            "model": {"max_seq_length": 140},
            "rollout": {"max_new_tokens": 60},
            "grpo": {"micro_batch_size": 16, "max_steps": 2, "beta": 0.04, **UNSAVED},
        },
    ),
    # The teacher has more layers than the policy.
    "grpo, full": (
        "fused",
        {"vocab_size": 90000, "num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 256},
        {
            "model": {"max_seq_length": 140, "gradient_checkpointing": True},
            "rollout": {"max_new_tokens": 60},
            "grpo": {
                "micro_batch_size": 16,
                "max_steps": 2,
                "teacher": "teacher",
                "teacher_coef": 1.0,
                "teacher_kl": "full",
                **UNSAVED,
            },
        },
    ),
    "dpo": (
        "whole",
        {"vocab_size": 3000, "num_hidden_layers": 2, "hidden_size": 192, "intermediate_size": 384},
        {
            "model": {"max_seq_length": 128},
            "dpo": {"batch_size": 4, "micro_batch_size": 4, "num_epochs": 2, **UNSAVED},
        },
    ),
}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", CASES)
def test_a_phase_holds_what_the_plan_states_within_a_tenth(case, smoke, base, sets, tmp_path):
    loss, sizes, changes = CASES[case]
    shape = widened(base, tmp_path / "base", **sizes)
    model = {"max_seq_length": tokens_of_row(base), **changes.get("model", {})}
    params = changed(smoke, {**changes, "model": {**model, "lora": {**ALL_WEIGHTS, "rank": 0}}})
    kind = case[:4].strip(",")
    if params.grpo.teacher:
        widened(base, tmp_path / "teacher", **sizes | {"num_hidden_layers": 20})
        params = params.replaced(grpo={"teacher": str(tmp_path / "teacher")})
    _, scored = forward_pass(params, kind)
    assert (loss == "fused") == (kind == "grpo" and scored * shape.vocab_size > MAX_WHOLE_LOGITS)
    measured = peak_of(trainer_of(kind, params, tmp_path / "base", tmp_path / "scratch", sets))
    stated = sum(memory_at_peak(params, kind, shape).values())
    assert stated == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("case", ["float32", "bfloat16"])
def test_the_plan_is_that_of_a_gpu_within_a_twentieth(case, monkeypatch):
    """GRPO of Qwen3-0.6B, all weights, on an H100: bench/gpu, its part sampler-gap."""
    monkeypatch.setattr("lib.planning.memory.CHUNK", CHUNK_NUMEL["cuda"])
    row = precisions()[f"{case}, transformers"]
    params = parse_params(row.params, origin="bench.gpu")
    measured = read_json(ROOT / "studies/presets/h100.json")
    peak = measured[f"grpo of Qwen3-0.6B, all weights, {case}"]["peak_memory_bytes"]
    stated = memory_at_peak(params, "grpo", shape_in(row.shape))
    assert sum(stated.values()) == pytest.approx(peak, rel=0.05)


@pytest.mark.slow
def test_s1_at_its_real_shape_holds_what_the_plan_states():
    """Fake tensors take no memory: float32 weights under autocast, checkpointing, fused log-probs.

    It is the second micro-batch of a step: gradients and AdamW's state are allocated.
    """
    params = preset_params(S1)
    shape = shape_of(params.model)
    rows, length = params.grpo.micro_batch_size, params.model.max_seq_length
    scored = params.rollout.max_new_tokens + 1
    with FakeTensorMode():
        config = Qwen2Config(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_hidden_layers,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            vocab_size=shape.vocab_size,
            tie_word_embeddings=True,
        )
        model = Qwen2ForCausalLM(config)
        model.gradient_checkpointing_enable()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        # The KL penalty's copy of the weights, if the preset has a penalty.
        weights = model.parameters() if params.grpo.beta else ()
        reference = [weight.detach().clone() for weight in weights]
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *reference)
        with tracker:
            ids = torch.randint(0, shape.vocab_size, (rows, length))
            with torch.autocast("cpu", torch.bfloat16):
                hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
                scores = fused_scores(
                    hidden[:, -scored:].flatten(0, 1),
                    model.lm_head.weight,
                    ids[:, -scored:].flatten(),
                )
            scores.log_probs.mean().backward()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    stated = memory_at_peak(params, "grpo", shape)
    assert sum(stated.values()) == pytest.approx(peak["Total"], rel=0.02)
    # The source's 24 GB, vLLM's share of them included.
    card = 24 * 10**9
    share = params.rollout.gpu_memory_utilization * card
    assert sum(stated.values()) + share < 22.3 * 2**30
