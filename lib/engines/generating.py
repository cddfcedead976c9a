"""Token by token with transformers' `generate`, for models that `decode` does not know.

It keeps the cache; draws and ends are the same as in `decode`.
"""

import contextlib
from collections.abc import Iterator

import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from lib.engines.base import Completion, Sampling
from lib.engines.endings import Endings
from lib.engines.rows import Batch, Rows


def generate(
    model: PreTrainedModel, batch: Batch, sampling: Sampling, endings: Endings
) -> list[Completion]:
    """P · G completions, those of one prompt together."""
    rows = Rows(batch, sampling, endings, device=model.device)
    count = sampling.num_completions
    with _unsettled(model):
        model.generate(
            input_ids=batch.padded(model.device).repeat_interleave(count, dim=0),
            attention_mask=rows.prompt_mask.long().repeat_interleave(count, dim=0),
            generation_config=GenerationConfig(
                do_sample=False, max_new_tokens=max(batch.limits), pad_token_id=0, eos_token_id=None
            ),
            logits_processor=LogitsProcessorList([_Drawn(rows)]),
            stopping_criteria=StoppingCriteriaList([_Ended(rows)]),
        )
    return rows.completions()


@contextlib.contextmanager
def _unsettled(model: PreTrainedModel) -> Iterator[None]:
    """Without what the model was saved with, from which `generate` fills in what it is not told.

    It would look for the saved stop strings by itself, and draw with penalties that `decode` lacks.
    """
    within = model.get_base_model() if isinstance(model, PeftModel) else model
    holders = [each for each in {model, within} if "generation_config" in vars(each)]
    settled = [each.generation_config for each in holders]
    for each in holders:
        each.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for each, config in zip(holders, settled, strict=True):
            each.generation_config = config


class _Drawn(LogitsProcessor):
    """Leave `generate` no choice but the tokens that the rows draw."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        only = torch.full_like(scores, float("-inf"))
        return only.scatter(-1, self.rows.extend(scores)[:, None], 0.0)


class _Ended(StoppingCriteria):
    """Which completions have ended."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        ended = [finish is not None for finish in self.rows.finishes]
        return torch.tensor(ended, device=input_ids.device)
