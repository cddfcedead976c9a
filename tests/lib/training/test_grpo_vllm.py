"""GRPO with vLLM's rollouts: the sampler is the policy at every step, or the run ends."""

import pytest

from lib.core.errors import UserError
from lib.params.engines import ENGINES
from tests.lib.training.ratios import CUTS, assert_ratios
from tests.lib.training.steps import train, varying
from tests.vllm_server import served

pytestmark = pytest.mark.vllm

GAP = "sampling/sampling_logp_difference/mean"


@pytest.fixture(params=["vllm-lora", "vllm-full", "vllm-server-lora", "vllm-server-full"])
def trainer(request, built):
    engine, _, weights = request.param.rpartition("-")
    if engine == "vllm-server":
        request.getfixturevalue("server")
    rollout = {"engine": engine, "top_p": 0.9}
    trainer = built(lora=weights == "lora", learning_rate=0.1, rollout=rollout, stop=None)
    assert trainer.engine.facts is ENGINES[engine]
    trainer.grading.rewards = [varying, varying]
    yield trainer
    trainer.engine.close()


def break_the_second_sync(trainer, monkeypatch: pytest.MonkeyPatch):
    engine = type(trainer.engine)
    sync, synced = engine.sync, []

    def only_once(self, policy):
        if not synced:
            synced.append(sync(self, policy))
        return synced[0]

    monkeypatch.setattr(engine, "sync", only_once)


def test_the_samplers_gap_is_rounding_at_every_step(trainer, smoke):
    gaps = [point[GAP] for point in train(trainer)]
    assert len(gaps) == smoke.grpo.max_steps
    assert all(0 < gap < 1e-5 for gap in gaps)


@pytest.mark.parametrize("trainer", ["vllm-full", "vllm-server-lora"], indirect=True)
def test_the_mean_ratio_is_one_under_every_cut(trainer):
    for cut in CUTS:
        assert_ratios(trainer, cut)


@pytest.mark.parametrize("trainer", ["vllm-server-lora"], indirect=True)
@pytest.mark.parametrize("broken", [False, True])
def test_the_server_keeps_no_adapter_however_training_ends(trainer, server, monkeypatch, broken):
    if broken:
        break_the_second_sync(trainer, monkeypatch)
        with pytest.raises(UserError):
            trainer.train()
    else:
        trainer.train()
    assert len(served(server)) == 1
