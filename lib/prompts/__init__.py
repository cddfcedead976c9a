"""Prompt formats: each renders prompts and SFT's targets, parses completions, and has stop strings.

`formats` defines the two kinds, `registry` has them by name, `template` their chat templates;
`targets` renders SFT's completions, and `saved` stores a model's format and system prompt beside
its tokenizer.
"""

from lib.prompts.formats import BoxedFormat, ParsedCompletion, PromptFormat, TaggedFormat
from lib.prompts.registry import PROMPT_FORMATS, prompt_format
from lib.prompts.saved import (
    Generation,
    save_prompt,
    save_system,
    saved_format,
    saved_generation,
    saved_system,
    special_tokens,
    system_prompt,
    with_default_system,
)
from lib.prompts.template import Message, render

__all__ = [
    "PROMPT_FORMATS",
    "BoxedFormat",
    "Generation",
    "Message",
    "ParsedCompletion",
    "PromptFormat",
    "TaggedFormat",
    "prompt_format",
    "render",
    "save_prompt",
    "save_system",
    "saved_format",
    "saved_generation",
    "saved_system",
    "special_tokens",
    "system_prompt",
    "with_default_system",
]
