"""Where both trainers start: a model that a short SFT has taught the format."""

import tempfile
from pathlib import Path

from lib.engines.policy import save_policy
from lib.engines.tiny import write_base
from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import synthetic_sets
from lib.problems.schema import Problem
from lib.prompts import prompt_format
from lib.trainers.sft import build_sft

SIZES = {
    "0.48 M": {},
    "3.2 M": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_layers": 4,
        "num_heads": 8,
        "num_kv_heads": 4,
    },
}
"""Models by their number of parameters: what differs from the tiny preset."""


def sized(model: Model, name: str) -> Model:
    """The tiny preset's model in one of `SIZES`."""
    return model.model_copy(update={"tiny": model.tiny.model_copy(update=SIZES[name])})


def write_start(
    folder: Path, params: Params, *, size: str, num_problems: int, learning_rate: float
) -> list[Problem]:
    """Write the checkpoint; gives the problems that GRPO is to be done on."""
    model, chosen = sized(params.model, size), prompt_format(params.prompt.format)
    sets = synthetic_sets(params.prepare.synthetic, seed=params.seed)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        write_base(base, sets.sft, prompt_format=chosen, model=model, seed=params.seed)
        trainer = build_sft(
            sets.sft[:num_problems],
            base=base,
            prompt_format=chosen,
            system="",
            sft=params.sft.model_copy(
                update={"num_epochs": 1, "learning_rate": learning_rate, "logging_steps": 50}
            ),
            model=model,
            seed=params.seed,
            scratch=Path(scratch),
        )
        trainer.train()
        save_policy(trainer.model, trainer.processing_class, folder)
    return list(sets.grpo)
