"""Print the result table, and where the model and the report are. Outside the DAG.

Params: evaluate (checkpoints, benchmarks), dpo (init).
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params


@click.command(help=__doc__)
@reads_params
@reads("--metrics", "reports/metrics", "the numbers of every stage")
@reads("--provenance", "reports/provenance", "which phases were skipped")
@reads("--export", "data/models/export", "the exported model")
@reads("--markdown", "reports/report.md", "the report")
def main(params_file: Path, metrics: Path, provenance: Path, export: Path, markdown: Path) -> None:
    """Print the summary."""
    params = load_params(params_file)
    from lib.report.comparisons import read_comparisons
    from lib.report.inputs import load_metrics, load_skipped, read_json
    from lib.report.write import summary_lines

    checkpoints, benchmarks = params.evaluate.checkpoints, params.evaluate.benchmarks
    measured = load_metrics(metrics / "evaluate", checkpoints)
    comparisons = read_comparisons(read_json(metrics / "report.json"), checkpoints, params.starts)
    lines = summary_lines(
        measured,
        comparisons=comparisons,
        benchmark=benchmarks[0],
        skipped=load_skipped(provenance, checkpoints),
        model=export,
        report=markdown,
    )
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    main()
