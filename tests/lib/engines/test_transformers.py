"""The transformers engine: the contract, on its own loop and on `generate`, and its batches."""

from itertools import chain

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from lib.core.errors import UserError
from lib.engines import transformers as engines
from lib.engines.decoding import can_decode
from lib.engines.transformers import TransformersEngine
from lib.models.load import add_adapter, load_merged
from lib.models.pretrained import load_tokenizer
from tests.lib.engines.contract import EngineContract, greedy, random_sampling
from tests.lib.models.hub_models import learned_positions, random_model
from tests.lib.models.log_prob_gap import moved

SHAPE = {
    "vocab_size": 800,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture
def engine_on(base):
    """Open an engine on a model, by default the smoke preset's."""
    smoke_model = load_merged(base, base=base, dtype="float32", attention="sdpa")

    def build(model=smoke_model, *, batch_size=8):
        return TransformersEngine(model, load_tokenizer(base), batch_size=batch_size)

    return build


class TestOwnLoop(EngineContract):
    @pytest.fixture
    def engine(self, engine_on):
        return engine_on()


class TestGenerate(EngineContract):
    @pytest.fixture
    def engine(self, engine_on, monkeypatch):
        monkeypatch.setattr(engines, "can_decode", lambda model: False)
        return engine_on()


def llama() -> PreTrainedModel:
    return random_model("llama", **SHAPE)


def sliding() -> PreTrainedModel:
    return random_model("mistral", **SHAPE, sliding_window=8)


def by_generate(engine: TransformersEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Generate greedy tokens of each prompt, with transformers only."""
    settings = {"do_sample": False, "eos_token_id": engine.tokenizer.eos_token_id}
    return [
        engine.model.eval()
        .generate(torch.tensor([prompt]), max_new_tokens=12, **settings)[0, len(prompt) :]
        .tolist()
        for prompt in prompts
    ]


@pytest.mark.parametrize(
    ("build", "own_loop"), [(llama, True), (learned_positions, True), (sliding, False)]
)
def test_greedy_tokens_are_those_of_generate(engine_on, prompts, build, own_loop):
    torch.manual_seed(0)
    engine = engine_on(build(), batch_size=4)
    assert can_decode(engine.model) == own_loop
    completions = engine.generate(prompts, greedy())
    assert [list(c.token_ids) for (c,) in completions] == by_generate(engine, prompts)


def test_a_saved_generation_config_changes_no_completion(engine_on, prompts, tmp_path):
    """An export's generation config holds stop strings; `generate` would want to read them."""
    torch.manual_seed(0)
    sliding().save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    GenerationConfig(
        stop_strings=["</answer>"],
        repetition_penalty=5.0,
        eos_token_id=plain.generation_config.eos_token_id,
    ).save_pretrained(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert saved.generation_config.stop_strings == ["</answer>"]
    expected = engine_on(plain, batch_size=4).generate(prompts, greedy())
    assert engine_on(saved, batch_size=4).generate(prompts, greedy()) == expected
    assert saved.generation_config.stop_strings == ["</answer>"]


def test_an_adapter_is_generated_with_and_can_be_synced_in(engine_on, base, smoke, prompts):
    engine, merged = engine_on(), load_merged(base, base=base, dtype="float32", attention="sdpa")
    model = moved(add_adapter(merged, smoke.model.lora), by=1)
    before = engine.generate(prompts, greedy())
    engine.sync(model)
    after = engine.generate(prompts, greedy())
    assert can_decode(model)
    assert after != before
    assert engine.model is model
    assert [list(c.token_ids) for (c,) in after] == by_generate(engine, prompts)


def test_batches_and_parts_of_a_request_change_no_draw(engine_on, prompts):
    whole = engine_on(batch_size=24).generate(prompts, random_sampling())
    assert engine_on(batch_size=1).generate(prompts, random_sampling()) == whole
    parts = (engine_on().generate(part, random_sampling()) for part in (prompts[:4], prompts[4:]))
    assert list(chain(*parts)) == whole


def test_completions_keep_their_draws_where_positions_bind(engine_on):
    torch.manual_seed(0)
    model = random_model("llama", **SHAPE | {"max_position_embeddings": 64})
    prompts = [list(range(20, 20 + length)) for length in (20, 40, 50)]
    whole, single = (
        engine_on(model, batch_size=size).generate(prompts, random_sampling(max_new_tokens=60))
        for size in (16, 4)
    )
    assert whole == single
    assert {len(c.token_ids) for c in chain(*whole)} >= {14, 24}


@pytest.mark.parametrize("sampling", [greedy(), random_sampling()], ids=["greedy", "sampled"])
def test_logits_that_are_no_numbers_are_reported(engine_on, prompts, sampling):
    engine = engine_on()
    with torch.no_grad():
        engine.model.lm_head.weight[7].fill_(torch.nan)
    with pytest.raises(UserError, match="NaN"):
        engine.generate(prompts, sampling)


@pytest.mark.parametrize("own_loop", [True, False])
def test_no_batch_has_more_rows_than_its_size(engine_on, prompts, own_loop, monkeypatch):
    monkeypatch.setattr(engines, "can_decode", lambda model: own_loop)
    sampling, rows = random_sampling(num_completions=8), []
    wide = engine_on(batch_size=32).generate(prompts[:2], sampling)
    narrow = engine_on(batch_size=3)
    narrow.model.register_forward_pre_hook(
        lambda *call: rows.append(len(call[2]["input_ids"])), with_kwargs=True
    )
    texts = [[c.text for c in group] for group in narrow.generate(prompts[:2], sampling)]
    assert max(rows) == 3
    assert texts == [[c.text for c in group] for group in wide]


def test_a_repeated_prompt_gets_other_completions(engine_on, prompts):
    first, second = engine_on().generate([prompts[0], prompts[0]], random_sampling())
    assert {c.token_ids for c in first}.isdisjoint(c.token_ids for c in second)


def test_progress_counts_completions_and_tokens_over_batches(engine_on, prompts):
    engine = engine_on(batch_size=2)
    calls = []
    engine.heartbeat = lambda *counts: calls.append(counts)
    groups = engine.generate(prompts, random_sampling(num_completions=3))
    num_tokens = sum(len(one.token_ids) for one in chain(*groups))
    assert calls == sorted(calls)
    assert calls[0][0] < calls[-1][0]
    assert calls[-1] == (3 * len(prompts), 3 * len(prompts), num_tokens)


def test_rows_that_have_ended_are_not_computed(engine_on, prompts):
    engine, rows = engine_on(batch_size=64), []
    engine.model.register_forward_hook(
        lambda model, args, kwargs, output: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sampling = random_sampling(num_completions=8, max_new_tokens=48, stop_strings=("in", "</"))
    completions = list(chain(*engine.generate(prompts, sampling)))
    assert {c.finish for c in completions} == {"eos", "stop", "length"}
    assert rows[:2] == [6, 48]
    assert rows[-1] < 48
    assert sum(rows[1:]) < 1.34 * sum(len(c.token_ids) for c in completions) + 48


def test_a_model_in_training_stays_so_and_can_still_learn(engine_on, prompts):
    engine = engine_on()
    engine.model.train()
    engine.model.lm_head.eval()
    engine.generate(prompts[:1], greedy())
    assert engine.model.training and not engine.model.lm_head.training
    loss = engine.model(torch.tensor([prompts[0]])).logits.sum()
    loss.backward()
    assert all(weight.grad is not None for weight in engine.model.parameters())


def test_a_closed_engine_lets_go_of_the_model_and_says_so(engine_on, prompts):
    engine = engine_on()
    engine.close()
    assert engine.model is None
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(prompts, greedy())
