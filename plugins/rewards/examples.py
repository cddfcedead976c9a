"""Plugin rewards for `reward.extra`: in reckon's signature, and in TRL's."""

from typing import Any

from lib.rewards.rollout import Rollout


def brevity(rollout: Rollout) -> float:
    """Return 1 for an empty completion, falling linearly to 0 at 400 characters."""
    return max(0.0, 1 - len(rollout.completion) / 400)


def shows_equations(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """Return 0.1 for each equals sign of a completion, at most 0.3."""
    # TRL passes conversations; a completion is one assistant message.
    return [0.1 * min(3, messages[0]["content"].count("=")) for messages in completions]
