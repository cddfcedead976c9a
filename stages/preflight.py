"""Answer questions before a run: its plan, whether it can run here, which micro-batches fit.

Not a stage of the DAG; it writes nothing.
"""

import signal
import subprocess
import sys
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.core.git import check_repository, check_writable
from lib.params import load_params, preset_params
from lib.params.load import read_yaml
from stages.options import reads, reads_params


@click.group(help=__doc__)
def main() -> None:
    """Answer one question about a run."""


@main.command()
@reads_params
@click.argument("preset", default="")
@click.option("--card", default="", help="GB of a GPU to fill; default: this machine's.")
def plan(params_file: Path, preset: str, card: str) -> None:
    """Print the plan of a run, without running it: steps, batches, memory, disk, params.

    For a preset (its name, or the path of an overlay) or, without one, for params.yaml.
    """
    params = preset_params(preset) if preset else load_params(params_file)
    from lib.planning.cards import card_memory, fit_lines
    from lib.planning.plan import plan_lines

    lines = list(plan_lines(params))
    # In bytes; 0 without --card on a machine without a GPU.
    if memory := card_memory(card):
        lines += fit_lines(params, memory)
    click.echo("\n".join(lines))


@main.command()
@reads_params
def check_files(params_file: Path) -> None:
    """Check git, params.yaml and dvc.lock before `dvc repro`, whose own errors are less clear."""
    # Both raise: outside of a git repository, or if this user cannot write to the folder.
    check_repository()
    check_writable()
    load_params(params_file)
    lock = params_file.with_name("dvc.lock")
    # read_yaml reports a damaged lock (conflict marks, say) in one line.
    if lock.exists():
        read_yaml(lock)


@main.command()
@reads_params
def doctor(params_file: Path) -> None:
    """Check whether the current params can run on this machine; if not, say why (exit code 1)."""
    params = load_params(params_file)
    from lib.planning.doctor import can_run, doctor_lines, findings, this_machine

    machine = this_machine()
    # Faults and doubts. Unlike the stage `check`, this also asks the Hub for models and sets that
    # are not here yet.
    problems = findings(params, machine, asks_hub=True)
    click.echo("\n".join(doctor_lines(machine, problems)))
    if not can_run(problems):
        raise SystemExit(1)


@main.command(hidden=True)
@reads_params
@reads("--problems", "data/problems", "the sets of problems")
@reads("--base", "data/models/base", "the untrained checkpoint")
@click.option("--limit", type=int, required=True, help="Memory limit on a CPU, in bytes.")
@click.argument("phase")
@click.argument("size", type=int)
def probe_size(
    params_file: Path, problems: Path, base: Path, limit: int, phase: str, size: int
) -> None:
    """Try a micro-batch of SIZE for `memory-probe`; the exit code tells whether it fits."""
    # `phase` is sft or grpo; `size` is in rows.
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
    # The problems, longest row first, and the tokens of that row, prompt and completion.
    rows, tokens = longest_first(params, phase, base=base, problems=problems)
    # Trains two steps in this process; False if they run out of memory.
    enough = fits(params, phase, base=base, problems=rows, tokens=tokens, size=size, limit=limit)
    raise SystemExit(0 if enough else OUT_OF_MEMORY)


@main.command()
@reads_params
@reads("--problems", "data/problems", "the sets of problems")
@reads("--base", "data/models/base", "the untrained checkpoint")
@click.option(
    "--limit-gib",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory limit on a CPU; default: 80 % of the available memory.",
)
def memory_probe(params_file: Path, problems: Path, base: Path, limit_gib: float | None) -> None:
    """Find and print the largest micro-batch that fits into memory for the current params.

    Runs two steps of the phase's own trainer on the longest rows that `prepare` wrote, with ever
    smaller micro-batches, each in its own process. GRPO generates with its engine, and all
    completions have the longest length.
    """
    params = load_params(params_file)
    import psutil

    from lib.planning.memory import micro_batch_sizes
    from lib.planning.probe import OUT_OF_MEMORY, longest_first

    # Bytes of main memory, for training on a CPU; a GPU needs no limit. By default 20 % of the
    # available memory are left to other processes.
    limit = int(limit_gib * 1024**3 if limit_gib else 0.8 * psutil.virtual_memory().available)
    command = [sys.executable, "-m", "stages.preflight", "probe-size", f"--limit={limit}"]
    command += [f"--params={params_file}", f"--problems={problems}", f"--base={base}"]
    for phase, section in (("sft", params.sft), ("grpo", params.grpo)):
        # The reason in words, such as "sft.num_epochs is 0"; '' if the phase runs.
        if section.skipped:
            click.echo(f"memory-probe {phase} skipped: {section.skipped}")
            continue
        # Tokens of the longest row.
        _, tokens = longest_first(params, phase, base=base, problems=problems)
        # From the whole batch down. The loop ends at the first size that fits.
        for size in micro_batch_sizes(params, phase):
            # Each size in a new process: a failed allocation leaves memory fragmented.
            code = subprocess.run([*command, phase, str(size)], check=False).returncode
            if code == 0:
                break
            # Too large is also -SIGKILL: the kernel has ended the process. Other codes are bugs.
            if code not in (OUT_OF_MEMORY, -signal.SIGKILL):
                raise SystemExit(code)
        # No size fits, not even the smallest.
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
    main()
