"""A completion is read once and compared once, counted on the real calls."""

from collections import Counter

import pytest

from lib.engines.base import GeneratedCompletion
from lib.grading.grade import PLACE, grade_rows, graded_completion
from lib.prompts import prompt_format
from lib.prompts.formats import BoxedFormat, TaggedFormat
from lib.rewards import rollout
from lib.rewards.functions import rewards_of
from lib.rewards.grading import Grading
from lib.rewards.rollout import ANSWER_ACCURACY, judged_metrics
from tests.lib.grading.rows import written_row
from tests.lib.training.steps import plain_grpo

TEXT = "6 · 12<end_working_out><SOLUTION>{}</SOLUTION>"


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of parsers and comparison, by name."""
    counts = Counter()
    for owner, name in (
        (rollout, "extract_answer"),
        (rollout, "compare"),
        (TaggedFormat, "parse"),
        (BoxedFormat, "parse"),
    ):
        real = getattr(owner, name)

        def call(*arguments, name=name, real=real, **columns):
            counts[name] += 1
            return real(*arguments, **columns)

        monkeypatch.setattr(owner, name, call)
    return counts


@pytest.mark.parametrize(
    ("text", "answer"), [(TEXT.format(72), "72"), (TEXT.format(71), "71"), ("so it is 70", "70")]
)
def test_grade_reads_and_compares_a_completion_once(calls, smoke, text, answer):
    row = written_row(text, reference="72")
    (graded,) = grade_rows([row], reward=smoke.reward)
    assert graded.answer == answer
    # Between tags there is no answer to search for.
    assert calls == Counter(parse=1, compare=1, extract_answer=int("SOLUTION" not in text))


def test_a_step_reads_and_compares_each_completion_once(calls, sets, base, smoke, tmp_path):
    trainer = plain_grpo(sets.grpo, base, smoke, tmp_path)
    trainer.roll_out()
    num_completions = smoke.grpo.prompts_per_step * smoke.grpo.group_size
    assert len(trainer.rollouts) == num_completions
    assert calls["parse"] == calls["compare"] == num_completions
    assert calls["extract_answer"] <= num_completions


@pytest.mark.parametrize("stack", ["tiny", "s0", "s1", "s4", "r1_zero", "boxed"])
def test_no_stack_compares_the_answer_again(calls, stack):
    """A stack's rewards, accuracy and grade share one verdict, also through TRL's signature."""
    form = prompt_format(stack if stack in ("r1_zero", "boxed") else "working_out")
    names = rewards_of(stack)
    grading = Grading(names, [1.0] * len(names), prompt_format=form)
    text = form.target(solution="x", reference="70")
    # A box is not between tags: the extraction rules find it.
    once = Counter(parse=1, compare=1, extract_answer=int(stack == "boxed"))
    columns = {"completions": [text], "reference": ["72"], "problem": ["6 · 12?"]}
    for reward in grading.rewards:
        reward([None], **columns, log_metric=lambda name, value: None)
    assert calls == once

    completion = GeneratedCompletion(text=text, token_ids=(1,), finish="eos")
    rollouts = grading.judge([completion], problem="6 · 12?", reference="72")
    grading.score(rollouts)
    graded = graded_completion(rollouts[0], grading=grading, **dict.fromkeys(PLACE, ""))
    assert calls == once + once
    assert (graded.answer, graded.label) == ("70", "10")

    assert judged_metrics(rollouts)[ANSWER_ACCURACY] == 0.0
    assert calls["compare"] == 2
