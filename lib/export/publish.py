"""The export as a whole: model, card, proof; it appears complete or not at all."""

from pathlib import Path

from lib.artifacts import hash_path, read_json, replacing
from lib.export.card import Recipe, model_card
from lib.export.merged import Verified, export_merged
from lib.params.schema import Evaluate, Export, Model, Prompt
from lib.problems.benchmarks import read_benchmarks
from lib.prompts import prompt_format, saved_system


def publish(
    checkpoint: Path,
    to: Path,
    *,
    base: Path,
    problems: Path,
    measured: Path,
    recipe: Recipe,
    model: Model,
    prompt: Prompt,
    evaluate: Evaluate,
    export: Export,
) -> Verified:
    """Export `checkpoint` to the folder `to`; see `export_merged` for what is verified."""
    headline = evaluate.benchmarks[0]
    held_out = read_benchmarks(problems, [headline])[headline]
    chosen, system = prompt_format(**prompt.rendering()), saved_system(base)
    with replacing(to) as folder:
        verified = export_merged(
            checkpoint,
            folder,
            base=base,
            prompts=[
                chosen.prompt(problem.problem, system=system)
                for problem in held_out[: export.num_verified]
            ],
            stop_strings=chosen.stop_strings,
            model=model,
            evaluate=evaluate,
            export=export,
        )
        card = model_card(
            read_json(measured),
            recipe=recipe,
            prompt=prompt,
            evaluate=evaluate,
            export=export,
            inputs={"checkpoint": hash_path(checkpoint), "benchmarks": hash_path(problems)},
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
    return verified
