"""Questions and answers on a terminal or through a pipe."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from lib.errors import UserError
from lib.inference.records import save_prompt_and_response
from lib.inference.solution import Decoding, Solution

if TYPE_CHECKING:
    from lib.inference.answerer import Answerer

GREETING = "Ask a question and press Enter; Ctrl-D ends."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Desk:
    """Where questions are answered: prints each solution, and keeps it where that is asked for.

    Attributes:
        generator: answers.
        decoding: how.
        model: the model's name, for what is kept.
        as_json: print one JSON object for each question, not text.
        out: JSONL that each solution is appended to, None for none.
    """

    generator: "Answerer"
    decoding: Decoding
    model: str
    as_json: bool = False
    out: Path | None = None

    def answer(self, question: str, *, streamed: bool = False) -> None:
        """One question; `streamed` shows the completion as it comes."""
        if streamed and not self.as_json:
            solution = _show(self.generator.stream(question, self.decoding))
            click.echo(answer_line(solution))
        else:
            (solution,) = self.generator.generate([question], self.decoding)
            self._print(solution)
        self._keep(solution)

    def answer_all(self, questions: Mapping[str, str]) -> None:
        """The questions of a file, by place; printed and kept a batch at a time, under a bar.

        Raises:
            UserError: one is too long; found out before the first is answered.
        """
        for place, question in questions.items():
            try:
                self.generator.ask(question, self.decoding)
            except UserError as error:
                raise UserError(f"{place}: {error.message}") from error
        remaining = iter(questions.values())
        with tqdm(total=len(questions), desc="solve", unit="question", disable=None) as bar:
            while batch := list(itertools.islice(remaining, self.generator.batch_size)):
                solutions = self.generator.generate(batch, self.decoding)
                with tqdm.external_write_mode():
                    for solution in solutions:
                        self._print(solution, with_question=True)
                        self._keep(solution)
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
                question = input("> ")
            except EOFError:
                click.echo()
                return
            if question.strip():
                try:
                    self.answer(question, streamed=True)
                except UserError as error:
                    error.show()

    def _print(self, solution: Solution, *, with_question: bool = False) -> None:
        if self.as_json:
            click.echo(json.dumps(dataclasses.asdict(solution), ensure_ascii=False))
            return
        for line in solution_lines(solution, with_question=with_question):
            click.echo(line)

    def _keep(self, solution: Solution) -> None:
        if self.out:
            row: dict[str, Any] = dataclasses.asdict(solution)
            response = row.pop("completion")
            settings = {"model": self.model, **dataclasses.asdict(self.decoding)}
            save_prompt_and_response(self.out, response=response, **row, **settings)


def solution_lines(solution: Solution, *, with_question: bool = False) -> list[str]:
    """Reasoning, or the whole completion where that has no marks, and the answer."""
    said = solution.completion if solution.reasoning is None else solution.reasoning
    asked = [f"Question: {solution.question}"] if with_question else []
    after = [""] if with_question else []
    return [*asked, *([said.strip()] if said.strip() else []), answer_line(solution), *after]


def answer_line(solution: Solution) -> str:
    """The answer, and a word where there is none or the limit on tokens cut it off."""
    cut = f" (cut off after {solution.num_tokens} tokens)" if solution.finish == "length" else ""
    return f"Answer: {'none found' if solution.answer is None else solution.answer}{cut}"


def _show(stream: Generator[str, None, Solution]) -> Solution:
    """Print the pieces of a completion; its solution."""
    while True:
        try:
            click.echo(next(stream), nl=False)
        except StopIteration as ended:
            click.echo()
            solution: Solution = ended.value
            return solution
