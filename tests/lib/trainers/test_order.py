"""An epoch's order is that of a run through all epochs before it."""

import torch
from transformers.trainer_pt_utils import LengthGroupedSampler
from trl.trainer.utils import RepeatSampler

from lib.engines.compat import EpochSampler


def repeat() -> RepeatSampler:
    return RepeatSampler(
        data_source=list(range(12)), mini_repeat_count=2, batch_size=3, shuffle=True, seed=7
    )


def test_the_orders_are_trls_and_each_epoch_has_its_own() -> None:
    through = repeat()
    expected = [list(through) for _ in range(3)]
    assert expected[0] != expected[1]
    resumed = EpochSampler(repeat(), seed=7)
    for epoch in (2, 0, 1):
        resumed.set_epoch(epoch)
        assert list(resumed) == expected[epoch]
    assert len(resumed) == len(through)


def test_an_order_by_length_does_not_depend_on_the_random_state_of_the_process() -> None:
    orders = []
    for state in (1, 2):
        torch.manual_seed(state)
        sampler = EpochSampler(LengthGroupedSampler(2, lengths=list(range(40))), seed=7)
        sampler.set_epoch(1)
        orders.append(list(sampler))
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(40))
