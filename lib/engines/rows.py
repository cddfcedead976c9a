"""The completions of a batch as they grow: P prompts, G completions each, B = P · G rows."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from lib.engines.base import Completion, Finish, Sampling
from lib.engines.draws import draw
from lib.engines.endings import Endings

_ENDED_SHARE = 0.25
"""Of the rows held; beyond it, taking them out costs less than computing them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """What is generated together.

    Attributes:
        prompts: P of them, as token ids.
        limits: P longest lengths of completions, at least 1.
        uniforms: [P, G, max(limits)] float64 (see `draws.uniforms`).
    """

    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    uniforms: Tensor

    def padded(self, device: torch.device) -> Tensor:
        """[P, T] token ids, with zeros on the left of the shorter prompts."""
        longest = max(map(len, self.prompts))
        rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in self.prompts]
        return torch.tensor(rows, device=device)


class Rows:
    """The completions of a batch as they grow; `held` are those that are still computed."""

    def __init__(
        self, batch: Batch, sampling: Sampling, endings: Endings, *, device: torch.device
    ) -> None:
        count = sampling.num_completions
        self.sampling, self.endings = sampling, endings
        self.limits = [limit for limit in batch.limits for _ in range(count)]
        self.finishes: list[Finish | None] = [None] * len(self.limits)
        self.lengths = [0] * len(self.limits)
        self.length = 0
        steps = max(self.limits)
        lengths = torch.tensor([len(prompt) for prompt in batch.prompts], device=device)
        self.longest = int(lengths.max())
        self.capacity = self.longest + steps
        columns = torch.arange(self.capacity, device=device)
        seen = columns >= (self.longest - lengths)[:, None]
        self.prompt_mask = seen[:, : self.longest]
        self.seen = seen.repeat_interleave(count, dim=0)
        self.prompt_lengths = lengths.repeat_interleave(count)
        self.uniforms = batch.uniforms.flatten(0, 1).to(device)
        self.may_end = endings.may_end.to(device)
        self.tokens = torch.zeros((len(self.limits), steps), dtype=torch.long, device=device)
        self.log_probs = torch.zeros((len(self.limits), steps), device=device)
        self.held = torch.arange(len(self.limits), device=device)
        self.held_rows = list(range(len(self.limits)))

    def extend(self, logits: Tensor) -> Tensor:
        """Draw the next token of each row that is held, and note which completions it ends."""
        drawn = draw(logits, self.uniforms[self.held, self.length], self.sampling)
        self.tokens[self.held, self.length] = drawn.tokens
        if drawn.log_probs is not None:
            self.log_probs[self.held, self.length] = drawn.log_probs
        self.length += 1
        looked_at = self.may_end[drawn.tokens].tolist()
        for row, look in zip(self.held_rows, looked_at, strict=True):
            if self.finishes[row] is None and (look or self.limits[row] == self.length):
                self._end(row)
        return drawn.tokens

    @property
    def all_ended(self) -> bool:
        return None not in self.finishes

    def drop_ended(self) -> Tensor | None:
        """Places among the held rows of those that go on, None where it is too soon to drop."""
        live = [place for place, row in enumerate(self.held_rows) if self.finishes[row] is None]
        if len(self.held_rows) - len(live) < _ENDED_SHARE * len(self.held_rows):
            return None
        kept = torch.tensor(live, device=self.held.device)
        self.held = self.held[kept]
        self.held_rows = [self.held_rows[place] for place in live]
        self.seen, self.prompt_lengths = self.seen[kept], self.prompt_lengths[kept]
        return kept

    def mask(self) -> Tensor:
        """[B, T] which places of the cache, the next one included, hold tokens of the row."""
        return self.seen[:, : self.longest + self.length]

    def positions(self) -> Tensor:
        """[B] position of the token that was drawn last."""
        return self.prompt_lengths + (self.length - 1)

    def completions(self) -> list[Completion]:
        tokens, log_probs = self.tokens.tolist(), self.log_probs.tolist()
        asked = self.sampling.log_probs
        return [
            self.endings.completion(
                ids[:length], finish or "length", lps[:length] if asked else None
            )
            for ids, lps, length, finish in zip(
                tokens, log_probs, self.lengths, self.finishes, strict=True
            )
        ]

    def _end(self, row: int) -> None:
        finish = self.endings.finish(self.tokens[row, : self.length].tolist())
        if finish is None and self.limits[row] == self.length:
            finish = "length"
        self.finishes[row], self.lengths[row] = finish, self.length
