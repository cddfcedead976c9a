import pytest
from tokenizers import pre_tokenizers, processors

from lib.models.tiny import train_tokenizer

TEXTS = [
    "Natalia sold 48/2 = 24 clips in May. $x^2 + \\frac{1}{2}$ (and so on)",
    "<think> reasoning </think> <answer> 72 </answer> \\boxed{72}\nUser: Assistant:",
    "Below is an instruction. ### Response: A conversation between them <reasoning>",
]


@pytest.fixture(scope="session")
def build_tokenizer():
    """Train a byte-level BPE that splits texts as GPT-2's; as Llama's, it puts BOS first."""

    def build(chat_template, *, marks=(), bos=True):
        tokenizer = train_tokenizer(TEXTS, vocab_size=420, marks=marks, chat_template=chat_template)
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if bos:
            tokenizer.add_special_tokens({"bos_token": "<bos>"})
            backend.post_processor = processors.TemplateProcessing(
                single="<bos> $A",
                pair="<bos> $A $B",
                special_tokens=[("<bos>", tokenizer.bos_token_id)],
            )
        return tokenizer

    return build
