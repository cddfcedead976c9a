"""Counting tokens with a fast tokenizer, without torch or transformers."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from lib.artifacts import read_json
from lib.problems.lengths import CountTokens, Rendering
from lib.prompts import PromptFormat


def token_counter(checkpoint: Path) -> CountTokens:
    """Counts with the `tokenizer.json` of a checkpoint, adding no special tokens."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    return count


def rendering_of(checkpoint: Path, *, prompt_format: PromptFormat, system: str) -> Rendering:
    """How problems are rendered for a checkpoint's tokenizer."""
    return Rendering(
        prompt_format=prompt_format,
        system=system,
        bos_token=_special_token(checkpoint, "bos_token"),
        eos_token=_special_token(checkpoint, "eos_token"),
    )


def _special_token(checkpoint: Path, name: str) -> str:
    """A special token's text, '' where the tokenizer has none."""
    token = read_json(checkpoint / "tokenizer_config.json").get(name) or ""
    return str(token["content"]) if isinstance(token, dict) else str(token)
