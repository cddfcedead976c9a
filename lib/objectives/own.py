"""User-written losses and advantages from `plugins/`, with a check of their results' shapes."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin, load_plugin


def objective(name: str) -> Any:
    """Return a built-in name as it is, a plugin's as its function with each result's shape checked.

    A loss maps log-probs [B, T], old log-probs [B, T], advantages [B, 1] and mask [B, T] to token
    losses [B, T]; a parameter `sampler` gets the engine's log-probs [B, T]. An advantage maps
    rewards [P, G] to advantages [P, G]; optional parameters are `right`, [P, G] bool, and
    `components`, the reward of each function, [P, G, F].

    Raises:
        UserError: the plugin is not a function; or, on a call, it raises or returns another shape.
    """
    if not is_plugin(name):
        return name
    function: Callable[..., Any] = load_plugin(name)
    if not callable(function):
        raise UserError(f"{name}: expected a function of tensors, got {function!r}")

    parameters = inspect.signature(function).parameters

    def checked(*tensors: Tensor, **optional: Tensor) -> Tensor:
        inputs = f"tensors of shapes {', '.join(str(list(tensor.shape)) for tensor in tensors)}"
        with guarded(name, inputs=inputs):
            wanted = {key: optional[key] for key in optional if key in parameters}
            result = function(*tensors, **wanted)
        shape = list(tensors[0].shape)
        if not isinstance(result, Tensor) or list(result.shape) != shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise UserError(f"{name}: gave {got} for {inputs}; expected a tensor of shape {shape}")
        # A mask, such as `right` itself, has no negative, which the loss takes.
        return result.to(tensors[0])

    return checked


def try_loss(name: str) -> None:
    """Test a plugin's loss before training: call it on B = 2, T = 3, and differentiate it.

    Raises:
        UserError: see `objective`; or it gives no gradient, or values that are not finite.
    """
    log_probs = torch.tensor([[-1.0, -0.5, -2.0], [-0.1, -3.0, -1.0]], requires_grad=True)
    advantages = torch.tensor([[1.0], [-1.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = log_probs.detach()
    losses = objective(name)(log_probs, old, advantages, mask, sampler=old)
    if not losses.requires_grad:
        raise UserError(f"{name}: its losses have no gradient; compute them from the log-probs")
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    for what, values in (("losses", losses), ("the gradient", gradient)):
        if not values.isfinite().all():
            raise UserError(
                f"{name}: gave {what} {values.tolist()} for log-probs {log_probs.tolist()}"
            )


def try_advantage(name: str, *, group_size: int, num_rewards: int) -> None:
    """Test a plugin's advantage before training, on a group of mixed and one of equal rewards.

    Raises:
        UserError: see `objective`; or it gives values that are not finite.
    """
    rewards = torch.stack([torch.linspace(1, 0, group_size), torch.ones(group_size)])
    # [P, G, F]
    components = rewards.unsqueeze(-1).repeat(1, 1, num_rewards)
    advantages = objective(name)(rewards, right=rewards == 1, components=components)
    if not advantages.isfinite().all():
        raise UserError(f"{name}: gave {advantages.tolist()} for rewards {rewards.tolist()}")
