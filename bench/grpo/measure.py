"""CPU seconds of GRPO's steps in this process, and the models to start from."""

import functools
import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from bench.gpu.measure import trainer_of
from bench.grpo.page import NUM_PROBLEMS, SMOLLM2_STEPS, STEPS
from lib.models import hub, save, tiny
from lib.models.runtime import configure
from lib.models.save import save_policy
from lib.params import Params, preset_params
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format, save_system
from tests.lib.training.runs import changed

SMOLLM2 = preset_params("smollm2-135m")


def smollm2_params(precision: str) -> Params:
    """Set 4 problems x 8 completions of 64 tokens, rewarded at random: no group is skipped."""
    return changed(
        SMOLLM2,
        {
            "model": {"mixed_precision": precision},
            "rollout": {"max_new_tokens": 64},
            "reward": {"extra": ["plugins/rewards/controls.py:random"], "weights": [0.0, 0.0, 1.0]},
            "grpo": {"prompts_per_step": 4, "group_size": 8, "micro_batch_size": 8},
        },
    )


def write_smollm2(folder: Path) -> None:
    """Write the model of `make fetch`, without SFT: its completions are cut at 64 tokens."""
    hub.fetch(hub.model_repository(SMOLLM2.model.name, SMOLLM2.model.revision))
    save.write_base(
        folder,
        [],
        prompt_format=prompt_format(**SMOLLM2.prompt.rendering),
        model=SMOLLM2.model,
        seed=0,
    )
    save_system(folder, "")


def write_start(folder: Path, params: Params) -> None:
    """Write the tiny preset's model after a short SFT."""
    problems = synthetic_sets(params.prepare.synthetic, seed=params.seed).sft
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        rendering = prompt_format(params.prompt.format)
        tiny.write_tiny(
            base, problems, prompt_format=rendering, model=params.model, seed=params.seed
        )
        save_system(base, "")
        trainer = trainer_of(
            changed(params, {"sft": {"num_epochs": 1}}),
            "sft",
            problems[:NUM_PROBLEMS],
            base=base,
            scratch=Path(scratch),
        )
        trainer.train()
        save_policy(trainer.model, trainer.processing_class, folder)
    save_system(folder, "")


def stay_plain(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def measure(way: str, seed: int, folder: Path, precision: str = "") -> list[float]:
    """Measure CPU seconds of each step, from end to end: rollouts come before a step's begin.

    For the pretrained model, with a precision; the last number is the peak memory in GB.
    """
    configure(seed=seed, threads=1)
    if way == "trl-vllm":
        from trl.generation import vllm_generation
        from vllm.model_executor.layers import utils

        # TRL's weight sync fails on a CPU without the first: vLLM 0.32 packs each linear layer for
        # oneDNN and drops the weight that TRL would write to. It compiles for minutes without the
        # second, which reckon's engine sets too.
        utils.dispatch_cpu_unquantized_gemm = stay_plain
        vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True)
    name, _, engine = way.partition("-")
    preset = smollm2_params(precision) if precision else preset_params("tiny-cpu")
    params = preset.model_copy(update={"seed": seed})
    steps = SMOLLM2_STEPS if precision else STEPS
    grpo = {"trainer": name, "max_steps": steps + 1}
    params = changed(params, {"grpo": grpo, "rollout": {"engine": engine or "transformers"}})
    problems = synthetic_sets(params.prepare.synthetic, seed=0).grpo
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_of(params, "grpo", problems, base=folder, scratch=Path(scratch))
        trainer.add_callback(Clock())
        trainer.train()
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return [*seconds, peak] if precision else seconds
