"""Find the largest micro-batches that fit into memory.

Runs two steps of the phase's own trainer on the longest rows that `prepare` wrote, with ever
smaller micro-batches, each in its own process. GRPO generates with its engine, and all completions
have the longest length.
"""

import signal
import subprocess
import sys
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import reads, reads_params


@click.command()
@reads_params
@reads("--problems", "data/problems", "the sets of problems")
@reads("--base", "data/models/base", "the untrained checkpoint")
@click.option("--limit", type=int, required=True, help="Memory limit on a CPU, in bytes.")
@click.argument("phase")
@click.argument("size", type=int)
def probe_size(
    params_file: Path, problems: Path, base: Path, limit: int, phase: str, size: int
) -> None:
    """Try a micro-batch of SIZE; the exit code tells whether it fits."""
    params = load_params(params_file)
    from lib.models.unsloth import import_first

    # True if GRPO's completions come from a vLLM in this process, which under Unsloth shares the
    # policy's weights.
    generates = params.rollout.engine == "vllm" and phase == "grpo"
    import_first(params.model.backend, generates=generates)
    # Imported after Unsloth, which must precede transformers, TRL and PEFT.
    from lib.models.runtime import configure
    from lib.planning.probe import OUT_OF_MEMORY, fits, longest_first

    configure(seed=params.seed, threads=params.torch_threads)
    rows, tokens = longest_first(params, phase, base=base, problems=problems)
    enough = fits(params, phase, base=base, problems=rows, tokens=tokens, size=size, limit=limit)
    raise SystemExit(0 if enough else OUT_OF_MEMORY)


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems", "the sets of problems")
@reads("--base", "data/models/base", "the untrained checkpoint")
@click.option(
    "--limit-gib",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory limit on a CPU; default: 80 % of the available memory.",
)
def main(params_file: Path, problems: Path, base: Path, limit_gib: float | None) -> None:
    """Print the micro-batch size to set, for each phase that runs."""
    params = load_params(params_file)
    import psutil

    from lib.planning.memory import micro_batch_sizes
    from lib.planning.probe import OUT_OF_MEMORY, longest_first

    # Bytes of main memory, for training on a CPU; a GPU needs no limit. By default 20 % of the
    # available memory are left to other processes.
    limit = int(limit_gib * 1024**3 if limit_gib else 0.8 * psutil.virtual_memory().available)
    command = [sys.executable, "-m", __name__, f"--limit={limit}"]
    command += [f"--params={params_file}", f"--problems={problems}", f"--base={base}"]
    for phase, section in (("sft", params.sft), ("grpo", params.grpo)):
        if section.skipped:
            click.echo(f"memory-probe {phase} skipped: {section.skipped}")
            continue
        _, tokens = longest_first(params, phase, base=base, problems=problems)
        for size in micro_batch_sizes(params, phase):
            # Each size in a new process: a failed allocation leaves memory fragmented.
            code = subprocess.run([*command, phase, str(size)], check=False).returncode
            if code == 0:
                break
            # Too large is also -SIGKILL: the kernel has ended the process. Other codes are bugs.
            if code not in (OUT_OF_MEMORY, -signal.SIGKILL):
                raise SystemExit(code)
        else:
            raise UserError(
                f"{phase}: {size} row(s) of {tokens} tokens do not fit; reduce "
                "model.max_seq_length or rollout.max_new_tokens, or set "
                "model.gradient_checkpointing to true"
            )
        click.echo(
            f"memory-probe {phase} longest={tokens} tokens; set {phase}.micro_batch_size: {size}"
        )


if __name__ == "__main__":
    probe_size()
