"""AdamW with its state in CPU memory.

    m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − lr·(m̂ / (√v̂ + ε) + λθ)

Source: AdamW, arXiv:1711.05101. The update is torch's own function, so the trajectory is that of
`torch.optim.AdamW`; only the place of m and v between steps differs. On a GPU they are in pinned
host memory, and one parameter's pair at a time is copied to the GPU and back: the GPU holds two
tensors of the largest parameter's size instead of two copies of the model, for a transfer of four
times the model's bytes in each step. On a CPU nothing moves.

Differs from the paper in: nothing. From torch's class in: no amsgrad, foreach, fused, capturable,
differentiable or maximize.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT, StateDict

_MOMENTS = ("exp_avg", "exp_avg_sq")


class MemoryEfficientAdamW(Optimizer):
    """`torch.optim.AdamW` with its moments in CPU memory, pinned for a parameter on a GPU.

    Args:
        params: parameters or groups of them; float32, float16, bfloat16 or float64, dense.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to √v̂.
        weight_decay: λ, decoupled from the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter with a gradient once.

        Args:
            closure: evaluates the model again and returns the loss, which `step` then returns.
        """
        # The closure runs a backward pass, which `no_grad` above would switch off.
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        if torch.cuda.is_available():
            # `state_dict` reads the pinned memory that the updates copy to asynchronously.
            torch.cuda.synchronize()
        return loss

    def _update(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter on its device: copy its moments there, and the new ones back."""
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update({moment: _host_zeros_like(param) for moment in _MOMENTS})
        # On a GPU, copies of the two moments; for a parameter on a CPU, the state itself.
        mean, square = (state[name].to(param.device, non_blocking=True) for name in _MOMENTS)
        adamw(
            [param],
            [gradient],
            [mean],
            [square],
            [],  # for amsgrad only
            [state["step"]],
            foreach=False,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for name, moment in zip(_MOMENTS, (mean, square), strict=True):
            # On a CPU the update was in place.
            if moment is not state[name]:
                state[name].copy_(moment, non_blocking=True)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a saved state, with the moments in CPU memory; torch would put them on the GPU.

        Raises:
            ValueError: the groups do not match.
        """
        # Load the groups only: torch would cast the moments to the parameter's device and dtype.
        super().load_state_dict({**state_dict, "state": {}})
        # The saved state numbers the parameters, in the order of the groups here.
        saved_ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for saved_id, param in zip(saved_ids, params, strict=True):
            # A parameter that never had a gradient has no state.
            if saved := state_dict["state"].get(saved_id):
                step = torch.as_tensor(saved["step"], dtype=torch.float32, device="cpu")
                self.state[param] = {"step": step.clone()}
                for moment in _MOMENTS:
                    self.state[param][moment] = _host_zeros_like(param).copy_(saved[moment])


def _host_zeros_like(param: Tensor) -> Tensor:
    """Return zeros in CPU memory with the parameter's strides; asynchronous copies need equal
    strides.
    """
    zeros = torch.zeros_like(param, device="cpu", memory_format=torch.preserve_format)
    return zeros.pin_memory() if param.is_cuda else zeros
