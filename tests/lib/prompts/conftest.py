import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Natalia sold 48/2 = 24 clips in May. $x^2 + \\frac{1}{2}$ (and so on)",
    "<think> reasoning </think> <answer> 72 </answer> \\boxed{72}\nUser: Assistant:",
    "Below is an instruction. ### Response: A conversation between them <reasoning>",
]


@pytest.fixture(scope="session")
def build_tokenizer():
    """Train a byte-level BPE like Llama's: with special tokens, BOS comes first."""

    def build(chat_template, *, marks=(), bos=True):
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        specials = ["<pad>", "<eos>", *(["<bos>"] if bos else [])]
        trainer = BpeTrainer(
            vocab_size=420,
            special_tokens=specials,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(TEXTS * 3, trainer)
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
        if bos:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<bos> $A",
                pair="<bos> $A $B",
                special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))],
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            eos_token="<eos>",
            bos_token="<bos>" if bos else None,
            chat_template=chat_template,
        )

    return build
