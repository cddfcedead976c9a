"""Progress of long work: at the end of a progress bar if there is one, else one line a minute."""

import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

FIRST_S = 20.0
"""Seconds of silence before the first line."""

EVERY_S = 60.0
"""Seconds between two later lines."""

REFRESH_S = 0.5
"""Seconds between updates of a bar's line."""


class Heartbeat:
    """Prints progress when no other line was printed for a while.

    Example of a line: "evaluate sft completions 512/2638, 3,200 tokens/s".

    Args:
        label: first words of each line, "evaluate sft" in the example.
        say: function that prints a line.
    """

    def __init__(self, label: str, say: Callable[[str], None] = tqdm.write) -> None:
        self.label = label
        self.say = say
        self.bar: tqdm[Any] | None = None
        """A bar on a terminal gets the text on its own line; otherwise lines are printed."""
        self.rest()

    def rest(self) -> None:
        self.part, self.part_start = "", 0.0  # name and start of the current part; '' for none
        self.last_print, self.wait_s = time.monotonic(), FIRST_S

    def begin(self, part: str) -> None:
        """Start the speed's clock of a part whose first call comes late, after its first units."""
        self.part, self.part_start = part, time.monotonic()

    def __call__(self, part: str, done: int, total: int, tokens: int = 0) -> None:
        """Show that `done` of `total` units of a part of the work are done, but not too often.

        A call soon after the last output shows nothing. The output is the text of the bar on a
        terminal, and a line elsewhere.

        Args:
            part: name of the part, such as "completions"; a new name restarts the speed's clock.
            tokens: generated since this part began; 0 prints no speed.
        """
        now = time.monotonic()
        if part != self.part:
            self.part, self.part_start = part, now
        # tqdm disables a bar if stderr is no terminal.
        bar = None if self.bar is None or self.bar.disable else self.bar
        # A bar's text changes at most every `REFRESH_S`. A line waits for `wait_s`: `FIRST_S` after
        # a `rest`, then `EVERY_S`.
        if now - self.last_print < (self.wait_s if bar is None else REFRESH_S):
            return
        self.last_print, self.wait_s = now, EVERY_S
        text = f"{part} {done}/{total}"
        if tokens and now > self.part_start:
            text += f", {tokens / (now - self.part_start):,.0f} tokens/s"
        if bar is not None:
            bar.set_postfix_str(text)
        else:
            self.say(f"{self.label} {text}")
