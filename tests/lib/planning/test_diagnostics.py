"""The verdict on a checkpoint's rollouts names what is wrong, with its numbers."""

from pathlib import Path

from lib.artifacts.problems import Problem
from lib.engines.base import Finish, GeneratedCompletion
from lib.engines.policy import load_tokenizer
from lib.grading.grade import Grading, grade_completions
from lib.planning.diagnostics import Group, report_lines, tag_tokens, verdicts
from lib.prompts import prompt_format
from lib.training.warning_signs import Limits

FORMAT = prompt_format("working_out")
LIMITS = Limits(lowest=0.0, highest=1.25, max_new_tokens=48)
WRITTEN = FORMAT.marks[1:]
PROBLEM = Problem.create(problem="What is 1 + 1?", reference="2")


def group(*texts: str, totals: tuple[float, ...] = (0.25, 1.25), finish: Finish = "eos") -> Group:
    completions = [
        GeneratedCompletion(text=text, token_ids=tuple(map(ord, text)), finish=finish)
        for text in texts
    ]
    rewards = [totals[number % len(totals)] for number in range(len(texts))]

    def reward(**columns: object) -> list[float]:
        return rewards

    grading = Grading(prompt_format=FORMAT, rewards=[reward], weights=[1.0])
    return Group(
        PROBLEM, completions, list(grade_completions(PROBLEM, [], completions, grading=grading))
    )


def said(*groups: Group) -> list[str]:
    return verdicts(groups, written=WRITTEN, limits=LIMITS, temperature=0.2)


def answers(*values: int) -> list[str]:
    return [FORMAT.target(solution="", reference=str(value)) for value in values]


def test_rollouts_that_differ_and_earn_are_praised() -> None:
    (praise,) = said(group(*answers(1, 2, 3, 4, 5)))
    assert praise == "nothing stands in the way of GRPO: rewards differ within 1 of 1 groups"


def test_identical_completions_are_a_temperature_too_low() -> None:
    (fault,) = said(group(*answers(1, 1, 1, 1, 2)))
    assert fault.startswith("temperature too low: 4 of 5 completions identical")
    assert "rollout.temperature (now 0.2)" in fault


def test_a_tag_that_nobody_writes_is_a_format_that_sft_has_not_taught() -> None:
    faults = said(group("<SOLUTION>1", "<end_working_out><SOLUTION>2", "3", "4", "5"))
    assert faults == [
        "no completion writes </SOLUTION>: SFT has not taught the format; raise sft.num_epochs"
    ]


def test_cut_completions_equal_rewards_and_the_minimum_are_said_with_their_numbers() -> None:
    cut, lowest, equal = said(group(*answers(1, 2, 3, 4, 5), totals=(0.0,), finish="length"))
    assert cut.startswith("5 of 5 completions run into rollout.max_new_tokens=48")
    assert lowest.startswith("rewards are at the stack's minimum: mean 0 of 0 ... 1.25")
    assert equal.startswith("rewards are equal within every group (mean 0)")


def test_the_report_shows_every_completion_and_tag_and_steers_no_terminal(base: Path) -> None:
    tokens = tag_tokens(load_tokenizer(base), FORMAT)
    assert all(len(pieces) == 1 for pieces in tokens.values())  # trained with the format's tags
    groups = [group(*answers(1, 2), "\x1b[31m\u202e")]
    lines = list(
        report_lines(groups, tokens={**tokens, "<b>": ["<", "b", ">"]}, judged=["all well"])
    )
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "⟨U+001B⟩[31m⟨U+202E⟩" in text
    assert all(answer in text for answer in answers(1, 2))
    assert "  <b>  3 tokens: < | b | >; 0 of 3" in lines
    assert f"  {WRITTEN[-1]}  one token; 2 of 3" in lines
    assert "  distinct 3 of 3, reward variance 0.222" in lines
    assert lines[-2:] == ["Verdict", "  - all well"]
