"""The model card: what the model is, what was measured, and how to get the numbers again."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lib.params.schema import Evaluate, Export, Grpo, Prompt, Sft

HEADLINE = {
    ("greedy", "answer_accuracy"): "answer accuracy, greedy",
    ("sampled", "pass_at_1"): "pass@1, sampled",
    ("greedy", "format_accuracy"): "format accuracy, greedy",
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The phases that a checkpoint went through."""

    seed: int
    sft: Sft
    grpo: Grpo


def model_card(
    metrics: Mapping[str, Any],
    *,
    recipe: Recipe,
    prompt: Prompt,
    evaluate: Evaluate,
    export: Export,
    inputs: Mapping[str, str],
) -> str:
    """Markdown with the Hub's YAML header.

    Args:
        metrics: of the exported checkpoint, as `evaluate` wrote them.
        inputs: hashes of what the model was made from, by name.
    """
    results = "\n".join(_result_rows(metrics))
    hashes = "\n".join(f"- {name}: `{value}`" for name, value in sorted(inputs.items()))
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- math
- grpo
- reckon
---
# A maths reasoner trained with reckon

The `{export.checkpoint}` checkpoint, weights in {export.dtype}. It answers in the
format `{prompt.format}`; the chat template renders the prompt.

## Measured

| benchmark | metric | value | standard error | problems |
|---|---|---|---|---|
{results}

Sampled at temperature {evaluate.temperature:g} and top-p {evaluate.top_p:g}, at most
{evaluate.max_new_tokens} new tokens; every answer was graded by reckon's verifier.

## Made from

{hashes}

Trained with seed {recipe.seed}: SFT for {recipe.sft.num_epochs} epochs, then GRPO for
{recipe.grpo.max_steps} steps of {recipe.grpo.prompts_per_step} x {recipe.grpo.group_size}
completions. The same params, inputs and package versions on the same machine give the same model.
"""


def _result_rows(metrics: Mapping[str, Any]) -> list[str]:
    rows = []
    for benchmark, modes in metrics.items():
        for (mode, name), label in HEADLINE.items():
            numbers = modes[mode]
            error = numbers.get(f"{name}_se", 0.0)
            rows.append(
                f"| {benchmark} | {label} | {numbers[name]:.3f} | {error:.3f} | {numbers['n']} |"
            )
    return rows
