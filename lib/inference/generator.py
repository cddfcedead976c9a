"""Questions to solutions with transformers' `generate`, on the CPU or a GPU."""

import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from lib.inference.answerer import Answerer, Asked
from lib.inference.solution import Decoding, Finish, Solution, up_to_stop
from lib.prompts import PromptFormat


class TextGenerator(Answerer):
    """A model in memory that answers mathematics questions; see `Answerer` for the arguments."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompt_format: PromptFormat | None,
        stop_strings: Sequence[str] = (),
        system: str = "",
        batch_size: int = 16,
    ) -> None:
        super().__init__(
            tokenizer,
            prompt_format=prompt_format,
            stop_strings=stop_strings,
            system=system,
            batch_size=batch_size,
            positions=_positions(model),
        )
        self.model = model.eval()

    def generate(self, questions: Sequence[str], decoding: Decoding) -> list[Solution]:
        """See `Answerer`."""
        asked = [self.ask(question, decoding) for question in questions]
        _seed(decoding)
        solutions: dict[int, Solution] = {}
        for batch in self._batches(asked):
            rows = self._run([asked[index] for index in batch], decoding)
            for index, row in zip(batch, rows, strict=True):
                solutions[index] = self._solution(asked[index], row)
        return [solutions[index] for index in range(len(asked))]

    def stream(self, question: str, decoding: Decoding) -> Generator[str, None, Solution]:
        """See `Answerer`. Generation runs in a thread, which ends when nobody listens any more."""
        asked = self.ask(question, decoding)
        _seed(decoding)
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        unheard = threading.Event()
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(self._feed, streamer, asked, decoding, unheard)
            try:
                yield from _pieces(streamer, self.stop_strings)
            finally:
                unheard.set()
            return self._solution(asked, running.result())

    def close(self) -> None:
        """See `Answerer`. The model goes with this object."""

    def _batches(self, asked: Sequence[Asked]) -> Iterator[list[int]]:
        """Which questions are answered together, as indices.

        A row that has used its room is computed on, and thrown away, while others go on. Rotary
        embeddings bear that; a table of positions ends, so there equal rooms go together.
        """
        rotary = bool(getattr(self.model.config, "rope_parameters", None))
        groups: dict[int, list[int]] = defaultdict(list)
        for index, each in enumerate(asked):
            groups[0 if rotary else each.room].append(index)
        for indices in groups.values():
            for start in range(0, len(indices), self.batch_size):
                yield indices[start : start + self.batch_size]

    def _feed(
        self,
        streamer: TextIteratorStreamer,
        asked: Asked,
        decoding: Decoding,
        unheard: threading.Event,
    ) -> list[int]:
        try:
            return self._run([asked], decoding, streamer=streamer, unheard=unheard)[0]
        finally:
            # After an error `generate` has not said so, and the listener would wait for ever.
            streamer.end()

    def _run(
        self,
        batch: Sequence[Asked],
        decoding: Decoding,
        *,
        streamer: TextIteratorStreamer | None = None,
        unheard: threading.Event | None = None,
    ) -> list[list[int]]:
        """New tokens of each row, at most its room, the padding after an early end included."""
        padded = self.tokenizer.pad(
            {"input_ids": [each.token_ids for each in batch]}, return_tensors="pt"
        ).to(self.model.device)
        rooms = [each.room for each in batch]
        length = padded["input_ids"].shape[1]
        with torch.inference_mode():
            generated = self.model.generate(
                **padded,
                generation_config=self._generation_config(decoding, max_new_tokens=max(rooms)),
                tokenizer=self.tokenizer,
                stopping_criteria=StoppingCriteriaList([_Unheard(unheard)] if unheard else []),
                streamer=streamer,
            )
        rows = generated[:, length:].tolist()
        return [row[:room] for row, room in zip(rows, rooms, strict=True)]

    def _generation_config(self, decoding: Decoding, *, max_new_tokens: int) -> GenerationConfig:
        """What is not set here (top-p, top-k) is filled in from the model's own config."""
        drawn = decoding.temperature > 0
        return GenerationConfig(
            do_sample=drawn,
            max_new_tokens=max_new_tokens,
            eos_token_id=self._ends,
            pad_token_id=self.tokenizer.pad_token_id,
            stop_strings=list(self.stop_strings) or None,
            **({"temperature": decoding.temperature} if drawn else {}),
        )

    @property
    def _ends(self) -> list[int]:
        """Tokens that end a completion: the tokenizer's EOS and those of the model's config."""
        configured = self.model.generation_config.eos_token_id
        ends = configured if isinstance(configured, list) else [configured]
        return sorted({end for end in (*ends, self.tokenizer.eos_token_id) if end is not None})

    def _solution(self, asked: Asked, row: list[int]) -> Solution:
        kept, ended = self._without_padding(row)
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        completion, stopped = up_to_stop(text, self.stop_strings)
        finish: Finish = "stop" if stopped else "eos" if ended else "length"
        return self.read(
            asked,
            completion,
            finish=finish,
            # Where padding is EOS, the one after a stop string was not generated.
            num_tokens=len(kept) - (stopped and ended),
        )

    def _without_padding(self, row: list[int]) -> tuple[list[int], bool]:
        """A row to its end, and whether EOS ended it; after a stop string there is padding."""
        ends = [row.index(end) for end in self._ends if end in row]
        if ends:
            return row[: min(ends) + 1], True
        length = len(row)
        while length and row[length - 1] == self.tokenizer.pad_token_id:
            length -= 1
        return row[:length], False


class _Unheard(StoppingCriteria):
    """Stop once nobody listens any more."""

    def __init__(self, unheard: threading.Event) -> None:
        self.unheard = unheard

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.unheard.is_set(), device=input_ids.device)


def _positions(model: PreTrainedModel) -> int | None:
    """Tokens that prompt and completion may have together, None where the model sets no limit."""
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return positions


def _seed(decoding: Decoding) -> None:
    if decoding.seed is not None:
        torch.manual_seed(decoding.seed)


def _pieces(streamer: TextIteratorStreamer, stop_strings: tuple[str, ...]) -> Iterator[str]:
    """What is streamed, to the end of the first stop string."""
    shown = ""
    for piece in streamer:
        text, stopped = up_to_stop(shown + piece, stop_strings)
        if len(text) > len(shown):
            yield text[len(shown) :]
        shown = text
        if stopped:
            return
