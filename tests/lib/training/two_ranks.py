"""Run one of two ranks in the test of dynamic sampling: `torchrun -m … BASE OUT`."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from lib.params import preset_params
from lib.params.schema import Params
from lib.problems.generated import synthetic_sets
from lib.training.phase.tracking import curve_points
from tests.lib.training.steps import build, letters, reward_with


def main(base: Path, out: Path) -> None:
    params: Params = preset_params("smoke")
    rank = int(os.environ["RANK"])
    lora = params.model.lora.model_copy(update={"rank": 0})
    trainer = build(
        synthetic_sets(params.prepare.synthetic, seed=params.seed).grpo,
        base,
        params,
        out,
        model=params.model.model_copy(update={"lora": lora}),
        dynamic_sampling=8,
    )
    steps: set[int] = set()

    def reward(completions: Any, log_metric: Any, **columns: Any) -> list[float]:
        """Give rank 1's first draw of every step no signal; log a metric of each rank."""
        log_metric("mine", 1.0 + 2 * rank)
        log_metric(f"on_{rank}", float(rank))
        first = trainer.state.global_step not in steps
        steps.add(trainer.state.global_step)
        return [0.5] * len(completions) if rank and first else letters(completions)

    reward_with(trainer, reward)
    trainer.train()
    digest = hashlib.sha256()
    for weight in trainer.model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    points = curve_points(trainer.state)
    rounds = [point["dynamic_sampling/rounds"] for point in points]
    logged = {name: points[-1][name] for name in ("mine", "on_0", "on_1")}
    report = {"world": trainer.accelerator.num_processes, "weights": digest.hexdigest()}
    (out / f"rank{rank}.json").write_text(
        json.dumps({**report, "rounds": rounds, "logged": logged})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
