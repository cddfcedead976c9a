"""Write a checkpoint as one complete model in every form asked for, and prove each.

What is compared with what, on the same held-out prompts (`lib.export.compare`):

- a folded adapter with the adapter on top of its base, in float32, where both are one function;
- weights rounded to the export's type with the checkpoint in float32, logits alone, within what
  the type costs;
- what a fresh process loads from disk with what was written, in the type of the export, where both
  round alike (`lib.export.verify`).
"""

import dataclasses
import tempfile
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.decoding import end_tokens
from lib.engines.policy import is_adapter, load_merged, load_policy, load_tokenizer
from lib.errors import UserError
from lib.export.compare import SAME, TOLERANCE, Said, difference, listen
from lib.export.forms import GGUF_FOLDER, device_here, write_adapter
from lib.export.gguf_file import write_gguf
from lib.export.llama_cpp import find_quantizer, quantize
from lib.export.verify import Form, Found, Request, verify_afresh
from lib.params.measuring import Evaluate, Export
from lib.params.model import Model
from lib.prompts import Message

EXACT = {"dtype": "float32", "attention": "sdpa"}
"""How a fold is verified, whatever training used; flash attention is for 16 bits only."""

QUANTISED = {"q8_0": 5e-2, "q6_k": 1e-1, "q5_k_m": 2e-1, "q4_k_m": 3e-1}
"""Largest relative error of logits that a GGUF type may cost, against float32."""

Hear = Callable[..., Said]
"""`listen`, given all but the model and `along`."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """What was compared.

    Attributes:
        num_prompts: held-out prompts.
        num_parameters: of the exported model.
        logit_errors: relative error of the logits, by what was compared.
        found: by the fresh process.
    """

    num_prompts: int
    num_parameters: int
    logit_errors: dict[str, float]
    found: Found

    @property
    def on_vllm(self) -> str:
        """What vLLM said, in words; '' where it is not installed."""
        if self.found.vllm:
            return f"log-probs off by {self.found.vllm.log_prob_error:.2g} at most"
        refusal = self.found.vllm_refusal
        return f"not verified: {refusal}" if refusal else ""

    @property
    def numbers(self) -> dict[str, int]:
        """What is comparable between runs."""
        return {"num_prompts": self.num_prompts, "num_parameters": self.num_parameters}


def export_model(
    checkpoint: Path,
    to: Path,
    *,
    base: Path,
    prompts: Sequence[list[Message]],
    model: Model,
    evaluate: Evaluate,
    export: Export,
    stop_strings: Sequence[str] = (),
) -> Verified:
    """Fold an adapter into the weights, write every form of the model, load each again, compare.

    Args:
        to: a new folder; the caller puts it in place once this has returned.
        prompts: chat messages on which the greedy tokens must be the same.
        stop_strings: of the prompt format.

    Raises:
        UserError: a form says otherwise than the checkpoint does, or cannot be made.
    """
    quantizer = find_quantizer(export.gguf)
    exact, tokenizer = model.model_copy(update=EXACT), load_tokenizer(checkpoint)
    hear = partial(
        listen,
        tokenizer=tokenizer,
        conversations=prompts,
        max_new_tokens=evaluate.max_new_tokens,
        stop_strings=stop_strings,
    )
    merged, errors = _whole(checkpoint, base=base), {}
    if is_adapter(checkpoint):
        trained = hear(load_policy(checkpoint, base=base, settings=exact).to(device_here()))
        said, errors["fold"] = _fold(merged, trained, hear)
    else:
        said = trained = hear(merged)
    if export.dtype != "float32":
        said, errors["rounding"] = _round(merged, trained, hear, dtype=export.dtype)
    _save(merged, tokenizer, to, evaluate=evaluate, export=export, stops=stop_strings)
    with tempfile.TemporaryDirectory() as scratch:
        expecting = partial(_form, scratch=Path(scratch))
        forms = [expecting("merged", said, dtype=export.dtype, tolerance=SAME)]
        if export.adapter and is_adapter(checkpoint):
            write_adapter(checkpoint, to)
            forms.append(expecting("adapter", trained, tolerance=TOLERANCE["float32"]))
        if export.gguf != "none":
            write_gguf_form(to, export, quantizer=quantizer)
            form, cost = _gguf(to, trained, hear, kind=export.gguf, base=base, expecting=expecting)
            forms.append(form)
            errors |= cost
        found = verify_afresh(
            Request(
                folder=str(to.resolve()),
                base=str(base.resolve()),
                forms=tuple(forms),
                conversations=prompts,
                max_new_tokens=evaluate.max_new_tokens,
                stop_strings=stop_strings,
                threads=torch.get_num_threads(),
                attention=exact.attention,
            )
        )
    errors |= {kind: difference.logit_error for kind, difference in found.forms.items()}
    return Verified(len(prompts), merged.num_parameters(), errors, found)


def _whole(folder: Path, *, base: Path) -> PreTrainedModel:
    return load_merged(folder, base=base, **EXACT).to(device_here())


def _fold(merged: PreTrainedModel, trained: Said, hear: Hear) -> tuple[Said, float]:
    """What the folded model says, and its error."""
    said = hear(merged, along=trained.completions)
    return said, checked(said, trained, tolerance=TOLERANCE["float32"], what="fold")


def _round(merged: PreTrainedModel, trained: Said, hear: Hear, *, dtype: str) -> tuple[Said, float]:
    """Round `merged` itself to the export's type; what it says then, and the rounding's error."""
    round_weights(merged, getattr(torch, dtype))
    said = hear(merged, along=trained.completions)
    return said, checked(
        said, trained, tolerance=TOLERANCE[dtype], what="rounding", same_tokens=False
    )


def _gguf(
    folder: Path,
    trained: Said,
    hear: Hear,
    *,
    kind: str,
    base: Path,
    expecting: Callable[..., Form],
) -> tuple[Form, dict[str, float]]:
    """What the GGUF of the model in `folder` has to say, and what halving its matrices costs."""
    if kind in QUANTISED:
        return expecting("gguf", trained, tolerance=QUANTISED[kind], same_tokens=False), {}
    halved = _whole(folder, base=base)
    halve_matrices(halved)
    said = hear(halved, along=trained.completions)
    allowed = TOLERANCE["float16"]
    error = checked(said, trained, tolerance=allowed, what="f16", same_tokens=False)
    return expecting("gguf", said, tolerance=SAME), {"f16": error}


def _save(
    merged: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    to: Path,
    *,
    evaluate: Evaluate,
    export: Export,
    stops: Sequence[str],
) -> None:
    merged.generation_config = generation_config(
        evaluate, ends=end_tokens(merged, tokenizer), pad=tokenizer.pad_token_id, stops=stops
    )
    merged.save_pretrained(to, max_shard_size=export.max_shard_size)
    tokenizer.save_pretrained(to)


def _form(
    kind: str,
    said: Said,
    *,
    scratch: Path,
    dtype: str = "float32",
    tolerance: float,
    same_tokens: bool = True,
) -> Form:
    """A form that has to say what `said` holds."""
    path = scratch / f"{kind}.pt"
    said.save(path)
    return Form(
        kind=kind,
        dtype=dtype,
        expected=str(path),
        tolerance=tolerance,
        same_tokens=same_tokens,
    )


def checked(
    found: Said, expected: Said, *, tolerance: float, what: str, same_tokens: bool = True
) -> float:
    """The logits' error, if it is within the tolerance.

    Raises:
        UserError: it is not, or greedy completions differ where they must not.
    """
    differs = difference(found, expected)
    if fault := differs.fault(tolerance=tolerance, same_tokens=same_tokens):
        raise UserError(f"export: {what}: {fault}; nothing was exported")
    return differs.logit_error


def write_gguf_form(folder: Path, export: Export, *, quantizer: Path | None) -> None:
    """Write the model in `folder` as `gguf/reckon-<checkpoint>-<TYPE>.gguf` too."""
    (folder / GGUF_FOLDER).mkdir()
    to = folder / GGUF_FOLDER / f"reckon-{export.checkpoint}-{export.gguf.upper()}.gguf"
    if quantizer is None:
        write_gguf(folder, to, kind=export.gguf)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        plain = Path(scratch) / "f16.gguf"
        write_gguf(folder, plain, kind="f16")
        quantize(plain, to, kind=export.gguf, tool=quantizer)


def halve_matrices(model: PreTrainedModel) -> None:
    """Round matrices as a GGUF of type f16 does, which leaves vectors as they are."""
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data = weight.data.half().float()


def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round parameters alone: `to` would round rotary frequencies too, which loading does not."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


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
