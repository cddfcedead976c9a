"""From a problem to the text that a model reads.

`prompt_text` gives what `tokenizer.apply_chat_template(..., tokenize=False)` gives, without needing
a tokenizer: length counting and the tests use one rendering.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lib.prompts.base import Message, PromptFormat


class _Generation(Extension):
    """`{% generation %}`: prints its body; the marks matter to a tokenizer only."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(
    messages: Sequence[Message],
    *,
    template: str,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool,
) -> str:
    """Text of a conversation; `bos_token` is '' for a tokenizer that has none.

    Raises:
        jinja2.TemplateError: `template` is no valid chat template.
    """
    return _compiled(template).render(
        messages=messages,
        bos_token=bos_token,
        eos_token=eos_token,
        add_generation_prompt=add_generation_prompt,
    )


def prompt_text(
    prompt_format: PromptFormat, problem: str, *, system: str = "", bos_token: str = ""
) -> str:
    """What the model is given before it generates."""
    return render(
        prompt_format.prompt(problem, system=system),
        template=prompt_format.chat_template,
        bos_token=bos_token,
        eos_token="",
        add_generation_prompt=True,
    )


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    # The settings under which transformers compiles chat templates.
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation]
    )
    compiled: jinja2.Template = environment.from_string(template)
    return compiled
