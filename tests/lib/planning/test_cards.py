"""Micro-batches that fill a GPU, and the memory of each of several GPUs."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commands import preset
from lib.core.errors import UserError
from lib.models.gpu import Gpu
from lib.params import Params, load_params, preset_params
from lib.planning.cards import FILL, card_memory, fitted, fitted_to_cpu
from lib.planning.memory import forward_pass, memory_at_peak, shape_of
from lib.planning.plan import phases_of
from lib.training.phase.launch import Launch
from tests.conftest import S1
from tests.lib.training.runs import changed

GB = 10**9


def most(params: Params, memory: int) -> float:
    """Return the largest phase's memory as a share of the card."""
    phases = phases_of(params, shape_of(params.model))
    return max(phase.bytes_on(memory) for phase in phases if not phase.skipped) / memory


@pytest.mark.parametrize(
    ("name", "card", "checkpointing", "sizes"),
    [
        (S1, 24, True, {"grpo": 32}),
        (S1, 80, False, {"grpo": 32}),
        ("s3-cs336", 141, False, {"sft": 4, "grpo": 16}),
        ("s4-gsm8k-lora", 16, True, {"grpo": 16}),
    ],
)
def test_a_card_is_filled_and_not_overfilled(name, card, checkpointing, sizes):
    params = preset_params(name)
    changes = fitted(params, card * GB)
    assert changes.pop("model") == {"gradient_checkpointing": checkpointing}
    assert {kind: keys["micro_batch_size"] for kind, keys in changes.items()} == sizes
    model = {"model": {"gradient_checkpointing": checkpointing}}
    assert most(changed(params, {**changes, **model}), card * GB) <= FILL
    # The next size does not fit any more.
    for kind, size in sizes.items():
        larger = {kind: {"micro_batch_size": 2 * size}}
        assert most(changed(params, {**changes, **larger, **model}), card * GB) > FILL


def test_a_loss_that_depends_on_its_micro_batch_keeps_it():
    params = changed(preset_params(S1), {"grpo": {"loss": "bnpo"}})
    assert fitted(params, 80 * GB)["grpo"] == {"micro_batch_size": 8}
    # A smaller one fits, but would change the gradient.
    with pytest.raises(UserError, match="grpo: no micro-batch with the same gradient"):
        fitted(params, 13 * GB)


def test_the_card_is_the_one_named_or_the_first_here(monkeypatch):
    here = []
    monkeypatch.setattr("lib.planning.cards.find_gpus", lambda: here)
    assert card_memory("24") == 24 * GB
    assert card_memory("") == 0
    here.append(Gpu("L4", "580.1", 23 * GB, 22 * GB))
    assert card_memory("") == 23 * GB
    for card in ("big", "²"):
        with pytest.raises(UserError, match=f"--card {card}"):
            card_memory(card)


def test_a_preset_is_written_over_presets_but_not_edits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for card, size in (("80", 32), ("24", 32)):  # over its own file too, and without --fit
        done = CliRunner().invoke(preset.main, [S1, f"--card={card}"])
        assert done.exit_code == 0, done.output
        params = load_params(Path("params.yaml"))
        assert params.grpo.micro_batch_size == size
        assert params.model.gradient_checkpointing == (card == "24")
    # A preset of one's own is replaced too, but not its edits.
    Path("my.yaml").write_text("preset: smoke\nseed: 7\n")
    for name in ("my.yaml", "tiny-cpu", "my.yaml"):
        done = CliRunner().invoke(preset.main, [name])
        assert done.exit_code == 0, done.output
    Path("params.yaml").write_text(Path("params.yaml").read_text("utf-8") + "# mine\n", "utf-8")
    Path(".git").mkdir()
    assert "uncommitted edits" in CliRunner().invoke(preset.main, ["tiny-cpu"]).output


@pytest.mark.parametrize(
    ("bfloat16", "dtype", "types"),
    [
        (True, "float32", ("float32", "bf16")),
        (True, "float16", ("bfloat16", "bf16")),
        (False, "float16", ("float32", "fp32")),
        (None, "bfloat16", ("float32", "fp32")),
    ],
)
def test_without_a_gpu_the_cpu_is_fitted(bfloat16, dtype, types, monkeypatch):
    monkeypatch.setattr("lib.models.runtime.cpu_has_bfloat16", lambda: bfloat16)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=16 * GB))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    params = preset_params(S1).replaced(model={"dtype": dtype, "mixed_precision": "fp16"})
    changes = fitted_to_cpu(params)
    assert changes.pop("torch_threads") == 3
    assert (changes["model"]["dtype"], changes["model"]["mixed_precision"]) == types
    assert most(params.replaced(**changes), 16 * GB) <= FILL
    twice = {"micro_batch_size": 2 * changes["grpo"]["micro_batch_size"]}
    assert most(params.replaced(**changes | {"grpo": twice}), 16 * GB) > FILL


def test_fit_without_a_gpu_writes_params_that_load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lib.planning.cards.find_gpus", list)
    done = CliRunner().invoke(preset.main, ["tiny-cpu", "--fit"])
    assert done.exit_code == 0, done.output
    assert load_params(Path("params.yaml")).torch_threads == len(os.sched_getaffinity(0))


SEVEN = preset_params("qwen2.5-math-7b")


def test_ranks_share_out_what_is_held_and_gather_the_rest():
    shape = shape_of(SEVEN.model)
    alone, of_four = (
        memory_at_peak(SEVEN, "grpo", shape, launch=Launch(ranks, shards=True)) for ranks in (1, 4)
    )
    for name in ("weights", "optimizer", "gradients"):
        assert of_four[name] == alone[name] // 4
    assert of_four["activations"] == alone["activations"]
    # 7.6 billion weights in float32; two blocks and both embeddings are gathered at once.
    assert alone["weights"] == pytest.approx(30.5e9, rel=0.01)
    assert of_four["gathered"] == pytest.approx(4 * (2 * 233e6 + 2 * 545e6), rel=0.01)
    # DDP shares nothing out, and copies the gradients.
    of_two = memory_at_peak(SEVEN, "grpo", shape, launch=Launch(2))
    assert of_two["weights"] == of_two["buckets"] == alone["weights"]


@pytest.mark.parametrize(("checkpointing", "prompts"), [(False, (1, 4)), (True, (4, 4))])
def test_only_one_process_computes_a_prompt_once(checkpointing, prompts):
    changes = {
        "model": {"gradient_checkpointing": checkpointing},
        "grpo": {"group_size": 8, "micro_batch_size": 4},
    }
    params = changed(preset_params(S1), changes)
    new, longest = params.rollout.max_new_tokens, params.model.max_seq_length
    for ranks, num_prompts in zip((1, 2), prompts, strict=True):
        tokens, scored = forward_pass(params, "grpo", Launch(ranks))
        assert tokens - scored == num_prompts * (longest - new)
