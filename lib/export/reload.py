"""Load what was written again, in a process of its own, and compare it with what was trained.

A fresh process has nothing of the exporting one in memory, so that it sees what another machine
would see. Every form reads along the checkpoint's own greedy tokens, so that one near-tie does not
set two completions apart for good. What counts is a mean difference of the tokens' log-probs beyond
that of the type's arithmetic, and another likeliest token only where the checkpoint's leads by more
than `FLIP` times that. P prompts, N tokens of all completions, V vocabulary.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel

from lib.core.errors import UserError
from lib.engines.base import Engine, Sampling, encode, open_engine
from lib.engines.policy import load_merged, load_tokenizer, max_positions
from lib.engines.runtime import configure, released_memory
from lib.export import BATCH
from lib.prompts import Message

ADAPTER_FOLDER = "adapter"

FLIP = 10
"""Times the mean difference of log-probs that one token's may be, and so a tie that it breaks."""

PLACES = 16
"""Of each completion that vLLM reads: each is a request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """How likely a model finds the checkpoint's completions.

    Attributes:
        prompts: [P] each prompt as the tokenizer encodes it.
        vocab_size: of the model.
        log_probs: [N] of the tokens.
        likeliest: [N] the token that the model would have there.
        places: which of all tokens the N are; of vLLM, to which each is a request, only some.
        margins: [N] nats by which that one leads before the next; needed of the checkpoint only.
    """

    prompts: list[list[int]]
    vocab_size: int
    log_probs: torch.Tensor
    likeliest: torch.Tensor
    places: list[int]
    margins: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is loaded again, and what it reads.

    Attributes:
        folder: what was written.
        base: the weights below an adapter.
        forms: by kind, the type that it is run in; kinds are merged, adapter, and vllm for merged
            as vLLM reads it.
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


Readings = dict[str, Answers | str]
"""By kind, what a form answers; for vLLM it may be why it cannot run the model here."""


def read_afresh(request: Request) -> Readings:
    """Load each form in a new Python process, and let it read.

    Raises:
        UserError: a form cannot be loaded.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(read_forms, request).result()
        # Files that are damaged, memory that is short, a process that was ended.
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"export: what was written cannot be loaded again ({reason[-1].strip()})"
            ) from error


def read_forms(request: Request) -> Readings:
    """Let each form read the completions."""
    configure(seed=0, threads=request.threads)
    prompts = encode(load_tokenizer(request.folder), request.conversations)
    readings: Readings = {}
    for kind, dtype in request.forms.items():
        try:
            readings[kind] = _read_form(kind, dtype, prompts, request)
        except UserError as error:
            if kind != "vllm":
                raise
            readings[kind] = error.message
    return readings


@released_memory()  # a GPU has room for one form
def _read_form(kind: str, dtype: str, prompts: list[list[int]], request: Request) -> Answers:
    if kind == "vllm":
        return _read_on_vllm(prompts, request, dtype=dtype)
    full = request.base if kind == "adapter" else request.folder
    model = load_merged(full, base=request.base, dtype=dtype, attention=request.attention)
    if kind == "adapter":
        # On top of the base, as its users have it, and not folded.
        model = PeftModel.from_pretrained(model, request.folder / ADAPTER_FOLDER)
    return read(model.to(device_here()), prompts, request.completions)


def device_here() -> torch.device:
    """A GPU where there is one: verifying generates as much as a small evaluation."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read(model: PreTrainedModel, prompts: list[list[int]], completions: list[list[int]]) -> Answers:
    """How likely `model` finds the completions."""
    model.eval()
    pairs = zip(prompts, completions, strict=True)
    log_probs, likeliest, margins = (
        torch.cat(parts) for parts in zip(*(_read_one(model, *pair) for pair in pairs), strict=True)
    )
    return Answers(
        prompts=prompts,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        log_probs=log_probs,
        likeliest=likeliest,
        places=list(range(len(log_probs))),
        margins=margins,
    )


def _read_one(
    model: PreTrainedModel, prompt: list[int], completion: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T] log-probs, likeliest tokens and margins along one completion."""
    ids = torch.tensor([prompt + completion[:-1]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=len(completion)).logits[0].float()
    tokens = torch.tensor(completion, device=model.device)
    log_probs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    (first, second), (likeliest, _) = (values.T for values in logits.topk(2))
    return log_probs.cpu(), likeliest.cpu(), (first - second).cpu()


def check_same(kind: str, answers: Answers, expected: Answers, *, tolerance: float) -> float:
    """The mean difference of the tokens' log-probs, in nats, where answers are as expected.

    Args:
        expected: of the same completions, all tokens.
        tolerance: the largest such difference.

    Raises:
        UserError: they differ; tells how.
    """
    log_probs, likeliest, margins = (
        of[answers.places] for of in (expected.log_probs, expected.likeliest, expected.margins)
    )
    error = float((answers.log_probs - log_probs).abs().mean())
    flip = float(torch.where(answers.likeliest != likeliest, margins, 0.0).max())
    if answers.prompts != expected.prompts:
        fault = "its tokenizer encodes the prompts otherwise"
    elif answers.vocab_size != expected.vocab_size:
        fault = f"a vocabulary of {answers.vocab_size} tokens, not of {expected.vocab_size}"
    elif not error <= tolerance:  # nan is a fault too
        fault = f"log-probs are off by {error:.2g} nats on average, at most {tolerance:g}"
    elif flip > FLIP * tolerance:
        fault = (
            f"another token is likeliest where the checkpoint's leads by {flip:.2g} nats, more "
            f"than {FLIP * tolerance:g}"
        )
    else:
        return error
    raise UserError(f"export: {kind}: {fault}")


def _read_on_vllm(prompts: list[list[int]], request: Request, *, dtype: str) -> Answers:
    """Load the model with vLLM and let it read.

    Raises:
        UserError: vLLM cannot run this model here.
    """
    folder, completions = request.folder, request.completions
    longest = max(map(len, prompts)) + max(map(len, completions))
    text = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    engine = open_engine(
        "vllm",
        folder,
        base=folder,
        dtype=dtype,
        attention=request.attention,
        max_seq_length=min(longest, max_positions(text) or longest),
        batch_size=BATCH,
    )
    with contextlib.closing(engine):
        return read_places(engine, prompts, completions, vocab_size=text.vocab_size)


def read_places(
    engine: Engine, prompts: list[list[int]], completions: list[list[int]], *, vocab_size: int
) -> Answers:
    """What an engine finds likeliest at `PLACES` of each completion.

    It tells the log-prob of its own token only. Near a tie that is the other token's too, and
    elsewhere another token is a flip.
    """
    contexts, places, start = [], [], 0
    for prompt, completion in zip(prompts, completions, strict=True):
        for place in range(0, len(completion), -(-len(completion) // PLACES)):
            places.append(start + place)
            contexts.append(prompt + completion[:place])
        start += len(completion)
    next_token = Sampling(num_completions=1, max_new_tokens=1, temperature=0.0, log_probs=True)
    tokens = [one for (one,) in engine.generate(contexts, next_token)]
    return Answers(
        prompts=prompts,
        vocab_size=vocab_size,
        log_probs=torch.tensor([(one.log_probs or (math.nan,))[0] for one in tokens]),
        likeliest=torch.tensor([one.token_ids[0] for one in tokens]),
        places=places,
    )
