"""Models that were taught one answer by heart, so that what they say is known."""

from pathlib import Path

import pytest
import torch

from lib.engines.policy import load_tokenizer, save_policy
from lib.engines.tiny import write_tiny
from lib.params.model import Model
from lib.prompts import PromptFormat, prompt_format, save_prompt

QUESTION = "What is 15 * 23?"
WORKING = "15 * 20 = 300, 15 * 3 = 45, 300 + 45 = 345"


def learn(folder: Path, to: Path, *, question: str, completion: str, system: str = "") -> None:
    """Overfit the model in `folder` on one completion, and save it as `to`."""
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": question}]
    if system:
        asked.insert(0, {"role": "system", "content": system})
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    answer = tokenizer(completion, add_special_tokens=False)["input_ids"]
    token_ids = torch.tensor([[*prompt, *answer]])
    labels = torch.tensor([[-100] * len(prompt) + answer])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(120):
        loss = model(input_ids=token_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 0.01:
            break
    save_policy(model, tokenizer, to)


@pytest.fixture(scope="session")
def teach(smoke, sets, tmp_path_factory):
    """Make a model in `models/export` that answers one question in a format of choice."""

    def make(
        chosen: PromptFormat, completion: str, *, system: str = "", model: Model = smoke.model
    ) -> Path:
        models = tmp_path_factory.mktemp("models")
        base, export = models / "base", models / "export"
        write_tiny(base, sets.sft, prompt_format=chosen, model=model, seed=smoke.seed)
        learn(base, export, question=QUESTION, completion=completion, system=system)
        rendering = {"name": chosen.name, "tags": chosen.marks, "layout": "plain"}
        save_prompt(export, system=system, rendering=rendering)
        return export

    return make


@pytest.fixture(scope="session")
def taught(teach):
    """`working_out`, ended by EOS."""
    chosen = prompt_format("working_out")
    completion = chosen.target(solution=WORKING, reference="345") + "<|end|>"
    return teach(chosen, completion)


@pytest.fixture(scope="session")
def taught_to_go_on(teach):
    """`r1_zero`, taught to talk on after its stop string and never to end."""
    chosen = prompt_format("r1_zero")
    completion = chosen.target(solution=WORKING, reference="345") + " and then more " * 8
    return teach(chosen, completion)
