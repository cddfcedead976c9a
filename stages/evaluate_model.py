"""Measure any models on any benchmarks: the files of `evaluate` for each, and one table of all.

Not a stage of the DAG. Decoding, batch size and engine are those of `evaluate` in params, unless
--set says otherwise; interrupted, the same command resumes where it was (docs/evaluate.md).

Params: seed, torch_threads, model (attention), reward, evaluate.
"""

from itertools import product
from pathlib import Path

import click

from lib.params import load_params
from lib.params.load import read_yaml
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
@click.option("--model", "models", required=True, help="Folders or Hub ids, by commas.")
@click.option("--benchmarks", default="", help="Names, paths or name=path, by commas.")
@click.option("--set", "settings", default="", help="[benchmark.]key=value[,value...], by spaces.")
@click.option("--prompt-format", "formats", default="", help="For models that do not say theirs.")
@click.option("--system", help="System prompt, as `prompt.system` in params.")
@click.option("--base", type=click.Path(path_type=Path), help="The model below an adapter.")
@click.option("--limit", type=click.IntRange(min=1), help="Problems per benchmark; all without.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data/evaluations"),
    show_default=True,
    help="Writes completions, grades, metrics, provenance, the table and a page.",
)
def main(
    params_file: Path,
    models: str,
    benchmarks: str,
    settings: str,
    formats: str,
    system: str | None,
    base: Path | None,
    limit: int | None,
    out: Path,
) -> None:
    """Measure."""
    params = load_params(params_file)
    from lib.problems.sources import find_benchmark

    wanted = _words(benchmarks) or list(params.evaluate.benchmarks)
    sets = [find_benchmark(word, limit=limit or 0) for word in wanted]
    from lib.engines.runtime import configure
    from lib.evaluation.models import (
        apply_settings,
        every_setting,
        labelled_models,
        measure_model,
    )
    from lib.grading.metrics import headline
    from lib.report.inputs import read_models
    from lib.report.text import table_lines
    from lib.report.write import write_models

    section, names = read_yaml(params_file)["evaluate"], [each.name for each in sets]
    decodings = {
        ending: apply_settings(section, text, benchmarks=names)
        for ending, text in every_setting(settings).items()
    }
    metrics = {}
    measured = labelled_models(_words(models), formats=_words(formats), system=system, base=base)
    for (name, model), (ending, (evaluate, seed)) in product(measured.items(), decodings.items()):
        label, seed = name + ending, params.seed if seed is None else seed
        configure(seed=seed, threads=params.torch_threads)
        metrics[label] = measure_model(
            model,
            label=label,
            sets=sets,
            evaluate=evaluate,
            params=params,
            seed=seed,
            limit=limit or 0,
            out=out,
        )
        click.echo("\n".join(headline(label, metrics[label])))
    for table in write_models(read_models(metrics, out), out):
        click.echo("\n" + "\n".join(table_lines(table)))
    click.echo(f"\nevaluate models={len(metrics)} out={out} page={out / 'report.html'}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    main()
