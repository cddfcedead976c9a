"""Ends and positions that the contract cannot provoke at will."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.core.errors import UserError
from lib.engines.decoding import can_decode, sample
from lib.engines.endings import Endings
from lib.engines.transformers import TransformersEngine
from lib.models.pretrained import load_tokenizer
from tests.lib.engines.contract import greedy, random_sampling
from tests.lib.models.hub_models import learned_positions, two_ropes


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("1 + 2 = 3, so", ("3", "= 3", "2"), "1 + 2"),
        ("ein weißes ½ ist", ("½",), "ein weißes ½"),
        ("a line \nand more", ("\n",), "a line \n"),
    ],
    ids=["the first of several", "of several bytes", "white space"],
)
def test_a_completion_ends_with_the_first_stop_strings_token(base, text, stops, kept):
    tokenizer = load_tokenizer(base)
    endings = Endings(tokenizer, end_tokens={1}, stop_strings=stops, vocab_size=len(tokenizer) + 64)
    tokens = tokenizer(text)["input_ids"]
    starts = (tokens[:length] for length in range(1, len(tokens) + 1))
    first = next(start for start in starts if endings.find(start, at_limit=False))
    assert kept in tokenizer.decode(first)
    assert kept not in tokenizer.decode(first[:-1])
    assert endings.find(first, at_limit=False) == ("stop", kept)


def test_an_ended_row_stays_inside_a_table_of_positions(base, prompts):
    """An ended row is computed on beside longer ones, and changes none of their tokens."""
    torch.manual_seed(0)
    model = learned_positions(n_positions=max(map(len, prompts)) + 12)
    assert can_decode(model)
    engine = TransformersEngine(model, load_tokenizer(base), batch_size=16)
    longest = (prompts[0] * 99)[: model.config.n_positions - 1]
    batch = [longest, *prompts[:5]]
    together = engine.generate(batch, greedy())
    assert len(together[0][0].token_ids) == 1
    assert together == [engine.generate([prompt], greedy())[0] for prompt in batch]


def test_tokens_beyond_a_longropes_switch_are_refused(base):
    """Up to the switch, tokens equal those of forward passes without a cache."""
    torch.manual_seed(0)
    model = two_ropes(switch=16).eval()
    prompt = list(range(20, 32))
    engine = TransformersEngine(model, load_tokenizer(base), batch_size=1)
    ((completion,),) = engine.generate([prompt], greedy(max_new_tokens=4))
    tokens = [*prompt, *completion.token_ids]
    for end in range(len(prompt), len(tokens)):
        with torch.no_grad():
            assert tokens[end] == model(torch.tensor([tokens[:end]])).logits[0, -1].argmax()
    with pytest.raises(UserError, match="longrope"):
        engine.generate([prompt], greedy(max_new_tokens=5))


class FloatSums(TorchDispatchMode):
    """Refuse cumulative sums of floats: torch lists them as not deterministic on CUDA."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        assert "cumsum" not in str(function) or not args[0].is_floating_point()
        return function(*args, **(kwargs or {}))


def test_sampling_follows_probabilities_without_sums_of_floats():
    logits = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * 3
    logits[:1000] = -torch.inf
    uniforms = torch.linspace(0, 1 - 2.0**-40, 401, dtype=torch.float64)
    with FloatSums():
        sampled = torch.cat([sample(logits[None], u[None], random_sampling())[0] for u in uniforms])
    assert sampled.min() >= 1000
    # [V] exact to float64's digits: a uniform number lies between its token's two sums.
    sums = logits.double().softmax(-1).cumsum(-1)
    assert (sums[sampled] > uniforms - 1e-6).all()
    assert (torch.nn.functional.pad(sums, (1, 0))[sampled] < uniforms + 1e-6).all()
