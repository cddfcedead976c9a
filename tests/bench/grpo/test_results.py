"""The committed numbers say what the docs say about them."""

import json

from tests.bench.grpo.__main__ import FOLDER, PLAN, render

RESULTS = json.loads((FOLDER / "results.json").read_text())


def test_the_readme_shows_the_committed_numbers() -> None:
    assert (FOLDER / "README.md").read_text() == render(RESULTS)


def test_what_was_measured_is_what_is_planned() -> None:
    rows = [(r["size"], r["precision"], r["pairs"], r["steps"]) for r in RESULTS["rows"]]
    assert rows == list(PLAN)


def test_a_step_of_the_tiny_preset_takes_less_than_two_thirds_of_stock_trls() -> None:
    for row in RESULTS["rows"]:
        middle, first, _ = row["ratio"]
        assert middle > 1.5, row["size"]
        assert first > 1.5, row["size"]


def test_gradients_on_the_same_rollouts_are_equal_to_a_millionth() -> None:
    assert all(gap["largest"] < 1e-6 for gap in RESULTS["gradient_gap"].values())


def test_both_learn_and_their_rewards_differ_by_no_more_than_noise() -> None:
    (row,) = (row for row in RESULTS["rows"] if "rewards" in row)
    gap, error = row["reward_gap"]
    assert abs(gap) < 3 * error
    for kind in ("trl", "reckon"):
        first, *_, last = row["rewards"][kind]
        assert last > first + 3 * error
