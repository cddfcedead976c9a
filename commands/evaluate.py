"""Measure any models on any benchmarks, in one table.

MODELS are folders or Hub ids, comma-separated. Decoding, batch size and engine come from `evaluate`
in params unless --set overrides them. After an interruption, the same command resumes
(docs/evaluate.md).
"""

from itertools import product
from pathlib import Path

import click

from lib.params import load_params
from lib.params.load import read_yaml
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
@click.argument("models")
@click.option("--benchmarks", default="", help="Names, paths or name=path, comma-separated.")
@click.option(
    "--set", "settings", default="", help="[benchmark.]key=value[,value...], space-separated."
)
@click.option(
    "--prompt-format", "formats", default="", help="Prompt formats for models without their own."
)
@click.option("--system", help="System prompt, as `prompt.system` in params.")
@click.option("--base", type=click.Path(path_type=Path), help="The model below an adapter.")
@click.option("--limit", type=click.IntRange(min=1), help="Problems per benchmark; default: all.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data/evaluations"),
    show_default=True,
    help="Folder for completions, grades, metrics, provenance, the table and a page.",
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
    """Measure every model with every decoding on every benchmark; print and write the tables."""
    params = load_params(params_file)
    from lib.inference.external import refuse_missing
    from lib.problems.benchmarks import find_benchmark

    # A misspelt model or benchmark is refused before torch is imported.
    for model_id in _split(models):
        refuse_missing(model_id)
    limit = limit or 0
    benchmark_ids = _split(benchmarks) or list(params.evaluate.benchmarks)
    sets = [find_benchmark(each, limit=limit) for each in benchmark_ids]
    from lib.evaluation.models import (
        apply_settings,
        every_setting,
        labelled_models,
        measure_model,
    )
    from lib.grading.metrics import headline_lines
    from lib.models.runtime import configure
    from lib.report.inputs import read_models
    from lib.report.text import table_lines
    from lib.report.write import write_models

    # The raw section, since --set changes it before it is validated again.
    section, names = read_yaml(params_file)["evaluate"], [each.name for each in sets]
    # Label suffix -> (section `evaluate`, seed or None), one entry for each combination of the
    # values in --set: "temperature=0.6,1.0" gives ".temperature=0.6" and ".temperature=1.0".
    decodings = {
        suffix: apply_settings(section, text, benchmarks=names)
        for suffix, text in every_setting(settings).items()
    }
    metrics = {}
    # Label -> model, such as "sft", or "sft.boxed" if --prompt-format names a format.
    labelled = labelled_models(_split(models), formats=_split(formats), system=system, base=base)
    for (name, model), (suffix, (evaluate, seed)) in product(labelled.items(), decodings.items()):
        label = name + suffix
        if seed is None:
            seed = params.seed
        # For each measurement, so that its random numbers do not depend on earlier models.
        configure(seed=seed, threads=params.torch_threads)
        metrics[label] = measure_model(
            model,
            label=label,
            sets=sets,
            params=params.model_copy(update={"evaluate": evaluate, "seed": seed}),
            limit=limit,
            out=out,
        )
        # Printed at once, since the other models may take hours.
        click.echo("\n".join(headline_lines(label, metrics[label])))
    for table in write_models(read_models(metrics, out), out):
        click.echo("\n" + "\n".join(table_lines(table)))
    click.echo(f"\nevaluate models={len(metrics)} out={out} page={out / 'report.html'}")


def _split(text: str) -> list[str]:
    """Split a comma-separated list: "a, b," -> ["a", "b"]."""
    return [word.strip() for word in text.split(",") if word.strip()]
