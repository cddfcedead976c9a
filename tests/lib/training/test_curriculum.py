"""Which problems a curriculum draws, how often, and that a resumed run draws the same."""

from collections import Counter

import pytest

from lib.training.grpo.problems import ProblemOrder

BOUNDS = {"curriculum_low": 0.0, "curriculum_high": 0.875}


def drawn(grpo, rate_of, *, problems, steps, **changes) -> tuple[ProblemOrder, list[list[int]]]:
    """Draw steps of problems whose groups always have the rates `rate_of`."""
    grpo = grpo.model_copy(update={**BOUNDS, "prompts_per_step": 4, **changes})
    order, draws = ProblemOrder(grpo, num_problems=problems, seed=0), []
    for step in range(steps):
        draws.append(order.of_step(step))
        order.observe(draws[-1], [rate_of(index) for index in draws[-1]])
    return order, draws


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_problem_is_drawn_before_any_is_drawn_again(smoke, shuffle):
    rates = lambda index: (0.0, 0.5, 1.0)[index % 3]  # noqa: E731
    for curriculum in ("retire", "pool"):
        knobs = {"curriculum": curriculum, "shuffle": shuffle}
        order, draws = drawn(smoke.grpo, rates, problems=12, steps=3, **knobs)
        flat = [index for step in draws for index in step]
        assert sorted(flat) == list(range(12)) and (flat == list(range(12))) != shuffle
        assert order.pool_sizes() == {"unseen": 0, "hard": 4, "middle": 4, "easy": 4}


def test_a_retired_problem_is_drawn_only_if_too_few_are_left(smoke):
    rates = lambda index: float(index < 8)  # noqa: E731
    _, draws = drawn(smoke.grpo, rates, problems=12, steps=12, curriculum="retire")
    assert all(min(step) >= 8 for step in draws[3:])
    # Of 10 problems two are left: the others of a step are those retired that were drawn least.
    _, draws = drawn(smoke.grpo, rates, problems=10, steps=12, curriculum="retire")
    assert all({8, 9} < {*step} for step in draws[4:])
    counts = Counter(index for step in draws for index in step)
    assert max(counts[index] for index in range(8)) - min(counts[index] for index in range(8)) <= 1


def test_a_problem_of_an_outer_pool_is_drawn_a_quarter_as_often(smoke):
    rates = lambda index: (0.0, 0.5, 1.0, 0.25)[index % 4]  # noqa: E731
    _, draws = drawn(smoke.grpo, rates, problems=40, steps=500, curriculum="pool")
    counts = Counter(index for step in draws for index in step)
    for index in range(40):
        # 2,000 draws of 20 problems of weight 1 and 20 of weight 1/4.
        expected = 80 if index % 2 else 20
        assert counts[index] == pytest.approx(expected, abs=2)


def test_a_problem_changes_its_pool_with_its_last_group(smoke):
    order, _ = drawn(smoke.grpo, lambda _: 1.0, problems=4, steps=1, curriculum="pool")
    assert {order.pool(index) for index in range(4)} == {"easy"}
    order.observe([0, 1, 2, 3], [0.875, 0.874, 0.001, 0.0])
    assert [order.pool(index) for index in range(4)] == ["easy", "middle", "middle", "hard"]
