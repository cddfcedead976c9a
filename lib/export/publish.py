"""The export as a whole: model, card, proof; it appears complete or not at all."""

from pathlib import Path

from ruamel.yaml import YAML

from lib.artifacts import hash_path, read_json, replacing
from lib.engines.policy import load_tokenizer
from lib.export.card import Recipe, model_card
from lib.export.merged import Verified, export_model
from lib.params.measuring import Evaluate, Export
from lib.params.model import Model, Prompt
from lib.problems.schema import read_benchmarks
from lib.prompts import prompt_format, save_prompt, saved_system

PARAMS = "params.yaml"
"""What the model was made with, beside its card."""


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
    """Export `checkpoint` to the folder `to`; see `export_model` for what is verified."""
    headline = evaluate.benchmarks[0]
    held_out = read_benchmarks(problems, [headline])[headline]
    chosen, system = prompt_format(**prompt.rendering()), saved_system(base)
    asked = [
        chosen.prompt(problem.problem, system=system) for problem in held_out[: export.num_verified]
    ]
    with replacing(to) as folder:
        verified = export_model(
            checkpoint,
            folder,
            base=base,
            prompts=asked,
            model=model,
            evaluate=evaluate,
            export=export,
            stop_strings=chosen.stop_strings,
        )
        save_prompt(folder, system=system, rendering=prompt.rendering())
        with (folder / PARAMS).open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(recipe.settings, file)
        card = model_card(
            read_json(measured),
            recipe=recipe,
            # Only a model with a revision is one of the Hub: a folder's name means nothing there.
            base_model=(model.name, model.revision) if model.revision else ("", ""),
            prompt_format=chosen,
            example=load_tokenizer(folder).apply_chat_template(
                asked[0], add_generation_prompt=True, tokenize=False
            ),
            evaluate=evaluate,
            export=export,
            inputs={
                "checkpoint": hash_path(checkpoint),
                "base": hash_path(base),
                "benchmarks": hash_path(problems),
            },
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
    return verified
