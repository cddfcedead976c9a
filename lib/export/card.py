"""The model card: what the model is, what was measured, and how to get the numbers again."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lib.params import Params
from lib.params.data import Prepare, hub_splits
from lib.params.model import Export
from lib.prompts import PromptFormat
from lib.stats import Estimate, Interval, share_interval

HEADLINE = {
    ("greedy", "answer_accuracy"): "answer accuracy, greedy",
    ("sampled", "pass_at_1"): "pass@1, sampled",
    ("greedy", "format_accuracy"): "format accuracy, greedy",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardRow:
    """One number of the card.

    Attributes:
        benchmark: name of the set of problems.
        label: what was measured.
        value: a rate.
        interval: 95 %.
        n: problems.
    """

    benchmark: str
    label: str
    value: float
    interval: Interval
    n: int

    @property
    def range(self) -> str:
        """The interval in percent."""
        return f"{100 * self.interval.low:.1f} … {100 * self.interval.high:.1f}"


def model_card(
    metrics: Mapping[str, Any],
    *,
    params: Params,
    prompt_format: PromptFormat,
    example: str,
    inputs: Mapping[str, str],
) -> str:
    """Markdown with the Hub's YAML header, whose `model-index` the Hub shows beside it.

    Args:
        metrics: of the exported checkpoint, as `evaluate` wrote them.
        params: what the checkpoint was made with.
        example: one rendered prompt.
        inputs: hashes of what the model was made from, by name.
    """
    evaluate, export = params.evaluate, params.export
    # Only a model with a revision is one of the Hub: a folder's name means nothing there.
    name, revision = params.model.name if params.model.revision else "", params.model.revision
    base_model = f" of [{name}](https://huggingface.co/{name}) at `{revision}`" if name else ""
    rates = list(headline(metrics, evaluate.benchmarks))
    stops = "".join(f", or after `{stop}`" for stop in prompt_format.stop_strings)
    hashes = "\n".join(f"- {name}: `{value}`" for name, value in sorted(inputs.items()))
    rows = "\n".join(
        f"| {each.benchmark} | {each.label} | {100 * each.value:.1f} | {each.range} | {each.n} |"
        for each in rates
    )
    return f"""---
{_header(rates, prepare=params.prepare, base_model=name, export=export).to_yaml()}
---

# A maths reasoner trained with reckon

The `{export.checkpoint}` checkpoint{base_model}, weights in {export.dtype}. It answers in the
prompt format `{prompt_format.name}` (`prompt_format.json`), and ends with its end token{stops}.

## Measured

| benchmark | metric | % | 95 % interval | problems |
|---|---|---|---|---|
{rows}

Sampled at temperature {evaluate.temperature:g} and top-p {evaluate.top_p:g}, at most
{evaluate.max_new_tokens} new tokens, which `generation_config.json` makes the default; every answer
was graded by reckon's verifier. Intervals are over problems.

## Prompt

`chat_template.jinja` renders it, the system prompt included; `system_prompt.txt` holds that too,
empty for none. A conversation with a system message of its own has that in its place.

````text
{example}
````

## How it was made

Seed {params.seed}: {", then ".join(phases(params)) or "not trained"}.

{hashes}

To make it again, in a checkout of reckon: `make preset PRESET=path/to/params.yaml` with the
`params.yaml` that lies beside this card, then `make all`. The same params, data and package
versions on the same machine give the same model.
"""


def phases(params: Params) -> Iterator[str]:
    """What the exported checkpoint went through, in order, each phase in words."""
    sft, grpo, dpo, checkpoint = params.sft, params.grpo, params.dpo, params.export.checkpoint
    if checkpoint != "base":
        yield f"SFT for {sft.num_epochs} epochs"
    if checkpoint == "grpo" or (checkpoint == "dpo" and "grpo" in dpo.init):
        yield (
            f"GRPO for {grpo.max_steps} steps of {grpo.prompts_per_step} problems × "
            f"{grpo.group_size} completions"
        )
    if checkpoint == "dpo":
        yield (
            f"DPO for {dpo.num_epochs} epochs on pairs of a right and a wrong completion "
            f"(loss `{dpo.loss}`, β {dpo.beta:g})"
        )


def headline(metrics: Mapping[str, Any], benchmarks: Sequence[str]) -> Iterator[CardRow]:
    """The numbers that a card shows, of every benchmark in this order."""
    for benchmark in benchmarks:
        modes = metrics[benchmark]
        for (mode, name), label in HEADLINE.items():
            if mode not in modes:
                continue
            numbers = modes[mode]
            value, n = numbers[name], int(numbers["n"])
            interval = share_interval(Estimate(value, numbers.get(f"{name}_se", math.nan), n))
            yield CardRow(benchmark=benchmark, label=label, value=value, interval=interval, n=n)


def _header(
    rates: list[CardRow], *, prepare: Prepare, base_model: str, export: Export
) -> ModelCardData:
    hub_ids = {
        each.name: split.hub for each in prepare.benchmarks for split in hub_splits(each.source)
    }
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_ids.get(each.benchmark, each.benchmark),
            dataset_name=each.benchmark,
            metric_type="accuracy",
            metric_name=f"{each.label} (%; 95 % interval {each.range}, n = {each.n})",
            metric_value=round(100 * each.value, 1),
        )
        for each in rates
    ]
    sources = [each.source for phase in (prepare.sft, prepare.grpo) for each in phase.sources]
    trained_on = [split.hub for source in sources for split in hub_splits(source)]
    return ModelCardData(
        base_model=base_model or None,
        datasets=[*dict.fromkeys(trained_on)] or None,
        eval_results=results or None,
        language=export.language,
        library_name="transformers",
        license=export.license,
        model_name=f"reckon-{export.checkpoint}",
        pipeline_tag="text-generation",
        tags=["math", *({export.checkpoint} - {"base"}), "reckon"],
    )
