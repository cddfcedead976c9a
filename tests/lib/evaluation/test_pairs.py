"""Pairs hold a right and a wrong completion of one problem, as they were generated."""

from collections.abc import Mapping, Sequence

import pytest

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.engines.base import Sampling, encode
from lib.evaluation.pairs import (
    PreferencePair,
    matched_pairs,
    preference_pairs,
    sampling_metrics,
)
from lib.evaluation.sampling import sample_groups
from lib.prompts import prompt_format
from lib.prompts.formats import conversation
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout
from tests.lib.evaluation.scripted import Script, ScriptedEngine

FORMAT = prompt_format("working_out")
PROBLEMS = [Problem.create(problem=f"What is 1 + {n}?", reference=str(1 + n)) for n in range(4)]


class Tokenizer:
    """A tokenizer with one token per character, so that ids are readable."""

    added_tokens_decoder: dict[int, object] = {}  # noqa: RUF012
    name_or_path = "characters"

    def apply_chat_template(self, messages: list[dict[str, str]], **settings: object):
        return {"input_ids": [ord(character) for character in messages[-1]["content"]]}

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def answer(value: str) -> str:
    return FORMAT.target(solution="", reference=value)


def sampled(scripts: Mapping[int, Script]) -> list[list[Rollout]]:
    """Judge a group of completions per problem number."""
    # The engine can neither be synced nor closed: mining does not train, and opens none.
    engine = ScriptedEngine(Tokenizer(), {PROBLEMS[n].problem: scripts[n] for n in scripts})
    return sample_groups(
        engine,
        PROBLEMS[: len(scripts)],
        grading=Grading(prompt_format=FORMAT),
        system="",
        sampling=Sampling(num_completions=len(scripts[0]), max_new_tokens=9, temperature=1.0),
    )


def mined(scripts: Mapping[int, Script]) -> list[PreferencePair]:
    return preference_pairs(PROBLEMS[: len(scripts)], sampled(scripts), at_most=1)


def test_a_pair_is_right_and_wrong_of_one_problem_as_generated():
    pairs = mined({0: [answer("1"), answer("7")], 1: [answer("9"), answer("2")]})
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [
        (answer("1"), answer("7")),
        (answer("2"), answer("9")),
    ]
    for pair, problem in zip(pairs, PROBLEMS, strict=False):
        prompt = conversation(problem.problem, system="")
        assert pair.prompt_ids == tuple(encode(Tokenizer(), [prompt])[0])
        assert pair.chosen_ids == tuple(map(ord, pair.chosen))
        assert pair.rejected_ids == tuple(map(ord, pair.rejected))
        assert (pair.problem_id, pair.reference) == (problem.id, problem.reference)


@pytest.mark.parametrize("right", ["The answer is 1", (answer("1"), "length")])
def test_a_right_answer_without_form_or_end_is_in_no_pair(right):
    pairs = mined({0: [right, answer("7")], 1: [answer("2"), answer("9")]})
    assert [pair.problem for pair in pairs] == [PROBLEMS[1].problem]


def test_a_pass_rate_counts_answers_whatever_their_form():
    (group,) = sampled({0: ["It is 1", (answer("1"), "length"), answer("1"), answer("7")]})
    assert [each.answer_ok for each in group] == [True, True, True, False]


def test_a_completion_that_was_cut_off_may_be_rejected():
    (pair,) = mined({0: [("so 5 and", "length"), answer("1")]})
    assert (pair.chosen, pair.rejected) == (answer("1"), "so 5 and")


def test_every_completion_is_used_before_any_is_used_again():
    rights, wrongs = [answer("1"), answer("1"), answer("1.0")], [*map(answer, "789")]
    (group,) = sampled({0: [*rights, *wrongs]})
    pairs = [(r.completion, w.completion) for r, w in matched_pairs(group, at_most=4)]
    assert pairs[:2] == [(rights[0], wrongs[0]), (rights[2], wrongs[1])]
    assert len(set(pairs)) == 4
    # The second right completion is the first.
    assert len(list(matched_pairs(group, at_most=99))) == 2 * 3


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("7", "no completion is right in the required form, so there is nothing to"),
        ("1", "no completion has a wrong answer, so there is nothing to reject"),
        ("72", "2 problems x 2 completions: each problem is solved always or never; raise"),
    ],
)
def test_without_any_pair_the_error_says_which_kind_is_missing(answers, words):
    with pytest.raises(UserError, match=words):
        mined({number: [answer(value)] * 2 for number, value in enumerate(answers)})


def test_the_numbers_say_where_pairs_were_lost():
    scripts = {
        0: [answer("1"), answer("7")],
        1: [answer("2"), answer("2")],
        2: [answer("0"), answer("0")],
    }
    groups = sampled(scripts)
    assert sampling_metrics(groups, preference_pairs(PROBLEMS[:3], groups, at_most=1)) == {
        "num_rows": 1,
        "num_problems": 3,
        "right_share": 3 / 6,
        "kept_problem_share": 1 / 3,
        "without_right_share": 1 / 3,
        "without_wrong_share": 1 / 3,
    }
