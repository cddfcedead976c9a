"""The export as one GGUF file for llama.cpp, with a `Modelfile` for Ollama.

The layout is that of llama.cpp's converter, with llama.cpp's names of the weights. Vectors are in
float32, matrices in float16 or in blocks of 32 weights (q8_0). For a Llama, the rows of the query
and key matrices are reordered (`_interleaved`). The file has the tokenizer's tokens and merges, but
only the name of its pre-tokenizer, the split of a text before merging; llama.cpp has the code.
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
"""`export.gguf` → type of the matrices, and the type that the file's header names."""

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""transformers' `model_type` → llama.cpp's architecture."""

# The alternatives: an English contraction; letters with at most one other character before them;
# digits (`%s`); punctuation; line ends; white space.
# "I've 2 cats" -> "I", "'ve", " ", "2", " cats".
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS = {
    (_WORDS % r"\p{N}",): "qwen2",  # "2026" is four pieces
    (_WORDS % r"\p{N}{1,3}",): "llama-bpe",  # "2026" is "202", "6"
    ("digits", "gpt2"): "smollm",
    ("gpt2",): "gpt-2",
}
"""Steps of a byte-level tokenizer's pre-tokenizer, as `split_name` reads them → llama.cpp's name
for them all."""


def write_gguf(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    kind: str,
    end_ids: Collection[int],
) -> Path:
    """Write model and tokenizer as one GGUF file, and return its path.

    Args:
        model: the weights in float32, not yet rounded.
        folder: the export, with the saved tokenizer; the file goes to its `gguf/`.
        kind: storage of the matrices, "f16" or "q8_0".
        end_ids: ids of the tokens that end a completion.

    Raises:
        UserError: llama.cpp has no form for this architecture or tokenizer.
    """
    pre_tokenizer = split_name(tokenizer)
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
    matrix_type, file_type = BLOCKS[kind]
    # Without `head_dim`, as in older configs, the heads share the hidden size equally.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # May be more than the tokenizer has tokens: embeddings are often padded to a round number.
    num_rows = model.get_input_embeddings().weight.shape[0]
    header = {
        "name": "reckon",
        "file_type": file_type,
        "quantization_version": gguf.GGML_QUANT_VERSION,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        **dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), head_dim),
        "rope_freq_base": rope["rope_theta"],
        "vocab_size": num_rows,
    }
    for name, value in header.items():
        getattr(writer, f"add_{name}")(value)
    _add_tokenizer(
        writer,
        tokenizer,
        folder,
        pre_tokenizer=pre_tokenizer,
        num_rows=num_rows,
        end_ids=end_ids,
    )
    if rope["rope_type"] == "llama3":
        # [head_dim / 2] factors: llama.cpp computes the plain frequencies theta^(-2i / head_dim),
        # and divides them by these to get the model's scaled frequencies.
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        scaled: torch.Tensor = model.get_submodule("model.rotary_emb").inv_freq.cpu()
        factors = rope["rope_theta"] ** -exponents / scaled
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    _add_weights(writer, model, architecture, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_weights(
    writer: gguf.GGUFWriter,
    model: PreTrainedModel,
    architecture: gguf.MODEL_ARCH,
    matrix_type: gguf.GGMLQuantizationType,
) -> None:
    """Add all weights: vectors in float32, matrices as `matrix_type` or in float16."""
    config: Any = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensor_names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        # A file without an output layer tells llama.cpp that the layer is tied to the embeddings.
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        # "model.layers.0.self_attn.q_proj.weight" -> "q_proj"
        module = name.split(".")[-2]
        if config.model_type == "llama" and module in heads:
            weight = _interleaved(weight, heads[module])
        if weight.ndim == 1:
            weight_type = gguf.GGMLQuantizationType.F32
        # GGML_QUANT_SIZES has (weights, bytes) of a block: q8_0 needs rows of whole blocks of 32.
        elif weight.shape[-1] % gguf.GGML_QUANT_SIZES[matrix_type][0]:
            weight_type = gguf.GGMLQuantizationType.F16
        else:
            weight_type = matrix_type
        packed = gguf.quantize(weight.float().cpu().numpy(), weight_type)
        gguf_name = tensor_names.get_name(name, (".weight", ".bias"))
        if gguf_name is None:
            raise UserError(f"export.gguf: GGUF has no name for the weight {name}")
        writer.add_tensor(gguf_name, packed, raw_dtype=weight_type)


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a Llama's query or key weights for llama.cpp.

    In each head, the rows of the first and second half alternate: 0 1 2 3 -> 0 2 1 3. Rotary
    embeddings rotate pairs of rows, which lie half a head apart in transformers and side by side in
    llama.cpp.

    Args:
        weight: [heads · head_dim, ...].
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def split_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return llama.cpp's name for a tokenizer's pre-tokenizer, such as "qwen2" or "gpt-2".

    The pre-tokenizer splits a text before tokens are merged. It is a step of the tokenizer's JSON
    ({"type": "Digits", ...}), or a sequence of steps ({"pretokenizers": [...]}).

    Raises:
        UserError: llama.cpp has no name for it, and would read other tokens than the model learned.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    whole = backend["pre_tokenizer"] or {}
    splits = []
    for step in whole.get("pretokenizers", [whole]):
        kind = step.get("type")
        if kind == "Split":
            splits.append(step["pattern"].get("Regex", ""))
        elif kind == "Digits" and step["individual_digits"]:
            splits.append("digits")
        elif kind == "ByteLevel" and not step["add_prefix_space"]:
            # Without `use_regex`, ByteLevel maps bytes to characters and splits nothing.
            if step["use_regex"]:
                splits.append("gpt2")
        else:
            splits.append(str(kind))
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
    pre_tokenizer: str,
    num_rows: int,
    end_ids: Collection[int],
) -> None:
    # By token id. The embeddings may have more rows than there are tokens: a row without a token
    # keeps its [PAD…].
    tokens = [f"[PAD{token_id}]" for token_id in range(num_rows)]
    types = [gguf.TokenType.UNUSED] * num_rows
    for token, token_id in tokenizer.get_vocab().items():
        tokens[token_id], types[token_id] = token, gguf.TokenType.NORMAL
    # Added tokens are in the vocabulary too; here they get another type: control for special
    # tokens, user-defined for the rest.
    for token_id, added in tokenizer.added_tokens_decoder.items():
        added_type = gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED
        tokens[token_id], types[token_id] = added.content, added_type
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # GGUF has a field for EOS and one for another end token (EOT): the one with the lowest id.
    for end_id in sorted(set(end_ids) - {tokenizer.eos_token_id})[:1]:
        writer.add_eot_token_id(end_id)
    vocabulary = gguf.SpecialVocab(folder, load_merges=True, n_vocab=num_rows)
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
    end_ids: Collection[int],
) -> str:
    """Return the text of an Ollama `Modelfile`: template, system prompt, the evaluation's sampling.

    Args:
        file: the GGUF file, in the folder of the Modelfile.
        system: the default system prompt; '' for none.
        evaluate: the section of params with the sampling settings.
        end_ids: ids of the tokens that end a completion.

    Raises:
        UserError: a text holds three quotes, which would end it in a Modelfile.
    """
    # `_go_template` renders the chat template with Ollama's variables: .System in place of
    # SYSTEM-HERE, .Prompt in place of the question. Ollama fills in both, and .Response.
    template = (
        "{{ if .System }}"
        + _go_template(tokenizer, system="SYSTEM-HERE")
        + "{{ else }}"
        + _go_template(tokenizer, system="")
        + "{{ end }}{{ .Response }}"
    )
    texts = {"TEMPLATE": template}
    if system:
        texts["SYSTEM"] = system
    for name, text in texts.items():
        if '"""' in text:
            raise UserError(f'export.gguf: {name} of a Modelfile cannot hold """: {text!r}')
    # Ollama stops at texts; an end token is named by its text.
    stops = [*stop_strings, *tokenizer.convert_ids_to_tokens(sorted(end_ids))]
    settings = {
        "temperature": evaluate.temperature,
        "top_p": evaluate.top_p,
        # By default Ollama truncates by rank (top-k) and penalises repetition; the evaluation does
        # neither.
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "num_predict": evaluate.max_new_tokens,
        "num_ctx": max_seq_length,
    }
    lines = [
        f"FROM ./{file.name}",
        *(f'{name} """{text}"""' for name, text in texts.items()),
        *(f'PARAMETER stop "{stop}"' for stop in stops),
        *(f"PARAMETER {name} {value}" for name, value in settings.items()),
    ]
    return "\n".join([*lines, ""])


def _go_template(tokenizer: PreTrainedTokenizerBase, *, system: str) -> str:
    """Render the chat template for one prompt, as a Go template for Ollama.

    The prompt becomes "{{ .Prompt }}", and the text SYSTEM-HERE in `system` "{{ .System }}".
    """
    text = tokenizer.apply_chat_template(
        conversation("PROMPT-HERE", system=system), add_generation_prompt=True, tokenize=False
    )
    # "{{" in the chat template's own text would begin a variable: `{{ "{{" }}` prints it. Done
    # before the placeholders become variables, which must stay as they are.
    text = str(text).replace("{{", '{{ "{{" }}')
    return text.replace("PROMPT-HERE", "{{ .Prompt }}").replace("SYSTEM-HERE", "{{ .System }}")
