"""A task without maths: write the letters of a text in reverse order.

`python -m plugins.tasks.reverse` writes its rows (docs/own_task.md).
"""

import itertools
import json
import random
from pathlib import Path

from lib.prompts import TaggedFormat
from lib.rewards.rollout import Rollout

FOLDER = Path("data/raw/reverse")
SIZES = {"train": 4000, "test": 200}


class Reverse(TaggedFormat):
    """The format, and its verdict."""

    def right(self, rollout: Rollout) -> bool:
        """Return True if the text between the answer's tags is the reference."""
        return rollout.parsed.answer == rollout.reference


reverse = Reverse(
    name="reverse",
    working=("<think>", "</think>"),
    answer=("<answer>", "</answer>"),
    opened_by_prompt=False,
    wording="Write the letters in reverse order between {2} and {3}.",
)


def main() -> None:
    """Write the rows of both splits, which share none."""
    draw, texts = random.Random(0), dict[str, None]()
    while len(texts) < sum(SIZES.values()):
        texts[" ".join(draw.choices("abcdefghij", k=draw.randint(3, 5)))] = None
    left = iter(texts)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        rows = [{"problem": text, "reference": text[::-1]} for text in itertools.islice(left, size)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (FOLDER / f"{split}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
