"""Rollouts kept by a GRPO run for readers, on the smoke model."""

import pytest
import torch

from lib.artifacts import write_jsonl
from lib.training.phase.rollout_log import MAX_BYTES, RolloutLog, kept_generations, rollout_rows
from tests.conftest import read_jsonl
from tests.lib.training.steps import letters, reward_with, train, with_changes


def test_a_row_holds_what_the_step_learned_from(built):
    trainer = built(max_steps=1, log_problems=2, micro_batch_size=4)
    size = trainer.grpo.group_size
    trainer.train()
    rows = rollout_rows(trainer)
    assert [row["sample"] for row in rows] == [*range(size)] * 2
    for start in (0, size):
        group = rows[start : start + size]
        assert len({row["problem"] for row in group}) == 1
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)
        best = max(group, key=lambda row: row["reward"])
        assert best["advantage"] == max(row["advantage"] for row in group)
    by_text = {(one.problem, one.completion): one for one in trainer.rollouts}
    for row in rows:
        rollout = by_text[row["problem"], row["completion"]]
        rewards = list(row["rewards"].values())
        assert rewards[:1] == pytest.approx(letters([[{"content": row["completion"]}]]), abs=1e-5)
        weighted = trainer.reward_weights @ torch.tensor(rewards)
        assert row["reward"] == pytest.approx(weighted.item(), abs=1e-5)
        assert row["prompt"].endswith(trainer.processing_class.decode(rollout.prompt_ids))
        assert row["num_tokens"] == row["num_loss_tokens"] == rollout.num_tokens
        assert 0 <= row["log_prob_gap"] < 1e-4
        assert row["step"] == 1


class Killed(BaseException):
    """The end of a process, at any place."""


def test_rows_are_in_the_file_as_they_happen(built, tmp_path):
    """Also after the end of the process, and once each after a resume."""
    path = tmp_path / "rollouts.jsonl"

    def trained(stop=None, start=None):
        def reward(completions, **columns):
            if trainer.state.global_step == stop:
                raise Killed
            return letters(completions)

        trainer = reward_with(built(max_steps=4, log_problems=1, save_steps=2), reward)
        (log,) = (each for each in trainer.callback_handler.callbacks if type(each) is RolloutLog)
        log.path = path
        trainer.train(resume_from_checkpoint=start)
        return trainer

    whole = trained()
    expected = path.read_text()
    write_jsonl(tmp_path / "final.jsonl", rollout_rows(whole))
    assert expected == (tmp_path / "final.jsonl").read_text()
    with pytest.raises(Killed):
        trained(stop=3)
    assert expected.startswith(path.read_text())
    assert [row["step"] for row in read_jsonl(path)][:: whole.grpo.group_size] == [1, 2, 3]
    trained(start=str(tmp_path / "checkpoint-2"))
    assert path.read_text() == expected


def test_what_is_masked_has_no_token_in_the_loss(built):
    trainer = built(max_steps=1, log_problems=1000, mask_truncated=True)
    (point,) = train(trainer)
    rows = rollout_rows(trainer)
    assert len(rows) == len(trainer.rollouts)
    cut = [row["truncated"] for row in rows]
    assert {*cut} == {True, False}
    assert point["completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut))
    for row in rows:
        assert row["num_loss_tokens"] == (0 if row["truncated"] else row["num_tokens"])


def test_a_logged_value_without_a_json_number_is_a_text(built):
    def curious(completions, log_extra, **columns):
        log_extra("gap", [float("nan"), float("-inf"), 0.5, *[torch.ones(1)] * 13])
        return letters(completions)

    trainer = reward_with(built(max_steps=1, log_problems=1000), curious)
    trainer.train()
    values = [row["extra"]["gap"] for row in rollout_rows(trainer)]
    assert values[:4] == ["NaN", "-Infinity", 0.5, "tensor([1.])"]


def test_the_same_problem_is_kept_whenever_it_comes_up(built):
    trainer = built(problems=4, max_steps=3, log_problems=1, num_iterations=1)
    trainer.train()
    rows = rollout_rows(trainer)
    assert sorted({row["step"] for row in rows}) == [1, 2, 3]
    assert len({row["problem"] for row in rows}) == 1


def test_rollouts_that_serve_several_steps_are_kept_once(built):
    trainer = built(max_steps=4, log_problems=1, num_iterations=2, save_steps=0)
    trainer.train()
    assert [row["step"] for row in rollout_rows(trainer)[:: trainer.grpo.group_size]] == [1, 3]


@pytest.mark.parametrize("max_steps", [1, 100, 10_000])
@pytest.mark.parametrize("max_new_tokens", [48, 32_768])
def test_a_long_run_keeps_fewer_of_its_steps(smoke, max_steps, max_new_tokens):
    own = {"max_steps": max_steps, "log_problems": 4, "group_size": 16, "micro_batch_size": 16}
    grpo = with_changes(smoke.grpo, own)
    every = kept_generations(grpo, max_new_tokens=max_new_tokens)
    generations = -(-max_steps // every)
    # The first one is kept whatever its size.
    assert (generations - 1) * 4 * 16 * 8 * max_new_tokens < MAX_BYTES
