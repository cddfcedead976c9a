"""Which completions a page holds, and that it stays small whatever the run."""

import base64
import dataclasses
import json
import zlib
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from lib.report.page import (
    KINDS,
    completion_blocks,
    fit,
    packed,
    ranked_answers,
    render_page,
    with_validated,
)
from lib.report.report import build_report
from tests.lib.report.runs import completion_rows, load, read, write_run, write_text


def test_each_kind_has_the_answers_that_are_of_it(run):
    kinds = ranked_answers(run)
    assert tuple(kinds) == KINDS and all(kinds.values())
    for kind, groups in kinds.items():
        for rows in groups:
            samples: dict[int, list[bool]] = {}
            for row in rows:  # in the order of training
                samples.setdefault(row.sample, []).append(row.answer_ok)
            falls = any(a and not b for right in samples.values() for a, b in pairwise(right))
            wrong = any(not right[-1] for right in samples.values())
            assert kind == ("regressions" if falls else "failures" if wrong else "others")
    kept = [row for groups in kinds.values() for rows in groups for row in rows]
    assert len(kept) == sum(map(len, run.completions.values()))


def test_completions_of_validation_are_in_the_browser_only(tmp_path):
    folder = write_run(tmp_path / "run")
    plain = build_report(read(folder))
    rows = [
        {**row, "benchmark": "own", "mode": "validation"}
        for row in completion_rows("sft", skill=1.0, problems=2, samples=0)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_text(folder / "rollouts" / "sft_validation.jsonl", text)
    run = read(folder)
    shown = with_validated(run)
    everything = [rows for kind in ranked_answers(shown).values() for rows in kind]
    blocks = completion_blocks(shown, everything)
    columns = json.loads(zlib.decompress(base64.b64decode(blocks["rollouts-sft"])))
    assert columns["mode"].count("validation") == len(rows)
    content = json.loads(zlib.decompress(base64.b64decode(blocks["problems"])))
    assert content["benchmarks"][-1] == "own"
    assert build_report(run).differences == plain.differences


@pytest.mark.parametrize("budget", [0, 1_000, 20_000, 10**9])
def test_as_much_is_taken_as_the_budget_holds(budget):
    letters = np.random.default_rng(0).integers(97, 123, size=(200, 400))
    groups = [[SimpleNamespace(completion="".join(map(chr, row)))] for row in letters]

    def size(some):
        return len(packed([row.completion for rows in some for row in rows]))

    taken, blocks = fit(groups, lambda some: {"a": "x" * size(some)}, budget=budget)
    assert taken == groups[: len(taken)]
    assert len(blocks["a"]) <= budget or not taken
    # One more step of the search would have been too much.
    assert len(taken) == 200 or size(groups[: int(len(taken) / 0.9) + 2]) > budget


def test_a_page_of_a_very_long_run_stays_below_its_limit(tmp_path):
    run = load(tmp_path / "run", problems=60, samples=4)
    generator = np.random.default_rng(0)

    def long(row):
        return dataclasses.replace(row, completion=generator.bytes(6_000).hex())

    big = dataclasses.replace(
        run,
        completions={name: [*map(long, rows)] for name, rows in run.completions.items()},
        rollouts=[*map(long, [*run.rollouts] * 20)],
    )
    page = render_page(build_report(big))
    assert 2_000_000 < len(page) < 5_000_000
    num_completions = sum(map(len, big.completions.values()))
    regressions = sum(map(len, ranked_answers(big)["regressions"]))
    assert f"A sample of {num_completions:,} completions" in page
    assert f"of {regressions:,} regressions" in page


@pytest.mark.parametrize(("start", "kind"), [("sft", "failures"), ("grpo", "regressions")])
def test_an_answer_gets_worse_only_against_its_start(run, start, kind):
    row = run.completions["base"][0]
    right = {"base": False, "sft": False, "grpo": True, "dpo": False}
    trained = dataclasses.replace(
        run,
        checkpoints=tuple(right),
        starts={"sft": "base", "grpo": "sft", "dpo": start},
        completions={n: [dataclasses.replace(row, answer_ok=ok)] for n, ok in right.items()},
        exported="dpo",
    )
    kinds = ranked_answers(trained)
    assert [name for name, groups in kinds.items() if groups] == [kind]
