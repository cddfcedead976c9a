"""An engine with fixed completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from lib.artifacts.completions import Finish, GeneratedCompletion
from lib.engines.base import Sampling

Script = Sequence[str | tuple[str, Finish]]
"""Completions in their order; a bare text ends with EOS."""


class ScriptedEngine:
    """Answer a prompt with the script of the question in it; list the calls.

    A token of a completion is a character. The call after `last` others is interrupted.
    """

    def __init__(
        self,
        tokenizer: Any,
        scripts: Mapping[str, Script],
        *,
        last: int = -1,
        positions: int | None = None,
    ) -> None:
        self.tokenizer, self.scripts, self.last = tokenizer, scripts, last
        self.positions = positions
        self.calls: list[Sampling] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        if len(self.calls) == self.last:
            raise KeyboardInterrupt
        self.calls.append(sampling)
        texts = map(self.tokenizer.decode, prompts)
        return [self._completions(text)[: sampling.num_completions] for text in texts]

    def _completions(self, prompt: str) -> list[GeneratedCompletion]:
        script = next(script for question, script in self.scripts.items() if question in prompt)
        ended = ((each, "eos") if isinstance(each, str) else each for each in script)
        return [
            GeneratedCompletion(text=text, token_ids=tuple(map(ord, text)), finish=finish)
            for text, finish in ended
        ]
