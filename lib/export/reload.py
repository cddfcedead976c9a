"""Load what was written again, in a process of its own, and compare it with what was trained.

A fresh process has nothing of the exporting one in memory, so that it sees what another machine
would see. P prompts, V vocabulary. Two logits are compared by their relative error |a - b| / |b|
over all of them: a number of the type's rounding, whatever the size of the model's logits. vLLM,
another loader with kernels of its own, gives no logits: there log-probs are compared, in nats.
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
from lib.engines.base import Engine, LoadSettings, Sampling, encode
from lib.engines.open import open_engine
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.export.gguf_file import gguf_path, load_gguf
from lib.prompts import Message

BATCH = 16
"""Prompts at a time; both sides use the same, so that they round alike."""

ADAPTER_FOLDER = "adapter"


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a model answers.

    Attributes:
        prompts: [P] each prompt as the tokenizer encodes it.
        completions: [P] each greedy completion as token ids, the end of sequence included.
        read: [P] completions at whose ends the logits are; those of different completions could
            not be compared.
        logits: [P, 2, V] float32, of the first and the last token of each completion in `read`.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    read: list[list[int]]
    logits: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """How a model's answers differ from what they have to be.

    Attributes:
        num_prompts: prompts compared.
        differing: indices of the prompts whose greedy completions differ.
        error: of the logits, relative (infinite where their shapes differ); of vLLM's log-probs,
            the largest, in nats.
        same_prompts: whether the tokenizers encode the prompts alike.
    """

    num_prompts: int
    differing: list[int]
    error: float
    same_prompts: bool = True

    def fault(self, *, tolerance: float, same_tokens: bool, what: str = "logits") -> str:
        """What is wrong in words, '' where all is well.

        Args:
            tolerance: largest error.
            same_tokens: whether completions must be the same; where weights are rounded, two
                tokens that are nearly as likely may change places.
            what: of what the error is.
        """
        if not self.same_prompts:
            return "its tokenizer encodes the prompts otherwise"
        if self.differing and same_tokens:
            return (
                f"{len(self.differing)} of {self.num_prompts} greedy completions differ from the "
                f"checkpoint's, the first at prompt {self.differing[0]}"
            )
        # `not <=`: nan is a fault too.
        if not self.error <= tolerance:
            return f"{what} are off by {self.error:.2g}, at most {tolerance:g}"
        return ""


@dataclasses.dataclass(frozen=True)
class Form:
    """One form in which the model was written.

    Attributes:
        kind: merged, adapter or gguf; vllm for merged as vLLM reads it.
        dtype: type that it is run in.
        expected: what it has to answer.
        tolerance: largest error.
        same_tokens: whether greedy completions must be the same; quantised weights may differ.
    """

    kind: str
    dtype: str
    expected: Answers
    tolerance: float
    same_tokens: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is verified, and on what.

    Attributes:
        folder: what was written.
        base: the weights below an adapter.
        forms: of the model in `folder`.
        conversations: chat messages of the held-out prompts.
        sampling: greedy, with the longest completion and the stop strings.
        threads: CPU threads; another number rounds differently.
        attention: attention implementation.
    """

    folder: Path
    base: Path
    forms: tuple[Form, ...]
    conversations: Sequence[list[Message]]
    sampling: Sampling
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
            refuse(mismatch, form.kind, tolerance=form.tolerance, same_tokens=form.same_tokens)


def refuse(mismatch: Mismatch, kind: str, *, tolerance: float, same_tokens: bool = True) -> float:
    """The error, if it is within the tolerance.

    Raises:
        UserError: it is not, or greedy completions differ where they must not.
    """
    what = "log-probs" if kind == "vllm" else "logits (relative)"
    if fault := mismatch.fault(tolerance=tolerance, same_tokens=same_tokens, what=what):
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
    torch.use_deterministic_algorithms(True, warn_only=True)
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
        answers = answer(
            model, tokenizer, request.conversations, request.sampling, read=form.expected.read
        )
        mismatches[form.kind] = compare(answers, form.expected)
    return Verification(mismatches, refusal)


def _load(form: Form, request: Request) -> PreTrainedModel | PeftModel:
    settings = {"dtype": form.dtype, "attention": request.attention}
    if form.kind == "adapter":
        full = load_merged(request.base, base=request.base, **settings)
        return PeftModel.from_pretrained(full, request.folder / ADAPTER_FOLDER)
    if form.kind == "gguf":
        return load_gguf(gguf_path(request.folder), request.folder, **settings)
    return load_merged(request.folder, base=request.base, **settings)


def device_here() -> torch.device:
    """A GPU where there is one: verifying generates as much as a small evaluation."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[list[Message]],
    sampling: Sampling,
    *,
    read: Sequence[list[int]] = (),
) -> Answers:
    """Greedy completions of `model`, and its logits at the ends of each, or of `read`."""
    prompts = encode(tokenizer, conversations)
    engine = TransformersEngine(model, tokenizer, batch_size=BATCH)
    completions = [list(one.token_ids) for (one,) in engine.generate(prompts, sampling)]
    ends_of = list(read) or completions
    model.eval()
    rows = [_ends(model, *pair) for pair in zip(prompts, ends_of, strict=True)]
    return Answers(prompts, completions, ends_of, torch.stack(rows))


def _ends(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """[2, V] logits of a completion's first and last token."""
    read = torch.tensor([prompt + completion[:-1]], device=model.device)
    ends = torch.tensor([len(prompt) - 1, read.shape[1] - 1], device=model.device)
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=read, logits_to_keep=ends).logits
    return logits[0].float().cpu()


def compare(answers: Answers, expected: Answers) -> Mismatch:
    """How `answers` differ from `expected`, prompt by prompt."""
    error = float("inf")
    if answers.logits.shape == expected.logits.shape:
        error = float((answers.logits - expected.logits).norm() / expected.logits.norm())
    return Mismatch(
        num_prompts=len(expected.prompts),
        differing=_differing(answers.completions, expected),
        error=error,
        same_prompts=answers.prompts == expected.prompts,
    )


def _differing(completions: Sequence[list[int]], expected: Answers) -> list[int]:
    pairs = enumerate(zip(completions, expected.completions, strict=True))
    return [number for number, (left, right) in pairs if left != right]


def _on_vllm(form: Form, request: Request) -> Mismatch:
    """Load the model with vLLM and compare it with what is expected.

    Raises:
        UserError: vLLM cannot run this model here.
    """
    expected, folder = form.expected, request.folder
    longest = max(map(len, expected.prompts)) + request.sampling.max_new_tokens
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
        model=LoadSettings(
            dtype=form.dtype,
            attention=request.attention,
            max_seq_length=min(longest, positions),
        ),
        batch_size=BATCH,
        memory_share=share,
    )
    try:
        generated = engine.generate(expected.prompts, request.sampling)
        completions = [list(one.token_ids) for (one,) in generated]
        error = _log_prob_error(engine, expected)
    finally:
        engine.close()
    return Mismatch(len(completions), _differing(completions, expected), error)


def _log_prob_error(engine: Engine, expected: Answers) -> float:
    """Of the token that vLLM finds likeliest, at both ends of each completion in `read`."""
    lasts = [
        prompt + completion[:-1]
        for prompt, completion in zip(expected.prompts, expected.read, strict=True)
    ]
    next_token = Sampling(num_completions=1, max_new_tokens=1, temperature=0.0, log_probs=True)
    ends = [one for (one,) in engine.generate([*expected.prompts, *lasts], next_token)]
    tokens = torch.tensor([one.token_ids[0] for one in ends])
    log_probs = torch.tensor([(one.log_probs or (float("nan"),))[0] for one in ends])
    # [P, 2, V] to [2P, V]: all first tokens, then all last ones, in the order of `ends`.
    rows = expected.logits.transpose(0, 1).flatten(0, 1).log_softmax(-1)
    return float((log_probs - rows.gather(-1, tokens[:, None])[:, 0]).abs().max())
