"""Ask a trained model: one question, many, or as a stream; nothing heavy is imported until then."""

from lib.inference.records import save_prompt_and_response
from lib.inference.solution import Decoding, Solution
from lib.inference.solve import DEFAULT_MODEL, build_text_generator, generate_math_solution

__all__ = [
    "DEFAULT_MODEL",
    "Decoding",
    "Solution",
    "build_text_generator",
    "generate_math_solution",
    "save_prompt_and_response",
]
