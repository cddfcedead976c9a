"""A plugin prompt format, for `prompt.format`.

A completion is `<steps>2 + 3 = 5</steps><result>5</result>`.
"""

from lib.prompts import TaggedFormat

steps = TaggedFormat(
    name="steps",
    working=("<steps>", "</steps>"),
    answer=("<result>", "</result>"),
    # The model writes <steps> itself, instead of finding it at the end of the prompt.
    opened_by_prompt=False,
)
