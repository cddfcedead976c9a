import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from lib.course import get_response_log_probs
from lib.objectives.logprobs import (
    can_fuse,
    cast_head,
    compute_entropy,
    fused_scores,
    score_labels,
    score_logits,
    selective_log_softmax,
)
from tests.lib.objectives.tiny import VOCAB_SIZE, tiny_model


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, 17, generator=generator, dtype=torch.float64) * 3


@pytest.fixture
def index():
    return torch.randint(17, (3, 5), generator=torch.Generator().manual_seed(1))


def test_log_prob_and_entropy_are_those_of_the_softmax(logits, index):
    p = [math.exp(z) for z in logits[1, 2].tolist()]
    logs = [math.log(q / sum(p)) for q in p]
    log_prob = selective_log_softmax(logits, index)[1, 2].item()
    assert log_prob == pytest.approx(logs[int(index[1, 2])], abs=1e-12)
    entropy = -sum(math.exp(log) * log for log in logs)
    assert compute_entropy(logits)[1, 2].item() == pytest.approx(entropy, abs=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 4, 15, 100])
def test_chunks_change_neither_values_nor_gradients(logits, index, chunk_size):
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z = logits.requires_grad_()
    for plain, chunked in (
        (selective_log_softmax(z, index), selective_log_softmax(z, index, chunk_size=chunk_size)),
        (compute_entropy(z), compute_entropy(z, chunk_size=chunk_size)),
    ):
        torch.testing.assert_close(chunked, plain)
        expected, actual = (torch.autograd.grad((s * weight).sum(), z)[0] for s in (plain, chunked))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_token_that_is_ruled_out_leaves_entropy_finite(
    chunk_size,
):
    z = torch.tensor([[1.0, -torch.inf, 2.0]], dtype=torch.float64, requires_grad=True)
    rest = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    entropy, expected = compute_entropy(z, chunk_size), compute_entropy(rest)
    torch.testing.assert_close(entropy, expected)
    entropy.sum().backward()
    expected.sum().backward()
    assert z.grad is not None
    assert rest.grad is not None
    torch.testing.assert_close(z.grad[:, [0, 2]], rest.grad)
    assert z.grad[0, 1] == 0


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_half_precision_logits_are_scored_in_float32(logits, index, chunk_size):
    half = logits.bfloat16()
    scored = selective_log_softmax(half, index, chunk_size=chunk_size)
    assert scored.dtype == torch.float32
    expected = selective_log_softmax(half.double(), index).float()
    torch.testing.assert_close(scored, expected, atol=1e-5, rtol=0)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Keep the number of elements of the largest tensor made under this mode."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numel = max(self.numel, made.numel())
        return made


def test_the_largest_tensor_of_both_passes_is_one_chunks_logits():
    head = nn.Linear(4, 300)
    hidden = torch.randn(20, 4, requires_grad=True)
    index = torch.zeros(20, dtype=torch.long)
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            scored = fused_scores(hidden, head.weight, index, bias=head.bias, chunk_numel=5 * 300)
        (scored.log_probs + scored.entropy).sum().backward()
    assert largest.numel == 5 * 300
    # Between the passes, less than that is kept.
    parameters = sum(weight.numel() for weight in head.parameters())
    assert sum(kept) - parameters < 5 * 300


def test_chunked_model_scores_are_the_plain_ones_without_logits(model):
    ids = torch.randint(100, (2, 201), generator=torch.Generator().manual_seed(0))
    gradients, largest = [], []
    for chunk_size in (None, 20):
        model.zero_grad()
        with LargestTensor() as seen:
            scores = get_response_log_probs(
                model, ids[:, :-1], ids[:, 1:], True, chunk_size=chunk_size
            )
            (scores["log_probs"] - 0.1 * scores["token_entropy"]).sum().backward()
        gradients.append((scores, {n: p.grad.clone() for n, p in model.named_parameters()}))
        largest.append(seen.numel)
    # In chunks the largest tensor is the MLP's, 64 wide.
    assert largest == [2 * 200 * VOCAB_SIZE, 2 * 200 * 64]
    (plain, plain_gradients), (chunked, chunked_gradients) = gradients
    entropy = compute_entropy(model(ids).logits[:, :-1])
    torch.testing.assert_close(plain["token_entropy"], entropy)
    torch.testing.assert_close(chunked, plain)
    # float32 sums in another order, over gradients of up to about 100
    torch.testing.assert_close(chunked_gradients, plain_gradients, atol=1e-3, rtol=1e-4)


def test_a_model_that_changes_its_logits_is_refused_in_chunks():
    config = Gemma2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=1.0,
        initializer_range=0.5,
    )
    capped = Gemma2ForCausalLM(config)
    ids = torch.arange(6).unsqueeze(0)
    assert get_response_log_probs(capped, ids[:, :-1], ids[:, 1:])["log_probs"].shape == (1, 5)
    with pytest.raises(ValueError, match="chunk_size"):
        get_response_log_probs(capped, ids[:, :-1], ids[:, 1:], chunk_size=2)
    assert not capped.get_output_embeddings()._forward_hooks


def test_a_head_with_an_adapter_is_neither_fused_nor_cast(model):
    assert can_fuse(model)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head", "q_proj"]))
    assert not can_fuse(adapted)
    with pytest.raises(ValueError, match="Linear"):
        cast_head(adapted)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_the_heads_weight_has_the_gradient_of_whole_logits(tied, autocast):
    """A tied head's gradient adds up with the embeddings'; autocast multiplies in bfloat16."""
    model = tiny_model(0, tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    ids = torch.randint(100, (2, 9), generator=torch.Generator().manual_seed(0))
    labels, mask = ids.roll(-1, 1), torch.arange(9).expand(2, 9) < torch.tensor([[8], [5]])
    matches = []
    for rows in (None, 3):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if rows is None:
                logits = model(ids).logits / 0.7
                scores = selective_log_softmax(logits, labels) * mask
            else:
                scores = score_labels(
                    model, {"input_ids": ids}, labels, mask, temperature=0.7,
                    chunk_numel=rows * VOCAB_SIZE,
                ).log_probs  # fmt: skip
        scores.square().sum().backward()
        matches.append((scores.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    (whole, expected), (chunked, actual) = matches
    torch.testing.assert_close(chunked, whole, atol=5e-2 if autocast else 1e-5, rtol=1e-4)
    for name, gradient in expected.items():
        largest = gradient.abs().max()
        assert (actual[name] - gradient).abs().max() < (3e-2 if autocast else 1e-5) * largest, name


def nucleus(scores: Tensor) -> Tensor:
    """Keep the most probable tokens that make up 80 %, by another route than the engine's."""
    probs, order = scores.softmax(-1).sort(-1, descending=True)
    kept = probs.cumsum(-1) - probs < 0.8
    return scores.masked_fill(~torch.zeros_like(kept).scatter(-1, order, kept), float("-inf"))


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("truncate", [None, nucleus])
def test_scores_and_gradients_are_those_of_autograd(rows, temperature, truncate):
    """Labels lie inside and outside the cut; the bonus's gradient is the entropy's."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((9, 6), (20, 6), (20,))
    )
    inputs, logits = (hidden, weight, bias), hidden @ weight.T + bias
    z = logits / temperature
    labels = torch.cat([z.argmax(-1)[:4], z.argmin(-1)[4:6], z.topk(2).indices[6:, 1]])
    cut = truncate(z.detach()) if truncate else z.detach()
    assert cut.gather(-1, labels[:, None]).isinf().any() == bool(truncate)
    left = z.masked_fill(cut.isinf(), float("-inf"))
    expected = z.gather(-1, labels[:, None])[:, 0] - left.logsumexp(-1)
    probs = left.softmax(-1)
    logs = torch.where(cut.isinf(), 0, z - left.logsumexp(-1, keepdim=True))
    entropy = -(probs * logs).sum(-1)
    upstream = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad(
        (upstream * torch.stack([expected, entropy])).sum(), inputs, retain_graph=True
    )
    knobs = {"temperature": temperature, "truncate": truncate}
    fused = fused_scores(hidden, weight, labels, bias=bias, chunk_numel=rows * 20, **knobs)
    plain = score_logits(logits, labels, rows=rows, **knobs)
    for scores in (fused, plain):
        torch.testing.assert_close(scores.log_probs, expected)
        torch.testing.assert_close(scores.entropy, entropy)
        total = (upstream * torch.stack([scores.log_probs, scores.entropy])).sum()
        torch.testing.assert_close(torch.autograd.grad(total, inputs, retain_graph=True), wanted)


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("autocast", [True, False])
def test_under_autocast_products_are_in_its_type_and_sums_are_not(autocast):
    kind = torch.bfloat16 if autocast else torch.float32
    hidden, weight, upstream = (
        random_tensor(9, 64).requires_grad_(),
        random_tensor(50, 64).requires_grad_(),
        random_tensor(9),
    )
    labels = torch.arange(9)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        scores = fused_scores(hidden, weight, labels)
        plain = score_logits(hidden @ weight.T, labels)
        existing = random_tensor(9, 9).requires_grad_()
        exact = score_logits(existing, labels)
    hidden_grad, weight_grad = torch.autograd.grad(
        (upstream * scores.log_probs).sum(), (hidden, weight)
    )

    half, wide = hidden.detach().to(kind), weight.detach().to(kind)
    logits = (half @ wide.T).float()
    expected = logits.log_softmax(-1)
    for each in (scores, plain):
        torch.testing.assert_close(each.log_probs, expected[range(9), labels], rtol=1e-6, atol=1e-5)
        entropy = -(expected.exp() * expected).sum(-1)
        torch.testing.assert_close(each.entropy, entropy, rtol=1e-5, atol=1e-5)
    slope = (torch.eye(50)[labels] - expected.exp()) * upstream[:, None]
    torch.testing.assert_close(hidden_grad, (slope.to(kind) @ wide).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight_grad, (slope.to(kind).T @ half).float(), rtol=1e-5, atol=1e-5)
    # Logits that exist are scored as they are.
    unrounded = existing.log_softmax(-1)[range(9), labels]
    torch.testing.assert_close(exact.log_probs, unrounded, rtol=1e-6, atol=1e-6)
    ours, theirs = (
        torch.autograd.grad(each.sum(), existing) for each in (exact.log_probs, unrounded)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("trained", [{"hidden"}, {"weight"}, {"bias"}, {"weight", "bias"}])
def test_what_is_not_trained_takes_nothing_from_the_others(trained, autocast):
    """States without gradient, or a frozen head, leave the other gradients as they are."""

    def gradients(trained: set[str]) -> dict[str, Tensor | None]:
        inputs = {
            "hidden": random_tensor(9, 8),
            "weight": random_tensor(20, 8),
            "bias": random_tensor(20),
        }
        for name in trained:
            inputs[name].requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = fused_scores(**inputs, labels=torch.arange(9), chunk_numel=80)
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        return {name: each.grad for name, each in inputs.items()}

    every, some = gradients({"hidden", "weight", "bias"}), gradients(trained)
    assert {name for name, gradient in some.items() if gradient is not None} == trained
    assert all(some[name].equal(every[name]) for name in trained)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_in_float32_gives_the_logits_of_float32_weights(tied, autocast):
    """Whole and fused logits agree; bfloat16's own are off by a hundred times as much."""
    model = tiny_model(0, tie_word_embeddings=tied).bfloat16()
    ids = torch.randint(100, (2, 9), generator=torch.Generator().manual_seed(0))
    head, mask = model.get_output_embeddings(), torch.ones(2, 9, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.model(ids).last_hidden_state
        rounded = model(ids).logits
        cast_head(model)
        logits = model(ids).logits
        assert can_fuse(model)
        fused = score_labels(model, {"input_ids": ids}, ids, mask)
    expected = hidden.float() @ head.weight.float().T
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)
    log_probs = expected.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(fused.log_probs, log_probs, atol=1e-4, rtol=1e-5)
    assert (rounded.float() - expected).abs().max() > 1e-2
    assert head.weight.dtype == torch.bfloat16
    (fused.log_probs.sum() + logits.sum()).backward()
    assert head.weight.grad.isfinite().all()
