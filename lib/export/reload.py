"""Load what was written again, in a process of its own, and compare it with what was trained.

A fresh process has nothing of the exporting one in memory, so that it sees what another machine
would see. Every form reads along the checkpoint's own greedy tokens, so that one near-tie does not
set two completions apart for good. What counts is a mean difference of the tokens' log-probs beyond
that of the type's arithmetic, and another likeliest token only where the checkpoint's leads by more
than `FLIP` times that. P prompts, N tokens of all completions, V vocabulary.
"""

import dataclasses
import gc
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import (
    logging as transformers_logging,
)

import lib
from lib.engines.base import Engine, Sampling, encode
from lib.engines.open import open_engine
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.runtime import prefer_reproducible_kernels
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.prompts import Message

BATCH = 16
"""Prompts at a time; both sides use the same, so that they round alike."""

ADAPTER_FOLDER = "adapter"

FLIP = 10
"""Times the mean difference of log-probs that one token's may be, and so a tie that it breaks."""

PLACES = 16
"""Of each completion that vLLM reads: each is a request."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """How likely a model finds the checkpoint's completions.

    Attributes:
        prompts: [P] each prompt as the tokenizer encodes it.
        completions: [P] the checkpoint's greedy tokens, the end of sequence included.
        owners: [N] index of the prompt, of each token; one completion after the other.
        log_probs: [N] of the tokens.
        likeliest: [N] the token that the model would have there.
        margins: [N] nats by which that one leads before the next.
        vocab_size: of the model.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    owners: torch.Tensor
    log_probs: torch.Tensor
    likeliest: torch.Tensor
    margins: torch.Tensor
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """How a model's answers differ from the checkpoint's.

    Attributes:
        error: mean difference of the tokens' log-probs, in nats; infinite for another vocabulary.
        flip: the largest margin of the checkpoint at a token that is not the likeliest here.
        flipped_prompt: index of the prompt where that is.
        same_prompts: whether the tokenizers encode the prompts alike.
    """

    error: float
    flip: float
    flipped_prompt: int
    same_prompts: bool = True

    def fault(self, *, tolerance: float) -> str:
        """What is wrong in words, '' where all is well.

        Args:
            tolerance: largest error.
        """
        if not self.same_prompts:
            return "its tokenizer encodes the prompts otherwise"
        # `not <=`: nan is a fault too.
        if not self.error <= tolerance:
            return f"log-probs are off by {self.error:.2g} nats on average, at most {tolerance:g}"
        if not self.flip <= FLIP * tolerance:
            return (
                f"another token is likeliest at prompt {self.flipped_prompt}, where the "
                f"checkpoint's leads by {self.flip:.2g} nats, more than {FLIP * tolerance:g}"
            )
        return ""


@dataclasses.dataclass(frozen=True)
class Form:
    """One form in which the model was written.

    Attributes:
        kind: merged or adapter; vllm for merged as vLLM reads it.
        dtype: type that it is run in.
        expected: what it has to answer.
        tolerance: largest error.
    """

    kind: str
    dtype: str
    expected: Answers
    tolerance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is verified, and on what.

    Attributes:
        folder: what was written.
        base: the weights below an adapter.
        forms: of the model in `folder`.
        conversations: chat messages of the held-out prompts.
        threads: CPU threads; another number rounds differently.
        attention: attention implementation.
    """

    folder: Path
    base: Path
    forms: tuple[Form, ...]
    conversations: Sequence[list[Message]]
    threads: int
    attention: str


@dataclasses.dataclass(frozen=True)
class Verification:
    """The mismatch of each form by kind, and why vLLM, which is installed, cannot run it here."""

    mismatches: dict[str, Mismatch]
    vllm_refusal: str = ""


def verify_afresh(request: Request) -> Verification:
    """Verify each form in a new Python process.

    Raises:
        UserError: a form cannot be loaded, or does not answer as what was trained.
    """
    with tempfile.TemporaryDirectory() as folder:
        query, report = Path(folder) / "request", Path(folder) / "report"
        query.write_bytes(pickle.dumps(request))
        # Not `-m`: classes of `__main__` would not be those that are unpickled here.
        program = "import sys; from lib.export.reload import main; main(*sys.argv[1:])"
        ran = subprocess.run(
            [sys.executable, "-c", program, str(query), str(report)],
            cwd=Path(lib.__file__ or "").parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            stderr = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
            raise UserError(
                f"export: what was written cannot be loaded again ({stderr[-1].strip()}); "
                "nothing was exported"
            )
        verification: Verification = pickle.loads(report.read_bytes())
    refuse_mismatches(request, verification)
    return verification


def refuse_mismatches(request: Request, verification: Verification) -> None:
    """Refuse a form that differs.

    Raises:
        UserError: tells which form and how.
    """
    for form in request.forms:
        if mismatch := verification.mismatches.get(form.kind):
            refuse(mismatch, form.kind, tolerance=form.tolerance)


def refuse(mismatch: Mismatch, kind: str, *, tolerance: float) -> float:
    """The error, if it is within the tolerance.

    Raises:
        UserError: it is not, or the likeliest tokens are others.
    """
    if fault := mismatch.fault(tolerance=tolerance):
        raise UserError(f"export: {kind}: {fault}; nothing was exported")
    return mismatch.error


def main(query: str, report: str) -> None:
    """Verify the request in the file `query`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    request = pickle.loads(Path(query).read_bytes())
    Path(report).write_bytes(pickle.dumps(verify(request)))


def verify(request: Request) -> Verification:
    """Load each form and compare its answers with what is expected of it."""
    torch.set_num_threads(request.threads)
    prefer_reproducible_kernels()
    tokenizer = load_tokenizer(request.folder)
    mismatches, refusal = {}, ""
    for form in request.forms:
        if form.kind == "vllm":
            try:
                mismatches["vllm"] = _on_vllm(form, request)
            except UserError as error:
                refusal = error.message
            continue
        model = _load(form, request).to(device_here())
        prompts = encode(tokenizer, request.conversations)
        answers = read(model, prompts, form.expected.completions)
        mismatches[form.kind] = compare(answers, form.expected)
    return Verification(mismatches, refusal)


def _load(form: Form, request: Request) -> PreTrainedModel | PeftModel:
    settings = {"dtype": form.dtype, "attention": request.attention}
    if form.kind == "adapter":
        full = load_merged(request.base, base=request.base, **settings)
        return PeftModel.from_pretrained(full, request.folder / ADAPTER_FOLDER)
    return load_merged(request.folder, base=request.base, **settings)


def device_here() -> torch.device:
    """A GPU where there is one: verifying generates as much as a small evaluation."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def greedy_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
) -> list[list[int]]:
    """[P] token ids."""
    engine = TransformersEngine(model, tokenizer, batch_size=BATCH)
    return [list(one.token_ids) for (one,) in engine.generate(prompts, sampling)]


def read(model: PreTrainedModel, prompts: list[list[int]], completions: list[list[int]]) -> Answers:
    """How likely `model` finds the completions."""
    model.eval()
    pairs = zip(prompts, completions, strict=True)
    log_probs, likeliest, margins = (
        torch.cat(parts) for parts in zip(*(_along(model, *pair) for pair in pairs), strict=True)
    )
    vocab_size = model.get_output_embeddings().weight.shape[0]
    owners = torch.tensor([number for number, own in enumerate(completions) for _ in own])
    return Answers(prompts, completions, owners, log_probs, likeliest, margins, vocab_size)


def _along(
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


def compare(answers: Answers, expected: Answers) -> Mismatch:
    """How `answers` differ from `expected`, which read the same completions."""
    error = float((answers.log_probs - expected.log_probs).abs().mean())
    if answers.vocab_size != expected.vocab_size:
        error = float("inf")
    flips = torch.where(answers.likeliest != expected.likeliest, expected.margins, 0.0)
    return Mismatch(
        error=error,
        flip=float(flips.max()),
        flipped_prompt=int(expected.owners[flips.argmax()]),
        same_prompts=answers.prompts == expected.prompts,
    )


def _on_vllm(form: Form, request: Request) -> Mismatch:
    """Load the model with vLLM and compare it with what is expected.

    Raises:
        UserError: vLLM cannot run this model here.
    """
    expected, folder = form.expected, request.folder
    longest = max(map(len, expected.prompts)) + max(map(len, expected.completions))
    text = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    share = 0.9
    # What transformers left on a GPU would count as taken, and the exporting process still holds
    # its models there.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        share = 0.9 * free / total
    positions = getattr(text, "max_position_embeddings", None) or longest
    engine = open_engine(
        "vllm",
        folder,
        base=folder,
        dtype=form.dtype,
        attention=request.attention,
        max_seq_length=min(longest, positions),
        batch_size=BATCH,
        memory_share=share,
    )
    try:
        return compare(*_at_places(engine, expected))
    finally:
        engine.close()


def _at_places(engine: Engine, expected: Answers) -> tuple[Answers, Answers]:
    """What vLLM finds likeliest at `PLACES` of each completion, and what is expected there.

    It tells the log-prob of its own token only. Near a tie that is the other token's too, and
    elsewhere another token is a flip.
    """
    kept, contexts = [], []
    for number, (prompt, completion) in enumerate(
        zip(expected.prompts, expected.completions, strict=True)
    ):
        start = int((expected.owners < number).sum())
        for place in range(0, len(completion), -(-len(completion) // PLACES)):
            kept.append(start + place)
            contexts.append(prompt + completion[:place])
    next_token = Sampling(num_completions=1, max_new_tokens=1, temperature=0.0, log_probs=True)
    tokens = [one for (one,) in engine.generate(contexts, next_token)]
    there = dataclasses.replace(
        expected,
        **{
            name: getattr(expected, name)[kept]
            for name in ("owners", "log_probs", "likeliest", "margins")
        },
    )
    answers = dataclasses.replace(
        there,
        log_probs=torch.tensor([(one.log_probs or (float("nan"),))[0] for one in tokens]),
        likeliest=torch.tensor([one.token_ids[0] for one in tokens]),
    )
    return answers, there
