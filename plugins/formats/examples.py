"""A prompt format of one's own, for `prompt.format`."""

from lib.prompts import TaggedFormat

steps = TaggedFormat(
    name="steps",
    working=("<steps>", "</steps>"),
    answer=("<result>", "</result>"),
    opened_by_prompt=False,
)
