"""Make the weights of two ranks differ, as after training without averaged gradients."""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from lib.training.phase.ranks import check_ranks_agree


def main(base: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        args = TrainingArguments(scratch, use_cpu=True, ddp_backend="gloo", report_to="none")
        trainer = Trainer(AutoModelForCausalLM.from_pretrained(base), args)
        check_ranks_agree(trainer)
        with torch.no_grad():
            next(trainer.model.parameters()).add_(trainer.args.process_index)
        check_ranks_agree(trainer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
