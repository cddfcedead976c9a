"""`python -m stages.repro`: which stages run side by side, and what a failure stops."""

import time
from pathlib import Path

import pytest

from stages import repro

NEEDS = {
    "prepare": set[str](),
    "sft": {"prepare"},
    "evaluate@base": {"prepare"},
    "grpo": {"sft"},
}


def events(
    log: Path, monkeypatch: pytest.MonkeyPatch, *, jobs: int, failing: str = ""
) -> tuple[int, list[str]]:
    """The exit code, and each stage's name with + where it starts and - where it ends."""

    def reproduce(name: str) -> int:
        with log.open("a") as lines:
            print(f"+{name}", file=lines, flush=True)
            # Until the one beside it has started, where there is one.
            while jobs > 1 and name in ("sft", "evaluate@base") and "+sft" not in beside(log):
                time.sleep(0.01)
            print(f"-{name}", file=lines, flush=True)
        return int(name == failing) * 255

    monkeypatch.setattr(repro, "reproduce", reproduce)
    code = repro.run(NEEDS, jobs=jobs)
    return code, log.read_text().split()


def beside(log: Path) -> list[str]:
    """What has started, once both of those that `prepare` lets start have."""
    started = log.read_text().split()
    return started if {"+sft", "+evaluate@base"} <= set(started) else []


def test_two_that_wait_for_the_same_run_side_by_side_and_one_that_waits_for_another_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, order = events(tmp_path / "log", monkeypatch, jobs=2)
    assert code == 0
    assert order[:2] == ["+prepare", "-prepare"]
    assert set(order[2:4]) == {"+sft", "+evaluate@base"}
    assert order.index("-sft") < order.index("+grpo")
    assert sorted(order) == sorted(f"{sign}{name}" for sign in "+-" for name in NEEDS)


def test_one_job_is_one_stage_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, order = events(tmp_path / "log", monkeypatch, jobs=1)
    assert [start[1:] for start in order[::2]] == [end[1:] for end in order[1::2]]


def test_beside_a_failure_a_stage_ends_and_none_is_started_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, order = events(tmp_path / "log", monkeypatch, jobs=2, failing="sft")
    assert code == 255
    assert "-evaluate@base" in order
    assert "+grpo" not in order
