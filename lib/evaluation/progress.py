"""How far an evaluation is: completions, tokens a second, and the time that is left."""

import time
from typing import Self

from tqdm import tqdm


class Progress:
    """A bar on a terminal, nothing elsewhere.

    Args:
        total: completions of the whole run.
        done: those of an earlier process, which tell nothing of the speed.
        label: what runs; '' shows no bar.
    """

    def __init__(self, total: int, *, done: int, label: str) -> None:
        hidden = None if label else True
        self.bar = tqdm(total=total, initial=done, desc=label, unit="completion", disable=hidden)
        self.started = time.monotonic()
        self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def made(self, completions: int, num_tokens: int) -> None:
        """Completions that this process made."""
        self.num_tokens += num_tokens
        elapsed = max(time.monotonic() - self.started, 1e-9)
        self.bar.set_postfix_str(f"{self.num_tokens / elapsed:,.0f} tokens/s", refresh=False)
        self.bar.update(completions)
