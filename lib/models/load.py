"""Load checkpoints: a full model, or a LoRA adapter on the model in the folder `base`."""

import os
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    PeftModelForCausalLM,
    get_peft_model,
    get_peft_model_state_dict,
)
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lib.core.errors import UserError, first_line
from lib.models.files import ADAPTER_WEIGHTS, is_adapter, misfit, read_adapter, tensors_of
from lib.models.hub import find, kernel_repository
from lib.models.pretrained import DAMAGED, load_pretrained, load_tokenizer
from lib.models.unsloth import adapt_unsloth, load_unsloth
from lib.models.weights import read_pointer, weights_of
from lib.params.model import FLASH_KERNEL, Lora, Model


def trainable_policy(
    checkpoint: Path,
    *,
    base: Path,
    settings: Model,
    seed: int,
    memory_share: float = 0.0,
) -> PreTrainedModel | PeftModel:
    """Load a checkpoint for a training phase, by transformers or Unsloth (`settings.backend`).

    If `settings.lora.rank` > 0 and the checkpoint has no LoRA adapter yet, a new one is added.

    Args:
        checkpoint: folder that the phase before wrote: a full model, or an adapter on `base`.
        seed: seed of a new adapter in Unsloth; peft draws from torch's generator, already seeded.
        memory_share: Unsloth's share of the GPU for a vLLM on the policy's weights; 0 loads none.
    """
    adapter = checkpoint if is_adapter(checkpoint) else None
    if settings.backend == "unsloth":
        full_model = base if adapter else checkpoint
        model = load_unsloth(
            weights_of(full_model), settings=settings, seed=seed, memory_share=memory_share
        )
        model.pointer = read_pointer(full_model)
        # LoRA rank 0 trains all weights. No phase then writes an adapter, and `adapter` is None.
        if not settings.lora.rank:
            return model
        return adapt_unsloth(model, settings=settings, seed=seed, adapter=adapter)
    policy = load_policy(checkpoint, base=base, settings=settings)
    if settings.lora.rank and adapter is None:
        return add_adapter(policy, settings.lora)
    return policy


def load_policy(checkpoint: Path, *, base: Path, settings: Model) -> PreTrainedModel | PeftModel:
    """Load a checkpoint for training; an adapter is trainable, the model below it frozen.

    Args:
        checkpoint: folder of a full model or of an adapter.
        base: folder of the base model, on which an adapter was trained.
        settings: the section `model` of params.
    """
    adapter = is_adapter(checkpoint)
    full_model = base if adapter else checkpoint
    full = _load_full(full_model, dtype=settings.dtype, attention=settings.attention)
    if not adapter:
        return full
    policy = load_adapter(full, checkpoint, is_trainable=True)
    # During training the adapter's config names the folder of the base's weights (`weights_of`).
    # If it named a model of the Hub, peft would ask the Hub for it at each save. `save_policy`
    # writes the Hub's name again.
    policy.peft_config["default"].base_model_name_or_path = str(weights_of(base))
    return policy


def load_merged(checkpoint: Path, *, base: Path, dtype: str, attention: str) -> PreTrainedModel:
    """Load a checkpoint as one full model for inference; an adapter is merged into the weights."""
    adapter = is_adapter(checkpoint)
    full = _load_full(base if adapter else checkpoint, dtype=dtype, attention=attention)
    return merged(load_adapter(full, checkpoint)) if adapter else full


def merged(policy: PeftModel) -> PreTrainedModel:
    """Fold an adapter into its model: W + (alpha / rank) · B A in the weights' own dtype.

    Tied embeddings are untied first if the adapter changes one of them: peft 0.21 would fold into
    the weight that both share.
    """
    model = policy.get_base_model()
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    below = [
        layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer for layer in layers
    ]
    if [*layers] != below and below[0].weight is below[1].weight:
        below[1].weight = torch.nn.Parameter(below[1].weight.detach().clone())
        model.config.get_text_config(decoder=True).tie_word_embeddings = False
        model.config.tie_word_embeddings = False
    return policy.merge_and_unload()


def _load_full(path: Path, *, dtype: str, attention: str) -> PreTrainedModel:
    """Load a full model; add embedding rows for the tokens that `prepare` added to the tokenizer.

    Args:
        path: folder of a full checkpoint, or of a base model with a pointer to its weights.
        dtype: as torch names it, such as "bfloat16".
        attention: `model.attention`, a name or a kernel of the Hub at a commit.

    Raises:
        UserError: the attention's kernel cannot be loaded.
    """
    weights = weights_of(path)
    try:
        model = load_pretrained(
            AutoModelForCausalLM,
            weights,
            dtype=getattr(torch, dtype),
            attn_implementation=with_kernel(attention),
        )
    except (ImportError, ValueError) as error:
        # transformers reports a missing package (ImportError) also for a kernel that the Hub lacks;
        # other errors about the kernel are ValueErrors with its name.
        about_kernel = isinstance(error, ImportError) or FLASH_KERNEL in str(error)
        if not ("flash" in attention and about_kernel):
            raise
        raise UserError(
            f"model.attention={attention} cannot be had: it needs a GPU, and the package `kernels` "
            f"(`make setup EXTRA=gpu`), which loads {FLASH_KERNEL} as `make fetch` brought it, or "
            "from the Hub at first use; or set model.attention: sdpa"
        ) from error
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        # Sampling settings beside `do_sample: false`, which some models have: `save_pretrained`
        # would refuse them after the training.
        model.generation_config.do_sample = True
    model.pointer = read_pointer(path)
    if model.pointer.get("name"):
        fit_embeddings(model, load_tokenizer(path), weights=weights)
    return model


def fit_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, weights: Path
) -> None:
    """Add an embedding row for each token that was added to a pretrained tokenizer.

    The row is the mean of the rows of the pieces into which the pretrained tokenizer splits the
    token: "<answer>" gets the mean of, say, "<", "answer" and ">". It is the same at every load, so
    that an adapter is trained and merged on equal embeddings.

    Args:
        tokenizer: with the added tokens.
        weights: the folder of the pretrained model, whose tokenizer knows the pieces.
    """
    before = load_pretrained(AutoTokenizer, weights)
    added = _added_tokens(tokenizer, before)
    if not added:
        return
    # A padded embedding table may have rows enough already. It is never cut.
    rows = max(model.get_input_embeddings().weight.shape[0], len(tokenizer))
    model.resize_token_embeddings(rows, mean_resizing=False)
    layers: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    # A set, since tied layers share one weight.
    tables = {layer.weight for layer in layers if layer is not None}
    with torch.no_grad():
        for token in added:
            pieces = before(token, add_special_tokens=False)["input_ids"]
            for table in tables:
                table[tokenizer.convert_tokens_to_ids(token)] = table[pieces].mean(dim=0)


def has_added_rows(checkpoint: Path) -> bool:
    """Return True if the weights on disk have no embeddings for tokens added to the tokenizer.

    `fit_embeddings` computes these when the model is loaded.
    """
    if not read_pointer(checkpoint).get("name"):
        return False
    before = load_pretrained(AutoTokenizer, weights_of(checkpoint))
    return bool(_added_tokens(load_pretrained(AutoTokenizer, checkpoint), before))


def _added_tokens(tokenizer: PreTrainedTokenizerBase, before: PreTrainedTokenizerBase) -> list[str]:
    known = before.get_vocab()
    return [token for token in tokenizer.get_added_vocab() if token not in known]


def with_kernel(attention: str) -> str:
    """Return `model.attention` as transformers takes it, after setting the path of a pinned kernel.

    "sdpa" stays; "kernels-community/flash-attn2@<commit>" -> "kernels-community/flash-attn2". The
    commit is cut off, since transformers looks for the kernel's version in the name (`flash.*2`),
    and could find a digit of the commit. Instead the environment variable `LOCAL_KERNELS` names the
    commit's files for the package `kernels`, which then needs no network.

    Raises:
        UserError: the kernel is not on this machine, and cannot be fetched.
    """
    kernel, _, commit = attention.partition("@")
    if commit:
        os.environ["LOCAL_KERNELS"] = f"{kernel}={find(kernel_repository(commit))}"
    return kernel


def load_adapter(model: PreTrainedModel, folder: Path, *, is_trainable: bool = False) -> PeftModel:
    """Wrap a model with the LoRA adapter in `folder`.

    Raises:
        UserError: the adapter is not kept as safetensors, or does not fit the model.
    """
    saved = read_adapter(folder)
    try:
        config = LoraConfig(**saved, inference_mode=not is_trainable)
        policy = PeftModelForCausalLM(model, config)
        unexpected = policy.load_adapter(
            folder, "default", is_trainable=is_trainable
        ).unexpected_keys
    # Modules that the model lacks, shapes that differ, values of another kind.
    except DAMAGED as error:
        raise UserError(f"{folder} does not fit the model: {first_line(error)}") from error
    expected = get_peft_model_state_dict(policy, save_embedding_layers=False)
    missing = {*expected} - {*tensors_of(folder / ADAPTER_WEIGHTS)}
    if missing or unexpected:
        raise UserError(f"{folder} {misfit(missing, unexpected)}")
    return policy


def add_adapter(model: PreTrainedModel, lora: Lora) -> PeftModel:
    """Freeze `model` and put trainable low-rank adapters on it (arXiv:2106.09685).

    Raises:
        UserError: the model has none of the layers, or layers that take no adapter.
    """
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"model.lora.target_modules: {first_line(error)}") from error
    # peft refuses names only if none of them is a layer.
    adapted_layers = [f".{name}" for name in adapted.targeted_module_names]
    for target in lora.target_modules:
        if not any(name.endswith(f".{target}") for name in adapted_layers):
            raise UserError(f"model.lora.target_modules: the model has no layer `{target}`")
    return adapted


def max_positions(config: Any) -> int | None:
    """Return the maximum tokens of prompt and completion together; None if there is no limit."""
    text = config.get_text_config(decoder=True)
    positions: int | None = getattr(text, "max_position_embeddings", None)
    return positions


def rope_switch(config: Any) -> int | None:
    """Return the length beyond which a `longrope` model (Phi-3, Phi-4-mini) switches to its long
    RoPE factors; None for any other model.

    After the switch, keys that were cached before it are wrong. transformers 5.17's `generate` does
    not compute them again.
    """
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    longrope = rope.get("rope_type") == "longrope"
    return rope["original_max_position_embeddings"] if longrope else None


def read_max_positions(folder: Path) -> int | None:
    """Return `max_positions` of the model in a folder, without loading it."""
    return max_positions(load_pretrained(AutoConfig, folder))


def read_dtype(folder: Path) -> str:
    """Return the dtype that the model in a folder was saved in."""
    return str(load_pretrained(AutoConfig, folder).dtype or "float32").removeprefix("torch.")
