"""A model as one GGUF file, which llama.cpp and what builds on it read.

Tensor names, types and metadata keys are those of the `gguf` package; how a Llama's heads are laid
out, and that vectors stay in float32, follows llama.cpp's `convert_hf_to_gguf.py`.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lib.engines.policy import load_merged, load_tokenizer, with_kernel
from lib.errors import UserError
from lib.params.measuring import Export

if TYPE_CHECKING:
    from gguf import GGUFWriter

GGUF_FOLDER = "gguf"

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Model types whose layout is known here: those of the presets."""

PRE_TOKENIZERS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
}
"""llama.cpp's name of each way to cut text into pieces, by the tokenizer's expression."""

UNKNOWN_PRE_TOKENIZER = "default"
"""llama.cpp warns about it, and may cut text otherwise than the tokenizer; token ids it takes."""


def write_gguf_form(folder: Path, export: Export, *, quantizer: Path | None) -> None:
    """Write the model in `folder` as `gguf/reckon-<checkpoint>-<TYPE>.gguf` too.

    Raises:
        UserError: `quantizer` failed; quotes the last line of its output.
    """
    kind = export.gguf
    (folder / GGUF_FOLDER).mkdir()
    to = folder / GGUF_FOLDER / f"reckon-{export.checkpoint}-{kind.upper()}.gguf"
    if quantizer is None:
        write_gguf(folder, to, kind=kind)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        plain = Path(scratch) / "f16.gguf"
        write_gguf(folder, plain, kind="f16")
        command = [str(quantizer), str(plain), str(to), kind.upper()]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode or not to.is_file():
        output = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()
        raise UserError(f"export.gguf: {quantizer.name} failed on {kind}: {output[-1]}")


def gguf_path(folder: Path) -> Path:
    """The one GGUF file of an export.

    Raises:
        ValueError: there is none, or more than one.
    """
    (path,) = (folder / GGUF_FOLDER).glob("*.gguf")
    return path


def write_gguf(folder: Path, to: Path, *, kind: str) -> None:
    """Write the model in `folder` as one file of `kind`, "f16" or "q8_0".

    Vectors stay in float32; in q8_0, so do matrices in float16 whose rows are no multiple of 32.

    Raises:
        UserError: an architecture or rotary scaling that is not known here.
    """
    import gguf

    config, tokenizer = AutoConfig.from_pretrained(folder), load_tokenizer(folder)
    check_convertible(config)
    model = load_merged(folder, base=folder, dtype="float32", attention="sdpa")
    writer = gguf.GGUFWriter(to, config.model_type)
    _add_shape(writer, config)
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_Q8_0 if kind == "q8_0" else gguf.LlamaFileType.MOSTLY_F16
    )
    _add_vocabulary(writer, tokenizer, folder, size=config.vocab_size)
    for name, tensor in tensors_of(model).items():
        data, held_as = _rounded(tensor, kind)
        writer.add_tensor(name, data, raw_dtype=held_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_convertible(config: PretrainedConfig) -> None:
    """Refuse what would come out wrong.

    Raises:
        UserError: names the architecture, or the rotary scaling.
    """
    if config.model_type not in ARCHITECTURES:
        raise UserError(
            f"export.gguf: no GGUF of a `{config.model_type}` model; there are "
            f"{', '.join(ARCHITECTURES)}. Set it to none, and convert with llama.cpp's own script"
        )
    rope = config.rope_parameters.get("rope_type", "default")
    if rope not in {"default", "llama3"}:
        raise UserError(
            f"export.gguf: rotary scaling `{rope}` is not known here; set it to none, and convert "
            "with llama.cpp's own script"
        )


def tensors_of(model: PreTrainedModel) -> dict[str, np.ndarray[Any, Any]]:
    """Float32 weights by GGUF name; tied output weights are the embeddings and are left out."""
    import gguf

    config = model.config
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise UserError(f"export.gguf: tensor {name} has no place in a {config.model_type}")
        data = tensor.float().numpy()
        if config.model_type == "llama" and ".self_attn." in name:
            data = _interleaved(name, data, config)
        tensors[known] = data
    if (factors := _rope_factors(model)) is not None:
        tensors["rope_freqs.weight"] = factors
    return tensors


def _interleaved(
    name: str, data: np.ndarray[Any, Any], config: PretrainedConfig
) -> np.ndarray[Any, Any]:
    """Rows of q and k as llama.cpp rotates a Llama's: neighbours, not halves of a head."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[key] for key in heads if f".{key}." in name), None)
    if count is None:
        return data
    halves = data.reshape(count, 2, data.shape[0] // count // 2, *data.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(data.shape))


def _rope_factors(model: PreTrainedModel) -> np.ndarray[Any, Any] | None:
    """[head_dim / 2] what scaling divides each rotary frequency by, None where it is 1."""
    rope = model.config.rope_parameters
    if rope.get("rope_type", "default") == "default":
        return None
    inverse = model.model.rotary_emb.inv_freq.cpu().float().numpy()
    steps = np.arange(0, 2 * len(inverse), 2, dtype=np.float32) / (2 * len(inverse))
    return np.asarray(rope["rope_theta"] ** -steps / inverse, dtype=np.float32)


def _rounded(tensor: np.ndarray[Any, Any], kind: str) -> tuple[np.ndarray[Any, Any], Any]:
    """A tensor as it is stored, and the type of that."""
    from gguf import GGMLQuantizationType, quantize

    if tensor.ndim == 1:
        return tensor, GGMLQuantizationType.F32
    if kind == "q8_0" and tensor.shape[-1] % 32 == 0:
        return quantize(tensor, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0
    return tensor.astype(np.float16), GGMLQuantizationType.F16


def _add_shape(writer: "GGUFWriter", config: PretrainedConfig) -> None:
    head_dim = head_dim_of(config)
    writer.add_type("model")
    writer.add_name("reckon")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config.vocab_size)


def head_dim_of(config: PretrainedConfig) -> int:
    """Width of one attention head."""
    explicit: int | None = getattr(config, "head_dim", None)
    return explicit or config.hidden_size // config.num_attention_heads


def _add_vocabulary(
    writer: "GGUFWriter", tokenizer: PreTrainedTokenizerBase, folder: Path, *, size: int
) -> None:
    """Byte-level BPE: tokens with their types, merges, special tokens, chat template."""
    from gguf import SpecialVocab

    tokens, types = vocabulary(tokenizer, size=size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(folder))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    special = SpecialVocab(folder, load_merges=True, n_vocab=size)
    special.add_special_token.setdefault("bos", tokenizer.bos_token_id is not None)
    special.add_to_gguf(writer, quiet=True)


def vocabulary(tokenizer: PreTrainedTokenizerBase, *, size: int) -> tuple[list[str], list[int]]:
    """`size` tokens in order with their types; rows beyond the tokenizer's are unused ones."""
    from gguf import TokenType

    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for number in range(size):
        if number not in by_id:
            kind = TokenType.UNUSED
        elif number not in added:
            kind = TokenType.NORMAL
        else:
            kind = TokenType.CONTROL if added[number].special else TokenType.USER_DEFINED
        tokens.append(by_id.get(number, f"[PAD{number}]"))
        types.append(int(kind))
    return tokens, types


def pre_tokenizer(folder: Path) -> str:
    """llama.cpp's name for how the tokenizer in `folder` cuts text into pieces.

    Raises:
        UserError: the tokenizer is no byte-level BPE.
    """
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    steps = content["pre_tokenizer"] or {}
    parts = steps.get("pretokenizers", [steps])
    if content["model"]["type"] != "BPE" or not any(p.get("type") == "ByteLevel" for p in parts):
        raise UserError(
            "export.gguf: the tokenizer is no byte-level BPE; set it to none, and convert with "
            "llama.cpp's own script"
        )
    expressions = (part.get("pattern", {}).get("Regex", "") for part in parts)
    known = (PRE_TOKENIZERS.get(expression) for expression in expressions)
    return next(filter(None, known), UNKNOWN_PRE_TOKENIZER)


def load_gguf(path: Path, folder: Path, *, dtype: str, attention: str) -> PreTrainedModel:
    """The model in a GGUF file, read by transformers, whose reader is not the writer above.

    Metadata are compared with those of the model in `folder`.

    Raises:
        ValueError: something in the file is not what the folder holds.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation=with_kernel(attention)
    )
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    known = {name: tensor for name, tensor in read.items() if name in model.state_dict()}
    missing, _ = model.load_state_dict(known, strict=False)
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if lost := set(missing) - tied:
        raise ValueError(f"{path.name} lacks {sorted(lost)[0]}")
    check_metadata(path, folder)
    return model


def check_metadata(path: Path, folder: Path) -> None:
    """Compare a file's shape, vocabulary, merges and template with those of a model's folder.

    Raises:
        ValueError: names the first key that differs.
    """
    from gguf import GGUFReader, SpecialVocab

    config, tokenizer = AutoConfig.from_pretrained(folder), load_tokenizer(folder)
    tokens, types = vocabulary(tokenizer, size=config.vocab_size)
    special = SpecialVocab(folder, load_merges=True, n_vocab=config.vocab_size)
    expected = {
        "general.architecture": config.model_type,
        f"{config.model_type}.block_count": config.num_hidden_layers,
        f"{config.model_type}.attention.key_length": head_dim_of(config),
        f"{config.model_type}.attention.head_count_kv": config.num_key_value_heads,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": special.merges,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }
    fields = GGUFReader(path).fields
    for key, value in expected.items():
        stored = fields[key].contents() if key in fields else None
        if stored != value:
            raise ValueError(f"{path.name}: {key} is not what the model has")
