"""Where both trainers start: the tiny preset's model, which a short SFT has taught the format."""

import tempfile
from pathlib import Path

from lib.engines.policy import save_policy
from lib.engines.tiny import write_base
from lib.params import Params
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format
from lib.training.sft import build_sft

NUM_PROBLEMS = 2880


def write_start(folder: Path, params: Params) -> None:
    """Write the checkpoint."""
    problems = synthetic_sets(params.prepare.synthetic, seed=params.seed).sft
    common = {
        "prompt_format": prompt_format(params.prompt.format),
        "model": params.model,
        "seed": params.seed,
    }
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        write_base(base, problems, **common)
        trainer = build_sft(
            problems[:NUM_PROBLEMS],
            base=base,
            system="",
            sft=params.sft.model_copy(update={"num_epochs": 1}),
            scratch=Path(scratch),
            **common,
        )
        trainer.train()
        save_policy(trainer.model, trainer.processing_class, folder)
