"""Questions from a file, a terminal or a pipe, and how their answers are printed and kept."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from lib.core.errors import UserError
from lib.inference.generator import (
    GenerationSettings,
    Solution,
    TextGenerator,
    save_prompt_and_response,
)
from lib.problems.columns import PROBLEM, problem_text
from lib.problems.rows import RawRow, RowFault, read_csv, read_json

GREETING = "Ask a question and press Enter; Ctrl-D ends."

READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": read_json,
    ".json": read_json,
    ".csv": read_csv,
}
"""How a file is read, by its ending; any other is text with a question on each line."""


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

    def answer_all(self, questions: Mapping[str, str]) -> None:
        """The questions of a file, by place; printed and saved a batch at a time, under a bar.

        Raises:
            UserError: one is too long; raised before the first is answered.
        """
        for place, text in questions.items():
            try:
                self.generator.encode(text)
            except UserError as error:
                raise UserError(f"{place}: {error.message}") from error
        remaining = iter(questions.values())
        with tqdm(total=len(questions), desc="solve", unit="question", disable=None) as bar:
            while batch := list(itertools.islice(remaining, self.generator.batch_size)):
                solutions = self.generator.generate(batch, self.settings)
                with tqdm.external_write_mode():
                    for solution in solutions:
                        self._print(solution, with_question=True)
                        self._save(solution)
                bar.update(len(batch))

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

    def _print(self, solution: Solution, *, with_question: bool = False) -> None:
        if self.as_json:
            click.echo(json.dumps(dataclasses.asdict(solution), ensure_ascii=False))
            return
        if with_question:
            click.echo(f"Question: {solution.question}")
        # The whole completion, where the format has no marks for the reasoning.
        shown = solution.completion if solution.reasoning is None else solution.reasoning
        if shown.strip():
            click.echo(shown.strip())
        click.echo(answer_line(solution))
        if with_question:
            click.echo()

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


def read_questions(path: Path) -> dict[str, str]:
    """The questions of a file in order, by place ("set.jsonl:3").

    Rows of JSONL, JSON and CSV hold theirs under `problem`, `question` or `prompt`; blank lines are
    skipped.

    Raises:
        UserError: the file is missing, is no UTF-8 text, holds no question, or has a row without
            one.
    """
    try:
        if reader := READERS.get(path.suffix):
            questions = {row.place: _question(row) for row in reader(path)}
        else:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            questions = {
                f"{path}:{number}": line.strip()
                for number, line in enumerate(lines, start=1)
                if line.strip()
            }
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read questions from {path}: {error}") from error
    if not questions:
        raise UserError(f"{path} holds no question; expected one on each line")
    return questions


def _question(row: RawRow) -> str:
    try:
        if isinstance(row.fields, RowFault):
            raise row.fields
        return problem_text(row.fields)
    except RowFault as fault:
        raise UserError(
            f"{row.place}: {fault}; expected a question under {', '.join(PROBLEM)}"
        ) from fault
