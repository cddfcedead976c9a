import pytest

from lib.problems.decontaminate import decontaminate, index_benchmark
from lib.problems.drops import Drops

TEST = [
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning.",
    "What is 2 + 2?",
]


def _run(table, *, size=8, **benchmarks):
    indices = [index_benchmark(name, texts, size=size) for name, texts in benchmarks.items()]
    drops = Drops()
    return decontaminate(table, indices, drops=drops), drops


@pytest.mark.parametrize(
    "leak",
    [
        TEST[0],
        "Once: janet s ducks -- lay 16 eggs, per day! And so on",
        "JANET'S DUCKS LAY 16 EGGS PER DAY.",
        "what is 2+2",
    ],
)
def test_a_planted_leak_is_found_whatever_its_spelling(table_of, leak):
    found, drops = _run(table_of(["A clean one?", leak]), gsm8k=TEST)
    assert [problem.problem for problem in found.table] == ["A clean one?"]
    assert drops.counts == {"contaminated": 1}
    assert drops.examples["contaminated"][0]["found"].startswith("shares with gsm8k: ")


def test_seven_words_in_common_are_no_leak(table_of):
    found, drops = _run(table_of(["Then Janet s ducks lay 16 eggs weekly"]), gsm8k=TEST)
    assert len(found.table) == 1
    assert not drops.counts


def test_a_short_benchmark_problem_inside_a_long_one_is_no_leak(table_of):
    found, _ = _run(table_of(["If you wonder what is 2 + 2 then you may add"]), gsm8k=TEST)
    assert len(found.table) == 1


def test_overlaps_are_counted_for_each_benchmark_by_itself(table_of):
    table = table_of([TEST[0], f"{TEST[0]} Again?", TEST[1]])
    found, drops = _run(table, gsm8k=TEST, other=[TEST[1], "Never seen at all, anywhere."])
    assert found.overlaps["gsm8k"].metrics() == {
        "train_rows": 3,
        "benchmark_rows": 2,
        "benchmark_size": 2,
    }
    assert found.overlaps["other"].metrics() == {
        "train_rows": 1,
        "benchmark_rows": 1,
        "benchmark_size": 2,
    }
    assert drops.counts == {"contaminated": 3}


def test_a_brute_force_search_finds_the_same_rows(table_of):
    words = [f"w{n % 7}" for n in range(40)]
    training = [" ".join(words[start : start + 6]) for start in range(30)]
    benchmark = [" ".join(words[5:12]), " ".join(words[8:14][::-1])]

    def contaminated(text):
        return any(
            " ".join(text.split()[start : start + 4]) in test
            for start in range(3)
            for test in benchmark
        )

    found, _ = _run(table_of(training), size=4, b=benchmark)
    expected = [text for text in training if not contaminated(text)]
    assert [problem.problem for problem in found.table] == expected
    assert 0 < len(expected) < len(training)


def test_without_benchmarks_nothing_goes(table_of):
    found, _ = _run(table_of(TEST))
    assert len(found.table) == 2
    assert found.overlaps == {}
