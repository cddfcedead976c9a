"""An export has the checkpoint's log-probs, or there is no export."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraModel
from ruamel.yaml import YAML
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

from lib.artifacts import read_json, write_json
from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.engines.base import encode
from lib.export import model, reload
from lib.export.harness import answer_pattern
from lib.export.model import generation_config, publish
from lib.export.reload import Answers, Request, check_same, read_forms, score_answers
from lib.inference import GenerationSettings, build_text_generator
from lib.models.load import load_merged, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.models.tiny import write_tiny
from lib.params import preset_names, preset_params
from lib.prompts import PROMPT_FORMATS, prompt_format, save_system, saved_generation
from tests.conftest import read_jsonl
from tests.lib.export.conftest import make_adapter, make_model
from tests.live import held

DIFFER = "log-probs are off"


@pytest.fixture(scope="module")
def exported(adapter, tmp_path_factory):
    return tmp_path_factory.mktemp("models") / "export"


@pytest.mark.usefixtures("in_process")
def test_every_form_has_the_trained_log_probs(adapter, exported, export_to):
    verified = export_to(adapter, exported, dtype="bfloat16")
    assert verified.numbers["num_prompts"] == 4
    assert set(verified.errors) == {"fold", "rounding", "merged", "adapter"}
    assert verified.errors["fold"] < 1e-5 < verified.errors["rounding"] < 5e-2
    assert verified.errors["merged"] == 0


def test_the_export_is_complete_and_folds_the_adapter_in(adapter, base, exported, smoke):
    files = {path.relative_to(exported).as_posix() for path in exported.rglob("*")}
    assert files == {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "adapter",
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
    }
    key = "model.layers.0.self_attn.q_proj.weight"
    untrained = load_file(base / "model.safetensors")[key]
    written = load_file(exported / "model.safetensors")[key]
    assert written.dtype == torch.bfloat16
    assert not torch.equal(written, untrained.bfloat16())
    template = AutoTokenizer.from_pretrained(exported).chat_template
    assert template == prompt_format(smoke.prompt.format).chat_template


@pytest.mark.usefixtures("in_process")
def test_a_question_has_the_prompt_of_training_in_an_export(base, tmp_path, export_to, monkeypatch):
    export_to(base, system="Be brief.")
    training = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    trained = encode(load_tokenizer(base), [training])
    assert encode(load_tokenizer(tmp_path / "export"), [training[1:], training]) == 2 * trained

    monkeypatch.setattr(model, "with_default_system", lambda template, system: template)
    with pytest.raises(UserError, match="merged: its tokenizer"):
        export_to(base, tmp_path / "without", system="Be brief.")


def test_generation_config_is_the_evaluations(smoke):
    evaluate = smoke.evaluate.model_copy(update={"temperature": 0.6, "top_p": 0.95})
    config = generation_config(evaluate, end_ids={7, 3}, pad=0)
    assert (config.temperature, config.top_p, config.eos_token_id) == (0.6, 0.95, [3, 7])
    assert generation_config(evaluate, end_ids={7}, pad=0).eos_token_id == 7


@pytest.fixture
def publish_to(smoke, sets, tmp_path):
    """Publish to tmp_path/export, with the card of four held-out problems."""
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"problems/{name}.jsonl", problems[:4])
    numbers = {"greedy": {"answer_accuracy": 0.5, "format_accuracy": 0.5, "n": 4}}
    write_json(tmp_path / "measured.json", {"held_out": numbers, "harder": numbers})

    def run(checkpoint: Path, *, base: Path, **prompt: object) -> Path:
        params = smoke.model_copy(update={"prompt": smoke.prompt.model_copy(update=prompt)})
        places = {"problems": tmp_path / "problems", "measured": tmp_path / "measured.json"}
        publish(checkpoint, tmp_path / "export", params=params, base=base, **places)
        return tmp_path / "export"

    return run


FORMS = {
    (prompt.format, prompt.tags, prompt.layout)
    for prompt in (preset_params(name).prompt for name in preset_names())
    # Needs a model's own template: tests/lib/prompts/test_own.py.
    if prompt.layout != "own"
}


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("name", "tags", "layout"), sorted(FORMS))
def test_others_generate_from_an_export_of_every_presets_form(
    name, tags, layout, sets, smoke, tmp_path, publish_to
):
    own_format = prompt_format(name, tags=tags, layout=layout)
    write_tiny(
        tmp_path / "base", sets.sft, prompt_format=own_format, model=smoke.model, seed=smoke.seed
    )
    save_system(tmp_path / "base", "Be brief.")
    form = {"format": name, "tags": tags, "layout": layout}
    export = publish_to(tmp_path / "base", base=tmp_path / "base", **form)
    settings = GenerationSettings(max_new_tokens=8, temperature=0)
    (ours,) = build_text_generator(export).generate(["What is 2 + 2?"], settings)
    generator = pipeline("text-generation", model=str(export))
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    (theirs,) = generator(messages, max_new_tokens=8, do_sample=False)
    assert theirs["generated_text"][-1]["content"] == ours.completion
    # lm-eval sets the length of prompt and completion; `max_new_tokens` in a config would win.
    ids = generator.tokenizer(ours.prompt, return_tensors="pt")
    length = ids["input_ids"].shape[1] + smoke.evaluate.max_new_tokens + 20
    written = generator.model.generate(**ids, max_length=length, min_length=length)
    assert written.shape[1] == length
    assert saved_generation(export) == (own_format.stop_strings, smoke.evaluate.max_new_tokens)
    for each in ("held_out", "harder"):
        task = YAML(typ="safe").load(export / f"tasks/{each}.yaml")
        assert task["generation_kwargs"]["until"] == list(own_format.stop_strings)
        rows = read_jsonl(export / task["dataset_kwargs"]["data_files"]["test"])
        known = sets.benchmarks[each][:4]
        assert list(rows) == [{"problem": p.problem, "reference": p.reference} for p in known]


@pytest.mark.parametrize("name", PROMPT_FORMATS)
def test_a_harness_finds_the_answer_that_the_format_parses(name):
    own_format = PROMPT_FORMATS[name]
    first, second = (own_format.target(solution="2 + 2", reference=each) for each in ("41", "42"))
    whole = first if own_format.stop_strings else first + second
    for text in (whole, second, second.replace("42", ""), "42", ""):
        cut = text
        for stop in own_format.stop_strings:
            cut = text.removesuffix(stop)
        matches = [each.strip() for each in re.findall(answer_pattern(own_format), cut)]
        assert (matches[-1] if matches else None) == own_format.parse(text).answer


def resized(base: Path, to: Path) -> Path:
    """Write the base with two more tokens and three rows without a token."""
    tokenizer, larger = load_tokenizer(base), AutoModelForCausalLM.from_pretrained(base)
    tokenizer.add_tokens(["<hint>", "</hint>"])
    torch.manual_seed(1)
    larger.resize_token_embeddings(len(tokenizer) + 3)
    save_policy(larger, tokenizer, to)
    return to


def untied(base: Path, to: Path) -> Path:
    """Write a model in the base's shape with untied output weights."""
    config = AutoConfig.from_pretrained(base)
    config.tie_word_embeddings = False
    return make_model(config, to, base=base, unused_rows=0)


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("change", [resized, untied])
def test_other_vocabularies_and_embeddings_survive_in_every_form(
    change, base, smoke, tmp_path, export_to
):
    """The smoke preset's embeddings are tied and have a row per token; these differ in one."""
    other = change(base, tmp_path / "base")
    adapter = make_adapter(other, tmp_path / "grpo", smoke)
    verified = export_to(adapter, base=other)
    assert verified.errors["merged"] == 0
    before, after = (AutoConfig.from_pretrained(path) for path in (other, tmp_path / "export"))
    assert after.vocab_size == before.vocab_size
    assert after.tie_word_embeddings == before.tie_word_embeddings == (change is resized)
    stored = load_file(tmp_path / "export/model.safetensors")
    assert ("lm_head.weight" in stored) == (change is untied)
    assert load_tokenizer(tmp_path / "export").get_vocab() == load_tokenizer(other).get_vocab()


def spoiling(monkeypatch: pytest.MonkeyPatch, spoil) -> None:
    """Damage the written files right before their verification."""
    read_here = model.read_afresh

    def damaged(request: Request):
        spoil(Path(request.folder))
        return read_here(request)

    monkeypatch.setattr(model, "read_afresh", damaged)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_a_lost_or_wrong_adapter_is_noticed(form, adapter, base, export_to, monkeypatch):
    """The classic fault is an export of the base model."""

    def spoil(folder: Path) -> None:
        if form == "merged":
            shutil.copy(base / "model.safetensors", folder)
            return
        path = folder / "adapter/adapter_config.json"
        config = read_json(path)
        write_json(path, {**config, "lora_alpha": config["lora_alpha"] / 2})

    spoiling(monkeypatch, spoil)
    with pytest.raises(UserError, match=f"{form}: {DIFFER}"):
        export_to(adapter)


@pytest.mark.slow
def test_a_file_that_cannot_be_read_again_is_noticed_in_one_line(adapter, export_to, monkeypatch):
    def cut(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])

    spoiling(monkeypatch, cut)
    with pytest.raises(UserError, match=r"model\.safetensors: not a whole") as raised:
        export_to(adapter)
    assert len(raised.value.message.splitlines()) == 1


@pytest.mark.usefixtures("in_process")
def test_a_broken_fold_is_noticed(adapter, export_to, monkeypatch):
    """Folded and written weights agree here; only the trained model differs."""
    monkeypatch.setattr(LoraModel, "merge_and_unload", LoraModel.unload)
    with pytest.raises(UserError, match=f"fold: {DIFFER}"):
        export_to(adapter)


@pytest.mark.slow
def test_one_model_is_in_memory_at_a_time_and_none_at_the_proof(
    adapter, base, smoke, export_to, monkeypatch
):
    before = held().num_bytes
    policy = load_policy(adapter, base=base, settings=smoke.model)
    one = held().num_bytes - before
    del policy
    most, at_proof = [], []

    def reading(*arguments: Any) -> Answers:
        most.append(held().num_bytes - before)
        return score_answers(*arguments)

    def proof(request: Request) -> Any:
        at_proof.append(held().num_bytes - before)
        return read_forms(request)

    monkeypatch.setattr(model, "read_afresh", proof)
    for module in (model, reload):
        monkeypatch.setattr(module, "score_answers", reading)
    export_to(adapter, dtype="bfloat16")
    # Trained, folded, rounded; then the written model, and the adapter on its base.
    assert len(most) == 5
    assert max(most) < 1.05 * one
    assert max(at_proof) < 0.05 * one


@pytest.mark.usefixtures("in_process")
def test_a_failed_proof_leaves_the_model_unverified(
    adapter, base, tmp_path, publish_to, monkeypatch
):
    """A verified model replaces the last export; an unverified one does not."""
    own_base = tmp_path / "base"
    shutil.copytree(base, own_base)
    save_system(own_base, "")
    export, unverified = tmp_path / "export", tmp_path / "export-unverified"
    export.mkdir()

    def once_more() -> None:
        publish_to(adapter, base=own_base)

    def fails(request: Request) -> Any:
        raise UserError("export: out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(model, "read_afresh", fails)
        with pytest.raises(UserError, match="export-unverified"):
            once_more()
    assert not list(export.iterdir())
    assert {"model.safetensors", "README.md"} <= {path.name for path in unverified.iterdir()}
    once_more()
    assert not unverified.exists()
    assert (export / "model.safetensors").is_file()


def answers(**changed: object) -> Answers:
    """Score two prompts with one token and two; the third token is a near-tie."""
    expected = Answers(
        prompts=[[1], [2]],
        vocab_size=50,
        log_probs=torch.tensor([-0.5, -0.5, -0.5]),
        likeliest=torch.tensor([7, 8, 9]),
        margins=torch.tensor([9.0, 9.0, 0.3]),
    )
    return dataclasses.replace(expected, **changed)


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({"log_probs": torch.tensor([-0.5, -0.53, -0.5])}, 0.01),
        # Rounding may flip a near-tie, never a clear lead.
        ({"likeliest": torch.tensor([7, 8, 3])}, 0.03),
        ({"likeliest": torch.tensor([3, 8, 9])}, 0.9),
    ],
)
def test_a_difference_counts_beyond_its_tolerance(changed, allowed):
    assert check_same("x", answers(**changed), answers(), tolerance=1.01 * allowed) < 0.011
    with pytest.raises(UserError, match="export: x: "):
        check_same("x", answers(**changed), answers(), tolerance=0.99 * allowed)


@pytest.mark.parametrize(
    "changed",
    [
        {"vocab_size": 51},
        {"prompts": [[1], [3]]},
        {"log_probs": torch.tensor([-0.5, -0.5, float("nan")])},
    ],
)
def test_no_tolerance_forgives_another_model(changed):
    with pytest.raises(UserError, match="export: x: "):
        check_same("x", answers(**changed), answers(), tolerance=1e9)


def test_each_token_is_scored_after_those_before_it(base, prompts):
    weights = load_merged(base, base=base, dtype="float32", attention="sdpa")
    own = [list(range(20, 60)), [21, 22, 23]]
    whole = score_answers(weights, prompts[:2], own)
    assert len(whole.log_probs) == 43
    step = torch.tensor([prompts[0] + own[0][:3]])
    logits = weights(step).logits[0, -1].log_softmax(-1)
    assert whole.log_probs[3].item() == pytest.approx(logits[own[0][3]].item(), abs=1e-4)
    assert whole.likeliest[3].item() == logits.argmax().item()
