"""Prompt formats: one object renders prompts and targets, parses completions, knows its stops."""

from lib.prompts.base import Message, Parsed, PromptFormat
from lib.prompts.registry import PROMPT_FORMATS, format_settings, prompt_format
from lib.prompts.render import prompt_text, render
from lib.prompts.saved import save_prompt, saved_format, special_tokens
from lib.prompts.system import (
    save_system,
    saved_system,
    system_prompt,
    with_default_system,
)

__all__ = [
    "PROMPT_FORMATS",
    "Message",
    "Parsed",
    "PromptFormat",
    "format_settings",
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
