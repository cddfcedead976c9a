import dataclasses

import pytest

from lib.report.write import long_table


def table_of(run, stage, **changes):
    """Return value, low and high by series, each of one row."""
    rows = long_table(dataclasses.replace(run, **changes), stage)
    return {
        row["series"]: [row[name] for name in ("value", "low", "high") if name in row]
        for row in rows
    }


def test_the_band_of_a_reward_is_of_the_problems_of_a_step(run):
    curve = {"reward": [(1, 0.5)], "reward_std": [(1, 0.4)], "rewards/answer/mean": [(1, 0.75)]}
    curve |= {"rewards/mean_words/mean": [(1, 0.5)], "rewards/mean_words/std": [(1, 0.4)]}
    settings = {"grpo": {"settings": {"grpo": {"prompts_per_step": 16}}}}
    table = table_of(run, "grpo", curves={**run.curves, "grpo": curve}, provenance=settings)
    # 0.4 / sqrt(16) is the error if a problem's completions all get the same reward.
    for name in ("total reward", "reward: mean_words"):
        assert table[name] == pytest.approx([0.5, 0.5 - 0.196, 0.5 + 0.196])
    assert table["reward: answer"] == [0.75]


def test_sets_of_validation_problems_have_their_own_bands(run):
    measured = {"answer_accuracy": [(0, 0.5)], "harder/answer_accuracy": [(0, 0.25)]}
    measured |= {"harder/answer_accuracy_se": [(0, 0.1)], "mean_reward": [(0, 1.0)]}
    table = table_of(run, "sft", validations={"sft": measured})
    assert {name: row for name, row in table.items() if name.startswith("validation")} == {
        "validation harder: answer accuracy": pytest.approx([0.25, 0.054, 0.446]),
        "validation: mean reward": [1.0],
    }
