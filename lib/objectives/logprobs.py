"""Log-probabilities and entropies of tokens: from whole logits, or fused with the output layer.

    log π(y) = z_y − logsumexp(z_S),   H = −Σ_{v∈S} p_v · log p_v,   p = softmax(z_S),   z = W h

S is the support of the sampling distribution: the whole vocabulary, or the rest of it after top-k,
top-p and min-p (`Truncate`), without gradient. Rounding or an update can move a label y out of S;
its log-prob stays finite, and has the gradient onehot(y) − p like any other.

Beside a teacher, KL = Σ_{v∈S} p_v · (log p_v − log π_T(v)) is its reverse KL of each row, with the
gradient dKL/dz = p · (log p − log π_T − KL); log π_T(v) = z_v − logsumexp(z_{S_T}) of its own z for
every v, as for a label outside of S. All but its k likeliest tokens can count as one.

`fused_scores` takes the hidden states h, and computes the logits of a chunk of rows at a time, in
the forward pass and again in the backward pass: peak memory does not grow with N, for one more
product with the output layer. All compute in float32 (float64 stays) whatever the logits' type: a
bfloat16 logsumexp over 150,000 entries is off in the second decimal place.

Shapes: N rows (positions to score), V vocabulary, D hidden size.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lib.objectives import CHUNK_NUMEL

Truncate = Callable[[Tensor], Tensor]
"""Maps [n, V] logits to a new tensor with −∞ outside of S, by the sampler's rules."""


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """Scores of tokens under a policy.

    Attributes:
        log_probs: [...] log-probability of each label, in nats.
        entropy: [...] entropy of the whole next-token distribution, in nats.
        teacher_kl: [...] reverse KL towards a teacher, in nats; None without one.
    """

    log_probs: Tensor
    entropy: Tensor
    teacher_kl: Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherStates:
    """A teacher at N rows, without gradient: its distributions are computed chunk by chunk.

    Attributes:
        hidden: [N, D] its output layer's inputs, in its own D.
        weight, bias: [V, D] and [V] of its output layer. Of two models with one tokenizer, either
            may have more rows, as padding; the surplus counts 0.
        top_k: k of its likeliest tokens, which are compared one by one; 0 for all.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    top_k: int = 0


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """Return the log-probability [...] of one token per row of logits [..., V].

    Args:
        index: [...] token ids.
    """
    # Not log_softmax: its result is as large as the logits, and is kept for the backward pass.
    wide = at_least_float32(logits)
    return wide.gather(-1, index.unsqueeze(-1)).squeeze(-1) - wide.logsumexp(-1)


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy [...] of logits [..., V], which may be −∞, in nats."""
    log_p = at_least_float32(logits).log_softmax(-1)
    # Clamped, since 0 · (−∞) is NaN.
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


def fused_scores(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    truncate: Truncate | None = None,
    chunk_numel: int = 0,
    teacher: TeacherStates | None = None,
) -> TokenScores:
    """Return the log-prob and entropy of each label from hidden states, without all logits at once.

    Gradients reach `hidden`, `weight` and `bias`, through each of the scores.

    Args:
        hidden: [N, D], the output layer's input.
        weight, bias: [V, D] and [V] of the output layer.
        labels: [N] tokens to score.
        temperature: divides the logits.
        truncate: applied after the temperature; None for the whole vocabulary.
        chunk_numel: number of logits in a chunk; 0: `CHUNK_NUMEL` of the device.
        teacher: at the same N rows.
    """
    chunk_numel = chunk_numel or CHUNK_NUMEL.get(hidden.device.type, CHUNK_NUMEL["cuda"])
    rows = max(1, chunk_numel // len(weight))
    return TokenScores(
        *_FusedScores.apply(hidden, weight, bias, labels, 1 / temperature, truncate, rows, teacher)  # type: ignore[no-untyped-call]
    )


def score_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    truncate: Truncate | None = None,
    rows: int = 128,
) -> TokenScores:
    """Return the log-prob and entropy of each label from whole logits, in chunks of `rows` rows.

    The softmax is computed again in the backward pass, not kept.

    Args:
        logits: [..., V].
        labels: [...].
        temperature, truncate: as in `fused_scores`.
    """
    # [N, V]
    flat = logits.reshape(-1, logits.shape[-1])
    scores = _FusedScores.apply(  # type: ignore[no-untyped-call]
        flat, None, None, labels.reshape(-1), 1 / temperature, truncate, rows, None
    )
    return TokenScores(*(score.view(labels.shape) for score in scores if score is not None))


class Float32Head(torch.nn.Linear):
    """An output layer computing in float32 from weights of any dtype, under autocast too."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [..., V]."""
        # Autocast would cast the float32 product back to bfloat16.
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return linear(hidden.float(), self.weight.float(), bias)


def cast_head(model: Any) -> None:
    """Make the model's output layer compute in float32 from now on (MiniMax-M1, arXiv:2506.13585).

    Weights keep their dtype, also in checkpoints; TRL's `cast_lm_head_to_fp32` makes them float32.
    The layer's class is replaced, because `score_labels` replaces `forward` during a call.

    Raises:
        ValueError: the output layer is no plain `torch.nn.Linear`, for example with an adapter.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise ValueError(f"the output layer is a {type(head).__name__}, not a torch.nn.Linear")
    head.__class__ = Float32Head


def can_fuse(model: Any) -> bool:
    """Return True if the model's logits are its output layer's result, unchanged.

    False with an adapter on the output layer, or if the model scales or soft-caps its logits, which
    a forward pass of two tokens tests.
    """
    head = model.get_output_embeddings()
    # A `forward` of the instance, as a hook sets it, would be overwritten by `score_labels`.
    if type(head) not in (torch.nn.Linear, Float32Head) or "forward" in vars(head):
        return False
    head_logits: list[Tensor] = []
    hook = head.register_forward_hook(lambda _, __, logits: head_logits.append(logits))
    try:
        with torch.no_grad():
            # Not token 0, often the padding: some models give it zero states, which hide a scale.
            logits = model(input_ids=torch.tensor([[1, 2]], device=head.weight.device)).logits
    finally:
        hook.remove()
    # Gemma, Granite and Cohere scale or soft-cap after the head.
    return len(head_logits) == 1 and torch.equal(head_logits[0].float(), logits.float())


def score_labels(
    model: Any,
    inputs: Mapping[str, Any],
    labels: Tensor,
    mask: Tensor,
    *,
    places: Tensor | None = None,
    temperature: float = 1.0,
    truncate: Truncate | None = None,
    chunk_numel: int = 0,
    entropy_grad: bool = False,
    head: Any = None,
    teacher: TeacherStates | None = None,
) -> TokenScores:
    """Run the model, and return the labels' log-probs and entropies without all logits at once.

    During the call, the output layer's forward pass returns scores instead of logits. They are
    computed there because FSDP gathers the layer's weight only for the layer's own forward pass.

    Args:
        model: a model for which `can_fuse` is True, or its DDP or FSDP wrapper.
        inputs: keyword arguments of the model, which must give logits at T positions per row.
        labels: [B, T].
        mask: [B, T] bool, True for labels to score.
        places: [n] indices of the mask's n True entries, flattened to [B · T]. None computes them,
            which waits for a GPU.
        temperature, truncate, chunk_numel: as in `fused_scores`.
        entropy_grad: let gradients flow through the entropy too.
        head: the output layer; None asks the model for it, which a DDP wrapper cannot answer.
        teacher: at the n places.

    Returns:
        [B, T] each; 0 where the mask is False.
    """
    head = head or model.get_output_embeddings()

    def scores_in_place_of_logits(hidden: Tensor) -> Tensor:
        """Map the layer's input [B, T, D] to each label's log-prob, entropy, KL [B, T, 2 or 3]."""
        # A cast head computes in float32, even under autocast.
        exact = isinstance(head, Float32Head)
        with torch.autocast(hidden.device.type, enabled=False) if exact else nullcontext():
            # [n], and their hidden states [n, D].
            scored = mask.flatten().nonzero()[:, 0] if places is None else places
            states = hidden.flatten(0, 1)[scored]
            scores = fused_scores(
                states.float() if exact else states,
                head.weight,
                labels.flatten()[scored],
                bias=head.bias,
                temperature=temperature,
                truncate=truncate,
                chunk_numel=chunk_numel,
                teacher=teacher,
            )
        # Its gradient would cost another pass over V.
        entropy = scores.entropy if entropy_grad else scores.entropy.detach()
        kl = [] if scores.teacher_kl is None else [scores.teacher_kl]
        rows = torch.stack([scores.log_probs, entropy, *kl], -1)
        width = rows.shape[-1]
        full = rows.new_zeros((mask.numel(), width)).index_put((scored,), rows)
        return full.view(*mask.shape, width)

    head.forward = scores_in_place_of_logits
    try:
        return TokenScores(*model(**inputs).logits.unbind(-1))
    finally:
        del head.forward


def head_inputs(model: Any, inputs: Mapping[str, Any], places: Tensor) -> Tensor:
    """Run the model without its output layer; return the layer's inputs [n, D] at n places.

    Args:
        model, inputs, places: as in `score_labels`.
    """
    head, states = model.get_output_embeddings(), []

    def keep(hidden: Tensor) -> Tensor:
        states.append(hidden.flatten(0, 1)[places])
        return hidden

    head.forward = keep
    try:
        model(**inputs)
    finally:
        del head.forward
    return states[0]


class _FusedScores(torch.autograd.Function):
    """Computes log-probs [N] and entropies [N] of labels, and KLs [N] to a teacher, by chunks."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        labels: Tensor,
        scale: float,
        truncate: Truncate | None,
        rows: int,
        teacher: TeacherStates | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the log-probs, entropies and KLs (None without a teacher) of N labels, [N] each.

        Args:
            ctx: keeps what `backward` needs.
            hidden: [N, D]; without a weight, logits [N, V].
            weight, bias: [V, D] and [V] of the output layer.
            labels: [N] tokens.
            scale: 1 / temperature.
            rows: most rows in a chunk.
        """
        # Autocast has ended before the backward pass, so its dtype is saved.
        device, dtype = hidden.device.type, hidden.dtype
        if weight is not None and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        layer = _Layer(hidden, weight, bias, scale, dtype=dtype)
        # [N] each; norm is logsumexp(z_S).
        log_probs, entropy, norm, kl = layer.wide.new_empty(4, len(hidden))
        beside = teacher and _Teacher(teacher, truncate, scale, dtype=dtype)
        # [rows, V] each, reused by every chunk: on a CPU, fresh memory for a chunk takes half as
        # long as its matrix product.
        logits = layer.wide.new_empty(min(rows, len(hidden)), layer.vocab_size)
        probabilities = torch.empty_like(logits)
        for start in range(0, len(hidden), rows):
            at = slice(start, start + rows)
            # [n, V]
            z = layer.logits(hidden[at], out=logits)
            # [n] read before the truncation: a label outside of S keeps its logit.
            label = z.gather(-1, labels[at, None]).squeeze(-1)
            z = truncate(z) if truncate else z
            p = torch.softmax(z, -1, out=probabilities[: len(z)])
            # log p = z − norm, read where p is largest: elsewhere it may have underflowed.
            norm[at] = z.amax(-1) - p.amax(-1).log()
            log_probs[at] = label - norm[at]
            if beside:
                kl[at] = beside.log_ratio(_finite_(z - norm[at, None]), at).mul_(p).sum(-1)
            # H = logsumexp(z) − Σ p z, with −1e30 in place of −∞, since 0 · (−∞) is NaN.
            entropy[at] = norm[at] - p.mul_(_finite_(z)).sum(-1)
        # Not the autocast copies: FSDP2 frees the gathered weight after the forward pass, and
        # gathers it again into the same tensor.
        ctx.save_for_backward(hidden, weight, bias, labels, norm, entropy, kl)
        ctx.scale, ctx.truncate, ctx.rows, ctx.dtype = scale, truncate, rows, dtype
        ctx.beside = beside
        ctx.set_materialize_grads(False)
        return log_probs, entropy, kl if beside else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_log_probs: Tensor | None,
        grad_entropy: Tensor | None,
        grad_kl: Tensor | None,
    ) -> Any:
        """Return the gradients of hidden, weight and bias, from those [N] of the outputs."""
        # With u = dL / d log p_y, e = dL / dH and k = dL / dKL, and the derivatives
        #     d log p_y / dz = onehot(y) − p,   dH / dz = −p · (log p + H),
        # the gradient is, times `scale` for the temperature,
        #     dL / dz = u · onehot(y) − p · (u + e · (log p + H) − k · (log p − log π_T − KL)).
        hidden, weight, bias, labels, norm, entropy, kl = ctx.saved_tensors
        layer = _Layer(hidden, weight, bias, ctx.scale, dtype=ctx.dtype)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # Summed over the chunks in float32, whatever the weight's type.
        grad_weight = torch.zeros_like(weight, dtype=norm.dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=norm.dtype) if needs_bias else None
        logits = layer.wide.new_empty(min(ctx.rows, len(hidden)), layer.vocab_size)
        for start in range(0, len(hidden), ctx.rows):
            at = slice(start, start + ctx.rows)
            z = layer.logits(hidden[at], out=logits)
            # [n, V]
            log_p = (ctx.truncate(z) if ctx.truncate else z).sub_(norm[at, None])
            upstream = torch.zeros_like(norm[at]) if grad_log_probs is None else grad_log_probs[at]
            upstream = ctx.scale * upstream[:, None]
            # The factor of −p in dL / dz.
            slope = upstream
            if grad_entropy is not None:
                log_p_plus_entropy = _finite_(log_p.clone()).add_(entropy[at, None])
                slope = log_p_plus_entropy.mul_(ctx.scale * grad_entropy[at, None]).add_(upstream)
            if grad_kl is not None:
                surplus = ctx.beside.log_ratio(_finite_(log_p.clone()), at).sub_(kl[at, None])
                slope = slope - surplus.mul_(ctx.scale * grad_kl[at, None])
            # [n, V] dL / dz
            grad = log_p.exp_().mul_(-slope).scatter_add_(-1, labels[at, None], upstream)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(ctx.dtype)
            if grad_hidden is not None:
                grad_hidden[at] = grad if layer.weight is None else grad @ layer.weight
            if grad_weight is not None and ctx.dtype == norm.dtype:
                # addmm_ takes one type for all three.
                grad_weight.addmm_(grad.T, hidden[at])
            elif grad_weight is not None:
                grad_weight += grad.T @ hidden[at].to(ctx.dtype)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            # labels, scale, truncate, rows, teacher
            None,
            None,
            None,
            None,
            None,
        )


class _Layer:
    """The output layer z = scale · (W h + b), computed in `dtype`.

    Without a weight, z = scale · h: the hidden states are logits.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        scale: float,
        *,
        dtype: torch.dtype,
    ) -> None:
        """Cast weight and bias to `dtype`; of `hidden` only dtype, device and size are read."""
        self.weight = None if weight is None else weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.scale, self.dtype = scale, dtype
        self.vocab_size = hidden.shape[-1] if weight is None else len(weight)
        # Only for `wide.new_empty`, which takes its device and dtype.
        self.wide = at_least_float32(hidden[:0])

    def logits(self, rows: Tensor, *, out: Tensor) -> Tensor:
        """Compute the logits [n, V] of n rows into the start of `out`, and return that part."""
        z = out[: len(rows)]
        if self.weight is None:
            z.copy_(rows)
        elif self.dtype == z.dtype:
            torch.mm(rows, self.weight.T, out=z)
            if self.bias is not None:
                z += self.bias
        else:
            # The product in half precision, as under autocast, then widened to float32.
            z.copy_(linear(rows.to(self.dtype), self.weight, self.bias))
        return z.mul_(self.scale) if self.scale != 1 else z


class _Teacher:
    """A teacher's log-probs beside the policy's, in a buffer for one chunk's logits."""

    def __init__(
        self, states: TeacherStates, truncate: Truncate | None, scale: float, *, dtype: torch.dtype
    ) -> None:
        self.hidden, self.top_k = states.hidden.to(dtype), states.top_k
        self.layer = _Layer(self.hidden, states.weight, states.bias, scale, dtype=dtype)
        self.truncate = truncate

    def log_ratio(self, log_p: Tensor, at: slice) -> Tensor:
        """Return log p − log π_T [n, V] of the rows `at`, in the place of log p.

        Args:
            log_p: −1e30 outside of S, where the result has no meaning.
        """
        # [n, V of the teacher]
        z = self.layer.logits(
            self.hidden[at], out=log_p.new_empty(len(log_p), self.layer.vocab_size)
        )
        p = torch.softmax(self.truncate(z) if self.truncate else z, -1)
        # As the policy's own norm is computed, so that an equal teacher gives exact zeros.
        log_q = z.sub_((z.amax(-1) - p.amax(-1).log())[:, None])
        if self.top_k:
            self._join_rest_(log_p, log_q)
        shared = min(log_p.shape[1], log_q.shape[1])
        log_p[:, :shared] -= log_q[:, :shared]
        log_p[:, shared:] = 0
        return log_p

    def _join_rest_(self, log_p: Tensor, log_q: Tensor) -> None:
        """Give all tokens but the teacher's k likeliest the log-prob of their sum, in both."""
        shared = min(log_p.shape[1], log_q.shape[1])
        k = min(self.top_k, shared)
        likeliest = log_q[:, :shared].topk(k, -1).indices
        rest = torch.ones_like(log_q[:, :shared], dtype=torch.bool).scatter_(-1, likeliest, False)
        # Outside of S, the policy has no share of the rest.
        rest &= log_p[:, :shared] > -1e29
        for each in (log_p[:, :shared], log_q[:, :shared]):
            joined = _finite_(each.masked_fill(~rest, -math.inf).logsumexp(-1, keepdim=True))
            torch.where(rest, joined, each, out=each)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen half precision to float32; return float32 and float64 as they are."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _finite_(values: Tensor) -> Tensor:
    """Replace −∞ by −1e30 in place: 0 · (−∞) is NaN, and −1e30 times a gradient is finite."""
    return values.clamp_(min=-1e30)
