"""Write a checkpoint as one complete model, and prove that it still says the same."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Sampling, encode
from lib.engines.policy import (
    is_adapter,
    load_merged,
    load_policy,
    load_tokenizer,
    save_policy,
)
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.params.schema import Evaluate, Export, Model
from lib.prompts import Message

VERIFY_BATCH = 16
"""Prompts at a time while verifying; both sides use the same, so that they round alike."""

EXACT = {"dtype": "float32", "attention": "sdpa"}
"""How a fold is verified, whatever training used; flash attention is for 16 bits only."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """How many prompts were compared, and the parameters that the export holds."""

    num_prompts: int
    num_parameters: int


def export_merged(
    checkpoint: Path,
    to: Path,
    *,
    base: Path,
    prompts: Sequence[list[Message]],
    stop_strings: tuple[str, ...],
    model: Model,
    evaluate: Evaluate,
    export: Export,
) -> Verified:
    """Fold an adapter into the weights, write the model, load it again and compare.

    Folding is compared with the checkpoint as it was trained, in float32, where both are the same
    function; writing is compared in the type of the export, where both round alike.

    Args:
        to: a new folder; the caller puts it in place once this has returned.
        prompts: chat messages on which the greedy tokens must be the same.
        stop_strings: of the prompt format; nothing after one of them is compared.

    Raises:
        UserError: the written model answers a prompt otherwise than the checkpoint does.
    """
    exact = model.model_copy(update=EXACT)
    tokenizer = load_tokenizer(checkpoint)
    sampling = Sampling(
        num_completions=1,
        max_new_tokens=evaluate.max_new_tokens,
        temperature=0.0,
        stop_strings=stop_strings,
    )
    merged = load_merged(checkpoint, base=base, dtype=exact.dtype, attention=exact.attention)
    if is_adapter(checkpoint):
        trained = load_policy(checkpoint, base=base, settings=exact)
        compare(
            greedy_tokens(trained, tokenizer, prompts, sampling),
            greedy_tokens(merged, tokenizer, prompts, sampling),
        )
    round_weights(merged, getattr(torch, export.dtype))
    merged.generation_config = generation_config(tokenizer, evaluate)
    save_policy(merged, tokenizer, to)

    written = load_merged(to, base=to, dtype=export.dtype, attention=exact.attention)
    compare(
        greedy_tokens(merged, tokenizer, prompts, sampling),
        greedy_tokens(written, load_tokenizer(to), prompts, sampling),
    )
    return Verified(num_prompts=len(prompts), num_parameters=written.num_parameters())


def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round parameters alone: `to` would round rotary frequencies too, which loading does not."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def generation_config(tokenizer: PreTrainedTokenizerBase, evaluate: Evaluate) -> GenerationConfig:
    """How the model was sampled when it was measured, which becomes its default."""
    return GenerationConfig(
        do_sample=True,
        temperature=evaluate.temperature,
        top_p=evaluate.top_p,
        top_k=0,
        max_new_tokens=evaluate.max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def greedy_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[Message]],
    sampling: Sampling,
) -> list[tuple[int, ...]]:
    """The first completion of each prompt as token ids."""
    engine = TransformersEngine(model, tokenizer, batch_size=VERIFY_BATCH)
    return [
        completions[0].token_ids
        for completions in engine.generate(encode(tokenizer, prompts), sampling)
    ]


def compare(before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]) -> None:
    """Check that the export repeats the checkpoint's completions.

    Raises:
        UserError: says how many differ and where the first one does.
    """
    pairs = enumerate(zip(before, after, strict=True))
    differing = [number for number, (left, right) in pairs if left != right]
    if differing:
        raise UserError(
            f"export: {len(differing)} of {len(before)} greedy completions differ from the "
            f"checkpoint's, the first at prompt {differing[0]}; nothing was exported"
        )
