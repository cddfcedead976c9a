"""From questions to solutions, with any engine.

from lib.inference import build_text_generator, generate_math_solution

generator = build_text_generator("data/models/export")
print(generate_math_solution("What is 15 * 23?", generator).answer)
"""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lib.artifacts.completions import Finish, GeneratedCompletion
from lib.core.errors import UserError
from lib.engines.base import Engine, Sampling, encode
from lib.inference.external import DEFAULT_MODEL, external_model
from lib.prompts import PromptFormat
from lib.prompts.formats import conversation
from lib.verifier.extract import extract_answer

if TYPE_CHECKING:
    from transformers import GenerationConfig
import fcntl
import json
from typing import Any

ATTENTION = "sdpa"

TOP_K = 50
"""Of a model whose config has none, as in transformers' `generate`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What a caller sets; top-p, top-k and min-p are those of the model's generation config.

    Attributes:
        max_new_tokens: longest completion; what the model's positions leave, where that is less.
        temperature: softmax temperature; 0 is greedy decoding.
        seed: of the sampling; None samples differently each time.

    Raises:
        ValueError: no token allowed, or a negative temperature.
    """

    max_new_tokens: int = 200
    temperature: float = 0.9
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solution:
    """One question answered.

    Attributes:
        question: as the caller wrote it.
        prompt: what the model read, as its chat template renders it.
        completion: its text, without special tokens, a stop string included.
        reasoning: None where the format's marks for it are missing or unknown.
        answer: what the verifier would grade, None where there is none.
        finish: what ended the completion.
        num_tokens: tokens generated, the end-of-sequence token included.
    """

    question: str
    prompt: str
    completion: str
    reasoning: str | None
    answer: str | None
    finish: Finish
    num_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A model that answers mathematics questions; see `build_text_generator`.

    Attributes:
        config: the model's, for top-p, top-k and min-p.
        prompt_format: how completions are read; None where unknown.
        stop_strings: generation ends after any of these.
        system: system prompt, '' for none.
        positions: tokens that prompt and completion may have together, None for no limit.
    """

    engine: Engine
    config: "GenerationConfig"
    prompt_format: PromptFormat | None
    stop_strings: tuple[str, ...]
    system: str
    positions: int | None

    def generate(self, questions: Sequence[str], settings: GenerationSettings) -> list[Solution]:
        """Answer the questions, in their order; none is cut short because of its neighbours.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """
        prompts = [self.encode(question) for question in questions]
        groups = self.engine.generate(prompts, self._sampling(settings))
        return [
            self._read(question, completion)
            for question, (completion,) in zip(questions, groups, strict=True)
        ]

    def stream(
        self, question: str, settings: GenerationSettings, show: Callable[[str], None]
    ) -> Solution:
        """Answer one question; `show` gets the completion's text in pieces, as it is generated.

        What `show` raises ends the generation. vLLM gives the whole text at once.
        """
        prompt = self.encode(question)
        return self._read(question, self.engine.stream(prompt, self._sampling(settings), show))

    def encode(self, question: str) -> list[int]:
        """The prompt's token ids; cheap, so that many questions can be checked beforehand.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """
        if not question.strip():
            raise UserError("the question is empty; expected for example: What is 15 * 23?")
        prompt = conversation(question, system=self.system)
        (token_ids,) = encode(self.engine.tokenizer, [prompt])
        if self.positions is not None and len(token_ids) >= self.positions:
            raise UserError(
                f"the question is too long: {len(token_ids)} tokens with its prompt, and there are "
                f"{self.positions} positions for prompt and answer together; shorten it"
            )
        return token_ids

    def close(self) -> None:
        """Give back what outlives this object; vLLM runs one model at a time in a process."""
        self.engine.close()

    def _sampling(self, settings: GenerationSettings) -> Sampling:
        config = self.config
        return Sampling(
            num_completions=1,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=1.0 if config.top_p is None else config.top_p,
            top_k=TOP_K if config.top_k is None else config.top_k,
            min_p=config.min_p or 0.0,
            stop_strings=self.stop_strings,
            seed=secrets.randbits(31) if settings.seed is None else settings.seed,
        )

    def _read(self, question: str, completion: GeneratedCompletion) -> Solution:
        """Find reasoning and answer in a completion, as grading does."""
        text, form = completion.text, self.prompt_format
        answer = extract_answer(text, prompt_format=form)
        # Where its marks are misplaced, an answer is read from the text around them.
        for mark in form.marks if form else ():
            answer = (answer or "").partition(mark)[0].strip() or None
        return Solution(
            question=question,
            prompt=self.engine.tokenizer.apply_chat_template(
                conversation(question, system=self.system),
                add_generation_prompt=True,
                tokenize=False,
            ),
            completion=text,
            reasoning=form.parse(text).reasoning if form else None,
            answer=answer,
            finish=completion.finish,
            num_tokens=len(completion.token_ids),
        )


def build_text_generator(
    model_id: str | Path = DEFAULT_MODEL,
    *,
    batch_size: int = 16,
    engine: str = "transformers",
    max_seq_length: int = 4096,
) -> TextGenerator:
    """Load a model, with the prompt format, stop strings and system prompt that it came with.

    Args:
        model_id: folder of an export, of a checkpoint beside its `base`, or a Hub id.
        batch_size: questions answered at a time.
        engine: what generates, of `ENGINES`. vLLM holds one model at a time; `close` gives it back.
        max_seq_length: tokens of prompt and answer together that vLLM sets memory aside for, where
            the model has as many positions.

    Raises:
        UserError: no such model, files that make up none, or vLLM is not installed.
    """
    model = external_model(model_id)
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME

    from lib.engines.pretrained import weights_of

    weights, prompt_format = weights_of(model.base), model.known_format
    saved = (weights / GENERATION_CONFIG_NAME).is_file()
    config = GenerationConfig.from_pretrained(weights) if saved else GenerationConfig()
    stops = config.stop_strings or (prompt_format.stop_strings if prompt_format else ())
    return TextGenerator(
        engine=model.open(
            engine,
            attention=ATTENTION,
            max_seq_length=max_seq_length,
            batch_size=batch_size,
        ),
        config=config,
        prompt_format=prompt_format,
        stop_strings=tuple(stops),
        system=model.system,
        positions=model.positions_on(engine, max_seq_length=max_seq_length),
    )


def generate_math_solution(
    question: str,
    generator: TextGenerator,
    max_new_tokens: int = 200,
    temperature: float = 0.9,
) -> Solution:
    """Answer one question; temperature 0 is greedy.

    Raises:
        UserError: an empty question, or one too long for the model's positions.
    """
    settings = GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature)
    return generator.generate([question], settings)[0]


def save_prompt_and_response(path: Path, *, prompt: str, response: str, **facts: Any) -> None:
    """Append one row with a prompt, the response to it, and further facts; makes the folder.

    The line is written under the file's lock, so that rows of two writers never mix.
    """
    row = {"prompt": prompt, "response": response, **facts}
    path.parent.mkdir(parents=True, exist_ok=True)
    # A prompt from a terminal may hold half a surrogate pair, which UTF-8 has no bytes for.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
