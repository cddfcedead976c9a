"""Chat templates of the prompt formats, and the rendering of conversations as text.

All formats share one Jinja template, with a `Layout`'s text around each turn. The template is read
by `tokenizer.apply_chat_template` and vLLM's server. It therefore names BOS and EOS by the
tokenizer's variables, and marks answers with `{% generation %}` for `assistant_only_loss`. The text
begins with BOS if the tokenizer has one: tokenise it *without* adding special tokens, or it
begins with BOS twice. Without a tokenizer, `render` returns the same text as
`tokenizer.apply_chat_template(..., tokenize=False)`.
"""

import contextlib
import dataclasses
import json
import resource
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import psutil
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lib.core.errors import UserError, first_line

Message = dict[str, str]
"""One chat turn: {"role": "system" | "user" | "assistant", "content": text}."""

Around = tuple[str, str]
"""Text before and after a turn's content."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The text around each turn of a conversation.

    A prompt and its answer in `CHATML`; the last `<|im_end|>` is the EOS:

        <|im_start|>user\\n18 + 54?<|im_end|>\\n<|im_start|>assistant\\n72<|im_end|>

    Attributes:
        preamble: text at the start of a conversation without a system message.
        system: text before and after a system message.
        user: text before and after a user message.
        assistant: text before an answer; the prompt ends with it.
        after_answer: text between an answer's EOS and the next turn.
    """

    preamble: str = ""
    system: Around = ("", "\n")
    user: Around = ("", "\n")
    assistant: str = ""
    after_answer: str = ""


PLAIN = Layout()

# The families of the presets' instruct models. Their EOS is the token that ends a turn
# (`<|im_end|>`, `<|eot_id|>`), so no text for it follows an answer.
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

OWN = Layout()
"""The model's own chat template, which `prepare` saves with the base model's tokenizer."""

LAYOUTS = {"plain": PLAIN, "chatml": CHATML, "llama3": LLAMA3, "own": OWN}
"""Values of `prompt.layout`. `R1_ZERO` and `ALPACA` belong to one prompt format each."""


def chat_template(layout: Layout, *, opening: str = "") -> str:
    """Return the Jinja source of a layout's chat template.

    It reads `messages`, `bos_token`, `eos_token` and `add_generation_prompt`, and prints BOS, the
    preamble (if there is no system message), and each turn with the layout's text around it.

    Args:
        layout: for `OWN`, the source is ''.
        opening: tag at the prompt's end, such as `<think>`; '' for none.
    """
    if layout is OWN:
        return ""
    # Printed at the end of a prompt, and also before an answer in a conversation: a prompt is
    # therefore a prefix of prompt plus answer.
    before_answer = layout.assistant + opening
    # SmolLM2's BOS is `<|im_start|>`, which every ChatML turn begins with. SmolLM2's own template
    # prints no BOS before the first turn, so this condition leaves it out here too.
    bos_condition = ' and bos_token != "<|im_start|>"' if layout is CHATML else ""
    # In an f-string, `{{%-` writes Jinja's `{%-`, and `{{{{-` writes `{{-`. The minus signs remove
    # white space around the code. `_text` returns Jinja code that prints a text, `_turn` code that
    # prints a message with the text around it.
    return (
        f"{{%- if bos_token{bos_condition} -%}}{{{{- bos_token -}}}}{{%- endif -%}}"
        f"{{%- if messages[0]['role'] != 'system' -%}}{_text(layout.preamble)}{{%- endif -%}}"
        "{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}"
        f"{_text(before_answer)}"
        # `generation` marks answers for TRL's `assistant_only_loss`.
        "{% generation %}{{- message['content'] + eos_token -}}{% endgeneration %}"
        f"{{%- if not loop.last -%}}{_text(layout.after_answer)}{{%- endif -%}}"
        f"{{%- elif message['role'] == 'system' -%}}{_turn(layout.system)}"
        f"{{%- else -%}}{_turn(layout.user)}"
        "{%- endif -%}{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{_text(before_answer)}{{%- endif -%}}"
    )


def _text(text: str) -> str:
    """Return Jinja source that prints `text`: `A:` gives `{{- "A:" -}}`, '' gives ''.

    JSON's string escapes are Jinja's too, except the surrogate pairs that stand for an emoji in
    ASCII.
    """
    return f"{{{{- {json.dumps(text, ensure_ascii=False)} -}}}}" if text else ""


def _turn(around: Around) -> str:
    """Return Jinja source that prints the content of `message` with the text around it."""
    return f"{_text(around[0])}{{{{- message['content'] -}}}}{_text(around[1])}"


class _Generation(Extension):
    """Jinja's tag `{% generation %}…{% endgeneration %}`: prints its body unchanged."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        # transformers' extension (`AssistantTracker`) also records the answer's position, which
        # rendering as text does not need.
        next(parser.stream)  # skips the word `generation` itself
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(
    messages: Sequence[Message],
    *,
    template: str,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool,
) -> str:
    """Render a conversation as text with the Jinja source of a chat template.

    Args:
        template: the Jinja source.
        bos_token: printed first; '' for a tokenizer without one.
        eos_token: printed after each answer.
        add_generation_prompt: end with the start of the assistant's turn, for a prompt.

    Raises:
        jinja2.TemplateError: `template` is no valid chat template.
    """
    return _compiled(template).render(
        messages=messages,
        bos_token=bos_token,
        eos_token=eos_token,
        add_generation_prompt=add_generation_prompt,
    )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


# Compiling a template takes 8 ms, rendering a prompt with it 0.01 ms (one CPU core).
@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    """Compile a chat template as transformers does, sandboxed; repeated calls use a cache."""
    # The settings are those of transformers (utils/chat_template_utils.py). `_Generation` adds the
    # tag `{% generation %}`, which Jinja does not know, and prints its content unchanged.
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    compiled: jinja2.Template = environment.from_string(template)
    return compiled


RENDERING_S, PROMPT_S, RENDERING_BYTES = 10, 0.1, 2 * 2**30
"""Most time for a call of `bounded_rendering` and for each of its prompts, and most memory."""

TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Exceptions of a chat template that fails, as for a role that it does not know."""


@contextlib.contextmanager
def bounded_rendering(name: str, num_prompts: int) -> Iterator[None]:
    """Bound time and memory of a block that renders prompts, in a process's main thread.

    A stranger's chat template is a program, and so is a tokenizer's regular expression. What
    recognises a trial could run for ever later, so that every real rendering is bounded instead.

    Raises:
        UserError: the block takes more, the template fails, or the tokenizer's Rust code panics.
    """

    def expire(*_: object) -> None:
        raise UserError(f"{name}: its chat template or tokenizer takes more than {limit_s:g} s")

    limit_s = RENDERING_S + PROMPT_S * num_prompts
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        handler = signal.signal(signal.SIGALRM, expire)
        timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
        if limits[0] == resource.RLIM_INFINITY:
            most = psutil.Process().memory_info().vms + RENDERING_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    except MemoryError as error:
        raise UserError(f"{name}: its chat template takes too much memory") from error
    except TEMPLATE_FAULTS as error:
        raise UserError(
            f"{name}: its chat template fails: {first_line(error)}; set PROMPT_FORMAT to another "
            "layout, such as boxed/chatml"
        ) from error
    except BaseException as error:
        # pyo3's exception is no Exception: a regular expression that its engine gives up on.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{name}: its tokenizer cannot read a prompt ({error})") from None
    finally:
        if in_main_thread:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)
