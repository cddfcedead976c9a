"""What was left out and why: nothing goes without being counted."""

import dataclasses
from collections.abc import Mapping
from typing import Any

NUM_EXAMPLES = 3
EXCERPT_LENGTH = 160


@dataclasses.dataclass
class Drops:
    """Counts and examples by reason, for one set of problems.

    Attributes:
        num_read: rows that there were at the start.
        counts: rows dropped, by reason.
        examples: the first few of each reason: where it is from or its id, and what was found.
    """

    num_read: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = dataclasses.field(default_factory=dict)

    def add(self, reason: str, *, row: str, detail: str, text: str = "") -> None:
        """Count one row: `row` is its id or place, `detail` what was found."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        shown = self.examples.setdefault(reason, [])
        if len(shown) < NUM_EXAMPLES:
            shown.append({"row": row, "found": detail, "problem": excerpt(text)})

    @property
    def num_dropped(self) -> int:
        return sum(self.counts.values())

    def metrics(self) -> dict[str, Any]:
        """Numbers for the metrics file; shares are of the rows read."""
        return {
            "read": self.num_read,
            "kept": self.num_read - self.num_dropped,
            "dropped": {reason: self._figures(count) for reason, count in self.counts.items()},
        }

    def _figures(self, count: int) -> Mapping[str, float]:
        return {"count": count, "share": count / self.num_read if self.num_read else 0.0}


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT_LENGTH else line[: EXCERPT_LENGTH - 1] + "…"
