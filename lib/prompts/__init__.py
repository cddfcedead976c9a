"""Prompt formats: one object renders prompts and targets, parses completions, knows its stops."""

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
    save_prompt,
    save_system,
    saved_format,
    saved_system,
    special_tokens,
    system_prompt,
    with_default_system,
)
from lib.prompts.template import Message, render

__all__ = [
    "PROMPT_FORMATS",
    "BoxedFormat",
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
    "saved_system",
    "special_tokens",
    "system_prompt",
    "with_default_system",
]
