"""DPO trains on the sampled token ids, ties the policy to its start, and prefers the chosen."""

import math
from typing import get_args

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, TrainerCallback, set_seed

from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.models.files import is_adapter
from lib.models.save import copy_adapter, save_policy
from lib.params.training import Dpo
from lib.prompts import prompt_format
from lib.training.dpo import dpo_arguments, dpo_setup
from tests.lib.training.preferences import pairs_of
from tests.lib.training.runs import changed
from tests.lib.training.steps import NO_CLIPPING, train


@pytest.fixture(scope="module")
def pairs(sets, base, smoke):
    return pairs_of(sets.grpo[:8], base, prompt_format(smoke.prompt.format))


@pytest.fixture
def build(pairs, base, smoke, full, tmp_path):
    def builder(
        *,
        init=base,
        lora=False,
        model=None,
        scratch=tmp_path,
        rows=pairs,
        **dpo,
    ):
        own = (smoke.model if lora else full).model_dump(mode="json")
        params = changed(smoke, {"dpo": dpo, "model": {**own, **(model or {})}})
        file = tmp_path / "pairs.jsonl"
        write_jsonl(file, rows)
        return dpo_setup(params, pairs=file, init=init, base=base, scratch=scratch).trainer

    return builder


def test_what_is_trained_on_is_what_was_generated(build, pairs):
    trainer = build()
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(4)])
    generated = [
        (pair["prompt_ids"], pair[which])
        for which in ("chosen_ids", "rejected_ids")
        for pair in pairs[:4]
    ]
    rows = zip(batch["input_ids"], batch["completion_mask"], generated, strict=True)
    for token_ids, mask, (prompt, completion) in rows:
        assert token_ids[mask.bool()].tolist() == completion
        assert token_ids[: len(prompt)].tolist() == prompt


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("lora", [True, False])
def test_the_loss_is_dpos_and_training_lowers_it(build, lora):
    knobs = {"num_epochs": 6, "batch_size": 8, "micro_batch_size": 8, "warmup_ratio": 0.0}
    trainer = build(lora=lora, **knobs)
    trainable = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert all("lora_" in name and ".ref." not in name for name in trainable) == lora
    points = train(trainer)
    # The policy is the reference at first: no margin, log 2.
    assert points[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert points[-1]["loss"] < points[0]["loss"] - 0.05
    assert points[-1]["rewards/margins"] > 0
    assert points[-1]["rewards/accuracies"] == 1.0


def test_an_adapter_is_trained_further_as_one_adapter(build, tmp_path):
    """TRL's reference, a frozen copy of the adapter, is no part of the checkpoint."""
    first = build(lora=True)
    first.train()
    save_policy(first.model, first.processing_class, tmp_path / "first")
    assert is_adapter(tmp_path / "first")
    assert not (tmp_path / "first" / "ref").exists()

    again = build(init=tmp_path / "first", lora=True)
    weights = dict(again.model.named_parameters())
    for name, weight in first.model.named_parameters():
        if ".default." in name:
            assert torch.equal(weights[name], weight), name
            assert torch.equal(weights[name.replace(".default.", ".ref.")], weight), name
    assert sum(".default." in name for name in weights) > 0


def test_a_short_micro_batch_counts_by_its_pairs(build, pairs):
    def gradient(micro):
        set_seed(0)
        trainer = build(
            rows=pairs[:3], batch_size=4, micro_batch_size=micro, max_grad_norm=NO_CLIPPING
        )
        with torch.no_grad():  # away from the reference, where all pairs weigh the same
            for weight in trainer.model.parameters():
                weight.mul_(1.2)
        gradients = {}
        trainer.add_callback(Gradients(gradients))
        trainer.train()
        return gradients

    torch.testing.assert_close(gradient(2), gradient(4), rtol=1e-4, atol=1e-5)


class Gradients(TrainerCallback):
    def __init__(self, gradients):
        self.gradients = gradients

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients |= {n: w.grad.clone() for n, w in model.named_parameters()}


def test_the_reference_has_an_adapters_trained_tokens(build, base, tmp_path):
    adapter = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[5, 6]),
    )
    trained = {
        name: torch.nn.init.normal_(weight.data)
        for name, weight in adapter.named_parameters()
        if "trainable_tokens_delta" in name
    }
    assert trained
    adapter.save_pretrained(tmp_path / "adapter")
    copy_adapter(tmp_path / "adapter", base=base, checkpoint=tmp_path / "init")
    policy = build(init=tmp_path / "init", lora=True).model
    for name, weight in trained.items():
        copy = policy.get_parameter(f"{name.removesuffix('default')}ref")
        torch.testing.assert_close(copy.data, weight)


@pytest.mark.parametrize("checkpointing", [True, False])
def test_checkpointing_is_the_params_on_either_backend(smoke, tmp_path, checkpointing):
    """The policy is transformers' on the backend unsloth too."""
    model = {"backend": "unsloth", "gradient_checkpointing": checkpointing}
    params = smoke.replaced(model=model)
    assert dpo_arguments(params, scratch=tmp_path).gradient_checkpointing == checkpointing


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    "loss",
    [loss for loss in get_args(Dpo.model_fields["loss"].annotation) if loss != "sigmoid"],
)
def test_every_loss_is_one_of_trls_and_no_default(build, loss):
    smoothing = 0.1 if loss in {"robust", "exo_pair"} else 0.0

    def value(**changes):
        trainer = build(**changes)
        with torch.no_grad():  # away from the reference, where sigmoid and others agree
            for weight in trainer.model.parameters():
                weight.mul_(1.2)
            batch = trainer.data_collator([trainer.train_dataset[n] for n in range(4)])
            return float(trainer._compute_loss(trainer.model, batch, False))

    assert value(loss=loss, label_smoothing=smoothing) != pytest.approx(value(), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rows": []}, "pairs is empty"),
        ({"rows": [{"prompt_ids": [1], "chosen_ids": [2]}]}, r"pairs\.jsonl:1: not a pair"),
        ({"model": {"max_seq_length": 10}}, "max_seq_length=10"),
    ],
)
def test_no_pair_and_a_pair_too_long_are_refused(build, changes, fault):
    with pytest.raises(UserError, match=fault):
        build(**changes)
