"""A plugin prompt format, for `prompt.format`."""

from lib.prompts import TaggedFormat

steps = TaggedFormat(
    name="steps",
    working=("<steps>", "</steps>"),
    answer=("<result>", "</result>"),
    # The model writes <steps> itself, instead of finding it at the end of the prompt.
    opened_by_prompt=False,
)
