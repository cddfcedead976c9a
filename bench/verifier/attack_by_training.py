"""Attack by training: what GRPO's rollouts earned falsely.

python -m bench.verifier.attack_by_training [ROLLOUTS]

A policy that found a false positive of the verifier would be paid for it, so no rollout may earn
the answer's reward without the reference's value in its text; `holds_value` decides that by text
search, not by the verifier. tests/golden/verifier/rollouts.jsonl.gz has the last 2,000 rollouts of
three times the default's steps without KL:

    dvc exp run -S grpo.beta=0 -S grpo.max_steps=300 -S grpo.log_problems=32 grpo
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import click

from bench.verifier.references import rows_of


def holds_value(text: str, reference: str) -> bool:
    """Return True if the digits of `reference` occur in `text` as a number of their own."""
    digits = re.escape(reference.strip().removesuffix(".0"))
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.search(rf"(?<![\d.]){digits}(?:\.0+)?(?![\d])", plain) is not None


def earned(row: dict[str, Any]) -> bool:
    """Tell whether a row has the answer's reward."""
    return bool(row["rewards"]["answer"] if "rewards" in row else row["reward"])


def false_rewards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the answer's reward, but without the reference's value in their text."""
    return [r for r in rows if earned(r) and not holds_value(r["completion"], r["reference"])]


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """Read the committed rows."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@click.command(help=__doc__)
@click.argument("rollouts", type=click.Path(path_type=Path), default="data/rollouts/grpo.jsonl")
def main(rollouts: Path) -> None:
    """Count the false rewards of a run's logged rollouts."""
    rows = rows_of(rollouts)
    click.echo(
        f"{len(rows)} rollouts, {sum(map(earned, rows))} earned, {len(false_rewards(rows))} falsely"
    )


if __name__ == "__main__":
    main()
