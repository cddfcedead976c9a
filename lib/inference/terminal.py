"""Questions from a terminal or a pipe, and how their answers are printed and kept."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lib.core.errors import UserError
from lib.inference.generator import (
    GenerationSettings,
    Solution,
    TextGenerator,
    save_prompt_and_response,
)

GREETING = "Ask a question and press Enter; Ctrl-D ends."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terminal:
    """Answers questions: prints each solution, and appends it to `out` where there is one.

    Attributes:
        settings: how the generator answers.
        model: the model's name, for `out`.
        as_json: print one JSON object for each question, not text.
        out: JSONL that each solution is appended to, None for none.
    """

    generator: TextGenerator
    settings: GenerationSettings
    model: str
    as_json: bool = False
    out: Path | None = None

    def answer(self, text: str, *, streamed: bool = False) -> None:
        """One question; `streamed` shows the completion as it comes."""
        if streamed and not self.as_json:
            solution = self.generator.stream(
                text, self.settings, lambda piece: click.echo(piece, nl=False)
            )
            click.echo(f"\n{answer_line(solution)}")
        else:
            (solution,) = self.generator.generate([text], self.settings)
            self._print(solution)
        self._save(solution)

    def answer_lines(self, lines: Iterator[str]) -> None:
        """A question on each line, answered as it comes; blank ones are skipped."""
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    self.answer(line.strip())
                except UserError as error:
                    raise UserError(f"line {number}: {error.message}") from error
                sys.stdout.flush()

    def converse(self) -> None:
        """Questions from the keyboard, one after the other; a mistake does not end it."""
        click.echo(GREETING)
        while True:
            try:
                text = input("> ")
            except EOFError:
                click.echo()
                return
            if text.strip():
                try:
                    self.answer(text, streamed=True)
                except UserError as error:
                    error.show()

    def _print(self, solution: Solution) -> None:
        if self.as_json:
            click.echo(json.dumps(dataclasses.asdict(solution), ensure_ascii=False))
            return
        # The whole completion, where the format has no marks for the reasoning.
        shown = solution.completion if solution.reasoning is None else solution.reasoning
        if shown.strip():
            click.echo(shown.strip())
        click.echo(answer_line(solution))

    def _save(self, solution: Solution) -> None:
        if self.out:
            row: dict[str, Any] = dataclasses.asdict(solution)
            response = row.pop("completion")
            settings = {"model": self.model, **dataclasses.asdict(self.settings)}
            save_prompt_and_response(self.out, response=response, **row, **settings)


def answer_line(solution: Solution) -> str:
    """The answer, and a note where there is none or the limit on tokens cut it off."""
    cut = f" (cut off after {solution.num_tokens} tokens)" if solution.finish == "length" else ""
    return f"Answer: {'none found' if solution.answer is None else solution.answer}{cut}"
