"""A page stays small: it has only a part of a long run's completions."""

import dataclasses
import re

import numpy as np
import pytest

from lib.artifacts.completions import UNGRADED
from lib.report.page import fit, ranked_answers, render_page
from lib.report.report import build_report
from tests.lib.report.runs import load


def test_a_page_of_a_very_long_run_stays_below_its_limit(tmp_path):
    run = load(tmp_path / "run", problems=60, samples=4)
    generator = np.random.default_rng(0)

    def long(row):
        text = generator.bytes(6_000).hex()
        if isinstance(row, dict):
            return row | {"completion": text}
        return dataclasses.replace(row, completion=text)

    big = dataclasses.replace(
        run,
        completions={name: [*map(long, rows)] for name, rows in run.completions.items()},
        rollouts=[*map(long, [*run.rollouts] * 20)],
    )
    page = render_page(build_report(big))
    assert 2_000_000 < len(page) < 5_000_000
    num_completions = sum(map(len, big.completions.values()))
    assert re.search(rf"[\d,]+ of {num_completions:,} completions: first", page)


def test_a_group_over_the_budget_hides_no_other():
    generator = np.random.default_rng(0)
    row = dataclasses.make_dataclass("Row", ["text"])
    groups = [[row(generator.bytes(size).hex())] for size in (5_000, 50, 5_000, 60)]
    assert fit(groups, budget=1_000) == [groups[1], groups[3]]


@pytest.mark.parametrize("start", ["sft", "grpo"])
def test_an_answer_gets_worse_only_against_its_start(run, start):
    row = run.completions["base"][0]
    right = {"base": False, "sft": False, "grpo": True, "dpo": False}

    def answers(problem, **changed):
        """Answer a problem right or wrong, by checkpoint."""
        return {
            name: dataclasses.replace(row, problem_id=problem, answer_ok=ok)
            for name, ok in {**right, **changed}.items()
        }

    groups = [
        answers("right", dpo=True),
        answers("wrong", grpo=False),
        answers("judged"),
        answers("forgotten", base=True, dpo=True),
    ]
    # Wrong only by their field, and in the order of a hash: two, to be sure.
    ungraded = [answers(problem, grpo=False) for problem in ("ungraded", "instruction")]
    groups += [
        {name: dataclasses.replace(row, decided_by=UNGRADED) for name, row in group.items()}
        for group in ungraded
    ]
    trained = dataclasses.replace(
        run,
        checkpoints=tuple(right),
        starts={"sft": "base", "grpo": "sft", "dpo": start},
        completions={name: [group[name] for group in groups] for name in right},
        exported="dpo",
    )
    order = [group[0].problem_id for group in ranked_answers(trained)]
    assert set(order[-3:]) == {"right", "ungraded", "instruction"}
    first = {"forgotten"} if start == "sft" else {"forgotten", "judged"}
    assert set(order[: len(first)]) == first
