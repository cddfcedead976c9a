"""What is exported says what the checkpoint says, or nothing is exported."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from lib.engines.base import encode
from lib.engines.policy import is_adapter, load_merged, load_tokenizer, save_policy
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.export import model
from lib.export.model import generation_config
from lib.export.reload import Answers, Request, _at_places, compare, read
from lib.params import Params
from lib.prompts import prompt_format
from tests.lib.export.conftest import ExportTo, make_adapter, make_model

DIFFER = r"log-probs are off by .* nats on average, at most .* nothing was exported"


@pytest.fixture(scope="module")
def exported(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "export"


def test_every_form_is_verified_in_a_fresh_process(
    adapter: Path, base: Path, exported: Path, export_to: ExportTo
) -> None:
    verified = export_to(adapter, exported, base=base, dtype="bfloat16")
    assert verified.num_prompts == 4
    assert set(verified.errors) == {"fold", "rounding", "merged", "adapter"}
    assert verified.errors["fold"] < 1e-5 < verified.errors["rounding"] < 5e-2
    assert verified.errors["merged"] == 0


def test_the_export_is_complete_and_folds_the_adapter_in(
    adapter: Path, base: Path, exported: Path, smoke: Params
) -> None:
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
def test_a_question_alone_has_the_prompt_of_training_in_an_export(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_to(base, tmp_path / "export", base=base, system="Be brief.")
    training = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    trained = encode(load_tokenizer(base), [training])
    assert encode(load_tokenizer(tmp_path / "export"), [training[1:], training]) == 2 * trained

    monkeypatch.setattr(model, "with_default_system", lambda template, system: template)
    with pytest.raises(UserError, match="merged: its tokenizer encodes the prompts otherwise"):
        export_to(base, tmp_path / "without", base=base, system="Be brief.")


def test_generation_config_is_the_evaluations_and_the_formats(smoke: Params) -> None:
    evaluate = smoke.evaluate.model_copy(update={"temperature": 0.6, "top_p": 0.95})
    config = generation_config(evaluate, ends={7, 3}, pad=0, stops=("</answer>",))
    assert (config.temperature, config.top_p, config.max_new_tokens) == (0.6, 0.95, 16)
    assert (config.stop_strings, config.eos_token_id) == (["</answer>"], [3, 7])
    config = generation_config(evaluate, ends={7}, pad=0, stops=())
    assert (config.stop_strings, config.eos_token_id) == (None, 7)


@pytest.mark.usefixtures("in_process")
def test_weights_are_cut_into_files_of_the_size_asked_for(
    adapter: Path, base: Path, tmp_path: Path, export_to: ExportTo
) -> None:
    export_to(adapter, tmp_path / "export", base=base, max_shard_size="50KB")
    parts = sorted((tmp_path / "export").glob("model-*.safetensors"))
    assert len(parts) > 1
    index = json.loads((tmp_path / "export/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {part.name for part in parts}


@pytest.mark.usefixtures("in_process")
def test_a_checkpoint_without_an_adapter_is_exported_without_one(
    base: Path, tmp_path: Path, export_to: ExportTo
) -> None:
    verified = export_to(base, tmp_path / "export", base=base)
    assert verified.errors == {"merged": 0.0}


def resized(base: Path, to: Path) -> Path:
    """The base with two tokens more, and three rows that no token has."""
    tokenizer, larger = load_tokenizer(base), AutoModelForCausalLM.from_pretrained(base)
    tokenizer.add_tokens(["<hint>", "</hint>"])
    torch.manual_seed(1)
    larger.resize_token_embeddings(len(tokenizer) + 3)
    save_policy(larger, tokenizer, to)
    return to


def untied(base: Path, to: Path) -> Path:
    """The base's shape with output weights of its own."""
    config = AutoConfig.from_pretrained(base)
    config.tie_word_embeddings = False
    return make_model(config, to, base=base, unused_rows=0)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("change", [resized, untied])
def test_other_vocabularies_and_embeddings_survive_in_every_form(
    change: Callable[[Path, Path], Path],
    base: Path,
    smoke: Params,
    tmp_path: Path,
    export_to: ExportTo,
) -> None:
    """The smoke preset's own are tied; here they are not, or have rows that were added."""
    other = change(base, tmp_path / "base")
    adapter = make_adapter(other, tmp_path / "grpo", smoke)
    verified = export_to(adapter, tmp_path / "export", base=other)
    assert verified.errors["merged"] == 0
    before, after = (AutoConfig.from_pretrained(path) for path in (other, tmp_path / "export"))
    assert after.vocab_size == before.vocab_size
    assert after.tie_word_embeddings == before.tie_word_embeddings == (change is resized)
    stored = load_file(tmp_path / "export/model.safetensors")
    assert ("lm_head.weight" in stored) == (change is untied)
    assert load_tokenizer(tmp_path / "export").get_vocab() == load_tokenizer(other).get_vocab()


def spoiling(monkeypatch: pytest.MonkeyPatch, spoil) -> None:
    """Damage what was written before it is verified."""
    verify_here = model.verify_afresh

    def damaged(request: Request):
        spoil(Path(request.folder))
        return verify_here(request)

    monkeypatch.setattr(model, "verify_afresh", damaged)


@pytest.mark.usefixtures("in_process")
def test_a_lost_adapter_is_noticed(
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The classic fault: what is written is the base model."""
    spoiling(
        monkeypatch,
        lambda folder: shutil.copy(base / "model.safetensors", folder / "model.safetensors"),
    )
    with pytest.raises(UserError, match=f"export: merged: {DIFFER}"):
        export_to(adapter, tmp_path / "export", base=base)


@pytest.mark.usefixtures("in_process")
def test_a_wrong_adapter_beside_the_merged_model_is_noticed(
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def halve_alpha(folder: Path) -> None:
        path = folder / "adapter/adapter_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "lora_alpha": config["lora_alpha"] / 2}))

    spoiling(monkeypatch, halve_alpha)
    with pytest.raises(UserError, match=r"export: adapter: .* nothing was exported"):
        export_to(adapter, tmp_path / "export", base=base)


def test_a_file_that_cannot_be_read_again_is_noticed_in_one_line(
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])

    spoiling(monkeypatch, cut)
    with pytest.raises(UserError, match=r"cannot be loaded again \(.*nothing was exp") as raised:
        export_to(adapter, tmp_path / "export", base=base)
    assert len(raised.value.message.splitlines()) == 1


@pytest.mark.usefixtures("in_process")
def test_a_broken_fold_is_noticed(
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was folded and what was written agree here, and neither is what was trained."""

    def without_adapter(checkpoint: Path, *, base: Path, **settings: str) -> PreTrainedModel:
        return load_merged(base if is_adapter(checkpoint) else checkpoint, base=base, **settings)

    monkeypatch.setattr(model, "load_merged", without_adapter)
    with pytest.raises(UserError, match=f"export: fold: {DIFFER}"):
        export_to(adapter, tmp_path / "export", base=base)


@pytest.mark.usefixtures("in_process")
def test_a_fold_is_not_blamed_for_the_rounding_of_the_exported_type(
    adapter: Path, base: Path, tmp_path: Path, export_to: ExportTo
) -> None:
    verified = export_to(adapter, tmp_path / "export", base=base, dtype="float16")
    assert 0 < verified.errors["rounding"] < 1e-2
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype="auto")
    assert written.dtype == torch.float16


def answers(
    *log_probs: float, likeliest: tuple[int, ...] = (7, 8, 9), margin: float = 0.3, size: int = 50
) -> Answers:
    """Of two prompts with one token and two, as a model finds them."""
    return Answers(
        prompts=[[1], [2]],
        completions=[[7], [8, 9]],
        owners=torch.tensor([0, 1, 1]),
        log_probs=torch.tensor(log_probs or (-0.5, -0.5, -0.5)),
        likeliest=torch.tensor(likeliest),
        margins=torch.tensor([9.0, 9.0, margin]),
        vocab_size=size,
    )


def test_log_probs_are_held_to_their_tolerance_on_average() -> None:
    near = compare(answers(-0.5, -0.53, -0.5), answers())
    assert near.error == pytest.approx(0.01, rel=1e-4)
    assert near.fault(tolerance=0.02) == ""
    assert near.fault(tolerance=0.005) == (
        "log-probs are off by 0.01 nats on average, at most 0.005"
    )
    for other in (answers(size=51), answers(-0.5, -0.5, float("nan"))):
        assert compare(other, answers()).fault(tolerance=1.0)
    encoded = dataclasses.replace(answers(), prompts=[[1], [3]])
    assert "encodes the prompts otherwise" in compare(encoded, answers()).fault(tolerance=1.0)


def test_another_likeliest_token_counts_where_the_checkpoints_leads_by_more_than_rounding() -> None:
    """A near-tie, of which a long export has some, is no fault; a clear lead that is lost is."""
    flipped = compare(answers(likeliest=(7, 8, 3)), answers())
    assert flipped.error == 0
    assert flipped.fault(tolerance=0.05) == ""
    assert flipped.fault(tolerance=0.01) == (
        "another token is likeliest at prompt 1, where the checkpoint's leads by 0.3 nats, "
        "more than 0.1"
    )
    first = compare(answers(likeliest=(3, 8, 3)), answers())
    assert "at prompt 0, where the checkpoint's leads by 9 nats" in first.fault(tolerance=0.05)


def test_a_bounded_number_of_tokens_is_read_along(
    base: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_merged(base, base=base, dtype="float32", attention="sdpa")
    own = [list(range(20, 60)), [21, 22, 23]]
    whole = read(weights, prompts[:2], own)
    engine = TransformersEngine(weights, load_tokenizer(base), batch_size=64)
    at_places, expected = _at_places(engine, whole)
    assert len(whole.owners) == 43
    assert at_places.owners.tolist() == [0] * 14 + [1] * 3
    assert at_places.likeliest.tolist() == expected.likeliest.tolist()
    assert compare(at_places, expected).flip == 0
    step = torch.tensor([prompts[0] + own[0][:3]])
    logits = weights(step).logits[0, -1].log_softmax(-1)
    assert expected.log_probs[1].item() == pytest.approx(logits[own[0][3]].item(), abs=1e-4)
    assert at_places.log_probs[1].item() == pytest.approx(logits.max().item(), abs=1e-4)
