"""Answer questions from a terminal or a pipe; print and store the solutions."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from lib.core.errors import UserError, visible
from lib.inference.generator import (
    GenerationSettings,
    Solution,
    TextGenerator,
    save_prompt_and_response,
)

GREETING = "Ask a question and press Enter; Ctrl-D ends."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terminal:
    """Answers questions: prints each solution, and appends it to the file `out` if there is one.

    Attributes:
        settings: sampling settings of the generator.
        model: the model's name, for `out`.
        as_json: print one JSON object per question instead of text.
        out: JSONL file for the solutions, None for none.
    """

    generator: TextGenerator
    settings: GenerationSettings
    model: str
    as_json: bool = False
    out: Path | None = None

    def answer(self, text: str, *, streamed: bool = False) -> None:
        """Answer one question: print the solution, and append it to `out` if there is one.

        Args:
            streamed: print the completion as it is generated; ignored for JSON.
        """
        if streamed and not self.as_json:
            # `visible`: a completion may contain escape sequences, which a terminal would obey.
            solution = self.generator.stream(
                text, self.settings, lambda piece: click.echo(visible(piece), nl=False)
            )
            click.echo(f"\n{answer_line(solution)}")
        else:
            (solution,) = self.generator.generate([text], self.settings)
            self._print(solution)
        self._save(solution)

    def answer_lines(self, lines: Iterable[bytes]) -> None:
        for number, line in enumerate(lines, start=1):
            try:
                # -sig: Windows editors put a byte order mark before the first line.
                question = line.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                raise UserError(f"line {number}: not UTF-8 ({error.reason})") from None
            if question:
                try:
                    self.answer(question)
                except UserError as error:
                    raise UserError(f"line {number}: {error.message}") from error
                # Into a pipe, Python buffers whole blocks: a reader would wait for many answers.
                sys.stdout.flush()

    def converse(self) -> None:
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
            # A terminal obeys C1 control characters, and JSON need not escape these: on a terminal,
            # all that is not ASCII is escaped.
            content = dataclasses.asdict(solution)
            click.echo(json.dumps(content, ensure_ascii=sys.stdout.isatty()))
            return
        shown = solution.completion if solution.reasoning is None else solution.reasoning
        if shown.strip():
            click.echo(visible(shown.strip()))
        click.echo(answer_line(solution))

    def _save(self, solution: Solution) -> None:
        if self.out:
            row: dict[str, Any] = dataclasses.asdict(solution)
            response = row.pop("completion")
            settings = {"model": self.model, **dataclasses.asdict(self.settings)}
            save_prompt_and_response(self.out, response=response, **row, **settings)


def answer_line(solution: Solution) -> str:
    """Return the answer, with a note if it is missing or was cut off by the token limit."""
    cut = f" (cut off after {solution.num_tokens} tokens)" if solution.finish == "length" else ""
    return f"Answer: {'none found' if solution.answer is None else visible(solution.answer)}{cut}"
