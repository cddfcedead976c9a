"""The transformers engine: the contract, on its own loop and on `generate`, and its batches."""

import contextlib
from itertools import chain
from pathlib import Path

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from lib.core.errors import UserError
from lib.engines import decoding
from lib.engines import transformers as engines
from lib.engines.decoding import can_decode
from lib.engines.policy import add_adapter, load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from tests.lib.engines.contract import EngineContract, greedy, random_sampling
from tests.lib.engines.hub_models import learned_positions
from tests.lib.engines.log_prob_gap import moved

SHAPE = {
    "vocab_size": 700,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
}


def smoke_model(base: Path) -> PreTrainedModel:
    return load_merged(base, base=base, dtype="float32", attention="sdpa")


def engine_on(base: Path, *, batch_size: int = 8) -> TransformersEngine:
    return TransformersEngine(smoke_model(base), load_tokenizer(base), batch_size=batch_size)


class TestOwnLoop(EngineContract):
    @pytest.fixture
    def engine(self, base):
        return engine_on(base)


class TestGenerate(EngineContract):
    @pytest.fixture
    def engine(self, base, monkeypatch):
        monkeypatch.setattr(engines, "can_decode", lambda model: False)
        return engine_on(base)


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def sliding() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))


def by_generate(model: PreTrainedModel, engine: TransformersEngine, prompt: list[int]) -> list[int]:
    """Generate greedy tokens of one prompt, with transformers only."""
    settings = {
        "do_sample": False,
        "max_new_tokens": 12,
        "eos_token_id": engine.tokenizer.eos_token_id,
    }
    return model.eval().generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("build", "own_loop"), [(llama, True), (learned_positions, True), (sliding, False)]
)
def test_greedy_tokens_are_those_of_generate(base, prompts, build, own_loop):
    torch.manual_seed(0)
    model = build()
    engine = TransformersEngine(model, load_tokenizer(base), batch_size=4)
    assert can_decode(model) == own_loop
    completions = engine.generate(prompts, greedy())
    assert [list(c.token_ids) for (c,) in completions] == [
        by_generate(model, engine, prompt) for prompt in prompts
    ]


def test_a_saved_generation_config_changes_no_completion(base, prompts, tmp_path):
    """An export's generation config holds stop strings; `generate` would want to read them."""
    torch.manual_seed(0)
    sliding().save_pretrained(tmp_path)
    plain = MistralForCausalLM.from_pretrained(tmp_path)
    GenerationConfig(
        stop_strings=["</answer>"],
        repetition_penalty=5.0,
        eos_token_id=plain.generation_config.eos_token_id,
    ).save_pretrained(tmp_path)
    saved = MistralForCausalLM.from_pretrained(tmp_path)
    assert saved.generation_config.stop_strings == ["</answer>"]
    completions = [
        TransformersEngine(model, load_tokenizer(base), batch_size=4).generate(prompts, greedy())
        for model in (plain, saved)
    ]
    assert completions[0] == completions[1]
    assert saved.generation_config.stop_strings == ["</answer>"]


def test_an_adapter_is_generated_with_and_can_be_synced_in(base, smoke, prompts):
    engine, model = engine_on(base), moved(add_adapter(smoke_model(base), smoke.model.lora), by=1)
    before = engine.generate(prompts, greedy())
    engine.sync(model)
    after = engine.generate(prompts, greedy())
    assert can_decode(model)
    assert after != before
    assert [list(c.token_ids) for (c,) in after] == [
        by_generate(model, engine, prompt) for prompt in prompts
    ]


def test_batches_and_parts_of_a_request_change_no_draw(base, prompts):
    whole = engine_on(base, batch_size=24).generate(prompts, random_sampling())
    assert engine_on(base, batch_size=1).generate(prompts, random_sampling()) == whole
    engine = engine_on(base)
    assert (
        engine.generate(prompts[:4], random_sampling())
        + engine.generate(prompts[4:], random_sampling())
        == whole
    )


def test_completions_keep_their_draws_where_positions_bind(base):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "max_position_embeddings": 64}))
    prompts = [list(range(20, 20 + length)) for length in (20, 40, 50)]
    whole, single = (
        TransformersEngine(model, load_tokenizer(base), batch_size=size).generate(
            prompts, random_sampling(max_new_tokens=60)
        )
        for size in (16, 4)
    )
    assert whole == single
    assert {len(c.token_ids) for c in chain(*whole)} >= {14, 24}


@pytest.mark.parametrize("sampling", [greedy(), random_sampling()], ids=["greedy", "sampled"])
def test_logits_that_are_no_numbers_are_reported(base, prompts, sampling):
    engine = engine_on(base)
    with torch.no_grad():
        engine.model.lm_head.weight[7].fill_(torch.nan)
    with pytest.raises(UserError, match="NaN"):
        engine.generate(prompts, sampling)


@pytest.mark.parametrize("own_loop", [True, False])
def test_no_batch_has_more_rows_than_its_size(base, prompts, own_loop, monkeypatch):
    monkeypatch.setattr(engines, "can_decode", lambda model: own_loop)
    wide, narrow = engine_on(base, batch_size=32), engine_on(base, batch_size=3)
    rows: list[int] = []
    narrow.model.register_forward_pre_hook(
        lambda *call: rows.append(len(call[2]["input_ids"])), with_kwargs=True
    )
    sampling = random_sampling(num_completions=8)
    texts = [[c.text for c in group] for group in narrow.generate(prompts[:2], sampling)]
    assert max(rows) == 3
    assert texts == [[c.text for c in group] for group in wide.generate(prompts[:2], sampling)]


def test_a_repeated_prompt_gets_other_completions(base, prompts):
    first, second = engine_on(base).generate([prompts[0], prompts[0]], random_sampling())
    assert {c.token_ids for c in first}.isdisjoint(c.token_ids for c in second)


def test_progress_counts_completions_and_tokens_over_batches(base, prompts):
    engine = engine_on(base, batch_size=2)
    calls: list[tuple[int, int, int]] = []
    engine.heartbeat = lambda *counts: calls.append(counts)
    groups = engine.generate(prompts, random_sampling(num_completions=3))
    num_tokens = sum(len(one.token_ids) for one in chain(*groups))
    assert calls == sorted(calls)
    assert calls[0][0] < calls[-1][0]
    assert calls[-1] == (3 * len(prompts), 3 * len(prompts), num_tokens)


@pytest.mark.parametrize("autocast", [False, True])
def test_grouped_attention_in_bfloat16_is_sdpas_to_the_bit(base, prompts, autocast, monkeypatch):
    """Query heads of one key head are queries of one head; log-probs are equal, too."""
    model = smoke_model(base) if autocast else smoke_model(base).to(torch.bfloat16)
    engine = TransformersEngine(model, load_tokenizer(base), batch_size=8)
    sampling = random_sampling(num_completions=3, log_probs=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        grouped = engine.generate(prompts, sampling)
        monkeypatch.setattr(decoding, "_grouped", contextlib.nullcontext)
        assert engine.generate(prompts, sampling) == grouped


def test_rows_that_have_ended_are_not_computed(base, prompts):
    engine, rows = engine_on(base, batch_size=64), []
    engine.model.register_forward_hook(
        lambda model, args, kwargs, output: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sampling = random_sampling(num_completions=8, max_new_tokens=48, stop_strings=("eo", "</"))
    completions = list(chain(*engine.generate(prompts, sampling)))
    assert {c.finish for c in completions} == {"eos", "stop", "length"}
    assert rows[:2] == [6, 48]
    assert rows[-1] < 48
    assert sum(rows[1:]) < 1.34 * sum(len(c.token_ids) for c in completions) + 48


def test_a_model_in_training_stays_so_and_can_still_learn(base, prompts):
    engine = engine_on(base)
    engine.model.train()
    engine.model.lm_head.eval()
    engine.generate(prompts[:1], greedy())
    assert engine.model.training and not engine.model.lm_head.training
    loss = engine.model(torch.tensor([prompts[0]])).logits.sum()
    loss.backward()
    assert all(weight.grad is not None for weight in engine.model.parameters())


def test_a_closed_engine_lets_go_of_the_model_and_says_so(base, prompts):
    engine = engine_on(base)
    engine.close()
    assert engine.model is None
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(prompts, greedy())
