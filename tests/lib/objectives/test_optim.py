import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lib.training.phase.optim import MemoryEfficientAdamW
from tests.lib.objectives.tiny import seeded

SETTINGS = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Group biases apart, without weight decay and with a rate of their own, as trainers do."""
    weights, biases = (
        [p for name, p in model.named_parameters() if kind in name] for kind in ("weight", "bias")
    )
    return [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 1e-2}]


def train(
    model: nn.Module, optimizer: Optimizer, steps: range, device: str = "cpu"
) -> Iterator[list[Tensor]]:
    """Yield the parameters after each step; batches depend only on the step's number."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        x = torch.randn(8, 5, generator=seeded(step)).to(device, dtype)
        optimizer.zero_grad()
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()
        yield [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 0)],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_fifty_steps_follow_torchs_adamw(dtype, tolerance, grouped):
    def trajectory(make):
        model = network(dtype)
        params = groups(model) if grouped else model.parameters()
        return train(model, make(params, **SETTINGS), range(50))

    for ours, torchs in zip(trajectory(MemoryEfficientAdamW), trajectory(AdamW), strict=True):
        torch.testing.assert_close(ours, torchs, atol=tolerance, rtol=0)
    before, after = network(dtype).state_dict(), ours
    assert all(not torch.equal(*pair) for pair in zip(before.values(), after, strict=True))


def test_loading_copies_the_state():
    model = network()
    optimizer = MemoryEfficientAdamW(model.parameters(), **SETTINGS)
    list(train(model, optimizer, range(2)))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    other = MemoryEfficientAdamW(model.parameters(), **SETTINGS)
    other.load_state_dict(saved)
    list(train(model, other, range(2)))
    torch.testing.assert_close(saved["state"], kept["state"], atol=0, rtol=0)


def test_parameters_without_gradient_stay_and_get_no_state():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = MemoryEfficientAdamW([used, unused], weight_decay=0.1)
    used.sum().backward()
    optimizer.step()
    assert unused.tolist() == [1, 1]
    assert unused not in optimizer.state
    assert (used < 1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_state_is_pinned_and_the_steps_are_torchs(dtype):
    def run(make, **own):
        model = network(dtype).cuda()
        optimizer = make(groups(model), **SETTINGS, **own)
        *_, last = train(model, optimizer, range(50), "cuda")
        return last, optimizer

    ours, optimizer = run(MemoryEfficientAdamW)
    theirs, _ = run(AdamW, foreach=False)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    resumed = MemoryEfficientAdamW(groups(network(dtype).cuda()), **SETTINGS)
    resumed.load_state_dict(optimizer.state_dict())
    for state in [*optimizer.state.values(), *resumed.state.values()]:
        assert state["exp_avg"].is_pinned()
        assert state["exp_avg_sq"].device.type == "cpu"
