"""The shape of a model, and the peak memory of a training phase.

A shape is read from a config.json only, without weights or torch.

A step has four moments; the largest decides the phase's peak:

    generation   weights, reference, optimiser state; keys and values of what is generated
    loss         activations kept for the backward pass of all layers, the output layer's logits
    backward     the same without logits, the output layer's gradient, one block's temporaries
    update       all gradients; twice that of a tied embedding, whose two parts are summed

With gradient accumulation all gradients exist at every moment but the first.

Bytes of one token in one block, with the widths h of the hidden state, q of the queries, k of the
keys and i of the MLP, and the bytes per value r of the residual stream (the weights' type) and c of
the compute type:

    h · (2 · (4 + r) + c · copies) + c · (2q + 2k + 4i) + (4 + c) · (q + k) with norms of q and k

A norm keeps its input in float32, and its quotient. Five products (q, k, v, gate, up) read the two
norms' results: each keeps its own copy if autocast converts it (`copies` 5), otherwise they share
the two (`copies` 2). Attention is sdpa or flash; neither keeps a table of scores. Before sdpa,
transformers repeats keys and values for each query head if rows are padded: 2q in place of 2k. The
formula was checked against torch's allocations on a CPU, under fake tensors
(tests/lib/planning/test_memory.py) and on one H100 (studies/presets/h100.json), where kernels, the
allocator's fragments and CUDA itself need memory too.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.inference.external import model_here
from lib.objectives import CHUNK_NUMEL, MAX_WHOLE_LOGITS
from lib.params import Params, model_shapes
from lib.params.engines import VLLM_SHARE
from lib.params.model import VERIFIED_BATCH, VERIFIED_TOKENS, Model
from lib.training.phase.launch import Launch

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

"""Row counts of sets, statements of the source systems, shapes of the presets' models."""

ARCHITECTURES = ("qwen2", "qwen3", "llama")
"""Supported values of `model_type`."""

CHUNK = CHUNK_NUMEL["cuda"]
"""Number of logits in a chunk on a GPU; a chunk on a CPU has fewer."""

ALONE = Launch()
"""A launch of one process."""

SFT_CHUNK = 256
"""Tokens of a chunk of TRL's `chunked_nll` (trl 1.14)."""


class Shape(BaseModel, frozen=True):
    """A decoder of Qwen's or Llama's kind: gated MLP, grouped-query attention, RMS norms.

    The fields are those of a config.json, which has others too.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: Annotated[int, Field(le=1000)]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False

    @property
    def query(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key(self) -> int:
        """The width of the keys, and of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def normed(self) -> int:
        """The width of queries and keys together if a norm follows each (Qwen3), else 0."""
        return self.query + self.key if self.model_type == "qwen3" else 0

    @property
    def parameters(self) -> int:
        # Qwen2 has biases on the q, k and v products only.
        bias = self.query + 2 * self.key if self.model_type == "qwen2" else 0
        # Two norms per block; Qwen3 adds one for queries and one for keys, of one head each.
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.normed else 0)
        blocks = self.linear_weights + self.num_hidden_layers * (bias + norms)
        final_norm = self.hidden_size
        return self.embeddings + blocks + final_norm

    @property
    def embeddings(self) -> int:
        """The number of weights of the embeddings and the output layer, which may be one."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def linear_weights(self) -> int:
        return self.num_hidden_layers * sum(a * b for a, b in self.linear_layers.values())

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one block: name as in LoRA's settings → (inputs, outputs)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, self.query),
            "k_proj": (hidden, self.key),
            "v_proj": (hidden, self.key),
            "o_proj": (self.query, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    def trained(self, model: Model) -> int:
        """Return the number of trained weights: all of them, or those of the LoRA adapters.

        An adapter has rank × (inputs + outputs) weights.
        """
        lora = model.lora
        if not lora.rank:  # 0: no LoRA
            return self.parameters
        widths = [sum(self.linear_layers.get(name, ())) for name in lora.target_modules]
        return self.num_hidden_layers * lora.rank * sum(widths)


def shape_of(model: Model) -> Shape | None:
    """Return the shape of params' base model; None if it is not known.

    It is not known if config.json is not on this machine, or has an unsupported architecture.

    Raises:
        UserError: its config.json is damaged.
    """
    if not model.name:
        tiny = model.tiny
        heads = {"num_attention_heads": tiny.num_heads, "num_key_value_heads": tiny.num_kv_heads}
        sizes = {"num_hidden_layers": tiny.num_layers, **heads, **tiny.model_dump()}
        return Shape(model_type="qwen3", tie_word_embeddings=True, **sizes)
    if config := model_shapes().get(model.name):
        return shape_in(config)
    # Imported only here: the Hub's client takes a quarter of a second.
    from lib.models import hub

    on_hub = hub.is_on_hub(model.name, model.revision)
    repository = hub.model_repository(model.name, model.revision)
    folder = repository.folder if on_hub else hub.local_model(model.name)
    return _shape_at(folder, key="model.name")


def teacher_shape(params: Params) -> Shape | None:
    """Return the shape of GRPO's teacher; None if it is not known, as before `sft` has made it.

    Raises:
        UserError: its config.json is damaged.
    """
    name = params.grpo.teacher
    if config := model_shapes().get(name):
        return shape_in(config)
    place = model_here(name)
    return _shape_at(place, key="grpo.teacher") if place else None


def _shape_at(place: Path, *, key: str) -> Shape | None:
    """Return the shape of a model's folder or GGUF file, which the param `key` names."""
    from lib.models import hub

    file = hub.gguf_file(place)
    config = (hub.dequantized_folder(file) if file else place) / "config.json"
    try:
        return shape_in(read_json(config)) if config.is_file() else None
    # A damaged file: no JSON, no mapping, a key missing or of another type, or no heads.
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{key}: {config} is no model's configuration ({fault}); copy or fetch it again"
        ) from error


def shape_in(config: Mapping[str, Any]) -> Shape | None:
    """Return the shape in the content of a config.json; None for an unsupported architecture."""
    if config.get("model_type") not in ARCHITECTURES:
        return None
    heads = config["num_attention_heads"]
    # For keys that config.json lacks or has as null: as many key-value heads as query heads, which
    # share the hidden size.
    defaults = {"num_key_value_heads": heads, "head_dim": config["hidden_size"] // heads}
    return Shape(**defaults | {key: value for key, value in config.items() if value is not None})


def section_of(params: Params, kind: str) -> Any:
    """Return the params section of `sft`, `grpo`, `dpo`, or `pairs` (DPO's sampling)."""
    return getattr(params.dpo if kind == "pairs" else params, kind)


def batch_of(params: Params, kind: str) -> int:
    """Return the rows of an optimiser step (examples, completions, pairs).

    For `pairs`, DPO's sampling, return the sequences of a batch.
    """
    batch: int = section_of(params, kind).batch_size
    return batch


def micro_batch_sizes(params: Params, kind: str) -> list[int]:
    """List the sizes of a phase's micro-batches that keep its gradient, the largest first."""
    section, batch = section_of(params, kind), batch_of(params, kind)
    # GRPO's loss `bnpo` averages over the micro-batch: another size would change the gradient.
    if getattr(section, "loss", "") == "bnpo":
        return [section.micro_batch_size]
    return [size for size in range(batch, 0, -1) if batch % size == 0]


def longest_row(params: Params, kind: str) -> int:
    """Return the tokens of the longest row, prompt and completion together.

    `prepare.lengths.max_tokens` limits SFT's rows, but only the prompts of GRPO; packed rows always
    have full length.
    """
    longest, cut = params.model.max_seq_length, params.prepare.lengths.max_tokens
    return min(cut, longest) if cut and kind == "sft" and not params.sft.packing else longest


@dataclasses.dataclass(frozen=True)
class Sampler:
    """An engine that generates in a phase.

    Attributes:
        engine: its name.
        vllm_share: its share of the policy's GPU, if it is vLLM.
        batch_size: completions at a time.
    """

    engine: str
    vllm_share: float
    batch_size: int


def samplers_of(params: Params, kind: str, launch: Launch = ALONE) -> list[Sampler]:
    """Return the engines that generate in a phase; [] if it does not sample.

    The engine of GRPO's rollouts comes first: if it is vLLM, GRPO's validation uses it too.

    Args:
        kind: `sft`, `grpo`, `dpo`, or `pairs` for DPO's sampling.
        launch: the ranks, which share out the rollouts, but not the validation.
    """
    rollout, validation, grpo = params.rollout, params.validation, params.grpo
    # Nothing is trained on the GPU meanwhile: a vLLM takes most of it.
    if kind == "pairs":
        return [Sampler(rollout.engine, VLLM_SHARE, batch_of(params, kind))]
    # With `rollout.device`, vLLM has a GPU of its own: its share of the policy's GPU is 0.
    beside_policy = not rollout.device
    samplers = []
    if kind == "grpo":
        share = rollout.gpu_memory_utilization if beside_policy else 0.0
        batch = grpo.prompts_per_step * grpo.group_size // launch.ranks
        samplers.append(Sampler(rollout.engine, share, batch))
    if section_of(params, kind).eval_steps:
        share = validation.gpu_memory_utilization if beside_policy else 0.0
        samplers.append(Sampler(validation.engine, share, validation.batch_size))
    return samplers


def memory_at_peak(
    params: Params, kind: str, shape: Shape, *, launch: Launch = ALONE
) -> dict[str, int]:
    """Return a phase's bytes by purpose at the moment of its peak, without vLLM's share.

    The moments are those of the module's docstring. Example: {"weights": …, "optimizer": …,
    "gradients": …, "activations": …, "logits": …}.

    Args:
        kind: `sft`, `grpo`, `dpo`, or `pairs` for DPO's sampling.
        launch: the ranks of the phase; `micro_batch_size` is that of one rank. Under FSDP2 they
            share out weights, reference, optimiser state and gradients, and gather two blocks at a
            time and the embeddings; under DDP each rank has all of them, and buckets for gradients.
    """
    model, section = params.model, section_of(params, kind)
    # Only engines on the policy's own weights: vLLM's cache is inside its share of the GPU.
    engines = samplers_of(params, kind, launch)
    samplers = [each for each in engines if each.engine == "transformers"]
    batch = max((each.batch_size for each in samplers), default=0)
    generation = _generation(shape, model, batch=batch, length=model.max_seq_length)
    if kind == "pairs":
        # The policy is merged and not trained. Without an engine on its own weights (batch 0), vLLM
        # generates, and its share holds the weights.
        weights = shape.parameters * BYTES[model.inference_dtype]
        return {"weights": weights, **generation} if batch else {}

    full, stored = not model.lora.rank, BYTES[model.dtype]
    weights = shape.parameters * stored
    # PEFT keeps adapters in float32, whatever the type of the model.
    trained = shape.trained(model) * (stored if full else BYTES["float32"])
    # In memory at every moment. AdamW has two moments of each trained weight.
    resident = {"weights": weights if full else weights + trained, "optimizer": 2 * trained}
    if section.optimizer == "memory_efficient_adamw":
        resident["optimizer"] = 0  # AdamW's two moments are in CPU memory
    # The KL penalty's reference policy: a copy of the trained weights.
    if kind != "sft" and section.beta:
        resident["reference"] = trained
    # DDP copies all gradients into buckets, which it sums over the ranks.
    if launch.ranks > 1 and not launch.shards:
        resident["buckets"] = trained
    ranks = launch.ranks if launch.shards else 1
    resident = {name: size // ranks for name, size in resident.items()}
    if kind == "grpo" and section.teacher:
        # Merged, and whole on every rank. Of unknown shape, it counts as the policy.
        resident["teacher"] = (teacher_shape(params) or shape).parameters * stored
    with_gradients = {**resident, "gradients": trained // ranks}
    # In the loss and backward pass. Only gradient accumulation keeps gradients meanwhile.
    accumulates = batch_of(params, kind) > section.micro_batch_size
    training = with_gradients if accumulates else resident
    if ranks > 1:
        block = shape.linear_weights // shape.num_hidden_layers
        training = {**training, "gathered": (2 * block + shape.embeddings) * stored}

    # The gradient of the output layer; LoRA freezes the layer.
    output_layer = shape.vocab_size * shape.hidden_size * stored if full else 0
    # A tied layer has it until the embeddings' part is added.
    summed = output_layer if shape.tie_word_embeddings else 0
    after_forward, in_backward = _activations(params, kind, shape, launch)
    logits = _logits(params, kind, shape, output_layer=output_layer)
    moments = (
        {**resident, **generation},
        {**training, "activations": after_forward, "logits": logits},
        {**training, "activations": in_backward, "output layer": output_layer},
        {**with_gradients, "output layer": summed},
    )
    return max(moments, key=lambda parts: sum(parts.values()))


def _generation(shape: Shape, model: Model, *, batch: int, length: int) -> dict[str, int]:
    """Return the bytes to generate `batch` sequences of `length` tokens, apart from the weights."""
    return {
        "cache": batch * length * cache_bytes_per_token(shape, model),
        # In float32, the logits of each sequence's last position, and a filtered copy of them.
        "logits": 2 * batch * shape.vocab_size * 4,
    }


def _activations(params: Params, kind: str, shape: Shape, launch: Launch) -> tuple[int, int]:
    """Return the bytes of activations: after the forward pass, and at most in the backward pass.

    They are those of one micro-batch of the longest rows in the phase `kind`.
    """
    model, layers = params.model, shape.num_hidden_layers
    # Bytes per value: of the weights and the residual stream, and of the compute type.
    stored, compute = BYTES[model.dtype], BYTES[model.inference_dtype]
    tokens, _ = forward_pass(params, kind, launch)
    residual = tokens * shape.hidden_size
    # Autocast converts each weight once in a forward pass, and keeps it for the backward pass.
    converted = shape.linear_weights * compute if compute < stored else 0
    repeats = model.attention in ("eager", "sdpa")
    block = tokens * _block_bytes(shape, stored, compute, repeats=repeats)
    # The last norm keeps its input in float32, its quotient, and the output layer's input.
    last_norm = residual * (4 + stored + compute)
    # In the backward pass of one block: two activations of the MLP, three float32 residuals.
    within_block = tokens * 2 * shape.intermediate_size * compute + residual * 3 * 4
    if not model.gradient_checkpointing:
        kept = block * layers
        return kept + last_norm + converted, kept + within_block + converted
    # Checkpointing keeps one residual per layer, and recomputes one block at a time, with the
    # converted weights of that block only.
    kept = residual * stored * layers
    return kept + last_norm + converted, kept + block + within_block + converted // layers


def _logits(params: Params, kind: str, shape: Shape, *, output_layer: int) -> int:
    """Return the peak bytes of a micro-batch's logits, and of their gradients, in the loss.

    Args:
        kind: `sft`, `grpo` or `dpo`.
        output_layer: bytes of the output layer's gradient.
    """
    # All tokens of the micro-batch, and those with logits. Logits are float32: 4 bytes each.
    tokens, scored = forward_pass(params, kind)
    if kind == "sft":
        # TRL computes the loss by chunks of tokens. One chunk has four tensors: logits, log-softmax
        # and two for the entropy. The hidden states of all tokens exist twice: TRL copies them in
        # another order, tokens with a label first.
        chunk = 4 * min(scored, SFT_CHUNK) * shape.vocab_size * 4
        return chunk + 2 * tokens * shape.hidden_size * BYTES[params.model.dtype] + output_layer
    numel = scored * shape.vocab_size
    full_kl = bool(params.grpo.teacher) and params.grpo.teacher_kl == "full"
    fuses = numel > MAX_WHOLE_LOGITS and params.model.backend != "unsloth"
    if kind == "grpo" and (fuses or full_kl):
        model, weight = params.model, shape.vocab_size * shape.hidden_size
        stored, compute = BYTES[model.dtype], BYTES[model.inference_dtype]
        autocast, half = compute < stored, compute < 4
        # The forward pass has two buffers of a chunk, logits and probabilities. The backward pass
        # has one, and the gradient of a trained output layer: the sum in float32, a chunk's
        # share in half precision.
        chunk = min(CHUNK, numel) * 4
        gradient = weight * (4 + compute * half) if output_layer else 0
        if autocast and model.gradient_checkpointing:
            gradient -= shape.linear_weights * compute
        # In half precision, both also have a copy of the chunk, and of a float32 layer's weights.
        converted = chunk // 2 * half + weight * compute * autocast
        # log p, and the teacher's logits and probabilities.
        return converted + chunk + max(chunk, gradient) + 3 * chunk * full_kl
    # All logits at once, and three tensors of their size in the backward pass.
    return 4 * numel * 4


def export_memory(params: Params, shape: Shape) -> dict[str, int]:
    """Return the peak bytes of an export by purpose: weights, cache, logits.

    The export generates the checkpoint's completions with one model in float32. Each exported form
    is then compared on their tokens.
    """
    model, evaluate = params.model, params.evaluate
    adapter = shape.trained(model) if model.lora.rank else 0
    weights = {"weights": BYTES["float32"] * (shape.parameters + adapter)}
    longest_prompt = model.max_seq_length - evaluate.max_new_tokens
    longest = longest_prompt + min(evaluate.max_new_tokens, VERIFIED_TOKENS)
    # `_generation` returns {"cache": keys and values, "logits": …} for float32, whatever training
    # computes in.
    in_float32 = model.model_copy(update={"dtype": "float32", "mixed_precision": "fp32"})
    return weights | _generation(shape, in_float32, batch=VERIFIED_BATCH, length=longest)


def forward_pass(params: Params, kind: str, launch: Launch = ALONE) -> tuple[int, int]:
    """Return two numbers of tokens in a micro-batch of the longest rows: all, and with logits.

    Args:
        kind: `sft`, `grpo` or `dpo`.
    """
    rows, longest = section_of(params, kind).micro_batch_size, longest_row(params, kind)
    # A row of DPO has two completions, each with its prompt. SFT and DPO score every token.
    if kind != "grpo":
        tokens = rows * longest * (2 if kind == "dpo" else 1)
        return tokens, tokens
    # A row of GRPO is one completion of at most `new` tokens; only completions are scored.
    new = params.rollout.max_new_tokens
    # + 1: the prompt's last position predicts the first new token.
    scored = rows * (new + 1)
    # Without checkpointing, one process computes a prompt once for all completions of its group.
    # Several ranks do not (`Scorer`).
    shares_prompts = launch.ranks == 1 and not params.model.gradient_checkpointing
    per_prompt = params.grpo.group_size if shares_prompts else 1
    num_prompts = math.ceil(rows / per_prompt)
    return scored + num_prompts * (longest - new), scored


def _block_bytes(shape: Shape, stored: int, compute: int, *, repeats: bool) -> int:
    """Return the bytes of one token in one block, by the formula in the module's docstring.

    Args:
        stored: bytes per value of weights and residual stream, r in the formula.
        compute: bytes per value of the compute type, c in the formula.
        repeats: keys and values are repeated for each query head.
    """
    # If autocast converts the two norms' results, each of five products keeps its own copy.
    copies = 2 if compute == stored else 5
    key = shape.query if repeats else shape.key
    products = compute * (2 * shape.query + 2 * key + 4 * shape.intermediate_size)
    norms = (4 + compute) * shape.normed
    return shape.hidden_size * (2 * (4 + stored) + compute * copies) + products + norms


def cache_bytes_per_token(shape: Shape, model: Model) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return shape.num_hidden_layers * 2 * shape.key * BYTES[model.inference_dtype]
