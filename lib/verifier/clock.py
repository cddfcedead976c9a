"""Times of day: `4:30 p.m.`, `16:30`."""

import re

_TIME = re.compile(r"(\d{1,2})\s*:\s*(\d{2})(?:\s*:\s*(\d{2}))?\s*([aApP])?\.?\s*(?:[mM]\.?)?")
_FORMATTING = re.compile(r"\\(?:text|mathrm|mbox)\b|[{}]")


def time_of_day(text: str) -> tuple[int, int, int, str] | None:
    """Hour, minute, second and "a", "p" or ''; None where `text` is no time.

    A ratio such as 7:32 looks the same, so both sides of a comparison must be times.
    """
    found = _TIME.fullmatch(_FORMATTING.sub(" ", text).strip())
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    half = (found[4] or "").lower()
    if hour > 24 or minute > 59 or (half and not 1 <= hour <= 12):
        return None
    return hour, minute, second, half


def same_time(reference: str, answer: str) -> bool | None:
    """Whether both are the same time, None where one is no time; a.m. and p.m. may go unsaid."""
    right, given = time_of_day(reference), time_of_day(answer)
    if right is None or given is None:
        return None
    if bool(right[3]) == bool(given[3]):
        return right == given
    marked, plain = (right, given) if right[3] else (given, right)
    hour = marked[0] % 12 + (12 if marked[3] == "p" else 0)
    return plain[:3] in ((hour, *marked[1:3]), marked[:3])
