"""An epoch has the same order in a resumed run as in an uninterrupted one."""

from types import SimpleNamespace

import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import LengthGroupedSampler
from trl.trainer.utils import RepeatSampler

from lib.models.compat import EpochSampler, order_by_epoch


def repeat() -> RepeatSampler:
    return RepeatSampler(
        data_source=list(range(12)), mini_repeat_count=2, batch_size=3, shuffle=True, seed=7
    )


def by_length() -> LengthGroupedSampler:
    return LengthGroupedSampler(2, lengths=list(range(12)))


def test_the_orders_are_trls_and_each_epoch_has_its_own():
    through = repeat()
    expected = [list(through) for _ in range(3)]
    assert expected[0] != expected[1]
    for epoch in (2, 0, 1):
        assert list(EpochSampler(repeat(), seed=7, epoch=lambda: epoch)) == expected[epoch]  # noqa: B023
    assert len(EpochSampler(repeat(), seed=7, epoch=int)) == len(through)


@pytest.mark.parametrize("make", [repeat, by_length])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_later_epoch_resumed_halfway_keeps_its_order(ranks, make):
    trainer = SimpleNamespace(
        _get_train_sampler=make, args=SimpleNamespace(seed=7), state=SimpleNamespace(epoch=0.0)
    )
    order_by_epoch(trainer)

    def loader():
        return prepare_data_loader(
            DataLoader(range(12), sampler=trainer._get_train_sampler(), batch_size=2),
            num_processes=ranks,
            process_index=0,
            put_on_device=False,
        )

    def batches(epoch, loader):
        loader.set_epoch(epoch)  # as transformers does
        return [batch.tolist() for batch in loader]

    whole = loader()
    first = batches(0, whole)
    trainer.state.epoch = 1.0
    second = batches(1, whole)
    assert first != second
    trainer.state.epoch = 1.5
    assert batches(1, skip_first_batches(loader(), 2)) == second[2:]
