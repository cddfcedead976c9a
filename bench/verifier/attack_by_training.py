"""Attack by training: GRPO on the `tiny` stack without KL, and its last rollouts with rewards.

python -m bench.verifier.attack_by_training OUT.jsonl.gz

Runs `stages.grpo` of this checkout as params.yaml describes it, with `grpo.beta: 0` and the stack
`tiny`, and keeps reference, completion and answer reward of the last 2,000 rollouts. A policy that
found a false positive of the verifier would be paid for it, so none of these may earn the answer's
reward without the reference's value in its text; `holds_value` decides that by text search, not by
the verifier. tests/golden/verifier/rollouts.jsonl.gz comes from three times the default's steps:

    dvc repro sft && python -m bench.verifier.attack_by_training OUT  # grpo.max_steps: 300
"""

import collections
import gzip
import importlib
import json
import re
from pathlib import Path
from typing import Any

import click

from lib.rewards.functions import load_reward
from lib.rewards.rollout import BoundedReward, Rollout


def holds_value(text: str, reference: str) -> bool:
    """Return True if the digits of `reference` occur in `text` as a number of their own."""
    digits = re.escape(reference.strip().removesuffix(".0"))
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.search(rf"(?<![\d.]){digits}(?:\.0+)?(?![\d])", plain) is not None


def false_rewards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the answer's reward, but without the reference's value in their text."""
    return [r for r in rows if r["reward"] and not holds_value(r["completion"], r["reference"])]


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """Read the rows written by `main`."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path))
def main(out: Path) -> None:
    """Train with a recording reward, write the rollouts, and count the false rewards."""
    rollouts: collections.deque[dict[str, Any]] = collections.deque(maxlen=2000)
    answer = load_reward("answer")

    def recorded(rollout: Rollout) -> float:
        reward = answer.score(rollout)
        rollouts.append(
            {"reference": rollout.reference, "completion": rollout.completion, "reward": reward}
        )
        return reward

    tiny = importlib.import_module("lib.rewards.stacks.tiny")
    tiny.REWARDS["answer"] = BoundedReward(recorded, answer.bounds)
    importlib.import_module("stages.grpo").main.main([], standalone_mode=False)
    rows = list(rollouts)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # No clock in the header, so that the same rollouts are the same bytes.
    out.write_bytes(gzip.compress(lines.encode(), mtime=0))
    earned = sum(bool(row["reward"]) for row in rows)
    click.echo(f"{len(rows)} rollouts, {earned} earned, {len(false_rewards(rows))} falsely")


if __name__ == "__main__":
    main()
