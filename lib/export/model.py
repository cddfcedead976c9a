"""Write a checkpoint as one complete model, and verify each form of loading it.

Verifying compares log-probs of the checkpoint's own greedy tokens on held-out prompts
(`lib.export.reload`):

- the folded weights with the adapter on top of its base, in float32: mathematically equal;
- the weights in the export's type with the checkpoint in float32: equal up to the type's rounding;
- the model that a fresh process loads from disk with the one that was written, both in the
  export's type: equal rounding too.
"""

import dataclasses
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import hash_path, read_json, replacing, unlisted, write_json
from lib.artifacts.problems import read_benchmarks
from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes
from lib.engines.base import Sampling, encode
from lib.engines.endings import end_tokens
from lib.engines.transformers import TransformersEngine
from lib.export.card import model_card
from lib.export.harness import write_task
from lib.export.reload import (
    ADAPTER_FOLDER,
    Answers,
    Request,
    check_same,
    device_here,
    read_afresh,
    score_answers,
)
from lib.models.files import ADAPTER, LICENSE, is_adapter, read_selections
from lib.models.load import load_policy, merged
from lib.models.pretrained import load_tokenizer
from lib.models.runtime import released_memory
from lib.params import Params
from lib.params.data import GeneratorSource
from lib.params.model import VERIFIED_BATCH, VERIFIED_TOKENS, Evaluate
from lib.prompts import (
    Generation,
    Message,
    prompt_format,
    save_prompt,
    saved_system,
    with_default_system,
)
from lib.prompts.formats import conversation

ADAPTER_WEIGHTS = "adapter_model.safetensors"

EXACT = {"dtype": "float32", "attention": "sdpa"}
"""Settings of the model for verifying, in place of training's: flash attention needs 16 bits."""

SHARD_SIZE = "5GB"
"""Largest weight file; a larger model is split into several."""

SAME = 1e-5
"""Largest mean difference of log-probs, in nats, between equal weights in equal arithmetic."""

ARITHMETIC = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest mean difference, in nats, between this type and float32; in float32, between a folded
adapter and the adapter on its base."""

GGUF_LIMITS = {"f16": 1e-2, "q8_0": 5e-2}
"""Largest mean difference, in nats, between weights of a GGUF file and the checkpoint's."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to load the exported model.

    Attributes:
        dtype: type of the weights and of the arithmetic.
        expected: the answers that it must give.
        tolerance: largest mean difference of log-probs, in nats.
    """

    dtype: str
    expected: Answers
    tolerance: float


@dataclasses.dataclass(frozen=True)
class WrittenModel:
    """A model on disk, with the expected answers of the forms still to be verified.

    Attributes:
        forms: by kind, as in `Request.forms`.
        completions: [P] the checkpoint's greedy tokens.
        errors: mean differences in nats of the comparisons made before writing.
        num_parameters: parameters of the whole model.
    """

    forms: dict[str, Form]
    completions: list[list[int]]
    errors: dict[str, float]
    num_parameters: int


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of comparing a form with the checkpoint.

    Attributes:
        numbers: counts for the metrics; comparable between runs.
        errors: comparison → mean difference of log-probs, in nats.
    """

    numbers: dict[str, int]
    errors: dict[str, float]


def publish(
    checkpoint: Path, to: Path, *, params: Params, base: Path, problems: Path, measured: Path
) -> Verification:
    """Export `checkpoint` with its card to the folder `to`, which appears only once verified.

    A written model that fails verification is kept beside it, as `<to>-unverified`: training it may
    have taken hours. Nothing is kept if folded or rounded weights differ while it is written.

    Args:
        params: all of them; the export has a copy beside its card.
        base: the base model, with the system prompt that `prepare` saved beside it.
        problems: folder of the benchmarks; the first one's prompts are used to verify.
        measured: file of the checkpoint's metrics.

    Raises:
        UserError: a form of the export gives other answers than the checkpoint, or cannot be
            loaded.
    """
    first = params.evaluate.benchmarks[0]
    held_out = read_benchmarks(problems, [first])[first][: params.export.num_verified]
    system = saved_system(base)
    prompts = [conversation(problem.problem, system=system) for problem in held_out]
    # Beside `to`, so that the final rename stays within one file system and is atomic.
    unverified = to.with_name(f"{to.name}-unverified")
    # Of an export that was killed, or failed.
    shutil.rmtree(unverified, ignore_errors=True)
    with replacing(unverified) as folder:
        written = write_model(
            checkpoint, folder, base=base, prompts=prompts, params=params, system=system
        )
        _describe(
            folder,
            checkpoint=checkpoint,
            base=base,
            params=params,
            problems=problems,
            measured=measured,
            prompts=prompts,
        )
    # Without the system message, as users send them: the exported chat template must add it and
    # give the same tokens.
    conversations = [prompt[1:] if system else prompt for prompt in prompts]
    try:
        verified = verify(unverified, written, base=base, conversations=conversations)
    except UserError as error:
        raise UserError(
            f"{error.message}; the model is in {unverified}, unverified; "
            "`dvc repro export` tries again"
        ) from error
    # Delete an older export, since `replace` refuses a target folder that is not empty.
    shutil.rmtree(to, ignore_errors=True)
    unverified.replace(to)
    return verified


def _describe(
    folder: Path,
    *,
    checkpoint: Path,
    base: Path,
    params: Params,
    problems: Path,
    measured: Path,
    prompts: Sequence[list[Message]],
) -> None:
    run_format = prompt_format(**params.prompt.rendering)
    benchmarks = read_benchmarks(problems, params.evaluate.benchmarks)
    save_prompt(
        folder,
        system=saved_system(base),
        rendering=params.prompt.rendering,
        generation=Generation(
            run_format.stop_strings, max_new_tokens=params.evaluate.max_new_tokens
        ),
    )
    for benchmark in params.prepare.benchmarks:
        # Only generated sets are published in an export; others belong to other people.
        if benchmark.name in benchmarks and isinstance(benchmark.source, GeneratorSource):
            write_task(
                folder,
                benchmark.name,
                benchmarks[benchmark.name],
                prompt_format=run_format,
                max_new_tokens=params.evaluate.decoding_of(benchmark.name).max_new_tokens,
            )
    # Folded weights are a derived work of the base model: its licence goes with them.
    if (base / LICENSE).is_file():
        shutil.copyfile(base / LICENSE, folder / LICENSE)
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(params.model_dump(mode="json"), file)
    card = model_card(
        # Standard errors are in one-item lists, which `dvc metrics diff` skips; `unlisted`
        # unwraps them.
        unlisted(read_json(measured)),
        params=params,
        prompt_format=run_format,
        example=load_tokenizer(folder).apply_chat_template(
            prompts[0], add_generation_prompt=True, tokenize=False
        ),
        inputs={
            "checkpoint": hash_path(checkpoint),
            "base": hash_path(base),
            "benchmarks": hash_path(problems),
            **plugin_hashes(params.model_dump()),
        },
        selections=read_selections(checkpoint),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


# The process that loads the model again needs this one's memory: a GPU may hold one model only.
@released_memory()
def write_model(
    checkpoint: Path,
    to: Path,
    *,
    base: Path,
    prompts: Sequence[list[Message]],
    params: Params,
    system: str = "",
) -> WrittenModel:
    """Write every form of the model, and return the answers that each form has to give.

    The forms: full weights with an adapter folded into them, the adapter on its base, and GGUF.
    Only one model is in memory: the adapter is folded in place, and weights are rounded one by one.

    Args:
        to: a new folder.
        prompts: [P] chat messages; the forms are compared on the greedy completions of these.
        system: the prompts' system message; the exported chat template adds it to conversations
            without one.

    Raises:
        UserError: the answers of the folded or rounded weights differ from the checkpoint's.
    """
    model, evaluate, export = params.model, params.evaluate, params.export
    tokenizer, adapter = load_tokenizer(checkpoint), is_adapter(checkpoint)
    greedy = Sampling(
        num_completions=1,
        max_new_tokens=min(evaluate.max_new_tokens, VERIFIED_TOKENS),
        temperature=0.0,
        stop_strings=prompt_format(**params.prompt.rendering).stop_strings,
    )
    exact = model.model_copy(update=EXACT)
    weights: Any = load_policy(checkpoint, base=base, settings=exact).to(device_here())
    token_ids = encode(tokenizer, prompts)
    engine = TransformersEngine(weights, tokenizer, batch_size=VERIFIED_BATCH)
    # [P] token ids, one completion per prompt. All forms are scored on these tokens: if each form
    # generated its own, a near-tie between two tokens would make the rest of a text differ.
    completions = [list(each.token_ids) for (each,) in engine.generate(token_ids, greedy)]
    # The engine refers to the model, which folding is about to change in place.
    del engine
    answers = trained = score_answers(weights, token_ids, completions)
    differences: dict[str, float] = {}
    if adapter:
        weights = merged(weights)
        answers = score_answers(weights, token_ids, completions)
        tolerance = ARITHMETIC["float32"]
        differences["fold"] = check_same("fold", answers, trained, tolerance=tolerance)
    end_ids = end_tokens(weights, tokenizer)
    tokenizer.chat_template = with_default_system(tokenizer.chat_template, system)
    tokenizer.save_pretrained(to)
    # Kind -> its type of arithmetic, the expected answers, and the tolerance in nats: by the type
    # (`ARITHMETIC`), by a GGUF file's storage (`GGUF_LIMITS`), or for equal weights (`SAME`, 1e-5).
    forms = {}
    if export.gguf != "none":
        # Written before the weights are rounded to `export.dtype`, so that they are rounded once;
        # transformers dequantises them to float32.
        _write_gguf(weights, tokenizer, to, params=params, system=system, end_ids=end_ids)
        forms["gguf"] = Form("float32", answers, GGUF_LIMITS[export.gguf])
    if export.dtype != "float32":
        # Only parameters: `model.to(dtype)` would round the rotary frequencies too, a buffer that
        # `from_pretrained` computes in float32.
        for weight in weights.parameters():
            weight.data = weight.data.to(getattr(torch, export.dtype))
        answers = score_answers(weights, token_ids, completions)
        tolerance = ARITHMETIC[export.dtype]
        differences["rounding"] = check_same("rounding", answers, trained, tolerance=tolerance)

    weights.generation_config = generation_config(
        evaluate, end_ids=end_ids, pad=tokenizer.pad_token_id
    )
    # Reproducible: save_pretrained writes safetensors, so equal weights give equal files.
    weights.save_pretrained(to, max_shard_size=SHARD_SIZE)
    forms["merged"] = Form(export.dtype, answers, SAME)
    if adapter:
        write_adapter(checkpoint, to)
        # In float32, since base + adapter is compared with the checkpoint before folding.
        forms["adapter"] = Form("float32", trained, ARITHMETIC["float32"])
    return WrittenModel(forms, completions, differences, weights.num_parameters())


def _write_gguf(
    weights: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    to: Path,
    *,
    params: Params,
    system: str,
    end_ids: Collection[int],
) -> None:
    # Imported here: `bench.gpu` runs on machines without the package `gguf` too.
    from lib.export.gguf import modelfile, write_gguf

    file = write_gguf(weights, tokenizer, to, kind=params.export.gguf, end_ids=end_ids)
    text = modelfile(
        file,
        tokenizer,
        system=system,
        evaluate=params.evaluate,
        max_seq_length=params.model.max_seq_length,
        stop_strings=prompt_format(**params.prompt.rendering).stop_strings,
        end_ids=end_ids,
    )
    file.with_name("Modelfile").write_text(text, encoding="utf-8")


def verify(
    folder: Path, written: WrittenModel, *, base: Path, conversations: Sequence[list[Message]]
) -> Verification:
    """Load each form in a fresh process, and compare its answers with the expected ones.

    Raises:
        UserError: a form's answers differ, or it cannot be loaded.
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
    differences = written.errors | {
        kind: check_same(kind, readings[kind], form.expected, tolerance=form.tolerance)
        for kind, form in written.forms.items()
    }
    numbers = {"num_prompts": len(conversations), "num_parameters": written.num_parameters}
    return Verification(numbers, differences)


def write_adapter(checkpoint: Path, folder: Path) -> None:
    """Copy an adapter's weights and its config, set to inference mode, to `adapter/` of the export.

    The checkpoint's tokenizer is not copied: the export has its own.
    """
    to = folder / ADAPTER_FOLDER
    to.mkdir()
    write_json(to / ADAPTER, {**read_json(checkpoint / ADAPTER), "inference_mode": True})
    shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, to / ADAPTER_WEIGHTS)


def generation_config(
    evaluate: Evaluate, *, end_ids: Collection[int], pad: int
) -> GenerationConfig:
    """Return the evaluation's sampling settings and end tokens, as the exported model's defaults.

    Stop strings and the longest completion are in `prompt_format.json` (`lib.prompts.saved`).

    Args:
        end_ids: ids of the tokens that end a completion.
        pad: id of the padding token.
    """
    return GenerationConfig(
        do_sample=True,
        temperature=evaluate.temperature,
        top_p=evaluate.top_p,
        # transformers' default is 50; evaluation does not truncate by rank.
        top_k=0,
        # A list only for several ids, as models' own files have it.
        eos_token_id=sorted(end_ids) if len(end_ids) > 1 else next(iter(end_ids)),
        pad_token_id=pad,
    )
