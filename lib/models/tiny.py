"""The default base model: a small tokenizer trained here and a Qwen3 with random weights.

No download is needed. The same texts and seed give the same bytes, so that a fresh clone reproduces
the checkpoint.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params.model import Model, Tiny
from lib.prompts import PromptFormat
from lib.prompts.tools import tool_tags

PAD_TOKEN = "<|pad|>"
EOS_TOKEN = "<|end|>"

_NUM_BYTES = 256

_PIECES = r"\d| [-+*/=] | ?\p{L}+(?: (?=\d))?| ?[^\s\p{L}\d]+|\s"
"""Pre-tokenisation: no token is longer than one piece. A piece is a digit, an operator between
spaces, a word or signs with the space before them, or a space. A word before a digit has the space
between them too: a digit is the same token everywhere, and that space is none of its own.
"12 + 3 is 5 more." -> "1", "2", " + ", "3", " is ", "5", " more", "."."""


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, marks: Sequence[str], chat_template: str
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with one token per digit and per mark.

    An operator's token includes the spaces around it ("3 + 4" is three tokens). EOS and the padding
    token differ, since labels of padding are masked and EOS must be learned. There is no BOS. Marks
    are ordinary tokens, which decoding keeps when it skips special ones.

    Args:
        texts: training problems and solutions without marks, from which merges are learned.
        vocab_size: number of tokens in all; fewer only if `texts` has too few pairs to merge.
        marks: the prompt format's tags.
        chat_template: the prompt format's Jinja source; saved with the tokenizer.

    Raises:
        UserError: `vocab_size` is too small for the bytes, two special tokens and the marks.
    """
    # Each byte is a token, so that any text can be encoded; EOS and padding; the marks.
    least = _NUM_BYTES + 2 + len(marks)
    if vocab_size < least:
        raise UserError(
            f"model.tiny.vocab_size: must be at least {least} "
            f"(256 bytes, 2 special tokens, {len(marks)} marks), got {vocab_size}"
        )
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(marks),
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    shape: Tiny,
    seed: int,
    max_positions: int,
) -> Qwen3ForCausalLM:
    """Build a Qwen3 with random fp32 weights and tied embeddings, one row per token of `tokenizer`.

    The weights depend only on `seed`, the sizes and `shape.initializer_range`. Torch's random
    states are left as they were.
    """
    token_ids = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=max_positions,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        dtype=torch.float32,
        **token_ids,
    )
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would seed the GPUs' generators too.
        torch.default_generator.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**token_ids)
    return model


def write_tiny(
    directory: Path,
    problems: Iterable[Problem],
    *,
    prompt_format: PromptFormat,
    model: Model,
    seed: int,
) -> None:
    """Train a tokenizer on `problems`; write it with a random-weight model of the size in params.

    Args:
        directory: the folder to write.
        seed: of the model's weights.
    """
    tokenizer = train_tokenizer(
        (text for problem in problems for text in (problem.problem, problem.solution)),
        vocab_size=model.tiny.vocab_size,
        marks=(*prompt_format.marks, *tool_tags(prompt_format.tool)),
        chat_template=prompt_format.chat_template,
    )
    untrained = build_model(
        tokenizer, shape=model.tiny, seed=seed, max_positions=model.max_seq_length
    )
    untrained.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
