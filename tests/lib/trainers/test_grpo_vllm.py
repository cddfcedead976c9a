"""GRPO that rolls out with vLLM in process: the sampler is the policy at every step, or it ends."""

from pathlib import Path

import pytest

from lib.engines.vllm import VllmEngine
from lib.errors import UserError
from lib.params import Params
from lib.params.schema import Model
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.grpo import build_grpo
from lib.trainers.tracking import curve_points

pytestmark = pytest.mark.vllm

GAP = "sampling/sampling_logp_difference/mean"


def varying(completions: list[object], **columns: object) -> list[float]:
    """An untrained policy earns nothing, so that a step needs a reward that varies."""
    return [float(number % 4) for number in range(len(completions))]


@pytest.fixture(params=[True, False], ids=["lora", "full"])
def model(request: pytest.FixtureRequest, smoke: Params, full: Model) -> Model:
    return smoke.model if request.param else full


@pytest.fixture
def trainer(sets: GeneratedSets, base: Path, smoke: Params, model: Model, tmp_path: Path):
    built = build_grpo(
        sets.grpo,
        init=base,
        base=base,
        prompt_format=prompt_format(smoke.prompt.format),
        system=smoke.prompt.system,
        grpo=smoke.grpo.model_copy(update={"learning_rate": 0.1}),
        rollout=smoke.rollout.model_copy(update={"engine": "vllm", "top_p": 0.9}),
        reward=smoke.reward,
        model=model,
        seed=smoke.seed,
        scratch=tmp_path,
    )
    built.reward_funcs = [varying, varying]
    yield built
    built.rollouts.engine.close()


def test_the_gap_between_sampler_and_trainer_is_rounding_at_every_step(
    trainer, smoke: Params
) -> None:
    trainer.train()
    gaps = [point[GAP] for point in curve_points(trainer.state)]
    assert len(gaps) == smoke.grpo.max_steps
    assert all(0 < gap < 1e-5 for gap in gaps)


def test_a_sampler_left_on_old_weights_ends_the_run(
    trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = VllmEngine.sync, []

    def only_once(engine: VllmEngine, policy: object) -> None:
        if not synced:
            synced.append(True)
            sync(engine, policy)

    monkeypatch.setattr(VllmEngine, "sync", only_once)
    with pytest.raises(UserError, match=r"step [23]: the sampler's log-probs differ"):
        trainer.train()
