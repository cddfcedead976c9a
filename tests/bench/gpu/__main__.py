"""On a machine with a GPU: run the tests marked `gpu`, and compare GRPO's speed and memory.

A random Qwen3 of 0.6B's and of 4B's shape is trained by our trainer on transformers, stock TRL and
Unsloth, and sampled by vLLM, whichever are installed, into reports/gpu. Exit code 1 where any of it
fails, and without a GPU.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from lib.errors import UserError

SHAPES = {"0.6b": "Qwen/Qwen3-0.6B", "4b": "unsloth/Qwen3-4B-Base"}


@click.command(help=__doc__)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reports/gpu"),
    show_default=True,
    help="Writes one JSON file for each shape.",
)
def main(out: Path) -> None:
    """Check."""
    from lib.planning.machine import find_gpus

    gpus = find_gpus()
    if not gpus:
        raise UserError(
            "gpu-check needs an NVIDIA GPU, and nvidia-smi lists none here; "
            "run it on a machine with one, after `make setup EXTRA=gpu`"
        )
    tests = [sys.executable, "-m", "pytest", "-m", "gpu"]
    failed = [] if subprocess.run(tests, check=False).returncode in {0, 5} else ["tests: see above"]
    from lib.artifacts import write_json
    from lib.planning import sizes
    from tests.bench.gpu.comparison import WAYS, compare, failures
    from tests.bench.gpu.contenders import Work

    for name, model in SHAPES.items():
        shape = sizes.SHAPES[model]
        work = Work(
            shape=shape, prompts=4, group=8, tokens=256, steps=4, dtype="bfloat16", lora_rank=32
        )
        with tempfile.TemporaryDirectory() as scratch:
            found = compare(work, WAYS, scratch=Path(scratch))
        write_json(out / f"{name}.json", {**found, "gpu": gpus[0].name, "driver": gpus[0].driver})
        click.echo(f"gpu-check shape={name} ways={', '.join(found['ways'])} out={out / name}.json")
        failed += [f"{name} {failure}" for failure in failures(found)]
    if failed:
        raise UserError("\n  ".join(["gpu-check: not all ran:", *failed]))


if __name__ == "__main__":
    main()
