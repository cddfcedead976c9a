"""Ask a trained model; importing this package imports nothing heavy."""

from lib.core.process import set_library_variables
from lib.inference.external import DEFAULT_MODEL
from lib.inference.generator import (
    GenerationSettings,
    Solution,
    build_text_generator,
    generate_math_solution,
    save_prompt_and_response,
)

# Before transformers is imported: with TensorFlow installed, it would import that as well.
set_library_variables()

__all__ = [
    "DEFAULT_MODEL",
    "GenerationSettings",
    "Solution",
    "build_text_generator",
    "generate_math_solution",
    "save_prompt_and_response",
]
