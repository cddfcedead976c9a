"""Score completions under the policy: the log-prob and entropy of each token of a micro-batch.

Two methods give the same result with less arithmetic or memory:

    shared prompts  a prompt is computed once for all of its completions in a micro-batch; they
                    continue from its keys and values, and the gradient returns through these
    fused scores    if the logits are large, the output layer scores tokens in chunks, and all
                    logits never exist at once (`lib.objectives.logprobs`)

b rows of a micro-batch, p distinct prompts among them, C tokens of the longest prompt, T of the
longest completion.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import DynamicCache

from lib.core.errors import UserError
from lib.engines.base import Sampling
from lib.engines.decoding import can_decode, forward_arguments, truncate
from lib.models.unsloth import is_unsloth
from lib.objectives import MAX_WHOLE_LOGITS
from lib.objectives.logprobs import (
    TeacherStates,
    TokenScores,
    Truncate,
    at_least_float32,
    can_fuse,
    cast_head,
    compute_entropy,
    head_inputs,
    score_labels,
    score_logits,
    selective_log_softmax,
)
from lib.training.grpo.batching import MicroBatch


class Scorer:
    """Scores completions under a policy in training.

    Args:
        policy: without wrappers.
        sampling: its temperature, top-k, top-p and min-p are applied to the logits first.
        entropy_grad: let gradients flow through the entropy too.
        float32_head: make the output layer compute in float32, in scoring and generation.
        shares_prompts: compute a prompt once for its completions.
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
                # In place; only a plain linear layer.
                cast_head(policy)
            except ValueError as error:
                raise UserError(f"grpo.cast_lm_head_to_fp32: {error}; set it to false") from error
        self.policy, self.head = policy, policy.get_output_embeddings()
        self.temperature, self.entropy_grad = sampling.temperature, entropy_grad
        # The log-probs are of the distribution that is left and renormalised.
        cut = functools.partial(truncate, sampling=sampling)
        self.truncate: Truncate | None = cut if sampling.truncates else None
        self.shares_prompts = shares_prompts and can_decode(policy)
        unsloth = is_unsloth(policy)
        # True if logits can be computed in chunks; None until `score` has tested it. Unsloth
        # replaces the forward pass, and with it the call of the output layer.
        self.fuses: bool | None = False if unsloth else None
        # Without position ids, a model with learned positions counts the padding before a prompt.
        # Unsloth's own forward pass gets no position ids.
        self.takes_positions = not unsloth and "position_ids" in forward_arguments(policy)

    def score(
        self, model: Any, batch: MicroBatch, *, teacher: TeacherStates | None = None
    ) -> TokenScores:
        """Return log-prob and entropy of each sampled token, [b, T]; 0 on padding and forced ones.

        Args:
            model: the policy, or its DDP or FSDP wrapper.
            teacher: from `states` of the teacher's scorer, for the KL towards it.

        Raises:
            UserError: a teacher, while the logits are not the output layer's result.
        """
        return self._scores(model, self._inputs(model, batch), batch, teacher)

    def states(self, batch: MicroBatch, *, top_k: int) -> TeacherStates:
        """Return this model's part in the policy's `score`, as its teacher."""
        inputs = self._inputs(self.policy, batch)
        self._check_fuses()
        inputs["logits_to_keep"] = batch.completion_ids.shape[1] + 1
        hidden = head_inputs(self.policy, inputs, batch.places)
        return TeacherStates(
            hidden=hidden, weight=self.head.weight, bias=self.head.bias, top_k=top_k
        )

    def _check_fuses(self) -> None:
        if not self.fuses:
            raise UserError(
                f"grpo.teacher_kl=full: the logits of {type(self.policy).__name__} are not its "
                "output layer's result (an adapter, a scale or a cap), which full needs; use "
                "sampled"
            )

    def _inputs(self, model: Any, batch: MicroBatch) -> dict[str, Any]:
        """Return the model's arguments for the completions; distinct prompts are computed here."""
        if self.fuses is None:
            # By a forward pass, for which the constructor is too early: accelerate puts the policy
            # under autocast when training starts. Every rank tests, even if its batch is too small
            # for chunks: under FSDP2 a forward pass is collective.
            self.fuses = can_fuse(self.policy)
        # [b, C + T], padded on the left of the prompt and on the right of the completion.
        ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
        mask = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
        prefix = batch.prompt_ids.shape[1]  # C
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        # [b, C + T] counted from the first real token, as the engine counts them.
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        if self.takes_positions:
            inputs["position_ids"] = positions
        # With p = b nothing is shared, with C = 1 nothing cached.
        if self.shares_prompts and prefix > 1 and len(batch.prompts) < len(ids):
            # First pass: each distinct prompt without its last token. The second pass reads that
            # token before the completion, because its logits score the completion's first token.
            cache = self._prompt_cache(model, batch.prompts[:, :-1])
            # From p rows of keys and values to b rows.
            cache.batch_select_indices(batch.owner)
            inputs |= {
                # [b, 1 + T]. The attention mask stays [b, C + T]: it covers the cache too.
                "input_ids": ids[:, prefix - 1 :],
                "position_ids": positions[:, prefix - 1 :],
                "past_key_values": cache,
                "use_cache": True,
            }
        return inputs

    def _prompt_cache(self, model: Any, prompts: Tensor) -> DynamicCache:
        """Return the keys and values of the p distinct prompts, without their last tokens.

        Args:
            prompts: [p, C - 1] without each prompt's last token, -1 on padding.
        """
        cache, mask = DynamicCache(), (prompts >= 0).long()
        model(
            input_ids=prompts.clamp(min=0),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            # The logits are not used, so the fewest possible: 1, since 0 means all positions.
            logits_to_keep=1,
        )
        return cache

    def _scores(
        self,
        model: Any,
        inputs: dict[str, Any],
        batch: MicroBatch,
        teacher: TeacherStates | None,
    ) -> TokenScores:
        """Run the model on `inputs`, and return the scores of the completions' tokens, [b, T].

        From whole logits, or for many of them in chunks (`score_labels`), in which a teacher's
        distribution is compared too.
        """
        length = batch.completion_ids.shape[1]
        # From the prompt's last token on. The logits of the last position are not sliced off, which
        # would copy all of them; instead the labels get one more column.
        inputs["logits_to_keep"] = length + 1
        # [b, T + 1] each.
        labels = torch.nn.functional.pad(batch.completion_ids, (0, 1))
        real = torch.nn.functional.pad(batch.sampled_mask, (0, 1))
        if teacher:
            self._check_fuses()
        # Only for many logits, b · (T + 1) · V: chunks cost one more product with the output layer.
        if teacher or (self.fuses and real.numel() * len(self.head.weight) > MAX_WHOLE_LOGITS):
            scores = score_labels(
                model,
                inputs,
                labels,
                real,
                places=batch.places,
                temperature=self.temperature,
                truncate=self.truncate,
                entropy_grad=self.entropy_grad,
                head=self.head,
                teacher=teacher,
            )
        else:
            # Sliced, since a model without the argument `logits_to_keep` returns all logits.
            scores = self._from_logits(model(**inputs).logits[:, -length - 1 :], labels)
        every = (scores.log_probs, scores.entropy, scores.teacher_kl)
        return TokenScores(
            *(each.masked_fill(~real, 0)[:, :-1] for each in every if each is not None)
        )

    def _from_logits(self, logits: Tensor, labels: Tensor) -> TokenScores:
        """Return the scores of labels [b, T + 1] from whole logits [b, T + 1, V]."""
        # Here autograd would keep several tensors as large as the logits. `score_logits` computes
        # them chunk by chunk, and again in the backward pass.
        if self.truncate or self.entropy_grad:
            return score_logits(
                logits, labels, temperature=self.temperature, truncate=self.truncate
            )
        if self.temperature != 1.0:
            # Widened first, as the sampler does: a quotient in bfloat16 would be rounded again.
            logits = at_least_float32(logits) / self.temperature
        with torch.no_grad():
            # 128 rows at a time, since the entropy takes two more tensors as large as its logits.
            chunks = logits.flatten(0, 1).split(128)  # type: ignore[no-untyped-call]
            entropy = torch.cat([compute_entropy(rows) for rows in chunks]).view(labels.shape)
        return TokenScores(selective_log_softmax(logits, labels), entropy)


class ReferencePolicy:
    """The reference policy of the KL penalty: a copy of the trainable weights at the start.

    It has no model of its own: its weights are swapped into the policy for scoring.
    """

    def __init__(self, policy: torch.nn.Module) -> None:
        self._weights = [weight.detach().clone() for weight in _trained_weights(policy)]

    @contextlib.contextmanager
    def in_place_of(self, policy: torch.nn.Module) -> Iterator[None]:
        self._exchange(policy)
        try:
            yield
        finally:
            self._exchange(policy)

    @torch.no_grad()
    def _exchange(self, policy: torch.nn.Module) -> None:
        """Swap the stored weights and the policy's trainable weights; a second call swaps back."""
        for module in policy.modules():
            # FSDP2 may still hold gathered weights of the last forward pass: free them.
            if isinstance(module, FSDPModule):
                module.reshard()
        for index, weight in enumerate(_trained_weights(policy)):
            stored = self._weights[index].to(weight.device)
            if isinstance(weight, DTensor) and not isinstance(stored, DTensor):
                # The copy was made before accelerate sharded the policy.
                stored = distribute_tensor(stored, weight.device_mesh, weight.placements)
            self._weights[index] = weight.detach().clone()
            weight.copy_(stored)


def _trained_weights(policy: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that training updates: all, or an adapter's."""
    # Looked up at each call, since FSDP2 replaces parameters.
    return [weight for weight in policy.parameters() if weight.requires_grad]
