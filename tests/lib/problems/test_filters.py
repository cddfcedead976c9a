import pytest

from lib.artifacts.problems import RESPONSE, Problem
from lib.problems.filters import (
    check_correct,
    decontaminate,
    drop_exact_duplicates,
    drop_near_duplicates,
    index_benchmark,
    is_numeric,
)
from tests.lib.problems.conftest import texts

STORY = (
    "Natalia sold clips to {count} of her friends in April, and then she sold half as many clips "
    "in May. How many clips did {name} sell altogether in April and May?"
)
FIRST = STORY.format(count=48, name="Natalia")


def test_the_first_of_the_same_words_stays(table_of):
    copies = [FIRST, "What is a?", "What is A?", FIRST.replace(" ", "  ")]
    table = table_of([Problem.create(problem=text, reference="4") for text in copies])
    assert texts(drop_exact_duplicates(table)) == [FIRST, "What is a?", "What is A?"]
    assert table.drops.counts == {"exact_duplicate": 1}
    assert table.drops.examples["exact_duplicate"][0]["found"].endswith("row 1")


def test_a_copy_with_another_answer_is_counted_apart(table_of):
    answers = ("0.5", "\\frac12", "2", "0.5")
    table = table_of([Problem.create(problem=FIRST, reference=answer) for answer in answers])
    assert len(drop_exact_duplicates(table)) == 1
    assert table.drops.counts == {"exact_duplicate": 2, "copy_with_other_answer": 1}


def test_a_planted_near_duplicate_goes(table_of):
    planted = STORY.format(count=48, name="she")
    kept = drop_near_duplicates(table_of([FIRST, planted]), similarity=0.6)
    assert texts(kept) == [FIRST]
    assert kept.drops.counts == {"near_duplicate": 1}
    assert "similarity 0.6" in kept.drops.examples["near_duplicate"][0]["found"]


@pytest.mark.parametrize(
    ("similarity", "different"),
    [
        (0.8, [FIRST, STORY.format(count=52, name="Natalia")]),
        # 44 shared 5-grams of 68: similarity 0.647
        (0.66, [" ".join(f"w{n}" for n in range(first, first + 60)) for first in (0, 12)]),
        (0.8, ["", "Something else"]),
        (0.8, ["Why?", "Something else"]),
        (0.8, ["$x$", "Something else"]),
        # `[a-z0-9]` would match no word in either.
        (0.8, ["小明有三个苹果又买了五个一共有几个", "小红有七个梨送给朋友两个还剩几个"]),
    ],
    ids=["another number", "below the threshold", "empty", "a word", "a formula", "another script"],
)
def test_different_problems_stay_beside_copies_of_theirs(table_of, similarity, different):
    table = table_of([*different, f"{different[-1]}?"])
    assert texts(drop_near_duplicates(table, similarity=similarity)) == different


TEST = [
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning.",
    "What is 2 + 2?",
    "三加四等于几？",
]


def _run(table, *, size=8, **benchmarks):
    indices = [index_benchmark(name, texts, size=size) for name, texts in benchmarks.items()]
    clean, overlaps = decontaminate(table, indices, size=size)
    return texts(clean), overlaps, clean.drops


COPIES = {
    "chinese": "小明有三个苹果，小红给了他五个，后来他又吃掉了两个，还剩多少个苹果？",
    "japanese": "たかしくんはりんごを十二個もっていて、五個をあげました。のこりは何個？",
    "thai": "สมชายมีแอปเปิ้ลสิบสองผล เขาให้เพื่อนไปห้าผล เขาเหลือแอปเปิ้ลกี่ผล",
    "russian": "Найдите произведение корней уравнения, сумма корней которого равна пяти.",
    "hindi": "राम के पास बारह सेब हैं और वह पाँच सेब अपने मित्र को देता है, कितने सेब बचे?",
}


@pytest.mark.parametrize(
    "leak",
    [
        TEST[0],
        "Once: janet s ducks -- lay 16 eggs, per day! And so on",
        "JANET'S DUCKS LAY 16 EGGS PER DAY.",
        "what is 2+2",
        "Think step by step, and then write the number only: what is 2 + 2? Then check it.",
        "请问：三加四等于几？请写出过程。",
        *(pytest.param(f"12. {copy} 3", id=script) for script, copy in COPIES.items()),
    ],
)
def test_a_planted_leak_is_dropped_in_any_spelling(table_of, leak):
    kept, _, drops = _run(table_of(["A clean one?", leak]), gsm8k=[*COPIES.values(), *TEST])
    assert kept == ["A clean one?"]
    assert drops.counts == {"contaminated": 1}
    assert drops.examples["contaminated"][0]["found"].startswith("shares with gsm8k: ")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("一个长方形的长是12厘米，宽是5厘米，求面积。", "小明有12元，花了5元，还剩多少？"),
        ("买来苹果若干，请问现在一共还剩多少个苹果？", "妈妈做了饼，请问现在一共还剩多少个饼？"),
        ("राम के पास बारह सेब हैं, कितने बचे?", "राम के पास बारह केले हैं, कितने बचे?"),
        # Parts of a short problem.
        ("Of all the questions one hears, what is 2 + 3, and why?", TEST[1]),
        ("What is 2?", TEST[1]),
    ],
)
def test_other_problems_are_no_leak(table_of, train, test):
    assert len(_run(table_of([train]), own=[test])[0]) == 1


def test_overlaps_are_counted_for_each_benchmark_by_itself(table_of):
    table = table_of([TEST[0], f"{TEST[0]} Again?", TEST[1]])
    _, overlaps, drops = _run(table, gsm8k=TEST, other=[TEST[1], "Never seen at all, anywhere."])
    # Overlapping training rows, overlapping test problems, all test problems.
    assert {name: tuple(each.values()) for name, each in overlaps.items()} == {
        "gsm8k": (3, 2, 3),
        "other": (1, 1, 2),
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

    kept, _, _ = _run(table_of(training), size=4, b=benchmark)
    expected = [text for text in training if not contaminated(text)]
    assert kept == expected
    assert 0 < len(expected) < len(training)


def test_integers_and_decimals_are_numeric():
    numbers = ["5", "-5", "1,234", "0.5", ".5", "1e6", "$12", "−3"]
    others = ["", "x", "1/2", "\\frac{1}{2}", "5 km", "1,23", "(1, 2)", "e", "e5", "$.e5"]
    assert [text for text in (*numbers, *others) if is_numeric(text)] == numbers


@pytest.mark.parametrize(
    ("reference", "solution", "tags", "is_kept"),
    [
        ("5", "so \\boxed{5}", (), True),
        ("6", "so \\boxed{5}", (), False),
        ("0.5", "so \\boxed{\\frac{1}{2}}", (), True),
        ("7", "", (), True),
        # Read as in grading: the problem names the unit.
        ("5", "The answer is 5 apples.", (), True),
        # A response comes to what it marks.
        ("5", "a </think> <answer> \\boxed{5} </answer> 7", (RESPONSE,), True),
        ("5", "so 3 </think> <answer> 7 </answer>", (RESPONSE,), False),
    ],
)
def test_solutions_that_come_to_something_else_go(table_of, reference, solution, tags, is_kept):
    fields = {"reference": reference, "solution": solution, "tags": tags}
    kept = table_of([Problem.create(problem="How many apples?", **fields)]).keep(check_correct)
    assert len(kept) == is_kept
    assert ("solution_not_correct" in kept.drops.examples) is not is_kept
