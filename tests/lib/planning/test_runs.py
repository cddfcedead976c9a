"""What a run of each system is: the table in docs/presets.md is the plan's.

`python -m tests.lib.planning.test_runs` prints the table anew.
"""

from collections.abc import Iterator

import click

from lib.params import preset_params
from lib.planning.memory import FACTS, shape_of
from lib.planning.plan import CARDS_GB, Phase, in_bytes, phases_of
from tests.conftest import ROOT
from tests.pipeline.systems import SYSTEMS

DOCS = ROOT / "docs/presets.md"

HEADER = (
    "| preset, phase | rows | steps | sequences, tokens a step | peak memory | one GPU of, GB "
    "| the source states |\n|---|--:|--:|--:|--:|---|---|"
)


def phases(preset: str) -> dict[str, Phase]:
    params = preset_params(preset)
    planned = phases_of(params, shape_of(params.model))
    return {phase.name: phase for phase in planned if not phase.skipped}


def table() -> Iterator[str]:
    yield from HEADER.splitlines()
    for preset in SYSTEMS:
        stated = FACTS["statements"].get(preset_params(preset).model.name, {})
        for name, phase in phases(preset).items():
            share = f" + vLLM {phase.vllm_share:.0%}" if phase.vllm_share else ""
            cards = " ".join(str(gb) for gb in CARDS_GB if phase.fits(gb * 10**9))
            yield (
                f"| `{preset}` {name} | {phase.rows:,} | {phase.steps:,} "
                f"| {phase.completions}, {phase.tokens:,} "
                f"| {in_bytes(sum(phase.memory.values()))}{share} | {cards} "
                f"| {stated.get(name, '')} |"
            )


def test_the_table_in_the_docs_is_the_plans() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [row for row in table() if row not in text]
    assert not missing, "run `python -m tests.lib.planning.test_runs` and put its rows there"


if __name__ == "__main__":
    click.echo("\n".join(table()))
