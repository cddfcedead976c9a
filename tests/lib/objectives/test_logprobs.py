import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from examples.cs336 import get_response_log_probs
from lib.objectives.logprobs import (
    can_fuse,
    cast_head,
    compute_entropy,
    fused_scores,
    score_labels,
    score_logits,
    selective_log_softmax,
)
from tests.lib.objectives.losses import gradients_of
from tests.lib.objectives.tiny import VOCAB_SIZE, seeded, tiny_model, token_ids

TIED = pytest.mark.parametrize("tied", [True, False])
AUTOCAST = pytest.mark.parametrize("autocast", [True, False])


def in_bfloat16(enabled: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


@pytest.fixture
def logits():
    return torch.randn(3, 5, 17, generator=seeded(), dtype=torch.float64) * 3


@pytest.fixture
def index():
    return torch.randint(17, (3, 5), generator=seeded(1))


@pytest.fixture
def ids():
    return token_ids(2, 9)


def test_log_prob_and_entropy_are_those_of_the_softmax(logits, index):
    p = [math.exp(z) for z in logits[1, 2].tolist()]
    logs = [math.log(q / sum(p)) for q in p]
    log_prob = selective_log_softmax(logits, index)[1, 2].item()
    assert log_prob == pytest.approx(logs[int(index[1, 2])], abs=1e-12)
    entropy = -sum(math.exp(log) * log for log in logs)
    assert compute_entropy(logits)[1, 2].item() == pytest.approx(entropy, abs=1e-12)


@pytest.mark.parametrize(
    "entropy_of", [compute_entropy, lambda z: score_logits(z, torch.tensor([0]), rows=2).entropy]
)
def test_a_token_that_is_ruled_out_leaves_entropy_finite(entropy_of):
    z = torch.tensor([[1.0, -torch.inf, 2.0]], dtype=torch.float64, requires_grad=True)
    entropy, expected = entropy_of(z), compute_entropy(z[:, [0, 2]])
    torch.testing.assert_close(entropy, expected)
    gradient, wanted = (torch.autograd.grad(each.sum(), z) for each in (entropy, expected))
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(
    "scored", [selective_log_softmax, lambda z, index: score_logits(z, index, rows=4).log_probs]
)
def test_half_precision_logits_are_scored_in_float32(logits, index, scored):
    half = logits.bfloat16()
    expected = selective_log_softmax(half.double(), index).float()
    torch.testing.assert_close(scored(half, index), expected, atol=1e-5, rtol=0)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Keep the number of elements of the largest tensor made under this mode."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numel = max(self.numel, made.numel())
        return made


def test_the_largest_tensor_of_both_passes_is_one_chunks_logits():
    head, kept = nn.Linear(4, 300), []
    hidden = torch.randn(20, 4, requires_grad=True)
    index = torch.zeros(20, dtype=torch.long)

    def count(tensor):
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
    ids = token_ids(2, 201)

    def run(chunk_size, *, widest):
        with LargestTensor() as largest:
            scores = get_response_log_probs(
                model, ids[:, :-1], ids[:, 1:], True, chunk_size=chunk_size
            )
            total = (scores["log_probs"] - 0.1 * scores["token_entropy"]).sum()
            gradients = gradients_of(model, total)
        assert largest.numel == 2 * 200 * widest
        return scores, gradients

    plain, plain_gradients = run(None, widest=VOCAB_SIZE)
    # In chunks the largest tensor is the MLP's, 64 wide.
    chunked, chunked_gradients = run(20, widest=64)
    entropy = compute_entropy(model(ids).logits[:, :-1])
    torch.testing.assert_close(plain["token_entropy"], entropy)
    torch.testing.assert_close(chunked, plain)
    # float32 sums in another order, over gradients of up to about 100
    torch.testing.assert_close(chunked_gradients, plain_gradients, atol=1e-3, rtol=1e-4)


def test_a_model_that_changes_its_logits_is_refused_in_chunks():
    sizes = ("hidden_size", "intermediate_size", "head_dim")
    numbers = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    shape = dict.fromkeys(sizes, 16) | dict.fromkeys(numbers, 1) | {"vocab_size": VOCAB_SIZE}
    capped = Gemma2ForCausalLM(
        Gemma2Config(**shape, final_logit_softcapping=1.0, initializer_range=0.5)
    )
    arguments = capped, torch.arange(5)[None], torch.arange(1, 6)[None]
    assert get_response_log_probs(*arguments)["log_probs"].shape == (1, 5)
    with pytest.raises(ValueError, match="chunk_size"):
        get_response_log_probs(*arguments, chunk_size=2)
    assert not capped.get_output_embeddings()._forward_hooks


def test_a_head_with_an_adapter_is_neither_fused_nor_cast(model):
    assert can_fuse(model)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head", "q_proj"]))
    assert not can_fuse(adapted)
    with pytest.raises(ValueError, match="Linear"):
        cast_head(adapted)


@TIED
@AUTOCAST
def test_the_heads_weight_has_the_gradient_of_whole_logits(tied, autocast, ids):
    """A tied head's gradient adds up with the embeddings'; autocast multiplies in bfloat16."""
    model = tiny_model(0, tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    labels, mask = ids.roll(-1, 1), torch.arange(9).expand(2, 9) < torch.tensor([[8], [5]])
    with in_bfloat16(autocast):
        whole = selective_log_softmax(model(ids).logits / 0.7, labels) * mask
        chunked = score_labels(
            model, {"input_ids": ids}, labels, mask, temperature=0.7, chunk_numel=3 * VOCAB_SIZE
        ).log_probs
    torch.testing.assert_close(chunked, whole, atol=5e-2 if autocast else 1e-5, rtol=1e-4)
    actual = gradients_of(model, chunked.square().sum())
    for name, gradient in gradients_of(model, whole.square().sum()).items():
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
    generator = seeded()
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((9, 6), (20, 6), (20,))
    )
    inputs, logits = (hidden, weight, bias), hidden @ weight.T + bias
    z = logits / temperature
    labels = torch.cat([z.argmax(-1)[:4], z.argmin(-1)[4:6], z.topk(2).indices[6:, 1]])
    cut = truncate(z.detach()) if truncate else z.detach()
    assert cut[range(9), labels].isinf().any() == bool(truncate)
    left = z.masked_fill(cut.isinf(), float("-inf"))
    logs = z - left.logsumexp(-1, keepdim=True)
    entropy = -(left.softmax(-1) * logs.masked_fill(cut.isinf(), 0)).sum(-1)
    expected = torch.stack([logs[range(9), labels], entropy])
    upstream = torch.randn(2, 9, generator=generator, dtype=torch.float64)

    def gradients(values):
        return torch.autograd.grad((upstream * values).sum(), inputs, retain_graph=True)

    knobs = {"temperature": temperature, "truncate": truncate}
    fused = fused_scores(hidden, weight, labels, bias=bias, chunk_numel=rows * 20, **knobs)
    plain = score_logits(logits, labels, rows=rows, **knobs)
    for scores in (fused, plain):
        actual = torch.stack([scores.log_probs, scores.entropy])
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(gradients(actual), gradients(expected))


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(sum(shape)))


@AUTOCAST
def test_under_autocast_products_are_in_its_type_and_sums_are_not(autocast):
    kind = torch.bfloat16 if autocast else torch.float32
    hidden, weight, existing = (
        random_tensor(*shape).requires_grad_() for shape in ((9, 64), (50, 64), (9, 9))
    )
    upstream, labels = random_tensor(9), torch.arange(9)
    with in_bfloat16(autocast):
        scores = fused_scores(hidden, weight, labels)
        plain = score_logits(hidden @ weight.T, labels)
        exact = score_logits(existing, labels)
    gradients = torch.autograd.grad((upstream * scores.log_probs).sum(), (hidden, weight))

    half, wide = hidden.detach().to(kind), weight.detach().to(kind)
    logits = (half @ wide.T).float()
    expected = logits.log_softmax(-1)
    for each in (scores, plain):
        torch.testing.assert_close(each.log_probs, expected[range(9), labels], rtol=1e-6, atol=1e-5)
        entropy = -(expected.exp() * expected).sum(-1)
        torch.testing.assert_close(each.entropy, entropy, rtol=1e-5, atol=1e-5)
    slope = ((torch.eye(50)[labels] - expected.exp()) * upstream[:, None]).to(kind)
    wanted = (slope @ wide).float(), (slope.T @ half).float()
    torch.testing.assert_close(gradients, wanted, rtol=1e-5, atol=1e-5)
    # Logits that exist are scored as they are.
    unrounded = existing.log_softmax(-1)[range(9), labels]
    ours, theirs = (
        (each, *torch.autograd.grad(each.sum(), existing)) for each in (exact.log_probs, unrounded)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@AUTOCAST
@pytest.mark.parametrize("trained", [{"hidden"}, {"weight"}, {"bias"}, {"weight", "bias"}])
def test_what_is_not_trained_takes_nothing_from_the_others(trained, autocast):
    """States without gradient, or a frozen head, leave the other gradients as they are."""

    def gradients(trained):
        shapes = {"hidden": (9, 8), "weight": (20, 8), "bias": (20,)}
        inputs = {
            name: random_tensor(*shape).requires_grad_(name in trained)
            for name, shape in shapes.items()
        }
        with in_bfloat16(autocast):
            scores = fused_scores(**inputs, labels=torch.arange(9), chunk_numel=80)
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        return {name: each.grad for name, each in inputs.items()}

    every, some = gradients({"hidden", "weight", "bias"}), gradients(trained)
    assert {name for name, gradient in some.items() if gradient is not None} == trained
    assert all(some[name].equal(every[name]) for name in trained)


@AUTOCAST
@TIED
def test_a_head_in_float32_gives_the_logits_of_float32_weights(tied, autocast, ids):
    """Whole and fused logits agree; bfloat16's own are off by a hundred times as much."""
    model = tiny_model(0, tie_word_embeddings=tied).bfloat16()
    head, mask = model.get_output_embeddings(), torch.ones(2, 9, dtype=torch.bool)
    with in_bfloat16(autocast):
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
