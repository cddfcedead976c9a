"""GRPO with vLLM's rollouts: the sampler is the policy at every step, or the run ends."""

import pytest

from lib.core.errors import UserError
from lib.engines.registry import ENGINES
from lib.training.phase.tracking import curve_points
from tests.lib.training.ratios import CUTS, assert_ratios
from tests.lib.training.steps import plain_grpo, varying
from tests.vllm_server import served

pytestmark = pytest.mark.vllm

GAP = "sampling/sampling_logp_difference/mean"


@pytest.fixture
def server(vllm_url, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)
    return vllm_url


@pytest.fixture(params=["vllm-lora", "vllm-full", "vllm-server-lora", "vllm-server-full"])
def trainer(
    request,
    sets,
    base,
    smoke,
    full,
    tmp_path,
):
    engine, _, weights = request.param.rpartition("-")
    if engine == "vllm-server":
        request.getfixturevalue("server")
    built = plain_grpo(
        sets.grpo,
        base,
        smoke,
        tmp_path,
        grpo=smoke.grpo.model_copy(update={"learning_rate": 0.1}),
        rollout=smoke.rollout.model_copy(update={"engine": engine, "top_p": 0.9}),
        model=smoke.model if weights == "lora" else full,
    )
    assert built.engine.facts is ENGINES[engine]
    built.grading.rewards = [varying, varying]
    yield built
    built.engine.close()


def break_the_second_sync(trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = type(trainer.engine)
    sync, synced = engine.sync, []

    def only_once(self: object, policy: object) -> str:
        if not synced:
            synced.append(sync(self, policy))
        return synced[0]

    monkeypatch.setattr(engine, "sync", only_once)


def test_the_samplers_gap_is_rounding_at_every_step(trainer, smoke):
    trainer.train()
    gaps = [point[GAP] for point in curve_points(trainer.state)]
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
