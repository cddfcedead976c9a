"""The prompt formats by name, and a format with other tags, another layout or a tool."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, load_plugin
from lib.prompts.formats import BoxedFormat, PromptFormat, TaggedFormat
from lib.prompts.template import ALPACA, LAYOUTS, PLAIN, R1_ZERO
from lib.prompts.tools import find_tool

WORKING_OUT = TaggedFormat(
    name="working_out",
    working=("<start_working_out>", "<end_working_out>"),
    answer=("<SOLUTION>", "</SOLUTION>"),
    opened_by_prompt=True,
)

PROMPT_FORMATS: dict[str, PromptFormat] = {
    each.name: each
    for each in (
        WORKING_OUT,
        dataclasses.replace(WORKING_OUT, name="working_out_lines", separator="\n", opens_with="\n"),
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
            # The public course's prompt, which differs from the paper's in a few words.
            wording=(
                "A conversation between User and Assistant. The User asks a question, and the "
                "Assistant solves it. The Assistant first thinks about the reasoning process in "
                "the mind and then provides the User with the answer. The reasoning process is "
                "enclosed within {0} {1} and answer is enclosed within {2} {3} tags, "
                "respectively, i.e., {0} reasoning process here {1} {2} answer here {3}."
            ),
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
    name: str, *, tags: Sequence[str] = (), layout: str = "plain", tool: str = ""
) -> PromptFormat:
    """Return the prompt format `name`, with other tags, another layout and a tool if set.

    Args:
        name: a key of `PROMPT_FORMATS`, such as "r1_zero", or `plugins/formats/file.py:name`.
        tags: four tags in place of the format's own: reasoning open, close, answer open, close; ()
            for its own.
        layout: the text around turns: "plain" for the format's own, or that of a model family,
            "chatml" (Qwen), "llama3", or "own" for the model's own chat template.
        tool: a key of `TOOLS`, `plugins/tools/file.py:name`, or "".

    Raises:
        UserError: an unknown format, layout or tool (lists the known ones), or tags that do not
            suit the format.
    """
    own_format = load_plugin(name) if is_plugin(name) else PROMPT_FORMATS.get(name)
    if own_format is None:
        raise UserError(f"prompt.format: no format `{name}`; there are {', '.join(PROMPT_FORMATS)}")
    if not isinstance(own_format, PromptFormat):
        raise UserError(f"{name}: expected a TaggedFormat or a BoxedFormat, got {own_format!r}")
    if is_plugin(name):
        # Named as in params, so that a saved format finds the plugin again.
        own_format = dataclasses.replace(own_format, name=name)
    if tags:
        own_format = _with_tags(own_format, tags)
    if tool:
        find_tool(tool)
        own_format = dataclasses.replace(own_format, tool=tool)
    if layout == "plain":
        return own_format
    if layout not in LAYOUTS:
        raise UserError(f"prompt.layout: no layout `{layout}`; there are {', '.join(LAYOUTS)}")
    # A format like `r1_zero` has a layout of its own, which is part of the format.
    if own_format.layout is not PLAIN:
        raise UserError(
            f"prompt.layout: `{name}` has its own text around the question; use `plain`"
        )
    if layout == "own" and isinstance(own_format, TaggedFormat) and own_format.opened_by_prompt:
        raise UserError(
            f"prompt.layout=own: the reasoning of `{name}` begins in the prompt, and a model's own "
            "template ends that; use format xml or boxed"
        )
    return dataclasses.replace(own_format, layout=LAYOUTS[layout])


def _with_tags(own_format: PromptFormat, tags: Sequence[str]) -> TaggedFormat:
    """Return the format with other tags: reasoning open, close, answer open, close.

    Raises:
        UserError: the format has no tags, or these are not four, none inside another.
    """
    if not isinstance(own_format, TaggedFormat):
        raise UserError(f"prompt.tags: `{own_format.name}` has no tags; leave the list empty")
    # Two equal tags, or one inside another, would make the parts of a completion ambiguous.
    overlap = any(tag in other for tag, other in itertools.permutations(tags, 2))
    if len(tags) != 4 or overlap or not all(tag.strip() for tag in tags):
        raise UserError(
            f"prompt.tags: {list(tags)}; expected four different tags, none inside another: "
            "reasoning open, reasoning close, answer open, answer close"
        )
    # A format with a stop string stops at the closing tag of the answer, which is now another one.
    stops = (tags[3],) if own_format.stop_strings else ()
    layout, new_tags = own_format.layout, dict(zip(own_format.marks, tags, strict=True))
    if layout.preamble:
        # The preamble explains the format by its tags.
        own_tags = "|".join(map(re.escape, new_tags))
        preamble = re.sub(own_tags, lambda match: new_tags[match[0]], layout.preamble)
        layout = dataclasses.replace(layout, preamble=preamble)
    return dataclasses.replace(
        own_format,
        working=(tags[0], tags[1]),
        answer=(tags[2], tags[3]),
        stop_strings=stops,
        layout=layout,
    )
