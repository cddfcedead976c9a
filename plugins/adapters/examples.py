"""A plugin adapter, for the `adapter` of a source."""

from typing import Any


def nested(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row like {"task": {"text": "What is 2 + 3?"}, "gold": ["5"]} to a problem."""
    return {"problem": row["task"]["text"], "answer": row["gold"][0]}
