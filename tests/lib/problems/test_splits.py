import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.schema import content_id
from lib.problems.splits import in_validation, position

IDS = [content_id(f"problem {number}") for number in range(20_000)]


def test_the_side_of_a_problem_depends_on_its_words_alone():
    alone = in_validation(content_id("What is it?"), share=0.5)
    assert alone == in_validation(content_id("  what IS it?"), share=0.5)


def test_known_problems_stay_where_they_are():
    sides = [in_validation(problem_id, share=0.5) for problem_id in IDS[:8]]
    assert sides == [True, False, True, False, True, True, False, True]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_held_back_is_the_share_asked_for(share):
    held = sum(in_validation(problem_id, share=share) for problem_id in IDS) / len(IDS)
    deviation = (share * (1 - share) / len(IDS)) ** 0.5
    assert abs(held - share) < 4 * deviation


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_only_adds(text, one, other):
    small, large = sorted((one, other))
    assert in_validation(text, share=small) <= in_validation(text, share=large)


def test_nothing_is_held_back_at_0_and_all_at_1():
    assert not any(in_validation(problem_id, share=0.0) for problem_id in IDS[:100])
    assert all(in_validation(problem_id, share=1.0) for problem_id in IDS[:100])


def test_places_for_different_purposes_are_unrelated():
    pairs = [(position(i, salt="a") < 0.5, position(i, salt="b") < 0.5) for i in IDS]
    both = sum(a and b for a, b in pairs) / len(IDS)
    assert abs(both - 0.25) < 0.02
