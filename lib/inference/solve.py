"""The three calls of a user's own code: load a model, ask it, keep what it said.

from lib.inference import build_text_generator, generate_math_solution

generator = build_text_generator("data/models/export")
print(generate_math_solution("What is 15 * 23?", generator).answer)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lib.inference.exported import DEFAULT_MODEL, find_model
from lib.inference.solution import Decoding, Solution

if TYPE_CHECKING:
    from lib.inference.answerer import Answerer

GeneratorName = Literal["transformers", "vllm"]

__all__ = ["DEFAULT_MODEL", "build_text_generator", "generate_math_solution"]


def build_text_generator(
    model_id: str | Path = DEFAULT_MODEL,
    *,
    device: str = "auto",
    batch_size: int = 16,
    engine: GeneratorName = "transformers",
    max_seq_length: int = 4096,
) -> "Answerer":
    """Load a model, with the prompt format, stop strings and system prompt that it came with.

    Args:
        model_id: folder of an export, of a checkpoint beside its `base`, or a Hub id.
        device: as torch names it; "auto" takes a GPU where there is one.
        batch_size: questions answered at a time.
        engine: what generates. vLLM takes the device that it was built for, holds one model at a
            time (`close` gives it back), and streams a completion as one piece.
        max_seq_length: tokens of prompt and answer together that vLLM sets memory aside for, where
            the model has as many positions.

    Raises:
        UserError: no such model or device, files that make up none, or vLLM is not installed.
    """
    folder = find_model(model_id)
    from lib.inference.loading import load_generator, load_on_vllm

    if engine == "vllm":
        return load_on_vllm(
            folder, device=device, batch_size=batch_size, max_seq_length=max_seq_length
        )
    return load_generator(folder, device=device, batch_size=batch_size)


def generate_math_solution(
    question: str,
    generator: "Answerer",
    max_new_tokens: int = 200,
    temperature: float = 0.9,
) -> Solution:
    """Answer one question; temperature 0 is greedy.

    Raises:
        UserError: an empty question, or one too long for the model's positions.
    """
    decoding = Decoding(max_new_tokens=max_new_tokens, temperature=temperature)
    return generator.generate([question], decoding)[0]
