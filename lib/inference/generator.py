"""Answer questions with a trained model, on any engine.

from lib.inference import build_text_generator, generate_math_solution

generator = build_text_generator("data/models/export")
print(generate_math_solution("What is 15 * 23?", generator).answer)
"""

import dataclasses
import fcntl
import json
import math
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.artifacts.completions import Finish, GeneratedCompletion
from lib.core.errors import UserError
from lib.engines.base import Engine, Sampling, encode
from lib.inference.external import DEFAULT_MODEL, external_model
from lib.prompts import PromptFormat, prompt_format, saved_generation
from lib.prompts.formats import conversation
from lib.rewards.rollout import Rollout

if TYPE_CHECKING:
    from transformers import GenerationConfig

# Part of torch: works on any device, without another package.
ATTENTION = "sdpa"

TOP_K = 50
"""Top-k for a model whose config has none: the default of transformers' `GenerationConfig`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The caller's sampling settings; top-p, top-k and min-p come from the model's config.

    Attributes:
        max_new_tokens: longest completion; cut to the positions that the prompt leaves.
        temperature: softmax temperature; 0 is greedy decoding.
        seed: seed of the sampling; None samples differently each time.

    Raises:
        ValueError: no token allowed, or a temperature that is negative, NaN or infinite.
    """

    max_new_tokens: int = 200
    temperature: float = 0.9
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        # Written so that NaN fails too: every comparison with NaN is false.
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solution:
    """A question with the model's completion, parsed into reasoning and answer.

    Attributes:
        question: as the caller wrote it.
        prompt: text of the prompt as the chat template renders it.
        completion: text of the completion, with its stop string, without special tokens.
        reasoning: text between the format's marks; None if they are missing or unknown.
        answer: the answer that the verifier would grade, cut at a misplaced mark; None if there is
            none.
        finish: the finish reason.
        num_tokens: number of generated tokens, the end-of-sequence token included.
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
    """A loaded model that answers mathematics questions; `build_text_generator` makes one.

    Attributes:
        config: the model's generation config; top-p, top-k and min-p are taken from it.
        prompt_format: format of the completions; None if unknown.
        stop_strings: generation ends after any of these.
        system: system prompt, '' for none.
    """

    engine: Engine
    config: "GenerationConfig"
    prompt_format: PromptFormat | None
    stop_strings: tuple[str, ...]
    system: str

    def generate(self, questions: Sequence[str], settings: GenerationSettings) -> list[Solution]:
        """Answer the questions in order.

        An answer has at most `max_new_tokens` tokens, and at most as many as the positions that
        its own prompt leaves.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """
        prompts = [self.encode(question) for question in questions]
        groups = self.engine.generate(prompts, self._sampling(settings))
        return [
            self._solution(question, completion)
            for question, (completion,) in zip(questions, groups, strict=True)
        ]

    def stream(
        self, question: str, settings: GenerationSettings, show: Callable[[str], None]
    ) -> Solution:
        """Answer one question, and pass the text to `show` piece by piece as it is generated.

        An exception of `show` ends the generation. vLLM passes the whole text at once.
        """
        prompt = self.encode(question)
        completion = self.engine.stream(prompt, self._sampling(settings), show)
        return self._solution(question, completion)

    def encode(self, question: str) -> list[int]:
        """Render a question as a prompt; return the prompt's token ids, after checking the length.

        Raises:
            UserError: an empty question, or one too long for the model's positions.
        """
        if not question.strip():
            raise UserError("the question is empty; expected for example: What is 15 * 23?")
        prompt = conversation(question, system=self.system)
        (token_ids,) = encode(self.engine.tokenizer, [prompt])
        positions = self.engine.positions
        if positions is not None and len(token_ids) >= positions:
            raise UserError(
                f"the question is too long: {len(token_ids)} tokens with its prompt, and there are "
                f"{positions} positions for prompt and answer together; shorten it"
            )
        return token_ids

    def close(self) -> None:
        self.engine.close()

    def _sampling(self, settings: GenerationSettings) -> Sampling:
        config = self.config
        return Sampling(
            num_completions=1,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            # Saved configs leave out defaults: None is transformers' default (top-k 50).
            top_p=1.0 if config.top_p is None else config.top_p,
            top_k=TOP_K if config.top_k is None else config.top_k,
            min_p=config.min_p or 0.0,
            stop_strings=self.stop_strings,
            tool=self.prompt_format.tool if self.prompt_format else "",
            # 31 bits: torch, numpy and vLLM accept any such seed.
            seed=secrets.randbits(31) if settings.seed is None else settings.seed,
        )

    def _solution(self, question: str, completion: GeneratedCompletion) -> Solution:
        form = self.prompt_format or prompt_format("question_only")
        rollout = Rollout(completion=completion.text, reference="", prompt_format=form)
        answer = rollout.answer
        # With misplaced marks, such as </answer>, the answer is extracted from free text and may
        # contain one. It is cut there: "72</answer>" -> "72"; nothing before the mark -> None.
        for mark in form.marks:
            answer = (answer or "").partition(mark)[0].strip() or None
        return Solution(
            question=question,
            prompt=self.engine.tokenizer.apply_chat_template(
                conversation(question, system=self.system),
                add_generation_prompt=True,
                tokenize=False,
            ),
            completion=completion.text,
            reasoning=rollout.parsed.reasoning if self.prompt_format else None,
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
    """Load a model with its own prompt format, stop strings and system prompt.

    Args:
        model_id: folder of an export or of a checkpoint beside its `base`, or a Hub id.
        batch_size: questions answered at a time.
        engine: a name in `ENGINES`; vLLM runs one model at a time in a process, until `close`.
        max_seq_length: tokens of prompt and answer together that vLLM reserves memory for.

    Raises:
        UserError: no such model, incomplete files, or vLLM is not installed.
    """
    model = external_model(model_id)
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME

    from lib.models.weights import weights_of

    prompt_format = model.known_format
    # The folder whose generation config and stop strings count: the full model's, or that of an
    # adapter's base, since an adapter has no generation config. If the folder is only a pointer to
    # weights, `weights_of` returns the folder of the weights.
    weights = weights_of(model.base)
    stops = saved_generation(weights).stop_strings
    saved = (weights / GENERATION_CONFIG_NAME).is_file()
    config = GenerationConfig.from_pretrained(weights) if saved else GenerationConfig()
    return TextGenerator(
        engine=model.open(
            engine,
            attention=ATTENTION,
            max_seq_length=max_seq_length,
            batch_size=batch_size,
        ),
        config=config,
        prompt_format=prompt_format,
        # Those saved when the model was measured; the format's own may have changed since. The
        # format is None if it is unknown.
        stop_strings=stops or (prompt_format.stop_strings if prompt_format else ()),
        system=model.system,
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
    """Append one row with prompt, response and further facts; create the folder if needed.

    The line is written under the file's lock, so that rows of two writers never mix.
    """
    row = {"prompt": prompt, "response": response, **facts}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text from a terminal may contain half a surrogate pair, which UTF-8 cannot encode.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        # O_APPEND alone is not enough: a long line is written in several system calls.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
