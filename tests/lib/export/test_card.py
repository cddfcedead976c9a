"""The card has results, their sources and the recipe, in the Hub's own format."""

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from lib.export.card import card_rows, model_card
from lib.params import Params, parse_params
from lib.prompts import prompt_format

METRICS = {
    "held_out": {
        "greedy": {"answer_accuracy": 0.612, "format_accuracy": 1.0, "n": 500},
        "sampled": {"pass_at_1": 0.475, "pass_at_1_se": 0.014, "n": 500},
    }
}


@pytest.fixture
def on_the_hub(smoke):
    """Set params with two training sets and one benchmark of the Hub."""
    content = smoke.model_dump(mode="json")
    rows = {
        "adapter": "table",
        "columns": {},
        "limit": "all",
        "revision": "0" * 40,
        "subset": "",
        "files": "",
    }
    prepare = content["prepare"]
    for phase, hub in (("sft", "unsloth/OpenMathReasoning-mini"), ("grpo", "openai/gsm8k")):
        prepare[phase]["sources"] = [
            {"weight": "all", "source": {**rows, "hub": hub, "split": "train"}}
        ]
    prepare["benchmarks"][0]["source"] = {**rows, "hub": "openai/gsm8k", "split": "test"}
    prepare["contamination_ngram"] = 8
    return parse_params(content, origin="test")


def card(params: Params, *, name: str = "Qwen/Qwen3-4B-Base", **settings: object) -> ModelCard:
    hub = {"name": name, "revision": "f" * 40 if name else ""}
    evaluate = params.evaluate.model_copy(update={"benchmarks": ("held_out",)})
    model = params.model.model_copy(update=hub)
    text = model_card(
        METRICS,
        params=params.model_copy(update={"seed": 3, "evaluate": evaluate, "model": model}),
        **{
            "prompt_format": prompt_format("r1_zero"),
            "example": "User: 2 + 2?\nAssistant: <think>",
            "inputs": {"checkpoint": "0123456789abcdef"},
            "selections": {},
            **settings,
        },
    )
    return ModelCard(text)


def test_the_hub_reads_base_model_datasets_and_results(on_the_hub):
    data = card(on_the_hub).data
    assert data.base_model == "Qwen/Qwen3-4B-Base"
    assert data.datasets == ["unsloth/OpenMathReasoning-mini", "openai/gsm8k"]
    assert (data.license, data.language) == ("apache-2.0", "en")
    assert (data.pipeline_tag, data.library_name) == ("text-generation", "transformers")
    assert data.model_name == "reckon-grpo"
    first = data.eval_results[0]
    assert (first.dataset_type, first.dataset_name) == ("openai/gsm8k", "held_out")
    assert (first.metric_type, first.metric_value) == ("accuracy", 61.2)
    assert "56.9 … 65.4, n = 500" in first.metric_name
    assert [result.metric_value for result in data.eval_results] == [61.2, 47.5, 100.0]


def test_answers_without_references_have_no_accuracy_on_the_card():
    numbers = {"chat": {"greedy": {"format_accuracy": 0.5, "n": 4}}}
    assert [row.label for row in card_rows(numbers, ["chat"])] == ["format accuracy, greedy"]


@pytest.mark.parametrize(
    ("checkpoint", "changes", "phases"),
    [
        ("base", {}, ["not trained"]),
        ("sft", {}, ["SFT"]),
        ("grpo", {}, ["SFT", "GRPO"]),
        ("dpo", {"dpo": {"init": ("sft",)}}, ["SFT", "DPO"]),
        ("dpo", {"dpo": {"init": ("grpo",)}}, ["SFT", "GRPO", "DPO"]),
        ("grpo", {"sft": {"num_epochs": 0}}, ["GRPO"]),
        ("grpo", {"sft": {"num_epochs": 0}, "grpo": {"max_steps": 0}}, ["not trained"]),
        ("grpo", {"sft": {"adapter": "mine"}}, ["the trained adapter `mine`", "GRPO"]),
        ("dpo", {"dpo": {"init": ("sft",), "num_epochs": 0}}, ["SFT"]),
    ],
)
def test_the_card_tells_the_phases_of_the_checkpoint(smoke, checkpoint, changes, phases):
    changes = {**changes, "export": {"checkpoint": checkpoint}}
    params = smoke.model_copy(
        update={
            section: getattr(smoke, section).model_copy(update=update)
            for section, update in changes.items()
        }
    )
    (line,) = [line for line in card(params).text.splitlines() if line.startswith("Seed 3: ")]
    assert [phase.split(" for ")[0] for phase in line[8:].rstrip(".").split(", then ")] == phases


@pytest.mark.parametrize(
    ("checkpoint", "init", "datasets"),
    [
        ("base", (), None),
        ("sft", (), ["unsloth/OpenMathReasoning-mini"]),
        ("dpo", ("sft",), ["unsloth/OpenMathReasoning-mini", "openai/gsm8k"]),
    ],
)
def test_the_card_names_the_datasets_of_the_checkpoints_phases(
    on_the_hub, checkpoint, init, datasets
):
    changed = on_the_hub.replaced(export={"checkpoint": checkpoint}, dpo={"init": init})
    assert card(changed).data.datasets == datasets


def test_a_prompt_with_a_fence_of_its_own_stays_a_block(on_the_hub):
    example = "Write:\n``````text\n# no heading\n``````\n[link](x)"
    tokens = MarkdownIt("commonmark").parse(card(on_the_hub, example=example).text)
    assert [token.content for token in tokens if token.type == "fence"] == [f"{example}\n"]
    assert "no heading" not in [token.content for token in tokens if token.type == "inline"]


@pytest.mark.parametrize("name", ["", "pip:tiny-model==1.0"])
def test_without_an_id_on_the_hub_the_card_names_none(name, smoke):
    data = card(smoke, name=name).data
    assert (data.base_model, data.datasets) == (None, None)
