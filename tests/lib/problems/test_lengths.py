import dataclasses

import pytest

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params import preset_params
from lib.problems.selection import drop_controls, drop_too_long
from tests.lib.problems.conftest import counter, texts


def _cut(table, *, percent=100.0, max_tokens=0, most=100, completions=False, **rendering):
    limits = {"prompt_percentile": percent, "max_tokens": max_tokens}
    lengths = preset_params("smoke").prepare.lengths.model_copy(update=limits)
    tokens = counter(**rendering)
    prompts = tokens.prompts([*table])
    settings = {"max_seq_length": most, "completions": completions}
    return drop_too_long("sft", table, prompts, tokens, lengths, **settings)


@pytest.mark.parametrize(("percent", "longest"), [(90, 9), (91, 10), (100, 10), (50, 5), (1, 1)])
def test_the_longest_prompt_is_the_nearest_rank(table_of, percent, longest):
    table = table_of([" ".join("a" * length) for length in range(10, 0, -1)])
    kept, limits = _cut(table, percent=percent)
    assert limits == {"prompt": longest, "total": 100}
    assert len(kept) == longest


def test_a_hard_cut_lowers_the_total_only(table_of):
    assert _cut(table_of(["a"]), max_tokens=40)[1] == {"prompt": 1, "total": 40}
    assert _cut(table_of(["a"]), max_tokens=4096)[1]["total"] == 100


def test_prompts_that_leave_no_room_are_refused(table_of):
    with pytest.raises(UserError, match=r"sft: .*100 tokens.*model\.max_seq_length=100"):
        _cut(table_of(["a", "a " * 100, "a " * 150]), percent=60)
    # GRPO leaves one token over, and a completion has one at least.
    with pytest.raises(UserError, match=r"99 tokens"):
        _cut(table_of(["a " * 99]))
    assert len(_cut(table_of(["a " * 98]))[0]) == 1


def test_lengths_are_counted_as_the_format_renders():
    own = counter("working_out", count=lambda batch: [len(text) for text in batch])
    problems = [Problem.create(problem="2 + 2?", reference="4", solution="Add.")]
    assert own.prompts(problems) == [len("2 + 2?\n<start_working_out>")]
    completion = "Add.<end_working_out><SOLUTION>4</SOLUTION><eos>"
    assert own.completions(problems) == [len(completion)]


def test_a_long_row_is_counted_under_the_limit_it_exceeds(table_of):
    rows = [
        Problem.create(problem=text, reference="1", solution="so " * length)
        for text, length in (("fits", 9), ("prompt " * 31, 1), ("completion", 99))
    ]
    kept, _ = _cut(table_of(rows), percent=66, most=60, completions=True)
    assert texts(kept) == ["fits"]
    assert kept.drops.counts == {"prompt_too_long": 1, "too_long": 1}
    assert kept.drops.metrics()["dropped"]["too_long"] == {"count": 1, "share": 1 / 3}
    assert len(_cut(table_of(rows), percent=66, most=60)[0]) == 2


def test_control_tokens_and_tags_are_counted_or_refused(table_of):
    own = dataclasses.replace(counter("xml"), controls=("<eos>",))
    rows = [
        Problem.create(problem=problem, reference=reference, solution=solution)
        for problem, reference, solution in (
            ("2 + 2?", "4", "Add."),
            ("2 + 3?<eos> Ignore", "5", "Add."),
            ("Is 2 <answer> 3?", "5", "Add."),
            ("2 + 4?", "6", "Add.<eos> More."),
            ("2 + 5?", "<answer>", "Add."),
            ("2 + 6?", "8", "<reasoning>Add.</reasoning>"),
        )
    ]
    table = table_of(rows)
    kept = drop_controls("prepare.sft", table, own, targets=True, drops_rows=True)
    assert texts(kept) == ["2 + 2?", "2 + 6?"]
    assert table.drops.counts == {"control_token": 3, "target_not_in_format": 1}
    assert table.drops.changed == {"target": 1}
    # GRPO generates its completions.
    kept = drop_controls("prepare.grpo", table_of(rows), own, targets=False, drops_rows=True)
    assert texts(kept) == ["2 + 2?", "2 + 4?", "2 + 5?", "2 + 6?"]
    for number in range(1, 5):
        with pytest.raises(UserError, match=rf"prepare\.sft: .*{rows[number].id}.*bad_rows: drop"):
            drop_controls(
                "prepare.sft", table_of([rows[number]]), own, targets=True, drops_rows=False
            )
