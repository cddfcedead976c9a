"""Checkpoints to export, and an export without a fresh process, which takes seconds."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from lib.export import model
from lib.export.model import Verification, verify, write_model
from lib.export.reload import read_forms
from lib.models.load import add_adapter, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.params import Params
from lib.prompts.formats import conversation


def make_adapter(base: Path, to: Path, params: Params) -> Path:
    """Write a checkpoint with a random adapter, so that its log-probs differ from the base's."""
    torch.manual_seed(0)
    policy = add_adapter(load_policy(base, base=base, settings=params.model), params.model.lora)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    save_policy(policy, load_tokenizer(base), to)
    return to


def make_model(config: PretrainedConfig, to: Path, *, base: Path, unused_rows: int = 8) -> Path:
    """Write random weights (biases too), with `unused_rows` more rows than tokens."""
    tokenizer = load_tokenizer(base)
    config = type(config)(**config.to_dict())
    config.vocab_size = len(tokenizer) + unused_rows
    config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, None
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config)
    for weight in made.parameters():
        if weight.ndim == 1:
            torch.nn.init.normal_(weight, mean=1.0, std=0.2)
    made.generation_config.bos_token_id = None
    save_policy(made, tokenizer, to)
    return to


@pytest.fixture(scope="session")
def adapter(base, smoke, tmp_path_factory):
    """Write an adapter on the smoke preset's base."""
    return make_adapter(base, tmp_path_factory.mktemp("models") / "grpo", smoke)


@pytest.fixture
def export_to(smoke, sets, base, tmp_path):
    """Export to tmp_path/export, verified on four held-out prompts; `settings` of `export`."""

    def run(
        checkpoint: Path,
        to: Path = tmp_path / "export",
        *,
        base: Path = base,
        system: str = "",
        **settings: object,
    ) -> Verification:
        problems = sets.benchmarks["held_out"][:4]
        prompts = [conversation(each.problem, system=system) for each in problems]
        written = write_model(
            checkpoint,
            to,
            base=base,
            prompts=prompts,
            params=smoke.model_copy(update={"export": smoke.export.model_copy(update=settings)}),
            system=system,
        )
        conversations = [prompt[1:] if system else prompt for prompt in prompts]
        return verify(to, written, base=base, conversations=conversations)

    return run


@pytest.fixture
def in_process(monkeypatch):
    """Verify in this process; a slow test and the smoke run have a fresh one."""
    monkeypatch.setattr(model, "read_afresh", read_forms)
