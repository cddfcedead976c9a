"""Ask a trained model: one question, many, or as a stream; nothing heavy is imported until then."""

from lib.inference.external import DEFAULT_MODEL
from lib.inference.generator import (
    GenerationSettings,
    Solution,
    build_text_generator,
    generate_math_solution,
    save_prompt_and_response,
)

__all__ = [
    "DEFAULT_MODEL",
    "GenerationSettings",
    "Solution",
    "build_text_generator",
    "generate_math_solution",
    "save_prompt_and_response",
]
