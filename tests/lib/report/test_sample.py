"""Which completions a page holds, and that it stays small whatever the run."""

import dataclasses
import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from lib.artifacts.rollouts import read_rollouts
from lib.errors import UserError
from lib.report.comparisons import steps_of_training
from lib.report.page import packed, render_page
from lib.report.report import build_report
from lib.report.sample import by_checkpoint, count_kinds, fit, ranked_answers, ranked_rollouts
from tests.lib.report.runs import load, write_text

MAX_PAGE = 5_000_000


def ranked(run):
    steps = list(steps_of_training(run.checkpoints, run.starts))
    return ranked_answers(run.completions, steps=steps, exported=run.exported)


def test_regressions_come_first_then_failures(run):
    answers = ranked(run)
    kinds = [each.kind for each in answers]
    assert kinds == sorted(kinds, key=["regressions", "failures", "others"].index)
    assert len(set(kinds)) == 3
    for each in answers:
        samples: dict[int, list[bool]] = {}
        for row in each.rows:  # in the order of training
            samples.setdefault(row.sample, []).append(row.answer_ok)
        falls = any(a and not b for right in samples.values() for a, b in pairwise(right))
        wrong = any(not right[-1] for right in samples.values())
        assert each.kind == ("regressions" if falls else "failures" if wrong else "others")
    assert sum(count_kinds(answers).values()) == sum(map(len, run.completions.values()))


def test_answers_to_one_question_stay_together_in_the_order_of_the_file(run):
    some = by_checkpoint(ranked(run)[:10], run.completions)
    (count,) = {len(rows) for rows in some.values()}
    samples = Counter((row.problem_id, row.mode) for row in some["grpo"])
    everything = Counter((row.problem_id, row.mode) for row in run.completions["grpo"])
    assert len(samples) == 10 and count == sum(samples.values())
    assert all(everything[key] == number for key, number in samples.items())
    keys = [(row.benchmark, row.problem_id, row.mode, row.sample) for row in some["grpo"]]
    assert keys == [(row.benchmark, row.problem_id, row.mode, row.sample) for row in some["sft"]]
    places = [run.completions["grpo"].index(row) for row in some["grpo"]]
    assert places == sorted(places)


@pytest.mark.parametrize("budget", [0, 1_000, 20_000, 10**9])
def test_as_much_is_taken_as_the_budget_holds(budget):
    letters = np.random.default_rng(0).integers(97, 123, size=(200, 400))
    texts = ["".join(map(chr, row)) for row in letters]
    taken, blocks = fit(texts, lambda some: {"a": packed(list(some))}, budget=budget, length=len)
    assert list(taken) == texts[: len(taken)]
    size = len(blocks["a"])
    assert size <= budget or not taken
    # One more step of the search would have been too much.
    assert len(taken) == 200 or len(packed(texts[: int(len(taken) / 0.9) + 2])) > budget


def test_a_page_of_a_very_long_run_stays_below_its_limit(tmp_path):
    run = load(tmp_path / "run", problems=60, samples=4)
    generator = np.random.default_rng(0)

    def long(row):
        return dataclasses.replace(row, completion=generator.bytes(6_000).hex())

    big = dataclasses.replace(
        run,
        completions={name: [*map(long, rows)] for name, rows in run.completions.items()},
        rollouts=[
            dataclasses.replace(row, completion=f"{number} {generator.bytes(6_000).hex()}")
            for number, row in enumerate([*run.rollouts] * 20)
        ],
    )
    page = render_page(build_report(big), big)
    assert 2_000_000 < len(page) < MAX_PAGE
    counts = count_kinds(ranked(big))
    assert f"A sample of {sum(counts.values()):,} completions" in page
    assert f"of {counts['regressions']:,} regressions" in page


def test_problems_that_came_up_most_often_come_first(run):
    steps = [len({row.step for row in rows}) for rows in ranked_rollouts(run.rollouts[:8])]
    assert steps == [2, 1, 1] and sum(steps) == 4


def test_a_damaged_line_of_rollouts_is_named(tmp_path):
    write_text(tmp_path / "grpo.jsonl", json.dumps({"step": 1}) + "\n")
    with pytest.raises(UserError, match=r"grpo.jsonl:1: not a rollout of training"):
        list(read_rollouts(tmp_path / "grpo.jsonl"))


def test_an_answer_gets_worse_only_against_what_its_checkpoint_started_from(run):
    base, sft, grpo = run.checkpoints
    wrong, right = (
        [dataclasses.replace(run.completions[base][0], answer_ok=ok)] for ok in (False, True)
    )
    rows = {base: wrong, sft: wrong, grpo: right, "dpo": wrong}
    steps = [(base, sft), (sft, grpo), (sft, "dpo")]
    assert [each.kind for each in ranked_answers(rows, steps=steps, exported="dpo")] == ["failures"]
    (answers,) = ranked_answers(rows, steps=[*steps, (grpo, "dpo")], exported="dpo")
    assert answers.kind == "regressions"
