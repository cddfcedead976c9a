"""Read and clean the sets of problems, and write the base model that training starts from.

Params: seed, torch_threads, model, prompt, prepare, validation.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes

SECTIONS = {"seed", "torch_threads", "model", "prompt", "prepare", "validation"}


@click.command(help=__doc__)
@reads_params
@reads("--raw", "data/raw", "the folder of the files that sources name")
@writes("--problems", "data/problems", "the sets of problems")
@writes("--base", "data/models/base", "tokenizer, and weights or a pointer to them")
@writes("--metrics", "reports/metrics/prepare.json", "sizes of the sets, what was dropped")
@writes("--provenance", "reports/provenance/prepare.json", "settings, hashes, examples of drops")
def main(
    params_file: Path, raw: Path, problems: Path, base: Path, metrics: Path, provenance: Path
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.artifacts import write_metrics, write_provenance
    from lib.engines.pretrained import write_base
    from lib.engines.runtime import configure
    from lib.problems import prepare as sets
    from lib.problems.selection import token_counter
    from lib.prompts import prompt_format, save_prompt, system_prompt

    seed, model, section, validation = params.seed, params.model, params.prepare, params.validation
    configure(seed=seed, threads=params.torch_threads)
    own_format = prompt_format(**params.prompt.rendering)
    system = system_prompt(params.prompt.system, prompt_format=own_format)
    with sets.gathered_sets(section, seed=seed, raw=raw) as gathered:
        texts = sets.tokenizer_problems(gathered)
        write_base(base, texts, prompt_format=own_format, model=model, seed=seed)
        save_prompt(base, system=system, rendering=params.prompt.rendering)
        sets.finish_sets(
            gathered,
            section,
            counter=token_counter(base, prompt_format=own_format, system=system),
            max_seq_length=model.max_seq_length,
            seed=seed,
        )
        sets.write_sets(gathered, problems, validation=validation)
        figures, dropped = sets.set_metrics(gathered), sets.dropped_examples(gathered)
        summary = list(sets.summary_lines(gathered))
    write_metrics(metrics, figures)
    write_provenance(
        provenance,
        settings=params.model_dump(include=SECTIONS),
        inputs={"raw": raw, "problems": problems, "base": base},
        dropped=dropped,
    )
    for line in summary:
        click.echo(f"prepare {line}")


if __name__ == "__main__":
    main()
