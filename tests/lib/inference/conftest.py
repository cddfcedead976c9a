"""Models overfitted on one completion, so that their output is known."""

from pathlib import Path

import pytest
import torch

from lib.artifacts.problems import Problem
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.models.tiny import write_tiny
from lib.prompts import PromptFormat, prompt_format, save_prompt
from lib.prompts.formats import conversation

QUESTION = "What is 15 * 23?"
WORKING = "15 * 20 = 300, 15 * 3 = 45, 300 + 45 = 345"
OTHERS = ["Tom has 3 apples.", "2 + 2 = ?", "How many pears are there if Ann buys 4 more?"]
R1 = prompt_format("r1_zero")
ENDLESS = R1.target(solution=WORKING, reference="345") + " and then more " * 8
"""An answer in `r1_zero` with text after its stop string, and no EOS."""


def rendering_of(own_format: PromptFormat) -> dict[str, object]:
    rendering = {"name": own_format.name, "tags": own_format.marks, "layout": "plain"}
    return rendering | {"tool": own_format.tool}


def learn(folder: Path, to: Path, *, question: str, completion: str, system: str = "") -> None:
    """Overfit the model in `folder` on one completion, and save it as `to`."""
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    messages = conversation(question, system=system)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
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
    """Overfit a model in `models/export` on one answer in a prompt format."""

    def make(own_format, completion, *, system="", model=smoke.model):
        models = tmp_path_factory.mktemp("models")
        base, export = models / "base", models / "export"
        # The tokenizer learns the words of the prompt too, which leaves room for an answer.
        words = Problem.create(problem=own_format.layout.preamble * 50 or "?", reference="1")
        texts = [*sets.sft, words]
        write_tiny(base, texts, prompt_format=own_format, model=model, seed=smoke.seed)
        learn(base, export, question=QUESTION, completion=completion, system=system)
        save_prompt(export, system=system, rendering=rendering_of(own_format))
        return export

    return make


@pytest.fixture(scope="session")
def taught(teach):
    """Overfit on `working_out`, ended by EOS."""
    own_format = prompt_format("working_out")
    completion = own_format.target(solution=WORKING, reference="345") + "<|end|>"
    return teach(own_format, completion)


@pytest.fixture(scope="session")
def taught_to_go_on(teach, smoke):
    """Overfit on `ENDLESS`; the prompt alone takes most of the preset's 256 positions."""
    return teach(R1, ENDLESS, model=smoke.model.model_copy(update={"max_seq_length": 272}))
