"""Read and clean the sets of problems, and write the base model.

Params: seed, torch_threads, model, prompt, prepare, validation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

SECTIONS = {"seed", "torch_threads", "model", "prompt", "prepare", "validation"}


RESTORE = "git checkout reports && dvc checkout"
"""Command that brings the last outputs of `prepare` back."""


@contextmanager
def _recovery() -> Iterator[None]:
    """Add to an error what DVC has removed before this stage, and how to get it back."""
    try:
        yield
    except UserError as error:
        removed = "the sets, the base model and the metrics of the last run were removed"
        raise UserError(f"{error.message}\n  {removed}; `{RESTORE}` restores them") from error


@click.command(help=__doc__)
@reads_params
@reads_code("prepare", SECTIONS)
@reads("--raw", "data/raw", "the folder of the sources' files")
@writes("--problems", "data/problems", "the sets of problems")
@writes("--base", "data/models/base", "tokenizer, and weights or a pointer to them")
@writes("--metrics", "reports/metrics/prepare.json", "sizes of the sets, counts of dropped rows")
@writes(
    "--provenance", "reports/provenance/prepare.json", "settings, hashes, examples of dropped rows"
)
def main(
    params_file: Path, raw: Path, problems: Path, base: Path, metrics: Path, provenance: Path
) -> None:
    """Write the sets of problems and the base model, with metrics and provenance."""
    params = load_params(params_file)
    from lib.artifacts import write_metrics, write_provenance
    from lib.models.load import read_max_positions
    from lib.models.runtime import configure
    from lib.models.save import write_base
    from lib.problems import prepare as sets
    from lib.problems.selection import token_counter
    from lib.prompts import prompt_format, save_prompt, system_prompt
    from lib.rewards.rollout import task_fault

    seed, model, section, validation = params.seed, params.model, params.prepare, params.validation
    configure(seed=seed, threads=params.torch_threads)
    # Before the tokenizer is made: the format's tags become tokens of the tiny model.
    own_format = prompt_format(**params.prompt.rendering)
    system = system_prompt(params.prompt.system, prompt_format=own_format)
    # Sets need not fit into memory: `gathered` reads them from Arrow files in a scratch folder,
    # which is deleted at the end of the block.
    task = partial(task_fault, prompt_format=own_format) if own_format.is_task else None
    with _recovery(), sets.gathered_sets(section, seed=seed, raw=raw, task=task) as gathered:
        texts = sets.tokenizer_problems(gathered)
        # A tiny model's tokenizer is trained on these problems; a downloaded model keeps its own.
        write_base(
            base,
            texts,
            prompt_format=own_format,
            model=model,
            seed=seed,
            system=system,
            template_arguments=params.prompt.template_arguments,
        )
        save_prompt(base, system=system, rendering=params.prompt.rendering)
        # After the tokenizer exists, since problems are dropped by their length in tokens.
        counter = token_counter(base, prompt_format=own_format, system=system)
        sets.finish_sets(
            gathered,
            section,
            counter=counter,
            max_seq_length=model.max_seq_length,
            seed=seed,
        )
        if not params.grpo.skipped:
            # Only a check: no output depends on `prompts_per_step`. `grpo` would refuse too few
            # problems as well, but only after SFT.
            sets.refuse_few_problems(gathered, prompts_per_step=params.grpo.prompts_per_step)
        # Only a check, too: `evaluate` would refuse such a prompt after all training.
        of_model = params.evaluate.engine == "transformers"
        sets.refuse_long_prompts(
            gathered,
            params.evaluate.benchmarks,
            counter=counter,
            positions=read_max_positions(base) if of_model else model.max_seq_length,
        )
        sets.write_sets(gathered, problems, validation=validation)
        figures, dropped = sets.set_metrics(gathered), sets.dropped_examples(gathered)
        summary = list(sets.set_lines(gathered))
    write_metrics(metrics, figures)
    write_provenance(
        provenance,
        settings=params.model_dump(include=SECTIONS),
        # Outputs are hashed too, to show whether another machine made the same sets.
        inputs={"raw": raw, "problems": problems, "base": base},
        dropped=dropped,
    )
    for line in summary:
        click.echo(f"prepare {line}")


if __name__ == "__main__":
    main()
