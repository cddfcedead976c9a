"""A task with a JSON answer, checked by a schema: read a shopping list.

"3 pears and 2 figs" → {"pears": 3, "figs": 2}, in any order of the keys.
"""

from pydantic import TypeAdapter, ValidationError

from lib.prompts import TaggedFormat
from lib.rewards.rollout import Rollout

COUNTS = TypeAdapter(dict[str, int])


class Basket(TaggedFormat):
    """The format, and its verdict."""

    def right(self, rollout: Rollout) -> bool:
        """Return True if the answer is a JSON object with the reference's counts."""
        try:
            answer = COUNTS.validate_json(rollout.parsed.answer or "", strict=True)
        except ValidationError:
            return False
        return answer == COUNTS.validate_json(rollout.reference)


basket = Basket(
    name="basket",
    working=("<think>", "</think>"),
    answer=("<answer>", "</answer>"),
    opened_by_prompt=False,
    wording="Write the list as a JSON object from name to number between {2} and {3}.",
)
