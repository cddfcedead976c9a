"""The same gradient from less arithmetic: how GRPO's completions are put through the policy.

    packing         rows of one prompt, and prompts of like length, share a micro-batch, which is
                    cut to its own longest row
    skipping        without a KL penalty a row whose advantage is 0 has no gradient: micro-batches
                    of such rows alone are left out (and out of entropy and clip_ratio)
    shared prompts  a prompt is computed once for all of its completions in a micro-batch; they
                    continue from its keys and values, through which the gradient returns

TRL spreads rows over micro-batches at random. Which rows share one makes no difference to losses
that count rows or the whole batch's tokens; `bnpo` divides by a micro-batch's tokens, and is left
as it is. On several ranks all of it stays off: they must do the same forward passes.

B rows of a micro-batch, P distinct prompts among them, T tokens of the longest completion.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from trl import GRPOTrainer

from lib.engines.decoding import can_decode

Batch = dict[str, Any]
"""TRL's name for a value to a tensor with a row per completion, a scalar, or None."""

ORDER_FREE = ("dapo", "dr_grpo", "grpo")
"""Losses that do not depend on which rows share a micro-batch."""

_PROMPT_COLUMNS = ("prompt_ids", "prompt_mask")


class PackingTrainer(GRPOTrainer):
    """`GRPOTrainer` with what the module says."""

    _buffered_inputs: list[Batch] | None

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is None or self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = arranged(self._buffered_inputs, packed=self._packs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        last = (self._step + 1) % self.args.steps_per_generation == 0
        # The last one is never left out: with no gradients at all, AdamW would not take its step,
        # and several ranks average their gradients in its backward pass.
        if self._skips and not last and not inputs["advantages"].any():
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        sharing = SharedPrompts(model) if self._shares(model) else model
        return super()._get_per_token_logps_and_entropies(sharing, *args, **kwargs)

    @property
    def _alone(self) -> bool:
        return bool(self.accelerator.num_processes == 1)

    @property
    def _packs(self) -> bool:
        return (
            self._alone
            and self.loss_type in ORDER_FREE
            and self.args.steps_per_generation == self.args.gradient_accumulation_steps
        )

    @property
    def _skips(self) -> bool:
        others = self.beta != 0 or self.aux_loss_enabled or self._entropy_bonus_enabled
        return self._packs and self.model.training and not others

    def _shares(self, model: Any) -> bool:
        unfit = self.use_liger_kernel or self.aux_loss_enabled or self.args.gradient_checkpointing
        return self._alone and not unfit and can_decode(self.accelerator.unwrap_model(model))


class SharedPrompts:
    """Stands for a model where TRL calls it; computes each distinct prompt once."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(
        self, *, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, use_cache: bool
    ) -> SimpleNamespace:
        """Logits [B, `logits_to_keep`, V] of the last columns.

        Args:
            input_ids: [B, prompt + T], prompts padded on the left and completions on the right.
            attention_mask: [B, prompt + T].
            logits_to_keep: T + 1; the first of them stands at the prompt's last token.
            use_cache: ignored; the cache stays in here.
        """
        prefix = input_ids.shape[1] - logits_to_keep
        seen = attention_mask[:, :prefix]
        # A place that is masked tells no prompts apart, whatever stands there.
        tokens, owner = torch.unique(
            torch.where(seen.bool(), input_ids[:, :prefix], -1), dim=0, return_inverse=True
        )
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        if prefix == 0 or len(tokens) == len(input_ids):
            return SimpleNamespace(
                logits=self.model(
                    input_ids=input_ids,
                    attention_mask=attention_mask,
                    position_ids=positions,
                    logits_to_keep=logits_to_keep,
                    use_cache=False,
                ).logits
            )
        cache, mask = DynamicCache(), (tokens >= 0).long()
        self.model(
            input_ids=tokens.clamp(min=0),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_select_indices(owner)
        return SimpleNamespace(
            logits=self.model(
                input_ids=input_ids[:, prefix:],
                attention_mask=attention_mask,
                position_ids=positions[:, prefix:],
                past_key_values=cache,
                use_cache=True,
            ).logits
        )


def arranged(batches: Sequence[Batch], *, packed: bool) -> list[Batch]:
    """The same rows in as many micro-batches of the same size, in an order that is a function of
    the rollouts: as they were generated, or packed, with the rows without signal first."""
    rows = {name: _joined([batch[name] for batch in batches]) for name in batches[0]}
    generated = torch.argsort(rows["row"])
    size = len(generated) // len(batches)
    if not packed:
        parts = torch.split(generated, size)
        return [{name: _rows(value, part) for name, value in rows.items()} for part in parts]
    prompts = [
        tuple(ids[mask.bool()].tolist())
        for ids, mask in zip(rows["prompt_ids"], rows["prompt_mask"], strict=True)
    ]
    signal = dict.fromkeys(prompts, False)
    for prompt, advantage in zip(prompts, rows["advantages"], strict=True):
        signal[prompt] |= bool(advantage.any())
    lengths = rows["completion_mask"].sum(-1).tolist()

    def key(row: int) -> tuple[Any, ...]:
        prompt = prompts[row]
        return (signal[prompt], len(prompt), prompt, lengths[row])

    order = torch.tensor(sorted(generated.tolist(), key=key), device=rows["advantages"].device)
    return [
        trim({name: _rows(value, part) for name, value in rows.items()})
        for part in torch.split(order, size)
    ]


def trim(batch: Mapping[str, Any]) -> Batch:
    """Without the columns that are padding in every row."""
    prompt = int(batch["prompt_mask"].sum(-1).max())
    width = batch["completion_mask"].shape[1]
    completion = max(1, int(batch["completion_mask"].sum(-1).max()))

    def cut(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        if name in _PROMPT_COLUMNS:
            return value[:, value.shape[1] - prompt :]
        return value[:, :completion] if value.shape[1] == width else value

    return {name: cut(name, value) for name, value in batch.items()}


def _joined(parts: Sequence[Any]) -> Any:
    """Rows of all micro-batches; what is a scalar is the same in each of them."""
    return torch.cat(list(parts)) if _has_rows(parts[0]) else parts[0]


def _rows(value: Any, chosen: Tensor) -> Any:
    return value[chosen] if _has_rows(value) else value


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
