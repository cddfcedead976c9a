"""Reads of a micro-batch from the device: every one waits for a GPU."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.objectives.losses import LossInputs, PolicyLoss
from lib.objectives.sampler import SamplerComparison
from lib.training.grpo.curve import Curve

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
"""Methods of a tensor; `OPERATIONS` has the others of `torch.cuda.set_sync_debug_mode`."""

OPERATIONS = ("aten.nonzero", "aten._local_scalar_dense", "aten.masked_select")


class Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function.overloadpacket)
        masks = [i for i in args[1] if i is not None] if name.startswith("aten.index") else []
        if name in OPERATIONS or any(mask.dtype is torch.bool for mask in masks):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch):
    """Count the operations that wait for a GPU."""
    counts = Counter()
    for name in READS:
        plain = getattr(torch.Tensor, name)

        def read(self, *args, name=name, plain=plain):
            library = "/transformers/" in sys._getframe(1).f_code.co_filename
            counts["transformers" if library else name] += 1
            return plain(self, *args)

        monkeypatch.setattr(torch.Tensor, name, read)
    with Operations(counts):
        yield counts


def test_the_curve_reads_nothing_before_the_step_is_closed(waits):
    curve = Curve(SimpleNamespace(device="cpu", num_processes=1))
    mask = torch.tensor([[True, True, False], [False, False, False]])
    ones = torch.ones(2, 3)
    loss = PolicyLoss(loss=ones, clipped=ones.bool(), kl=0.5 * ones)
    weights = torch.tensor([[2.0, 3, 1], [1, 4, 4]])
    comparison = SamplerComparison(gap=0.25 * ones * mask, weights=weights)
    for each in (mask, torch.zeros_like(mask)):
        curve.add_comparison(comparison, each)
        batch = LossInputs(
            advantages=torch.tensor([-1.0, 1.0]), loss_mask=each, reference_log_probs=ones
        )
        curve.add_loss(loss, 3 * ones, batch)
    assert not waits
    curve.close_step()
    point = curve.take_point()
    assert point["entropy"] == 3 and point["kl"] == 0.5
    assert point["clip_ratio/low_mean"] == 1 and point["clip_ratio/high_mean"] == 0
    assert point["sampling/sampling_logp_difference/mean"] == 0.25


def test_a_micro_batch_is_not_waited_for(built, logits, request):
    trainer = built(micro_batch_size=4, beta=0.1)
    *batches, last = trainer.roll_out()
    trainer.compute_loss(trainer.model, {"batch": last})  # which asks once whether it can fuse
    counts = request.getfixturevalue("waits")
    for batch in batches:
        trainer.compute_loss(trainer.model, {"batch": batch}).backward()
    assert len(batches) > 2
    # transformers itself looks for padding in every mask (masking_utils.py 269).
    assert counts.pop("transformers") == counts.pop("aten._local_scalar_dense") > 0
    assert not counts
