"""Tensors from seeds, and a tokenizer and a model that score a batch in milliseconds."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB_SIZE = 131
BOS, EOS, PAD = 128, 129, 130


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def token_ids(*shape: int) -> Tensor:
    """Draw ids of ASCII characters."""
    return torch.randint(100, shape, generator=seeded())


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of one token per ASCII character; EOS and PAD differ; it adds no token."""
    characters = {chr(i): i for i in range(128)}
    vocabulary = characters | {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD}
    by_character = Tokenizer(models.WordLevel(vocabulary, unk_token="\x00"))
    by_character.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=by_character, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def tiny_model(seed: int, **changes: object) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 512,
        # the default of 0.02 leaves all distributions near uniform: nothing would be told apart
        "initializer_range": 0.3,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }
    return Qwen3ForCausalLM(Qwen3Config(**(shape | changes)))
