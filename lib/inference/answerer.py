"""What answers questions, whichever library generates: how it asks, and how it reads answers."""

import abc
import dataclasses
from collections.abc import Generator, Sequence

from transformers import PreTrainedTokenizerBase

from lib.errors import UserError
from lib.inference.solution import Decoding, Finish, Solution, read_solution
from lib.prompts import Message, PromptFormat
from lib.prompts.base import conversation


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question as the model reads it.

    Attributes:
        question: as asked.
        prompt: as the chat template renders it.
        token_ids: of the prompt.
        room: tokens that its completion may have.
    """

    question: str
    prompt: str
    token_ids: list[int]
    room: int


class Answerer(abc.ABC):
    """A model that answers mathematics questions; see `build_text_generator`.

    Args:
        prompt_format: how completions are read; None where unknown.
        stop_strings: generation ends after any of these.
        system: system prompt, '' for none.
        batch_size: questions answered at a time.
        positions: tokens that prompt and completion may have together, None for no limit.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompt_format: PromptFormat | None,
        stop_strings: Sequence[str],
        system: str,
        batch_size: int,
        positions: int | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.prompt_format = prompt_format
        self.stop_strings = tuple(stop_strings)
        self.system = system
        self.batch_size = batch_size
        self.positions = positions

    @abc.abstractmethod
    def generate(self, questions: Sequence[str], decoding: Decoding) -> list[Solution]:
        """Answer the questions, in their order; none is cut short because of its neighbours.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """

    @abc.abstractmethod
    def stream(self, question: str, decoding: Decoding) -> Generator[str, None, Solution]:
        """The completion as it comes, in pieces; the generator's return value is the solution."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what outlives this object; vLLM runs one model at a time in a process."""

    def ask(self, question: str, decoding: Decoding) -> Asked:
        """The question as the model will read it; cheap, so that many can be checked beforehand.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """
        if not question.strip():
            raise UserError("the question is empty; expected for example: What is 15 * 23?")
        messages = conversation(question, system=self.system)
        token_ids = self._token_ids(messages)
        room = decoding.max_new_tokens
        if self.positions is not None:
            room = min(room, self.positions - len(token_ids))
        if room < 1:
            raise UserError(
                f"the question is too long: {len(token_ids)} tokens with its prompt, and there are "
                f"{self.positions} positions for prompt and answer together; shorten it"
            )
        return Asked(question, self._prompt(messages), token_ids, room)

    def read(self, asked: Asked, completion: str, *, finish: Finish, num_tokens: int) -> Solution:
        """Find working and answer in a completion."""
        return read_solution(
            completion,
            question=asked.question,
            prompt=asked.prompt,
            prompt_format=self.prompt_format,
            finish=finish,
            num_tokens=num_tokens,
        )

    def _token_ids(self, messages: list[Message]) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return list(encoded["input_ids"])

    def _prompt(self, messages: list[Message]) -> str:
        prompt: str = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return prompt
