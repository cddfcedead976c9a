"""Prompt formats: each renders prompts and targets, parses completions, and knows its stop
strings.
"""

from lib.prompts.formats import (
    PROMPT_FORMATS,
    BoxedFormat,
    ParsedCompletion,
    PromptFormat,
    TaggedFormat,
    prompt_format,
    prompt_text,
)
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
    "prompt_text",
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
