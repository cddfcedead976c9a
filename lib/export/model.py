"""Write a checkpoint as one complete model in every form that params name, and prove each.

What is compared with what, along the checkpoint's own tokens on held-out prompts
(`lib.export.reload`):

- a folded adapter with the adapter on top of its base, in float32, where both are one function;
- weights rounded to the export's type with the checkpoint in float32, within what the type costs;
- what a fresh process loads from disk with what was written, in the type of the export, where both
  round alike.
"""

import dataclasses
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML
from transformers import GenerationConfig

from lib.artifacts import hash_path, read_json, replacing, unlisted, write_json
from lib.artifacts.problems import read_benchmarks
from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes
from lib.core.process import installed_version
from lib.engines.base import Sampling, encode
from lib.engines.decoding import end_tokens
from lib.engines.policy import ADAPTER, is_adapter, load_policy, load_tokenizer
from lib.engines.runtime import released_memory
from lib.engines.transformers import TransformersEngine
from lib.export import BATCH, MOST_TOKENS
from lib.export.card import model_card
from lib.export.reload import (
    ADAPTER_FOLDER,
    Answers,
    Request,
    check_same,
    device_here,
    read,
    read_afresh,
)
from lib.params import Params
from lib.params.model import Evaluate, Export, Model
from lib.prompts import (
    Message,
    prompt_format,
    save_prompt,
    saved_system,
    with_default_system,
)

ADAPTER_WEIGHTS = "adapter_model.safetensors"

EXACT = {"dtype": "float32", "attention": "sdpa"}
"""How a fold is verified, whatever training used; flash attention is for 16 bits only."""

SHARD_SIZE = "5GB"
"""Largest file of weights; more go into several."""

SAME = 1e-5
"""Largest mean difference of log-probs, in nats, between equal weights computed alike."""

ARITHMETIC = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""The same between two ways to compute in a type, or between it and float32."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One way in which the model is loaded again.

    Attributes:
        dtype: that it is run in.
        expected: what it has to answer.
        tolerance: largest mean difference of log-probs, in nats.
    """

    dtype: str
    expected: Answers
    tolerance: float


@dataclasses.dataclass(frozen=True)
class Written:
    """A model on disk, and what is left to be verified of it.

    Attributes:
        forms: by kind, as in `Request.forms`.
        completions: [P] the checkpoint's greedy tokens.
        errors: of what was compared before it was written.
        num_parameters: of the whole model.
    """

    forms: dict[str, Form]
    completions: list[list[int]]
    errors: dict[str, float]
    num_parameters: int


@dataclasses.dataclass(frozen=True)
class Verified:
    """What was compared.

    Attributes:
        numbers: what is comparable between runs, for the metrics.
        errors: mean difference of log-probs in nats, by what was compared.
        vllm_refusal: why vLLM, which is installed, cannot run the model here; '' where it can.
    """

    numbers: dict[str, int]
    errors: dict[str, float]
    vllm_refusal: str


def publish(
    checkpoint: Path, to: Path, *, params: Params, base: Path, problems: Path, measured: Path
) -> Verified:
    """Export `checkpoint` to the folder `to` with its card; it appears verified or not at all.

    What could not be verified stays beside it, as `<to>-unverified`: training it took hours.

    Args:
        params: all of them, since the export keeps them beside its card.
        problems: the folder of the benchmarks; the first gives the prompts to verify on.
        measured: the checkpoint's metrics.

    Raises:
        UserError: a form answers otherwise than the checkpoint does, or cannot be loaded.
    """
    prompt, export = params.prompt, params.export
    headline = params.evaluate.benchmarks[0]
    held_out = read_benchmarks(problems, [headline])[headline][: export.num_verified]
    own_format, system = prompt_format(**prompt.rendering), saved_system(base)
    prompts = [own_format.prompt(problem.problem, system=system) for problem in held_out]
    unverified = to.with_name(f"{to.name}-unverified")
    with replacing(unverified) as folder:
        written = write_model(
            checkpoint,
            folder,
            base=base,
            prompts=prompts,
            model=params.model,
            evaluate=params.evaluate,
            export=export,
            stop_strings=own_format.stop_strings,
            system=system,
        )
        save_prompt(folder, system=system, rendering=prompt.rendering)
        with (folder / "params.yaml").open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(params.model_dump(mode="json"), file)
        card = model_card(
            unlisted(read_json(measured)),
            params=params,
            prompt_format=own_format,
            example=load_tokenizer(folder).apply_chat_template(
                prompts[0], add_generation_prompt=True, tokenize=False
            ),
            inputs={
                "checkpoint": hash_path(checkpoint),
                "base": hash_path(base),
                "benchmarks": hash_path(problems),
                **plugin_hashes(params.model_dump()),
            },
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
    # As its users ask: the same tokens without a word of the system prompt.
    conversations = [prompt[1:] if system else prompt for prompt in prompts]
    try:
        verified = verify(unverified, written, base=base, conversations=conversations)
    except UserError as error:
        raise UserError(
            f"{error.message}; the model is in {unverified}, unverified; "
            "`dvc repro export` tries again"
        ) from error
    shutil.rmtree(to, ignore_errors=True)
    unverified.replace(to)
    return verified


@released_memory()  # the process that loads it again needs the memory
def write_model(
    checkpoint: Path,
    to: Path,
    *,
    base: Path,
    prompts: Sequence[list[Message]],
    model: Model,
    evaluate: Evaluate,
    export: Export,
    stop_strings: Sequence[str] = (),
    system: str = "",
) -> Written:
    """Fold an adapter into the weights and write every form of the model.

    One model is in memory at a time: the adapter is folded in place, and weights are rounded one by
    one.

    Args:
        to: a new folder.
        prompts: chat messages whose greedy completions are read along.
        stop_strings: of the prompt format.
        system: that of the prompts, which the exported chat template has for those without one.

    Raises:
        UserError: folded or rounded, it answers otherwise than the checkpoint does.
    """
    tokenizer, adapter = load_tokenizer(checkpoint), is_adapter(checkpoint)
    greedy = Sampling(
        num_completions=1,
        max_new_tokens=min(evaluate.max_new_tokens, MOST_TOKENS),
        temperature=0.0,
        stop_strings=tuple(stop_strings),
    )
    exact = model.model_copy(update=EXACT)
    weights: Any = load_policy(checkpoint, base=base, settings=exact).to(device_here())
    token_ids = encode(tokenizer, prompts)
    engine = TransformersEngine(weights, tokenizer, batch_size=BATCH)
    own = [list(each.token_ids) for (each,) in engine.generate(token_ids, greedy)]
    del engine
    answers = trained = read(weights, token_ids, own)
    errors: dict[str, float] = {}
    if adapter:
        weights = weights.merge_and_unload()
        answers = read(weights, token_ids, own)
        errors["fold"] = check_same("fold", answers, trained, tolerance=ARITHMETIC["float32"])
    if export.dtype != "float32":
        # Parameters only: `to` would round rotary frequencies too, which loading does not.
        for weight in weights.parameters():
            weight.data = weight.data.to(getattr(torch, export.dtype))
        answers, tolerance = read(weights, token_ids, own), ARITHMETIC[export.dtype]
        errors["rounding"] = check_same("rounding", answers, trained, tolerance=tolerance)

    weights.generation_config = generation_config(
        evaluate,
        ends=end_tokens(weights, tokenizer),
        pad=tokenizer.pad_token_id,
        stops=stop_strings,
    )
    weights.save_pretrained(to, max_shard_size=SHARD_SIZE)
    tokenizer.chat_template = with_default_system(tokenizer.chat_template, system)
    tokenizer.save_pretrained(to)
    forms = {"merged": Form(export.dtype, answers, SAME)}
    if adapter:
        write_adapter(checkpoint, to)
        forms["adapter"] = Form("float32", trained, ARITHMETIC["float32"])
    if installed_version("vllm"):
        forms["vllm"] = Form(export.dtype, answers, ARITHMETIC[export.dtype])
    return Written(forms, own, errors, weights.num_parameters())


def verify(
    folder: Path, written: Written, *, base: Path, conversations: Sequence[list[Message]]
) -> Verified:
    """Load each form again, and compare.

    Raises:
        UserError: one answers otherwise than it has to, or cannot be loaded.
    """
    readings = read_afresh(
        Request(
            folder=folder.resolve(),
            base=base.resolve(),
            forms={kind: form.dtype for kind, form in written.forms.items()},
            conversations=conversations,
            completions=written.completions,
            threads=torch.get_num_threads(),
            attention=EXACT["attention"],
        )
    )
    errors, refusal = dict(written.errors), ""
    for kind, form in written.forms.items():
        reading = readings[kind]
        if isinstance(reading, str):
            refusal = reading
        else:
            errors[kind] = check_same(kind, reading, form.expected, tolerance=form.tolerance)
    numbers = {"num_prompts": len(conversations), "num_parameters": written.num_parameters}
    return Verified(numbers, errors, refusal)


def write_adapter(checkpoint: Path, folder: Path) -> None:
    """Copy an adapter without what training left beside it (optimiser, tokenizer)."""
    to = folder / ADAPTER_FOLDER
    to.mkdir()
    write_json(to / ADAPTER, {**read_json(checkpoint / ADAPTER), "inference_mode": True})
    shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, to / ADAPTER_WEIGHTS)


def generation_config(
    evaluate: Evaluate, *, ends: Collection[int], pad: int, stops: Sequence[str]
) -> GenerationConfig:
    """How the model was sampled and ended when it was measured, which becomes its default.

    Args:
        ends: tokens that end a completion.
        pad: the padding token.
        stops: the prompt format's stop strings.
    """
    return GenerationConfig(
        do_sample=True,
        temperature=evaluate.temperature,
        top_p=evaluate.top_p,
        top_k=0,
        max_new_tokens=evaluate.max_new_tokens,
        eos_token_id=sorted(ends) if len(ends) > 1 else next(iter(ends)),
        pad_token_id=pad,
        stop_strings=list(stops) or None,
    )
