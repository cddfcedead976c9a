"""What is exported says what the checkpoint says, or nothing is exported."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from lib.artifacts import replacing
from lib.engines.policy import (
    add_adapter,
    is_adapter,
    load_merged,
    load_policy,
    load_tokenizer,
    save_policy,
)
from lib.errors import UserError
from lib.export.card import Recipe, model_card
from lib.export.merged import Verified, compare, export_merged
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format


@pytest.fixture(scope="module")
def adapter(base: Path, smoke: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose adapter changes what the model says."""
    torch.manual_seed(0)
    model = add_adapter(load_policy(base, base=base, settings=smoke.model), smoke.model.lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    folder = tmp_path_factory.mktemp("models") / "grpo"
    save_policy(model, load_tokenizer(base), folder)
    return folder


def export(
    checkpoint: Path, to: Path, *, base: Path, params: Params, sets: GeneratedSets
) -> Verified:
    chosen = prompt_format(params.prompt.format)
    return export_merged(
        checkpoint,
        to,
        base=base,
        prompts=[chosen.prompt(p.problem, system="") for p in sets.benchmarks["held_out"][:4]],
        stop_strings=chosen.stop_strings,
        model=params.model,
        evaluate=params.evaluate,
        export=params.export,
    )


def test_the_export_is_complete_and_folds_the_adapter_in(
    adapter: Path, base: Path, smoke: Params, sets: GeneratedSets, tmp_path: Path
) -> None:
    verified = export(adapter, tmp_path / "export", base=base, params=smoke, sets=sets)
    assert verified.num_prompts == 4
    files = {path.name for path in (tmp_path / "export").iterdir()}
    assert files >= {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert "adapter_config.json" not in files
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    untrained = AutoModelForCausalLM.from_pretrained(base)
    key = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(merged.state_dict()[key], untrained.state_dict()[key])
    template = AutoTokenizer.from_pretrained(tmp_path / "export").chat_template
    assert template == prompt_format(smoke.prompt.format).chat_template
    assert GenerationConfig.from_pretrained(tmp_path / "export").temperature == 1.0


def test_a_lost_adapter_is_noticed(
    adapter: Path,
    base: Path,
    smoke: Params,
    sets: GeneratedSets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The classic fault: what is written is the base model."""
    from lib.export import merged

    untrained = AutoModelForCausalLM.from_pretrained(base)
    monkeypatch.setattr(
        merged, "save_policy", lambda model, tokenizer, to: save_policy(untrained, tokenizer, to)
    )
    with pytest.raises(UserError, match=r"of 4 greedy completions differ .* nothing was exported"):
        export(adapter, tmp_path / "export", base=base, params=smoke, sets=sets)


def test_a_broken_fold_is_noticed(
    adapter: Path,
    base: Path,
    smoke: Params,
    sets: GeneratedSets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was folded and what was written agree here, and neither is what was trained."""
    from lib.export import merged

    def without_adapter(checkpoint: Path, *, base: Path, **settings: str) -> PreTrainedModel:
        return load_merged(base if is_adapter(checkpoint) else checkpoint, base=base, **settings)

    monkeypatch.setattr(merged, "load_merged", without_adapter)
    with pytest.raises(UserError, match=r"of 4 greedy completions differ .* nothing was exported"):
        export(adapter, tmp_path / "export", base=base, params=smoke, sets=sets)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_fold_is_not_blamed_for_the_rounding_of_the_exported_type(
    dtype: str, adapter: Path, base: Path, smoke: Params, sets: GeneratedSets, tmp_path: Path
) -> None:
    lower = smoke.export.model_copy(update={"dtype": dtype})
    params = smoke.model_copy(update={"export": lower})
    verified = export(adapter, tmp_path / "export", base=base, params=params, sets=sets)
    assert verified.num_prompts == 4
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype="auto")
    assert written.dtype == getattr(torch, dtype)


def test_a_difference_names_the_first_prompt_that_shows_it() -> None:
    with pytest.raises(UserError, match=r"1 of 2 greedy completions differ .* at prompt 1"):
        compare([(1,), (2,)], [(1,), (3,)])


def test_a_failed_export_leaves_the_last_one_in_place(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export/model").write_text("last")
    with pytest.raises(UserError), replacing(tmp_path / "export") as folder:
        folder.mkdir()
        (folder / "model").write_text("broken")
        raise UserError("verification failed")
    assert (tmp_path / "export/model").read_text() == "last"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_the_card_carries_the_measured_numbers(smoke: Params) -> None:
    greedy = {"answer_accuracy": 0.612, "answer_accuracy_se": 0.0218, "format_accuracy": 1.0}
    metrics = {
        "held_out": {
            "greedy": {**greedy, "n": 500},
            "sampled": {"pass_at_1": 0.475, "pass_at_1_se": 0.014, "n": 500},
        }
    }
    card = model_card(
        metrics,
        recipe=Recipe(seed=3, sft=smoke.sft, grpo=smoke.grpo),
        prompt=smoke.prompt,
        evaluate=smoke.evaluate,
        export=smoke.export,
        inputs={"checkpoint": "0123456789abcdef"},
    )
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| held_out | answer accuracy, greedy | 0.612 | 0.022 | 500 |" in card
    assert "| held_out | pass@1, sampled | 0.475 | 0.014 | 500 |" in card
    assert "`0123456789abcdef`" in card
