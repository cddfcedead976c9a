"""Log-probabilities and entropies of tokens, plain and in chunks.

    log π(y) = z_y − logsumexp(z),   H = −Σ_v p_v · log p_v,   p = softmax(z)

The plain forms hold several tensors of the logits' size. With `chunk_size`, rows are taken that
many at a time and everything of size V is computed again in the backward pass:
- from logits: beyond the logits and their gradient, which the caller's graph holds anyway, a few
  tensors of chunk_size·V are alive at a time;
- from hidden states and the output layer (`score_hidden`): the logits of the batch never exist
  either, so that the peak does not grow with B·T·V. The backward pass costs one more product with
  the output layer.

Values and gradients equal the plain forms' up to rounding. Half-precision logits are scored in
float32: a bfloat16 logsumexp over 150,000 entries is off in the second digit.

Shapes: B sequences, T tokens, V vocabulary, D hidden size, N rows (all leading axes flattened).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """What a policy says about the tokens of a text.

    Attributes:
        log_probs: [...] log-probability of each label, in nats.
        entropy: [...] entropy of the whole next-token distribution, in nats.
    """

    log_probs: Tensor
    entropy: Tensor


def selective_log_softmax(
    logits: Tensor, index: Tensor, *, chunk_size: int | None = None
) -> Tensor:
    """Log-probability of one chosen token per row.

    Args:
        logits: [..., V].
        index: [...] chosen tokens.
        chunk_size: rows at a time; None does all at once.

    Returns:
        [...], float32 or wider.
    """
    if chunk_size is None:
        log_p = _at_least_float32(logits).log_softmax(-1)
        return log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    scores: Tensor = _ChunkedLogProb.apply(rows, index.reshape(-1), chunk_size)  # type: ignore[no-untyped-call]
    return scores.view(index.shape)


def compute_entropy(logits: Tensor, chunk_size: int | None = None) -> Tensor:
    """Entropy of the next-token distribution, in nats.

    Args:
        logits: [..., V]; −∞ (a token that is ruled out) is allowed.
        chunk_size: rows at a time; None does all at once.

    Returns:
        [...], float32 or wider, between 0 and log V.
    """
    if chunk_size is None:
        log_p = _at_least_float32(logits).log_softmax(-1)
        return -(log_p.exp() * _finite(log_p)).sum(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    entropy: Tensor = _ChunkedEntropy.apply(rows, chunk_size)  # type: ignore[no-untyped-call]
    return entropy.view(logits.shape[:-1])


def score_hidden(
    hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, *, chunk_size: int
) -> TokenScores:
    """Score labels from the last hidden states, without ever holding the batch's logits.

    Args:
        hidden: [..., D] input of the output layer.
        head: the output layer, [n, D] → [n, V]; a module's parameters get their gradients.
        labels: [...] tokens to score.
        chunk_size: rows whose logits exist at one time.
    """

    def score(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(rows)
        return selective_log_softmax(logits, chosen), compute_entropy(logits)

    chunks = zip(
        torch.split(hidden.reshape(-1, hidden.shape[-1]), chunk_size),
        torch.split(labels.reshape(-1), chunk_size),
        strict=True,
    )
    scored = [checkpoint(score, rows, chosen, use_reentrant=False) for rows, chosen in chunks]
    log_probs, entropy = (
        torch.cat(parts).view(labels.shape) for parts in zip(*scored, strict=True)
    )
    return TokenScores(log_probs=log_probs, entropy=entropy)


def get_response_log_probs(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
    *,
    chunk_size: int | None = None,
) -> dict[str, Tensor]:
    """Score every label under a causal language model; nothing is masked here.

    Padding must be on the right: causal attention then keeps it from the tokens that count.

    Args:
        model: returns `.logits` [B, T, V] for input ids; for `chunk_size` also needs
            `get_output_embeddings()`, as Hugging Face models have (unwrapped from DDP or FSDP).
        input_ids: [B, T].
        labels: [B, T], the ids shifted by one.
        return_token_entropy: also score the distribution's entropy.
        chunk_size: tokens whose logits exist at one time; None computes all logits.

    Returns:
        "log_probs": [B, T]; with `return_token_entropy` also "token_entropy": [B, T].

    Raises:
        ValueError: `chunk_size` with a model that changes its logits after the output layer
            (soft-capping, scaling): chunks would score other logits than the model's.
    """
    if chunk_size is None:
        logits = model(input_ids).logits
        scores = {"log_probs": selective_log_softmax(logits, labels)}
        if return_token_entropy:
            scores["token_entropy"] = compute_entropy(logits)
        return scores
    head = model.get_output_embeddings()  # type: ignore[operator]
    scored = score_hidden(_last_hidden(model, head, input_ids), head, labels, chunk_size=chunk_size)
    entropy = {"token_entropy": scored.entropy} if return_token_entropy else {}
    return {"log_probs": scored.log_probs, **entropy}


def _last_hidden(model: torch.nn.Module, head: torch.nn.Module, input_ids: Tensor) -> Tensor:
    """[B, T, D]: what the model feeds its output layer.

    Taken by a hook rather than from the backbone, whose name and final norm differ between
    architectures and under PEFT. The hook lets one token through, so that the model's own
    logits are [B, 1, V]: the last one, as a first token that is a pad has all-zero states in
    some models, and zeros hide what is done to logits.
    """
    fed: list[Tensor] = []
    made: list[Tensor] = []

    def keep_last_token(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        fed.append(inputs[0])
        return (inputs[0][:, -1:], *inputs[1:])

    def remember(_: torch.nn.Module, __: tuple[Any, ...], logits: Tensor) -> None:
        made.append(logits)

    hooks = (head.register_forward_pre_hook(keep_last_token), head.register_forward_hook(remember))
    try:
        logits = model(input_ids).logits
    finally:
        for hook in hooks:
            hook.remove()
    if len(made) != 1 or not torch.equal(made[0].float(), logits.float()):
        raise ValueError(
            f"{type(model).__name__} changes its logits after the output layer, so they cannot be "
            "computed in chunks: use chunk_size=None"
        )
    return fed[0]


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _finite(log_p: Tensor) -> Tensor:
    """Replace −∞ in log p: 0·log 0 is 0, in value and gradient, where 0·(−∞) is NaN."""
    return log_p.clamp(min=torch.finfo(log_p.dtype).min)


class _ChunkedLogProb(torch.autograd.Function):
    """d log p_y / dz = onehot(y) − p, written into one buffer chunk by chunk.

    Splitting the logits under ordinary autograd would hold every chunk's gradient and then their
    concatenation, twice the buffer.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, chunk_size: int) -> Tensor:
        """[N, V], [N] → [N]."""
        chunks = [_at_least_float32(rows).logsumexp(-1) for rows in torch.split(logits, chunk_size)]
        normalizer = torch.cat(chunks)
        ctx.save_for_backward(logits, index, normalizer)
        ctx.chunk_size = chunk_size
        return logits.gather(-1, index.unsqueeze(-1)).squeeze(-1) - normalizer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """[N] → [N, V]."""
        logits, index, normalizer = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        parts = [
            torch.split(t, ctx.chunk_size) for t in (logits, index, normalizer, grad, grad_logits)
        ]
        for rows, chosen, norm, upstream, into in zip(*parts, strict=True):
            p = (_at_least_float32(rows) - norm.unsqueeze(-1)).exp_()
            p.mul_(-upstream.unsqueeze(-1))
            into.copy_(p.scatter_add_(-1, chosen.unsqueeze(-1), upstream.unsqueeze(-1)))
        return grad_logits, None, None


class _ChunkedEntropy(torch.autograd.Function):
    """dH / dz = −p·(log p + H), written into one buffer chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, chunk_size: int) -> Tensor:
        """[N, V] → [N]."""
        entropy = torch.cat([compute_entropy(rows) for rows in torch.split(logits, chunk_size)])
        ctx.save_for_backward(logits, entropy)
        ctx.chunk_size = chunk_size
        return entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """[N] → [N, V]."""
        logits, entropy = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        parts = [torch.split(t, ctx.chunk_size) for t in (logits, entropy, grad, grad_logits)]
        for rows, height, upstream, into in zip(*parts, strict=True):
            log_p = _finite(_at_least_float32(rows).log_softmax(-1))
            slope = -(log_p.exp() * (log_p + height.unsqueeze(-1)))
            into.copy_(slope.mul_(upstream.unsqueeze(-1)))
        return grad_logits, None
