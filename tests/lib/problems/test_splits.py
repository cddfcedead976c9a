from lib.problems.selection import draw, split
from tests.lib.problems.conftest import texts


def test_a_smaller_draw_is_part_of_a_larger_one(table_of):
    table = table_of([f"problem {number}" for number in range(50)])
    large = texts(draw(table, 30, seed=0, rest="left"))
    small = texts(draw(table, 10, seed=0, rest="left"))
    assert len(small) == 10
    assert small == [text for text in large if text in small]
    assert large != texts(table)[:30]


def test_another_seed_draws_others(table_of):
    table = table_of([f"problem {number}" for number in range(50)])
    one, other = (set(texts(draw(table, 10, seed=seed, rest="left"))) for seed in (0, 1))
    assert one != other
    assert texts(draw(table, 60, seed=0, rest="left")) == texts(table)


def test_known_problems_stay_where_they_are(table_of):
    train, held_back = split(table_of([f"problem {number}" for number in range(8)]), share=0.5)
    assert [text[-1] for text in texts(held_back)] == ["0", "2", "4", "5", "7"]
    assert [text[-1] for text in texts(train)] == ["1", "3", "6"]


def test_the_share_held_back_is_the_share_asked_for(table_of):
    table = table_of([f"problem {number}" for number in range(2000)])
    before: set[str] = set()
    for share in (0.0, 0.1, 0.5, 1.0):
        held_back = set(texts(split(table, share=share)[1]))
        assert before <= held_back
        deviation = (share * (1 - share) / 2000) ** 0.5
        assert abs(len(held_back) / 2000 - share) <= 4 * deviation
        before = held_back
