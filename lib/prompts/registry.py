"""The formats by name."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, load_plugin
from lib.prompts.base import PromptFormat
from lib.prompts.boxed import BoxedFormat
from lib.prompts.layouts import ALPACA, LAYOUTS, PLAIN, R1_ZERO
from lib.prompts.tagged import TaggedFormat

PROMPT_FORMATS: dict[str, TaggedFormat | BoxedFormat] = {
    each.name: each
    for each in (
        TaggedFormat(
            name="working_out",
            working=("<start_working_out>", "<end_working_out>"),
            answer=("<SOLUTION>", "</SOLUTION>"),
            opened_by_prompt=True,
        ),
        TaggedFormat(
            name="working_out_lines",
            working=("<start_working_out>", "<end_working_out>"),
            answer=("<SOLUTION>", "</SOLUTION>"),
            opened_by_prompt=True,
            separator="\n",
            opens_with="\n",
        ),
        TaggedFormat(
            name="xml",
            working=("<reasoning>", "</reasoning>"),
            answer=("<answer>", "</answer>"),
            opened_by_prompt=False,
            separator="\n",
        ),
        TaggedFormat(
            name="r1_zero",
            working=("<think>", "</think>"),
            answer=("<answer>", "</answer>"),
            opened_by_prompt=True,
            opens_with=" ",
            between=" ",
            stop_strings=("</answer>",),
            layout=R1_ZERO,
        ),
        BoxedFormat(
            name="boxed",
            instructions="Solve the problem step by step. Put the final answer in \\boxed{}.",
        ),
        BoxedFormat(name="question_only"),
        BoxedFormat(name="alpaca", layout=ALPACA),
    )
}


def prompt_format(
    name: str, *, tags: Sequence[str] = (), layout: str = "plain"
) -> TaggedFormat | BoxedFormat:
    """The format called `name`.

    Args:
        name: as in `PROMPT_FORMATS`, or `plugins/file.py:name`.
        tags: four tags in place of the format's own: working open, close, answer open, close.
        layout: "plain", or the turns of a model family: "chatml" (Qwen), "llama3".

    Raises:
        UserError: no such format or layout (lists those that there are), or tags that the format
            cannot take.
    """
    if is_plugin(name):
        own_format = _own_format(name)
    elif name in PROMPT_FORMATS:
        own_format = PROMPT_FORMATS[name]
    else:
        raise UserError(f"prompt.format: no format `{name}`; there are {', '.join(PROMPT_FORMATS)}")
    if tags:
        own_format = _with_tags(own_format, tags)
    return own_format if layout == "plain" else _with_layout(own_format, layout)


def _own_format(name: str) -> TaggedFormat | BoxedFormat:
    own = load_plugin(name)
    if not isinstance(own, TaggedFormat | BoxedFormat):
        raise UserError(f"{name}: expected a TaggedFormat or a BoxedFormat, got {own!r}")
    return dataclasses.replace(own, name=name)


class PromptSection(Protocol):
    """Params' section `prompt`, as far as it names a format."""

    @property
    def format(self) -> str:
        """See `prompt_format`."""
        ...

    @property
    def tags(self) -> tuple[str, ...]:
        """See `prompt_format`."""
        ...

    @property
    def layout(self) -> str:
        """See `prompt_format`."""
        ...


def format_settings(prompt: PromptSection) -> dict[str, Any]:
    """What `prompt_format` takes, from params."""
    return {"name": prompt.format, "tags": prompt.tags, "layout": prompt.layout}


def _with_tags(own_format: PromptFormat, tags: Sequence[str]) -> TaggedFormat:
    if not isinstance(own_format, TaggedFormat):
        raise UserError(f"prompt.tags: `{own_format.name}` has no tags; leave the list empty")
    if len(tags) != 4 or len(set(tags)) != 4 or not all(tag.strip() for tag in tags):
        raise UserError(
            f"prompt.tags: {list(tags)}; expected four different tags: "
            "working open, working close, answer open, answer close"
        )
    # Generation stops at the end of the answer, whatever that tag is now called.
    stops = (tags[3],) if own_format.stop_strings else ()
    return dataclasses.replace(
        own_format, working=(tags[0], tags[1]), answer=(tags[2], tags[3]), stop_strings=stops
    )


def _with_layout(own_format: TaggedFormat | BoxedFormat, layout: str) -> TaggedFormat | BoxedFormat:
    if layout not in LAYOUTS:
        raise UserError(f"prompt.layout: no layout `{layout}`; there are {', '.join(LAYOUTS)}")
    if own_format.layout is not PLAIN:
        raise UserError(
            f"prompt.layout: `{own_format.name}` brings its own text around the question; "
            "use `plain`"
        )
    return dataclasses.replace(own_format, layout=LAYOUTS[layout])
