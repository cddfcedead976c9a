"""The export as one GGUF file for llama.cpp, with a `Modelfile` for Ollama.

The layout is that of llama.cpp's converter. It has its own names of weights, vectors in float32,
matrices in float16 or in blocks of 32 weights (q8_0), and a Llama's queries and keys with the
halves of each head interleaved. The file has the tokenizer's tokens and merges, but only a name for
the way it splits texts; llama.cpp has the code for that.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.core.errors import UserError
from lib.params.model import Evaluate
from lib.prompts.formats import conversation

FOLDER = "gguf"

BLOCKS = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
"""`export.gguf` → type of the matrices, and of the file."""

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""transformers' `model_type` → llama.cpp's architecture."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS = {
    (_WORDS % r"\p{N}",): "qwen2",
    (_WORDS % r"\p{N}{1,3}",): "llama-bpe",
    ("digits", "gpt2"): "smollm",
    ("gpt2",): "gpt-2",
}
"""The steps by which a byte-level tokenizer splits texts (`split_name`) → llama.cpp's name for
them."""


def write_gguf(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    kind: str,
    ends: Collection[int],
) -> Path:
    """Write a model in float32 and the tokenizer saved in `folder` as one file.

    Args:
        folder: the export; the file goes to its `gguf/`.
        kind: a key of `BLOCKS`.
        ends: tokens that end a completion.

    Raises:
        UserError: llama.cpp has no form for this architecture or tokenizer.
    """
    split = split_name(tokenizer)
    config: Any = model.config
    rope = config.rope_parameters
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None or rope["rope_type"] not in ("default", "llama3"):
        raise UserError(
            f"export.gguf={kind}: expected one of {', '.join(ARCHITECTURES)} with plain or llama3 "
            f"positions, got {config.model_type} with {rope['rope_type']}; set export.gguf to none"
        )
    file = folder / FOLDER / f"model-{kind}.gguf"
    file.parent.mkdir()
    # The packed weights go to a temporary file, since memory holds the model itself.
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture], use_temp_file=True)
    block, file_type = BLOCKS[kind]
    writer.add_name("reckon")
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    rows = model.get_input_embeddings().weight.shape[0]
    writer.add_vocab_size(rows)
    _add_tokenizer(writer, tokenizer, folder, split=split, rows=rows, ends=ends)
    if rope["rope_type"] == "llama3":
        # llama.cpp reads the factors by which the plain frequencies are divided.
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        scaled: torch.Tensor = model.get_submodule("model.rotary_emb").inv_freq.cpu()
        factors = rope["rope_theta"] ** -exponents / scaled
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        # A file without an output layer tells llama.cpp that the layer is tied to the embeddings.
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if config.model_type == "llama" and ".q_proj." in name:
            weight = _interleaved(weight, config.num_attention_heads)
        elif config.model_type == "llama" and ".k_proj." in name:
            weight = _interleaved(weight, config.num_key_value_heads)
        stored = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else block
        if weight.ndim > 1 and weight.shape[-1] % gguf.GGML_QUANT_SIZES[block][0]:
            stored = gguf.GGMLQuantizationType.F16  # its rows cannot be cut into whole blocks
        packed = gguf.quantize(weight.float().cpu().numpy(), stored)
        known = names.get_name(name, (".weight", ".bias"))
        if known is None:
            raise UserError(f"export.gguf={kind}: GGUF has no name for the weight {name}")
        writer.add_tensor(known, packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of queries or keys in llama.cpp's order.

    In each head, rows of the first and second half alternate.
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def split_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return llama.cpp's name for the way a tokenizer splits texts before it merges.

    Raises:
        UserError: llama.cpp has no name for it, and would read other tokens than the model learned.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    whole = backend["pre_tokenizer"] or {}
    splits = []
    for part in whole.get("pretokenizers", [whole]):
        if part.get("type") == "Split":
            splits.append(part["pattern"].get("Regex", ""))
        elif part.get("type") == "Digits" and part["individual_digits"]:
            splits.append("digits")
        elif part.get("type") != "ByteLevel" or part["add_prefix_space"]:
            splits.append(str(part.get("type")))
        elif part["use_regex"]:
            splits.append("gpt2")
    if backend["model"]["type"] != "BPE" or tuple(splits) not in SPLITS:
        raise UserError(
            f"export.gguf: llama.cpp has no name for a tokenizer that splits texts by {splits}; "
            f"expected that of {', '.join(SPLITS.values())}; set export.gguf to none"
        )
    return SPLITS[tuple(splits)]


def _add_tokenizer(
    writer: gguf.GGUFWriter,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    split: str,
    rows: int,
    ends: Collection[int],
) -> None:
    """Add tokens, merges, special tokens and chat template."""
    # The embeddings may have more rows than there are tokens; unused rows get these names.
    tokens = [f"[PAD{number}]" for number in range(rows)]
    types = [gguf.TokenType.UNUSED] * rows
    for token, number in tokenizer.get_vocab().items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for number, added in tokenizer.added_tokens_decoder.items():
        special = gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED
        tokens[number], types[number] = added.content, special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for end in sorted(set(ends) - {tokenizer.eos_token_id})[:1]:
        writer.add_eot_token_id(end)
    vocabulary = gguf.SpecialVocab(folder, load_merges=True, n_vocab=rows)
    # The chat template prints BOS already; if llama.cpp added it too, it would be there twice.
    vocabulary.add_special_token = {"bos": False, "eos": False}
    vocabulary.add_to_gguf(writer, quiet=True)


def modelfile(
    file: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    system: str,
    evaluate: Evaluate,
    max_seq_length: int,
    stop_strings: Sequence[str],
    ends: Collection[int],
) -> str:
    """Return Ollama's description of `file`: template, system prompt, the evaluation's sampling.

    Args:
        ends: tokens that end a completion.

    Raises:
        UserError: a text holds three quotes, which would end it in a Modelfile.
    """

    def rendered(system: str) -> str:
        text: Any = tokenizer.apply_chat_template(
            conversation("PROMPT-HERE", system=system), add_generation_prompt=True, tokenize=False
        )
        # Ollama's templates are Go's, so that double braces in the text itself must be quoted.
        text = text.replace("{{", '{{ "{{" }}').replace("PROMPT-HERE", "{{ .Prompt }}")
        return str(text.replace("SYSTEM-HERE", "{{ .System }}"))

    template = f"{{{{ if .System }}}}{rendered('SYSTEM-HERE')}{{{{ else }}}}{rendered('')}"
    texts = {"TEMPLATE": f"{template}{{{{ end }}}}{{{{ .Response }}}}"}
    if system:
        texts["SYSTEM"] = system
    for name, text in texts.items():
        if '"""' in text:
            raise UserError(f'export.gguf: {name} of a Modelfile cannot hold """: {text!r}')
    stops = [*stop_strings, *(tokenizer.convert_ids_to_tokens(end) for end in sorted(ends))]
    settings: list[tuple[str, object]] = [
        *(("stop", f'"{stop}"') for stop in stops),
        ("temperature", evaluate.temperature),
        ("top_p", evaluate.top_p),
        # Ollama cuts and punishes repetition by default; the evaluation does neither.
        ("top_k", 0),
        ("min_p", 0.0),
        ("repeat_penalty", 1.0),
        ("num_predict", evaluate.max_new_tokens),
        ("num_ctx", max_seq_length),
    ]
    lines = [f"FROM ./{file.name}", *(f'{name} """{text}"""' for name, text in texts.items())]
    return "\n".join([*lines, *(f"PARAMETER {name} {value}" for name, value in settings), ""])
