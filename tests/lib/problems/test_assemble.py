"""Sources become training sets; dropped rows are counted by reason."""

from pathlib import Path

import pytest

from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.problems.prepare import finish_sets, gathered_sets
from tests.lib.params.changes import accepted
from tests.lib.problems.conftest import counter, texts, whole
from tests.lib.problems.test_columns import CHAT

GOOD = [
    {"problem": f"What is {n} + 1?", "answer": str(n + 1), "solution": "Add."} for n in range(20)
]


@pytest.fixture
def assemble(tmp_path, monkeypatch):
    """Build the SFT set of sources, each a list of rows, with settings of `prepare.sft`.

    The settings are smoke's, except that bad rows are dropped and 100 words fit.
    """
    monkeypatch.chdir(tmp_path)
    raw = Path("data/raw")
    raw.mkdir(parents=True)

    def run(*sources, bad_rows="drop", **sft):
        names = [str(number) for number in range(len(sources))]
        for name, rows in zip(names, sources, strict=True):
            write_jsonl(raw / f"{name}.jsonl", rows)
        changes = {"prepare.bad_rows": bad_rows}
        changes |= {f"prepare.{name}.sources": whole(*names) for name in ("sft", "grpo")}
        changes |= {f"prepare.sft.{name}": value for name, value in sft.items()}
        prepare = accepted(changes, "smoke").prepare
        with gathered_sets(prepare, seed=0, raw=raw) as sets:
            finish_sets(sets, prepare, counter=counter(), max_seq_length=100, seed=0)
            return sets.training[0]

    return run


def test_dropped_rows_are_counted_by_reason(assemble):
    bad = [
        *({"problem": "?"}, {"problem": "?", "answer": " "}, {"problem": "?", "answer": {"a": 1}}),
        *({"answer": "4"}, ["no object"]),
        *({**GOOD[0], "answer": answer} for answer in ("proof", "None", "N/A", "notfound")),
    ]
    counts = {"missing_field": 2, "empty_field": 1, "wrong_type": 2, "placeholder": 4}
    # A tag of the format is found late, when the prompts are rendered.
    tag = {**GOOD[0], "problem": "What is an <answer>?"}
    counts["control_token"] = 1
    made = assemble([*GOOD, *bad, tag])
    metrics = made.metrics()
    assert (metrics["read"], metrics["kept"]) == (30, 20)
    assert metrics["dropped"] == {
        reason: {"count": count, "share": count / 30} for reason, count in counts.items()
    }
    examples = made.train.drops.examples
    assert examples["empty_field"][0]["row"] == "data/raw/0.jsonl:22"
    assert len(examples["placeholder"]) == 3
    with pytest.raises(UserError, match="`<answer>`"):
        assemble([*GOOD, tag], bad_rows="error")
    # An answer without a solution is a bad row of SFT if params say so.
    bare = assemble([GOOD[0], {"problem": "1?", "answer": "1"}], bare_answers=False)
    assert texts(bare.train) == [GOOD[0]["problem"]]
    assert bare.train.drops.examples["missing_field"][0]["found"].startswith("field `solution`")


@pytest.mark.parametrize("bad_rows", ["error", "drop"])
@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"problem": "?", "solution": "We add both of them and so on."}], "`columns:`"),
        (
            [{"task": row["problem"], "answer": row["answer"]} for row in GOOD],
            r"sft\.sources\[1\].*`problem`.*has task.*`columns:`",
        ),
        # Dropping rows would leave none.
        ([{"messages": CHAT}], r"^((?!drop).)*columns: {problem: messages, solution: messages}`"),
    ],
    ids=["undecidable", "a missing column", "chat"],
)
def test_what_the_columns_leave_open_asks_for_columns(assemble, rows, why, bad_rows):
    with pytest.raises(UserError, match=why):
        assemble(GOOD, rows, bad_rows=bad_rows)


def test_a_label_that_is_none_is_counted_and_its_row_kept(assemble):
    made = assemble([GOOD[0], {**GOOD[1], "subject": "constructor", "level": True}])
    assert made.metrics()["changed"] == {"subject": 1, "level": 1}
    assert len(made.train) == 2


@pytest.mark.parametrize(
    ("rows", "why"), [([], "no row"), ([{"problem": "?"}] * 2, "`reference`: missing")]
)
def test_a_source_without_a_good_row_gives_the_reason(assemble, rows, why):
    with pytest.raises(UserError, match=rf"sft\.sources\[1\]: \S*1\.jsonl.*{why}") as error:
        assemble(GOOD, rows)
    # It is set, and would leave nothing.
    assert "bad_rows: drop" not in error.value.message
    assert ("no row is good" in error.value.message) is bool(rows)


def test_nothing_left_is_an_error_that_tells_where_it_went(assemble):
    with pytest.raises(UserError, match="20 answer_not_numeric"):
        assemble([{**row, "answer": "x"} for row in GOOD], numeric_only=True)
