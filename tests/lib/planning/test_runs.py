"""What a run of each system is: the table in docs/presets.md is the plan's, and its rows are real.

`python -m tests.lib.planning.test_runs` prints the table anew.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lib.params import preset_params
from lib.planning.memory import FACTS, shape_of
from lib.planning.plan import CARDS_GB, Phase, in_bytes, phases_of
from lib.prompts import prompt_format, prompt_text, system_prompt
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


def test_s0_and_s1_fit_their_sources_gpus() -> None:
    assert phases("s0-qwen3-4b")["grpo"].fits(40 * 10**9)
    assert phases("s1-qwen2.5-0.5b")["grpo"].bytes_on(24 * 10**9) <= 22.3 * 2**30


CHARACTERS_PER_TOKEN = 3.0
"""Assumed: no tokenizer of a real model is here. English text has more, formulas have fewer."""

AT_HAND = {
    "s1-qwen2.5-0.5b": ("gsm8k/train.jsonl", "question"),
    "s3-cs336": ("math500/test.jsonl", "problem"),  # 500 of MATH's test set for its training set
    "s4-gsm8k-lora": ("gsm8k/train.jsonl", "question"),
    "s4-gsm8k-lora-llama": ("gsm8k/train.jsonl", "question"),
}


def prompt_tokens(preset: str, data: Path) -> list[int]:
    """Assumed tokens of each rendered prompt, the shortest first."""
    params, (file, column) = preset_params(preset), AT_HAND[preset]
    chosen = prompt_format(**params.prompt.rendering)
    system = system_prompt(params.prompt.system, prompt_format=chosen)
    texts = (json.loads(line)[column] for line in (data / file).read_text("utf-8").splitlines())
    prompts = (prompt_text(chosen, text, system=system, bos_token="") for text in texts)
    return sorted(math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) for prompt in prompts)


@pytest.fixture
def data() -> Path:
    """Public sets, rows unchanged."""
    folder = Path(os.environ.get("RECKON_SHARED", "")) / "data"
    if not (folder / "gsm8k").is_dir():
        pytest.skip("RECKON_SHARED names no folder with GSM8K and MATH-500")
    return folder


def test_no_real_prompt_is_too_long_for_its_preset(data: Path) -> None:
    for preset in AT_HAND:
        params = preset_params(preset)
        room = params.model.max_seq_length - params.rollout.max_new_tokens
        assert prompt_tokens(preset, data)[-1] <= room, preset


if __name__ == "__main__":
    click.echo("\n".join(table()))
