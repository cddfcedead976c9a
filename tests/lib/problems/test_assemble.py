"""Sources in, training sets out: what is dropped is counted, and nothing depends on chance."""

import dataclasses
import json

import pytest

from lib.errors import UserError
from lib.problems.assemble import (
    Difficulty,
    FinishRules,
    GatherRules,
    Ingredient,
    finish,
    gather,
)
from lib.problems.decontaminate import index_benchmark
from lib.problems.difficulty import PassRate
from lib.problems.lengths import LengthRules, Rendering
from lib.problems.schema import Problem, write_problems
from lib.problems.sources import Source, read_problems_of
from lib.prompts import prompt_format

GATHER = GatherRules(
    bad_rows="drop",
    needs_solution=False,
    needs_reference=True,
    near_duplicate_similarity=1.0,
    numeric_only=False,
    correct_only=False,
)
FINISH = FinishRules(
    lengths=LengthRules(max_seq_length=100, prompt_percentile=100.0, max_tokens=0),
    count_completions=True,
    difficulty=None,
    validation_share=0.0,
    num_train_examples="all",
    seed=0,
)
RENDERING = Rendering(
    prompt_format=prompt_format("xml"), system="", bos_token="", eos_token="<eos>"
)

GOOD = [
    {"problem": f"What is {n} + 1?", "answer": str(n + 1), "solution": "Add."} for n in range(20)
]


def _words(texts):
    return [len(text.split()) for text in texts]


@pytest.fixture
def ingredient(tmp_path):
    """Rows as one source under a data/raw of the test's own."""
    raw = tmp_path / "raw"
    raw.mkdir()

    def build(rows, *, name="rows", weight="all"):
        path = raw / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = Source(at=path)
        return Ingredient(label=name, rows=lambda: read_problems_of(source, raw=raw), weight=weight)

    return build


@pytest.fixture
def assemble(tmp_path):
    def run(ingredients, *, benchmarks=(), gather_rules=GATHER, finish_rules=FINISH):
        gathered = gather(
            "sft", ingredients, gather_rules, benchmarks=benchmarks, cache=tmp_path / "cache"
        )
        return finish(gathered, finish_rules, rendering=RENDERING, count_tokens=_words)

    return run


def _texts(table):
    return [problem.problem for problem in table]


def test_a_clean_source_comes_through_as_it_is(ingredient, assemble):
    made = assemble([ingredient(GOOD)])
    assert _texts(made.train) == [row["problem"] for row in GOOD]
    assert len(made.validation) == 0
    assert made.metrics()["dropped"] == {}


def test_a_bad_row_is_an_error_with_file_row_field_and_what_to_do(ingredient, assemble):
    rows = [*GOOD[:2], {"problem": "?"}, *GOOD[2:]]
    with pytest.raises(UserError) as raised:
        assemble([ingredient(rows)], gather_rules=dataclasses.replace(GATHER, bad_rows="error"))
    message = str(raised.value)
    assert "rows.jsonl:3: field `reference`: missing" in message
    assert "prepare.bad_rows: drop" in message


def test_bad_rows_are_dropped_and_counted_by_reason_where_params_say_so(ingredient, assemble):
    bad = [
        {"problem": "?"},
        {"problem": "?", "answer": " "},
        {"problem": "?", "answer": {"a": 1}},
        {"answer": "4"},
        ["no object"],
    ]
    made = assemble([ingredient([*GOOD, *bad])])
    metrics = made.metrics()
    assert (metrics["read"], metrics["kept"]) == (25, 20)
    assert metrics["dropped"] == {
        "missing_field": {"count": 2, "share": 2 / 25},
        "empty_field": {"count": 1, "share": 1 / 25},
        "wrong_type": {"count": 2, "share": 2 / 25},
    }
    examples = made.gathered.drops.examples
    assert examples["empty_field"][0]["row"].endswith("rows.jsonl:22")


@pytest.mark.parametrize("bad_rows", ["error", "drop"])
def test_what_the_columns_leave_open_asks_for_columns(ingredient, assemble, bad_rows):
    rows = [{"problem": "?", "solution": "We add both of them and so on."}]
    rules = dataclasses.replace(GATHER, bad_rows=bad_rows)
    with pytest.raises(UserError, match="name the columns in `columns:`"):
        assemble([ingredient(rows)], gather_rules=rules)


def test_sft_rows_without_a_working_are_bad_unless_params_mean_bare_answers(ingredient, assemble):
    rows = [{"problem": "1?", "answer": "1"}, GOOD[0]]
    strict = dataclasses.replace(GATHER, needs_solution=True)
    made = assemble([ingredient(rows)], gather_rules=strict)
    assert _texts(made.train) == [GOOD[0]["problem"]]
    assert made.gathered.drops.examples["missing_field"][0]["found"].startswith("field `solution`")
    assert len(assemble([ingredient(rows)]).train) == 2


def test_only_three_examples_of_a_reason_are_kept(ingredient, assemble):
    made = assemble([ingredient([*GOOD, *[{"problem": "?"}] * 9])])
    assert made.gathered.drops.counts == {"missing_field": 9}
    assert len(made.gathered.drops.examples["missing_field"]) == 3


def test_a_source_without_a_good_row_is_an_error_that_says_why(ingredient, assemble):
    with pytest.raises(UserError, match="empty has no usable row"):
        assemble([ingredient(GOOD), ingredient([], name="empty")])
    with pytest.raises(UserError, match=r"broken has no usable row \(2 missing_field\)"):
        assemble([ingredient([{"problem": "?"}] * 2, name="broken")])


def test_duplicates_across_sources_and_leaks_go(ingredient, assemble):
    leak = "Janet's ducks lay 16 eggs per day and she eats three of them"
    rows = [GOOD[0], {"problem": leak, "answer": "13"}]
    made = assemble(
        [ingredient(GOOD), ingredient(rows, name="more")],
        benchmarks=[index_benchmark("gsm8k", [leak], size=8)],
    )
    assert _texts(made.train) == [row["problem"] for row in GOOD]
    assert made.gathered.drops.counts == {"exact_duplicate": 1, "contaminated": 1}
    assert made.metrics()["overlap"]["gsm8k"]["train_rows"] == 1


def test_lengths_are_cut_and_their_limits_reported(ingredient, assemble):
    rules = dataclasses.replace(
        FINISH, lengths=LengthRules(max_seq_length=20, prompt_percentile=90.0, max_tokens=0)
    )
    long = [
        {"problem": "so " * 40 + "?", "answer": "4"},
        {**GOOD[0], "problem": "?", "solution": "so " * 30},
    ]
    made = assemble([ingredient([*GOOD, *long])], finish_rules=rules)
    assert made.gathered.drops.counts == {"prompt_too_long": 1, "completion_too_long": 1}
    assert made.metrics()["max_tokens"] == {"prompt": 5, "completion": 15, "total": 20}


def test_train_and_validation_share_nothing_and_adding_rows_moves_none(ingredient, assemble):
    rules = dataclasses.replace(FINISH, validation_share=0.3)
    few = assemble([ingredient(GOOD[:10])], finish_rules=rules)
    many = assemble([ingredient(GOOD)], finish_rules=rules)
    assert set(_texts(few.train)) <= set(_texts(many.train))
    assert set(_texts(few.validation)) <= set(_texts(many.validation))
    assert not set(_texts(many.train)) & set(_texts(many.validation))
    assert len(many.train) + len(many.validation) == 20
    assert len(many.validation) > 0


def test_weights_mix_sources_and_the_rest_is_counted(ingredient, assemble):
    other = [{"problem": f"How much is {n}?", "answer": str(n)} for n in range(10)]
    made = assemble(
        [ingredient(GOOD, weight=1.0), ingredient(other, name="other", weight=1.0)],
    )
    assert made.train.sources() == [0] * 10 + [1] * 10
    assert made.gathered.drops.counts == {"not_drawn": 10}
    assert made.metrics()["kept"] == 20


def test_num_train_examples_draws_that_many(ingredient, assemble):
    rules = dataclasses.replace(FINISH, num_train_examples=7)
    assert len(assemble([ingredient(GOOD)], finish_rules=rules).train) == 7


def test_a_band_of_difficulty_is_kept_and_ordered_easy_to_hard(ingredient, assemble):
    ids = [Problem.create(problem=row["problem"], reference="").id for row in GOOD]
    rates = {problem_id: PassRate(number, 19) for number, problem_id in enumerate(ids)}
    rules = dataclasses.replace(
        FINISH,
        difficulty=Difficulty(rates=rates, lowest=0.1, highest=0.9, easy_first=True),
    )
    made = assemble([ingredient(GOOD)], finish_rules=rules)
    assert _texts(made.train) == [row["problem"] for row in GOOD[17:1:-1]]
    assert made.gathered.drops.counts == {"pass_rate_outside_band": 4}


def test_nothing_left_is_an_error_that_says_where_it_went(ingredient, assemble):
    with pytest.raises(UserError, match=r"no problem is left of 20 \(20 answer_not_numeric"):
        rows = [{**row, "answer": "x"} for row in GOOD]
        assemble([ingredient(rows)], gather_rules=dataclasses.replace(GATHER, numeric_only=True))


def test_the_same_input_gives_the_same_bytes(ingredient, assemble, tmp_path):
    rules = dataclasses.replace(FINISH, validation_share=0.2, num_train_examples=9)
    gather_rules = dataclasses.replace(GATHER, near_duplicate_similarity=0.7)
    written = []
    for run in range(2):
        made = assemble([ingredient(GOOD)], gather_rules=gather_rules, finish_rules=rules)
        path = tmp_path / f"{run}.jsonl"
        write_problems(path, made.train)
        written.append((path.read_bytes(), made.metrics()))
    assert written[0] == written[1]
