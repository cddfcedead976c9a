"""The model card: base model, measured numbers, prompt, and the way to make the model again."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lib.artifacts.completions import describe_selection
from lib.params import Params
from lib.params.data import Benchmark, Ingredient, hub_splits
from lib.params.model import HUB_ID, PIP, Decoding
from lib.prompts import PromptFormat
from lib.prompts.tools import tool_tags
from lib.stats import Estimate, rate_estimate, share_interval

CARD_METRICS = {
    ("greedy", "answer_accuracy"): "answer accuracy, greedy",
    ("sampled", "pass_at_1"): "pass@1, sampled",
    ("greedy", "format_accuracy"): "format accuracy, greedy",
}
"""Decoding and metric of each number on the card → its label there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardRow:
    """One number of the card.

    Attributes:
        benchmark: name of the set of problems.
        label: the metric's name, for readers.
        rate: in [0, 1], over problems.
    """

    benchmark: str
    label: str
    rate: Estimate

    @property
    def percent(self) -> float:
        return round(100 * self.rate.value, 1)

    @property
    def range(self) -> str:
        interval = share_interval(self.rate)
        return f"{100 * interval.low:.1f} … {100 * interval.high:.1f}"


def model_card(
    metrics: Mapping[str, Any],
    *,
    params: Params,
    prompt_format: PromptFormat,
    example: str,
    inputs: Mapping[str, str],
    selections: Mapping[str, Mapping[str, float]],
) -> str:
    """Render the card as Markdown, with the Hub's YAML header and its `model-index`.

    Args:
        metrics: benchmark → decoding → metric → value of the exported checkpoint, from `grade`.
        params: params of the run.
        prompt_format: format of the prompts and answers.
        example: one rendered prompt.
        inputs: hashes of checkpoint, base, benchmarks and plugins, by name.
        selections: phase → validation point that `select: best` chose; {} without that setting.
    """
    evaluate, export = params.evaluate, params.export
    # `revision` is a commit on the Hub, the hash of a wheel, or '' for a local folder. A folder's
    # name gets no link, since `data/model` would be the address of somebody else's repository.
    name, revision, base_model = params.model.name, params.model.revision, ""
    on_hub = name if revision and HUB_ID.fullmatch(name) else ""
    if on_hub:
        base_model = f" of [{name}](https://huggingface.co/{name}) at `{revision}`"
    elif revision:
        package = name.removeprefix(PIP)
        base_model = f" of the dequantised GGUF file in `{package}` (wheel `{revision}`)"
    rows = list(card_rows(metrics, evaluate.benchmarks))
    table = "\n".join(
        f"| {row.benchmark} | {row.label} | {row.percent} | {row.range} | {row.rate.n} |"
        for row in rows
    )
    # The stop strings for two sentences of the card, "ends with its end token, or after …" and
    # "given that length and the stop string …"; both '' for a format without stop strings.
    or_after = "".join(f", or after `{stop}`" for stop in prompt_format.stop_strings)
    and_stops = "".join(f" and the stop string `{stop}`" for stop in prompt_format.stop_strings)
    # Three backticks, or more than any run of them in the prompt, which would end the block.
    fence = "`" * (1 + max(map(len, re.findall("`+", example)), default=2))
    steps = "".join(f" {describe_selection(phase, best)}." for phase, best in selections.items())
    # "80 new tokens (gsm8k: temperature 0.6, top-p 0.95, 512 tokens)": benchmarks with overrides
    # come after the common decoding.
    tokens = f"{evaluate.max_new_tokens} new tokens" + "".join(
        f" ({each.benchmark}: {_settings(each)}, {each.max_new_tokens} tokens)"
        for each in evaluate.overrides
    )
    sampled = f"Sampled at {_settings(evaluate, joined_by=' and ')}"
    decoding = sampled if evaluate.num_samples else "Decoded greedily"
    # Sorted, so that the same inputs give the same card, byte by byte.
    hashes = "\n".join(f"- {key}: `{value}`" for key, value in sorted(inputs.items()))
    return f"""---
{_header(rows, params=params, base_model=on_hub).to_yaml()}
---

# A maths reasoner trained with reckon

The `{export.checkpoint}` checkpoint{base_model}, weights in {export.dtype}. It answers in the
prompt format `{prompt_format.name}` (`prompt_format.json`), and ends with its end token{or_after}.
{_needs(prompt_format)}
## Measured

| benchmark | metric | % | 95 % interval | problems |
|---|---|---|---|---|
{table}

{decoding}, at most
{tokens}; every answer was graded by reckon's verifier. Intervals are
over problems. Other software has to be given that length{and_stops} (`prompt_format.json`).

## Prompt

`chat_template.jinja` renders it, the system prompt included; `system_prompt.txt` holds that too,
empty for none. A conversation with a system message of its own has that in its place.

{fence}text
{example}
{fence}

## How it was made

Seed {params.seed}: {", then ".join(text for text, _ in phases(params)) or "not trained"}.{steps}

{hashes}

To make it again, in a checkout of reckon: `make preset PRESET=path/to/params.yaml` with the
`params.yaml` that lies beside this card, then `make all`. The same params, data and package
versions on the same machine give the same model.
"""


def _needs(prompt_format: PromptFormat) -> str:
    tags = tool_tags(prompt_format.tool)
    if not tags:
        return ""
    return (
        f"\n**It needs the tool `{prompt_format.tool}`:** after `{tags[0]}` … `{tags[1]}` the "
        "result has to be put into\nthe completion, as `./reckon solve` does. The numbers below "
        "were measured with it; software without\nit continues with a guess.\n"
    )


def phases(params: Params) -> Iterator[tuple[str, Sequence[Ingredient]]]:
    """Yield each training phase of the exported checkpoint: "SFT for 2 epochs", with its sources.

    A skipped phase is left out; an adapter in place of SFT has no sources. DPO has none of its own:
    its pairs are sampled on GRPO's problems.
    """
    sft, grpo, dpo, checkpoint = params.sft, params.grpo, params.dpo, params.export.checkpoint
    prepare = params.prepare
    if checkpoint != "base" and sft.adapter:
        yield f"the trained adapter `{sft.adapter}`", ()
    elif checkpoint != "base" and not sft.skipped:
        yield f"SFT for {sft.num_epochs} epochs", prepare.sft.sources
    # `dpo.init` is ("sft",) or ("grpo",), the checkpoint that DPO starts from. From "sft", the
    # exported model had no GRPO.
    reinforced = checkpoint == "grpo" or (checkpoint == "dpo" and "grpo" in dpo.init)
    if reinforced and not grpo.skipped:
        shared = f", {grpo.steps_per_rollout} steps on each" if grpo.steps_per_rollout > 1 else ""
        yield (
            f"GRPO for {grpo.max_steps} steps of {grpo.prompts_per_step} problems × "
            f"{grpo.group_size} completions{shared}",
            prepare.grpo.sources,
        )
    if checkpoint == "dpo" and not dpo.skipped:
        yield (
            f"DPO for {dpo.num_epochs} epochs on pairs of a right and a wrong completion "
            f"(loss `{dpo.loss}`, β {dpo.beta:g})",
            prepare.grpo.sources,
        )


def card_rows(metrics: Mapping[str, Any], benchmarks: Sequence[str]) -> Iterator[CardRow]:
    """Yield the numbers on the card, benchmark by benchmark, in the order of `CARD_METRICS`.

    Args:
        metrics: benchmark → decoding → metric → value, as `grade` wrote them.
    """
    for benchmark in benchmarks:
        modes = metrics[benchmark]
        for (mode, name), label in CARD_METRICS.items():
            # A decoding is missing if `evaluate.greedy` is false or `num_samples` is 0. Problems
            # without references have no rate of right answers.
            if name in modes.get(mode, {}):
                rate = rate_estimate(modes[mode], name)
                yield CardRow(benchmark=benchmark, label=label, rate=rate)


def _settings(decoding: Decoding, *, joined_by: str = ", ") -> str:
    sampling = f"temperature {decoding.temperature:g}{joined_by}top-p {decoding.top_p:g}"
    return sampling if decoding.num_samples else "greedy"


def _header(rows: list[CardRow], *, params: Params, base_model: str) -> ModelCardData:
    prepare, export = params.prepare, params.export
    datasets = {each.name: _dataset(each) for each in prepare.benchmarks}
    results = [
        EvalResult(
            task_type="text-generation",
            **datasets[each.benchmark],
            dataset_name=each.benchmark,
            # An id of hf.co/metrics, as EvalResult expects; metric_name is free text.
            metric_type="accuracy",
            metric_name=f"{each.label} (%; 95 % interval {each.range}, n = {each.rate.n})",
            metric_value=each.percent,
        )
        for each in rows
    ]
    # `split.hub` is a data set's id on the Hub; sources elsewhere have no splits.
    sources = [each.source for _, used in phases(params) for each in used]
    trained_on = [split.hub for source in sources for split in hub_splits(source)]
    return ModelCardData(
        # huggingface_hub leaves None out of the YAML header, but writes an empty text.
        base_model=base_model or None,
        datasets=[*dict.fromkeys(trained_on)] or None,
        eval_results=results or None,
        language=export.language,
        library_name="transformers",
        license=export.license,
        model_name=f"reckon-{export.checkpoint}",
        pipeline_tag="text-generation",
        # `export.checkpoint` is a phase (sft, grpo or dpo), which becomes a tag, or "base", which
        # does not.
        tags=["math", *({export.checkpoint} - {"base"}), "reckon"],
    )


def _dataset(benchmark: Benchmark) -> dict[str, Any]:
    splits = hub_splits(benchmark.source)
    # The Hub finds a data set by its id, `owner/name`. All splits of a benchmark have the same id;
    # a benchmark that is not on the Hub has no splits, and keeps its own name.
    dataset = {"dataset_type": splits[0].hub if splits else benchmark.name}
    if len(splits) != 1 or splits[0].limit != "all":
        return dataset
    (split,) = splits
    return dataset | {
        "dataset_config": split.subset or None,
        "dataset_split": split.split,
        "dataset_revision": split.revision or None,
    }
