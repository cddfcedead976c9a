"""Made-up rows of GSM8K's size: 45 words to a question, 50 to a working, 234 + 239 characters.

Words come from a made-up vocabulary by hash, so that no two rows share 8 words in a row unless they
are meant to: every 100th row is a copy, every 100th (shifted) a near copy, every 200th a leak.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

QUESTION_WORDS, WORKING_WORDS = 45, 50
NUM_BENCHMARK = 1_319


def vocabulary() -> list[str]:
    letters = random.Random(0)
    return [
        "".join(letters.choices("aeioulnrst", k=letters.choice([2, 3, 4, 5, 7])))
        for _ in range(5_000)
    ]


def write_rows(path: Path, *, count: int, text_scale: int, split: str = "train") -> None:
    """`count` rows; questions and workings `text_scale` times as long as GSM8K's."""
    words = vocabulary()
    with path.open("w", encoding="utf-8") as lines:
        for row in _rows(words, count, text_scale, split):
            lines.write(json.dumps(row) + "\n")


def _rows(words: list[str], count: int, scale: int, split: str) -> Iterator[dict[str, str]]:
    question = ""
    for index in range(count):
        # A copy and a near copy are of the row before.
        if split == "train" and index % 100 == 50:
            pass
        elif split == "train" and index % 100 == 75:
            question = question.replace("What", "How")
        elif split == "train" and index % 200 == 99:
            question = _text(words, f"test:{index // 200}", QUESTION_WORDS)
        else:
            question = _text(words, f"{split}:{index}", QUESTION_WORDS * scale)
        working = _text(words, f"working:{split}:{index}", WORKING_WORDS * scale)
        number = _draws(f"answer:{index}").randrange(10_000)
        yield {"question": question, "answer": f"{working} <<{number}={number}>>\n#### {number:,}"}


def _text(words: list[str], key: str, count: int) -> str:
    draws = _draws(key)
    return " ".join([*draws.choices(words, k=count - 2), str(draws.randrange(1000)), "What?"])


def _draws(key: str) -> random.Random:
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]))
