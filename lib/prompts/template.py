"""Layouts of conversations as text, and their rendering.

One Jinja template serves all formats, with a `Layout`'s text around each turn.
`tokenizer.apply_chat_template` and vLLM's server read it. It therefore names BOS and EOS by the
tokenizer's variables, and marks answers with `{% generation %}` for `assistant_only_loss`. The text
begins with BOS if the tokenizer has one: tokenise it *without* adding special tokens, or BOS is
there twice. `prompt_text` returns the text of
`tokenizer.apply_chat_template(..., tokenize=False)` without a tokenizer.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, str]
"""One chat turn: {"role": "system" | "user" | "assistant", "content": text}."""

Around = tuple[str, str]
"""Text before and after a turn's content."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The text around each turn.

    Attributes:
        preamble: text at the start of a conversation without a system message.
        system: text before and after a system message.
        user: text before and after a user message.
        assistant: the end of the prompt, after the last user message.
        after_answer: text between an answer's EOS and the next turn.
    """

    preamble: str = ""
    system: Around = ("", "\n")
    user: Around = ("", "\n")
    assistant: str = ""
    after_answer: str = ""


PLAIN = Layout()

# The families of the presets' instruct models; their EOS ends a turn.
CHATML = Layout(
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant="<|im_start|>assistant\n",
    after_answer="\n",
)
LLAMA3 = Layout(
    system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
    user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    assistant="<|start_header_id|>assistant<|end_header_id|>\n\n",
)

# Table 1 of arXiv:2501.12948, word for word.
R1_ZERO = Layout(
    preamble=(
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        "provides the user with the answer. The reasoning process and answer are enclosed within "
        "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning "
        "process here </think> <answer> answer here </answer>."
    ),
    system=("", ""),
    user=("\nUser: ", "\n"),
    assistant="Assistant: ",
)

# The prompt without input of Stanford Alpaca (github.com/tatsu-lab/stanford_alpaca, train.py).
ALPACA = Layout(
    preamble=(
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request."
    ),
    system=("", ""),
    user=("\n\n### Instruction:\n", "\n\n"),
    assistant="### Response:",
)

LAYOUTS = {"plain": PLAIN, "chatml": CHATML, "llama3": LLAMA3}
"""Layouts for `prompt.layout`; each of the others belongs to one format."""


def chat_template(layout: Layout, *, opening: str = "") -> str:
    """Return the Jinja source of `layout`; `opening` is a tag at the prompt's end, '' for none."""
    # Printed for prompts and for answers, so that a prompt is a prefix of prompt plus answer.
    before_answer = layout.assistant + opening
    # SmolLM2's BOS equals the opening of a ChatML turn. Its own template prints it once, so no BOS
    # is printed before the first turn.
    own_opening = ' and bos_token != "<|im_start|>"' if layout is CHATML else ""
    return (
        f"{{%- if bos_token{own_opening} -%}}{{{{- bos_token -}}}}{{%- endif -%}}"
        f"{{%- if messages[0]['role'] != 'system' -%}}{_text(layout.preamble)}{{%- endif -%}}"
        "{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}"
        f"{_text(before_answer)}"
        "{% generation %}{{- message['content'] + eos_token -}}{% endgeneration %}"
        f"{{%- if not loop.last -%}}{_text(layout.after_answer)}{{%- endif -%}}"
        f"{{%- elif message['role'] == 'system' -%}}{_turn(layout.system)}"
        f"{{%- else -%}}{_turn(layout.user)}"
        "{%- endif -%}{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{_text(before_answer)}{{%- endif -%}}"
    )


def _text(text: str) -> str:
    """Return Jinja source that prints `text`; JSON's string escapes are Jinja's too."""
    return f"{{{{- {json.dumps(text)} -}}}}" if text else ""


def _turn(around: Around) -> str:
    return f"{_text(around[0])}{{{{- message['content'] -}}}}{_text(around[1])}"


class _Generation(Extension):
    """`{% generation %}`: prints its body; the marks matter to a tokenizer only."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        # transformers' extension (`AssistantTracker`) also records the answer's position, which
        # rendering as text does not need.
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
    """Render a conversation as text; `bos_token` is '' for a tokenizer without one.

    Raises:
        jinja2.TemplateError: `template` is no valid chat template.
    """
    return _compiled(template).render(
        messages=messages,
        bos_token=bos_token,
        eos_token=eos_token,
        add_generation_prompt=add_generation_prompt,
    )


# Compiling a template takes 8 ms, rendering a prompt with it 0.01 ms (one CPU core).
@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    # transformers' settings for chat templates (utils/chat_template_utils.py).
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation]
    )
    compiled: jinja2.Template = environment.from_string(template)
    return compiled
