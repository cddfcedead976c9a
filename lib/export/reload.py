"""Load an export in a process of its own, and compare it with the trained checkpoint.

A fresh process shares no memory with the exporting one, so that it loads what another machine
would load. A form is one way to load the export: merged weights, adapter on its base, GGUF.
Every form scores the checkpoint's own greedy tokens: had each generated its own, one near-tie would
make two completions differ from there on. Besides other token ids of the prompts or another
vocabulary size, two faults count: a mean difference of the tokens' log-probs above the tolerance,
and another likeliest token at a place where the checkpoint's leads by more than `FLIP` times the
tolerance.

P prompts, N tokens of all completions, T tokens of one, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lib.core.errors import UserError
from lib.engines.base import encode
from lib.models.load import load_adapter, load_merged
from lib.models.pretrained import load_pretrained, load_tokenizer
from lib.models.runtime import configure, released_memory
from lib.prompts import Message

ADAPTER_FOLDER = "adapter"

FLIP = 10
"""Largest lead of a token that rounding may overturn, in tolerances of the mean difference."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """The log-probs of the checkpoint's completions under a model, and its likeliest tokens.

    Attributes:
        prompts: [P] token ids of each prompt, as the form's tokenizer encodes it.
        vocab_size: V, rows of the output embedding.
        log_probs: [N] log-prob of each token.
        likeliest: [N] the model's likeliest token at the same place.
        margins: [N] lead of the likeliest token over the next, in nats.
    """

    prompts: list[list[int]]
    vocab_size: int
    log_probs: torch.Tensor
    likeliest: torch.Tensor
    margins: torch.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The forms to load, and the completions that each form scores.

    Attributes:
        folder: the exported model.
        base: the model that an adapter was trained on.
        forms: kind → type of the arithmetic. Kinds: merged, adapter, gguf.
        conversations: [P] chat messages of the held-out prompts.
        completions: [P] the checkpoint's greedy tokens, the end of sequence included.
        threads: CPU threads; another number rounds differently.
        attention: attention implementation.
    """

    folder: Path
    base: Path
    forms: dict[str, str]
    conversations: Sequence[list[Message]]
    completions: list[list[int]]
    threads: int
    attention: str


def read_afresh(request: Request) -> dict[str, Answers]:
    """Score the completions with each form in a new process; return kind → answers.

    Raises:
        UserError: a form cannot be loaded, or the process is killed; the message has the cause.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(read_forms, request).result()
        # Damaged files; too little memory; a killed process (BrokenProcessPool, a RuntimeError).
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            # The last line of the message has the cause: torch's messages begin with a heading. An
            # error without a message gives its type.
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"export: the exported model cannot be loaded ({reason[-1].strip()})"
            ) from error


def read_forms(request: Request) -> dict[str, Answers]:
    """Score the completions with each form in this process; return kind → answers."""
    configure(seed=0, threads=request.threads)
    prompts = encode(load_tokenizer(request.folder), request.conversations)
    return {
        kind: _read_form(kind, dtype, prompts, request) for kind, dtype in request.forms.items()
    }


# The memory is released after each form, since a GPU may hold only one.
@released_memory()
def _read_form(kind: str, dtype: str, prompts: list[list[int]], request: Request) -> Answers:
    if kind == "gguf":
        (file,) = request.folder.glob("gguf/*.gguf")
        model = load_pretrained(
            AutoModelForCausalLM,
            file.parent,
            gguf_file=file.name,
            # The export's own config, and `prompts` from its tokenizer: from a GGUF file,
            # transformers would derive a wrong head_dim for a Qwen3, and split a Llama's texts as
            # GPT-2 does.
            config=load_pretrained(AutoConfig, request.folder),
            dtype=dtype,
            attn_implementation=request.attention,
        )
    else:
        full = request.base if kind == "adapter" else request.folder
        model = load_merged(full, base=request.base, dtype=dtype, attention=request.attention)
    if kind == "adapter":
        # On top of the base and not folded into it, as users of the adapter load it.
        model = load_adapter(model, request.folder / ADAPTER_FOLDER)
    return score_answers(model.to(device_here()), prompts, request.completions)


def device_here() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    # Verifying generates as much as a small evaluation.
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def score_answers(
    model: PreTrainedModel, prompts: list[list[int]], completions: list[list[int]]
) -> Answers:
    """Return the log-probs of the completions' tokens under `model`, and its likeliest tokens.

    Each completion is scored in one forward pass, after its prompt.
    """
    model.eval()
    log_probs, likeliest, margins = [], [], []
    for prompt, completion in zip(prompts, completions, strict=True):
        # [1, prompt + T - 1] one row without padding. The last token is left out: it predicts
        # nothing that is scored.
        ids = torch.tensor([prompt + completion[:-1]], device=model.device)
        with torch.inference_mode():
            # [T, V] at the last T positions, each of which predicts one token of the completion.
            # In float32: in 16 bits, log_softmax would lose more than the comparison allows.
            logits = model(input_ids=ids, logits_to_keep=len(completion)).logits[0].float()
        tokens = torch.tensor(completion, device=model.device)
        log_probs.append(logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0].cpu())
        best = logits.topk(2)
        likeliest.append(best.indices[:, 0].cpu())
        margins.append((best.values[:, 0] - best.values[:, 1]).cpu())
    return Answers(
        prompts=prompts,
        # The weights' rows, not config.vocab_size: tokens may have been added.
        vocab_size=model.get_output_embeddings().weight.shape[0],
        log_probs=torch.cat(log_probs),
        likeliest=torch.cat(likeliest),
        margins=torch.cat(margins),
    )


def check_same(kind: str, answers: Answers, expected: Answers, *, tolerance: float) -> float:
    """Return the mean absolute difference of the tokens' log-probs in nats, if the answers agree.

    Args:
        kind: the form, for the message.
        expected: the checkpoint's answers on the same completions.
        tolerance: largest mean difference, in nats.

    Raises:
        UserError: prompts, vocabulary or answers differ; the message names the difference.
    """
    difference = float((answers.log_probs - expected.log_probs).abs().mean())
    # [N] True where another token than the checkpoint's is likeliest.
    is_other = answers.likeliest != expected.likeliest
    flip = float(torch.where(is_other, expected.margins, 0.0).max())
    if answers.prompts != expected.prompts:
        fault = "its tokenizer encodes the prompts differently"
    elif answers.vocab_size != expected.vocab_size:
        fault = f"its vocabulary has {answers.vocab_size} tokens, not {expected.vocab_size}"
    elif not difference <= tolerance:  # `not <=` instead of `>`: NaN is a fault too
        fault = f"log-probs are off by {difference:.2g} nats on average, at most {tolerance:g}"
    elif flip > FLIP * tolerance:
        fault = (
            f"another token is likeliest where the checkpoint's leads by {flip:.2g} nats, more "
            f"than {FLIP * tolerance:g}"
        )
    else:
        return difference
    raise UserError(f"export: {kind}: {fault}")
