"""Questions to solutions with an engine of evaluation's, such as vLLM in this process."""

import secrets
from collections.abc import Generator, Sequence

from transformers import GenerationConfig

from lib.engines.base import Engine, Sampling
from lib.inference.answerer import Answerer
from lib.inference.solution import Decoding, Solution
from lib.prompts import PromptFormat

TOP_K = 50
"""Of transformers' `generate` where the model's config has none; the same here."""


class EngineGenerator(Answerer):
    """An engine that answers mathematics questions; see `Answerer` for the other arguments.

    Args:
        config: the model's, for top-p, top-k and min-p.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        config: GenerationConfig,
        prompt_format: PromptFormat | None,
        stop_strings: Sequence[str],
        system: str,
        batch_size: int,
        positions: int,
    ) -> None:
        super().__init__(
            engine.tokenizer,
            prompt_format=prompt_format,
            stop_strings=stop_strings,
            system=system,
            batch_size=batch_size,
            positions=positions,
        )
        self.engine = engine
        self.config = config

    def generate(self, questions: Sequence[str], decoding: Decoding) -> list[Solution]:
        """See `Answerer`."""
        asked = [self.ask(question, decoding) for question in questions]
        groups = self.engine.generate([each.token_ids for each in asked], self._sampling(decoding))
        return [
            self.read(each, said.text, finish=said.finish, num_tokens=len(said.token_ids))
            for each, (said,) in zip(asked, groups, strict=True)
        ]

    def stream(self, question: str, decoding: Decoding) -> Generator[str, None, Solution]:
        """See `Answerer`. An engine gives whole completions: this is one piece."""
        (solution,) = self.generate([question], decoding)
        yield solution.completion
        return solution

    def close(self) -> None:
        """See `Answerer`."""
        self.engine.close()

    def _sampling(self, decoding: Decoding) -> Sampling:
        """Without a seed each call draws anew."""
        config = self.config
        return Sampling(
            num_completions=1,
            max_new_tokens=decoding.max_new_tokens,
            temperature=decoding.temperature,
            top_p=1.0 if config.top_p is None else config.top_p,
            top_k=TOP_K if config.top_k is None else config.top_k,
            min_p=config.min_p or 0.0,
            stop_strings=self.stop_strings,
            seed=secrets.randbits(31) if decoding.seed is None else decoding.seed,
        )
