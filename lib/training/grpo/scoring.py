"""Completions under the policy: rows that go through it together, and the scores of their tokens.

Two ways to the same numbers with less arithmetic or memory:

    shared prompts  a prompt is computed once for all of its completions in a micro-batch; they
                    continue from its keys and values, through which the gradient returns
    fused scores    where the logits would be large, the output layer scores tokens in chunks and
                    never makes them all (`lib.objectives.logprobs`)

b rows of a micro-batch, p distinct prompts among them, C tokens of the longest prompt, T of the
longest completion.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import DynamicCache

from lib.core.errors import UserError
from lib.engines.base import Sampling
from lib.engines.decoding import can_decode, forward_arguments, truncate
from lib.engines.unsloth import is_unsloth
from lib.objectives import LARGE
from lib.objectives.logprobs import (
    TokenScores,
    Truncate,
    can_fuse,
    cast_head,
    compute_entropy,
    score_labels,
    score_logits,
    selective_log_softmax,
)


@dataclasses.dataclass(kw_only=True)
class MicroBatch:
    """Rows of one forward pass, with all that their loss needs.

    Attributes:
        rows: their places among the step's rollouts.
        prompt_ids, prompt_mask: [b, C], padded on the left.
        completion_ids, completion_mask: [b, T], padded on the right.
        loss_mask: [b, T] bool, tokens that the loss counts.
        advantages: [b].
        sampler_log_probs: [b, T] as the engine reported them.
        num_tokens: of the optimiser step, that `dapo` divides by, in micro-batches of one process.
        last: of the step.
        reference_log_probs: [b, T], with a KL penalty.
        old_log_probs: [b, T], from the first pass on.
        correction: [b, 1] or [b, T], from the first pass on, for an engine with its own weights.
    """

    rows: Sequence[int]
    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    loss_mask: Tensor
    advantages: Tensor
    sampler_log_probs: Tensor
    num_tokens: float
    last: bool
    reference_log_probs: Tensor | None = None
    old_log_probs: Tensor | None = None
    correction: Tensor | None = None


def padded(rows: Sequence[Sequence[Any]], *, value: Any, left: bool = False) -> Tensor:
    """[b, longest]; `value` fills short rows on the right, or on the left."""
    width = max(len(row) for row in rows)
    fills = ([value] * (width - len(row)) for row in rows)
    return torch.tensor(
        [[*fill, *row] if left else [*row, *fill] for fill, row in zip(fills, rows, strict=True)]
    )


class Scorer:
    """Scores completions under a policy in training.

    Args:
        policy: without wrappers.
        sampling: log-probs and entropy are those of the distribution that it samples from.
        entropy_grad: let gradients flow through the entropy too.
        float32_head: let the output layer compute in float32, wherever the policy is used.
        shares_prompts: allowed where one process holds the whole policy; two forward passes before
            one backward pass are more than DDP and FSDP follow.
    """

    def __init__(
        self,
        policy: Any,
        *,
        sampling: Sampling,
        shares_prompts: bool,
        entropy_grad: bool = False,
        float32_head: bool = False,
    ) -> None:
        if float32_head:
            try:
                cast_head(policy)
            except ValueError as error:
                raise UserError(f"grpo.cast_lm_head_to_fp32: {error}; set it to false") from error
        self.policy, self.head = policy, policy.get_output_embeddings()
        self.temperature, self.entropy_grad = sampling.temperature, entropy_grad
        # The sampler renormalises over what its cuts leave, so log-probs are of that distribution.
        cut = functools.partial(truncate, sampling=sampling)
        self.truncate: Truncate | None = cut if sampling.truncates else None
        self.shares_prompts = shares_prompts and can_decode(policy)
        # Unsloth replaces the forward pass, and asks the output layer in its own ways.
        unsloth = is_unsloth(policy)
        # Known from the first score on; before that, the policy cannot be asked.
        self.fuses: bool | None = False if unsloth else None
        # Without them, a model with learned positions counts the padding before a prompt.
        self.takes_positions = not unsloth and "position_ids" in forward_arguments(policy)

    def score(self, model: Any, batch: MicroBatch) -> TokenScores:
        """[b, T] scores of the completions' tokens, 0 behind their ends.

        Args:
            model: the policy, in whatever wraps it.
        """
        if self.fuses is None:
            # Here and not in the constructor: accelerate puts the policy under autocast, and FSDP2
            # on its device, when training starts, and a flash kernel refuses float32. On every rank
            # at its first score, whatever its size: under FSDP2 a forward pass is collective.
            self.fuses = can_fuse(self.policy)
        ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
        mask = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
        prefix = batch.prompt_ids.shape[1]  # C
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        # [b, C + T] counted from the first real token, as the engine counts them.
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        if self.takes_positions:
            inputs["position_ids"] = positions
        if self.shares_prompts:
            # A place that is masked tells no prompts apart, whatever stands there.
            # [p, C] distinct prompts, and [b] which of them a row has.
            prompts, owner = torch.unique(
                ids[:, :prefix].masked_fill(~batch.prompt_mask.bool(), -1),
                dim=0,
                return_inverse=True,
            )
            if prefix > 1 and len(prompts) < len(ids):
                # The completions and, before them, the last token of their prompt, whose keys and
                # values are computed with them: its logits score the first token.
                cache = self._prompt_cache(model, prompts[:, :-1])
                cache.batch_select_indices(owner)  # p rows of keys and values become b
                inputs |= {
                    # [b, 1 + T]; the attention mask stays [b, C + T], the cache included.
                    "input_ids": ids[:, prefix - 1 :],
                    "position_ids": positions[:, prefix - 1 :],
                    "past_key_values": cache,
                    "use_cache": True,
                }
        return self._scores(model, inputs, batch)

    def _prompt_cache(self, model: Any, prompts: Tensor) -> DynamicCache:
        """Keys and values of the distinct prompts [p, C - 1]; -1 stands for padding."""
        cache, mask = DynamicCache(), (prompts >= 0).long()
        model(
            input_ids=prompts.clamp(min=0),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            # Nothing is scored here; 0 would mean all.
            logits_to_keep=1,
        )
        return cache

    def _scores(self, model: Any, inputs: dict[str, Any], batch: MicroBatch) -> TokenScores:
        length = batch.completion_ids.shape[1]
        # One more than the tokens: the last one's logits predict what comes after the completion.
        # The labels are padded to match, since slicing logits copies them all.
        inputs["logits_to_keep"] = length + 1
        labels = torch.nn.functional.pad(batch.completion_ids, (0, 1))
        kept = torch.nn.functional.pad(batch.completion_mask, (0, 1)).bool()
        # b · (T + 1) · V logits; chunks cost one more product with the head.
        if self.fuses and kept.numel() * len(self.head.weight) > LARGE:
            scores = score_labels(
                model,
                inputs,
                labels,
                kept,
                temperature=self.temperature,
                truncate=self.truncate,
                entropy_grad=self.entropy_grad,
                head=self.head,
            )
            return TokenScores(scores.log_probs[:, :-1], scores.entropy[:, :-1])
        # Sliced, since a model that takes no `logits_to_keep` returns all.
        scores = self._from_logits(model(**inputs).logits[:, -length - 1 :], labels)
        ended = ~kept[:, :-1]
        return TokenScores(
            scores.log_probs[:, :-1].masked_fill(ended, 0),
            scores.entropy[:, :-1].masked_fill(ended, 0),
        )

    def _from_logits(self, logits: Tensor, labels: Tensor) -> TokenScores:
        if self.truncate or self.entropy_grad:
            return score_logits(
                logits, labels, temperature=self.temperature, truncate=self.truncate
            )
        if self.temperature != 1.0:
            logits = logits / self.temperature
        with torch.no_grad():
            # Some rows at a time: it is logged only, and makes two tensors of the logits' size.
            rows = logits.flatten(0, 1).split(128)  # type: ignore[no-untyped-call]
            entropy = torch.cat([compute_entropy(part) for part in rows]).view(labels.shape)
        return TokenScores(selective_log_softmax(logits, labels), entropy)


class ReferencePolicy:
    """What the KL penalty measures from: the weights that training starts from, and no second
    model."""

    def __init__(self, policy: torch.nn.Module) -> None:
        self._weights = [weight.detach().clone() for weight in _trained_weights(policy)]

    @contextlib.contextmanager
    def in_place_of(self, policy: torch.nn.Module) -> Iterator[None]:
        """Within the block, the policy has these weights."""
        self._exchange(policy)
        try:
            yield
        finally:
            self._exchange(policy)

    @torch.no_grad()
    def _exchange(self, policy: torch.nn.Module) -> None:
        for at, weight in enumerate(_trained_weights(policy)):
            # Copied before accelerate sharded the policy: whole at the first exchange.
            other = self._weights[at].to(weight.device)
            if isinstance(weight, DTensor) and not isinstance(other, DTensor):
                other = distribute_tensor(other, weight.device_mesh, weight.placements)
            self._weights[at] = weight.detach().clone()
            weight.copy_(other)


def _trained_weights(policy: torch.nn.Module) -> list[torch.nn.Parameter]:
    # Read afresh each time: FSDP2 replaces parameters.
    return [weight for weight in policy.parameters() if weight.requires_grad]
