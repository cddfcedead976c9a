"""Before a run: what it would do, whether it can run on this machine, which micro-batches fit.

Not a stage of the DAG; it writes nothing.
"""

import signal
import subprocess
import sys
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params, preset_params
from lib.params.load import read_yaml
from stages.options import reads, reads_params


@click.group(help=__doc__)
def main() -> None:
    """Choose a question."""


@main.command()
@reads_params
@click.argument("preset", default="")
def plan(params_file: Path, preset: str) -> None:
    """Print what a run would do, without running it: steps, batches, memory, disk, params.

    With the name of a preset (or the path of an overlay), for that; otherwise for params.yaml.
    """
    params = preset_params(preset) if preset else load_params(params_file)
    from lib.planning.plan import plan_lines

    for line in plan_lines(params):
        click.echo(line)


@main.command()
@reads_params
def readable(params_file: Path) -> None:
    """Read params.yaml and dvc.lock, as `dvc repro` does in words of its own."""
    load_params(params_file)
    lock = params_file.with_name("dvc.lock")
    if lock.exists():
        read_yaml(lock)


@main.command()
@reads_params
def doctor(params_file: Path) -> None:
    """Say whether the current params can run on this machine, and if not, why (exit code 1)."""
    params = load_params(params_file)
    from lib.planning.doctor import Finding, can_run, doctor_lines, findings, this_machine
    from lib.planning.inputs import absent_inputs

    machine = this_machine()
    absent = [Finding(text, "certain") for text in absent_inputs(params)]
    problems = [*findings(params, machine), *absent]
    click.echo("\n".join(doctor_lines(machine, problems)))
    if not can_run(problems):
        raise SystemExit(1)


@main.command()
@reads_params
@reads("--problems", "data/problems", "the sets of problems")
@reads("--base", "data/models/base", "the untrained checkpoint")
@click.option(
    "--limit-gib",
    type=click.FloatRange(min=0, min_open=True),
    help="On a CPU: memory that the steps may take; otherwise four fifths of what is free.",
)
@click.option("--one", type=(str, int), hidden=True, help="Phase and micro-batch to try here.")
def memory_probe(
    params_file: Path,
    problems: Path,
    base: Path,
    limit_gib: float | None,
    one: tuple[str, int] | None,
) -> None:
    """Find the largest micro-batch that fits into memory for the current params, and print what to
    set.

    It takes two steps of the phase's own trainer on the longest rows that `prepare` wrote, with
    ever smaller micro-batches, each in a process of its own; GRPO generates with its engine, and
    all completions have the longest length.
    """
    params = load_params(params_file)
    if one:
        from lib.engines.unsloth import import_first

        shares = params.rollout.engine == "vllm" and one[0] == "grpo"
        import_first(params.model.backend, generates=shares)
    import psutil

    from lib.engines.runtime import configure
    from lib.planning.memory import batch_of
    from lib.planning.probe import SHORT, fits, longest_first

    free = 0.8 * psutil.virtual_memory().available
    limit = int(limit_gib * 1024**3 if limit_gib else free)
    if one:
        configure(seed=params.seed, threads=params.torch_threads)
        phase, size = one
        rows, tokens = longest_first(params, phase, base=base, problems=problems)
        enough = fits(
            params, phase, base=base, problems=rows, tokens=tokens, size=size, limit=limit
        )
        raise SystemExit(0 if enough else SHORT)
    places = [f"--params={params_file}", f"--problems={problems}", f"--base={base}"]
    command = [sys.executable, "-m", "stages.preflight", "memory-probe", *places]
    for phase, section in (("sft", params.sft), ("grpo", params.grpo)):
        if section.skipped:
            click.echo(f"memory-probe {phase} skipped: {section.skipped}")
            continue
        _, tokens = longest_first(params, phase, base=base, problems=problems)
        batch = batch_of(params, phase)
        for size in (size for size in range(batch, 0, -1) if batch % size == 0):
            tried = [f"--limit-gib={limit / 1024**3}", "--one", phase, str(size)]
            code = subprocess.run([*command, *tried], check=False).returncode
            if code == 0:
                break
            if code not in (SHORT, -signal.SIGKILL):  # the kernel's, of a process too large
                raise SystemExit(code)
        else:
            raise UserError(
                f"{phase}: not even one row of {tokens} tokens fits; shorten model.max_seq_length "
                "or rollout.max_new_tokens, or set model.gradient_checkpointing to true"
            )
        click.echo(
            f"memory-probe {phase} longest={tokens} tokens; set {phase}.micro_batch_size: {size}"
        )


if __name__ == "__main__":
    main()
