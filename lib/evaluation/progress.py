"""How far an evaluation is: completions, tokens a second, and the time that is left."""

from typing import Self

from tqdm import tqdm


class Progress:
    """A bar on a terminal, nothing elsewhere.

    Args:
        total: completions of the whole run.
        label: what runs; '' shows no bar.
    """

    def __init__(self, total: int, *, label: str) -> None:
        hidden = None if label else True
        self.bar = tqdm(total=total, desc=label, unit="completion", disable=hidden)
        self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def resumed(self, completions: int) -> None:
        """Completions that an earlier process made: they are done, and tell nothing of the speed."""
        self.bar.initial += completions
        self.bar.update(completions)

    def made(self, completions: int, num_tokens: int) -> None:
        """Completions that this process made."""
        self.num_tokens += num_tokens
        elapsed = self.bar.format_dict["elapsed"]
        if elapsed:
            self.bar.set_postfix_str(f"{self.num_tokens / elapsed:.0f} tokens/s", refresh=False)
        self.bar.update(completions)
