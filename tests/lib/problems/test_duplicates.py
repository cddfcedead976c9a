import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.drops import Drops
from lib.problems.duplicates import drop_exact_duplicates, drop_near_duplicates, jaccard

STORY = (
    "Natalia sold clips to {count} of her friends in April, and then she sold half as many clips "
    "in May. How many clips did {name} sell altogether in April and May?"
)
FIRST = STORY.format(count=48, name="Natalia")


def _texts(table):
    return [problem.problem for problem in table]


def test_the_first_of_the_same_words_stays(table_of):
    drops = Drops(num_read=4)
    table = table_of([FIRST, "Another?", FIRST.upper(), FIRST.replace(" ", "  ")])
    assert _texts(drop_exact_duplicates(table, drops=drops)) == [FIRST, "Another?"]
    assert drops.counts == {"exact_duplicate": 2}
    assert drops.examples["exact_duplicate"][0]["found"] == "same words as row 1"


def test_a_planted_near_duplicate_goes_and_is_told_with_its_similarity(table_of):
    drops = Drops()
    planted = STORY.format(count=48, name="she")
    kept = drop_near_duplicates(table_of([FIRST, planted]), similarity=0.6, drops=drops)
    assert _texts(kept) == [FIRST]
    assert drops.counts == {"near_duplicate": 1}
    assert "similarity 0.6" in drops.examples["near_duplicate"][0]["found"]


def test_a_problem_whose_number_alone_differs_is_another_problem(table_of):
    table = table_of([FIRST, STORY.format(count=52, name="Natalia")])
    assert len(drop_near_duplicates(table, similarity=0.8, drops=Drops())) == 2


def test_a_pair_below_the_threshold_is_never_dropped(table_of):
    one = " ".join(f"w{n}" for n in range(60))
    other = " ".join(f"w{n}" for n in range(12, 72))
    table = table_of([one, other])  # 44 shared 5-grams of 68: similarity 0.647
    assert len(drop_near_duplicates(table, similarity=0.66, drops=Drops())) == 2


def test_duplicates_are_the_same_in_every_process(table_of):
    stories = [STORY.format(count=n // 3, name="she") for n in range(60)]
    kept = [
        _texts(drop_near_duplicates(table_of(stories), similarity=0.8, drops=Drops()))
        for _ in range(2)
    ]
    assert kept[0] == kept[1] == [STORY.format(count=n, name="she") for n in range(20)]


@given(st.sets(st.text(max_size=2)), st.sets(st.text(max_size=2)))
def test_similarity_is_symmetric_and_1_for_equal_sets_alone(left, right):
    assert jaccard(left, right) == jaccard(right, left)
    assert (jaccard(left, right) == 1) == (left == right and bool(left))


@pytest.mark.parametrize("text", ["", "Why?", "$x$"])
def test_texts_too_short_for_a_5_gram_are_compared_whole(table_of, text):
    table = table_of([text, "Something else"])
    assert len(drop_near_duplicates(table, similarity=0.8, drops=Drops())) == 2


def test_problems_of_another_script_are_told_apart(table_of):
    """Words of `[a-z0-9]` alone would see the same nothing in both."""
    apples, pears = "小明有三个苹果又买了五个一共有几个", "小红有七个梨送给朋友两个还剩几个"
    table = table_of([apples, pears, apples + "?"])
    drops = Drops()
    assert _texts(drop_near_duplicates(table, similarity=0.8, drops=drops)) == [apples, pears]
    assert drops.counts == {"near_duplicate": 1}
