import itertools
import random
import re
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params import preset_params
from lib.params.data import LevelWeightsBySet, Synthetic
from lib.problems.generated import (
    DISTRACTOR,
    SPLIT_BUCKETS,
    UNSEEN_EQUATIONS,
    Equation,
    bucket,
    equation_chain,
    generate_problems,
    shorten_solutions,
    synthetic_sets,
    tag_unseen_equations,
    wording,
)

TRAINING = preset_params("tiny-cpu").prepare.synthetic
WIDE = TRAINING.model_copy(update={"wording": "wide", "split_by": "equations"})
SIZES = {"num_sft": 400, "num_grpo": 400, "num_held_out": 100, "num_harder": 20}
HARDER = TRAINING.model_copy(update={"level_weights": (0.0, 0.0, 0.0, 0.0, 1.0)})


def problems(
    split: str = "sft", count: int = 300, seed: int = 0, settings: Synthetic = TRAINING
) -> list[Problem]:
    return list(generate_problems(split=split, seed=seed, count=count, settings=settings))


def operands_of(problem: Problem) -> list[int]:
    """List the first number and each step's new one: "2 + 3 = 5\\n5 * 4 = 20" -> [2, 3, 4]."""
    lines = [line.split() for line in problem.solution.splitlines()]
    return [int(lines[0][0]), *(int(line[2]) for line in lines)]


@given(seed=st.integers(0, 2**32), num_steps=st.integers(1, 6))
def test_equations_continue_from_the_last_value_in_bounds(seed, num_steps):
    chain = equation_chain(random.Random(seed), num_steps=num_steps, settings=TRAINING)
    assert len(chain) == num_steps
    assert 2 <= chain[0].left <= 10
    for before, after in itertools.pairwise(chain):
        assert before.value == after.left >= 1
    assert chain[-1].value >= 0
    for equation in chain:
        assert equation.value <= 99
        assert equation.right <= (6 if equation.operation in "*/" else 10)
        inverse = {"+": "-", "-": "+", "*": "/", "/": "*"}[equation.operation]
        assert Equation(equation.value, inverse, equation.right).value == equation.left


def test_every_chain_within_the_bounds_is_drawn():
    tiny = TRAINING.model_copy(update={"max_operand": 3, "max_factor": 2, "max_value": 5})

    def chains(value, num_steps):
        if not num_steps:
            return {()}
        operands = {"+": (1, 2, 3), "-": (1, 2, 3), "*": (2,), "/": (2,)}
        steps = [
            Equation(value, operation, right)
            for operation, rights in operands.items()
            for right in rights
            if (operation != "/" or value % right == 0)
        ]
        smallest = 0 if num_steps == 1 else 1
        return {
            (step, *rest)
            for step in steps
            if smallest <= step.value <= 5
            for rest in chains(step.value, num_steps - 1)
        }

    rng = random.Random(0)
    drawn = {equation_chain(rng, num_steps=2, settings=tiny) for _ in range(5_000)}
    assert drawn == chains(2, 2) | chains(3, 2)


def test_a_solution_is_true_and_ends_in_the_reference():
    for problem in problems(count=500):
        lines = problem.solution.splitlines()
        assert len(lines) == problem.level
        for line in lines:
            left, right = line.replace("/", "//").split(" = ")
            assert eval(left, {}) == int(right)
        assert lines[-1].split()[-1] == problem.reference


@pytest.mark.parametrize("settings", [TRAINING, WIDE])
def test_a_text_gives_the_operands_and_one_distractor(settings):
    def order(numbers):
        """Ignore the order of the wide wording, with phrases such as "6 a week for 3 weeks"."""
        return sorted(numbers) if settings is WIDE else numbers

    for problem in problems(count=500, settings=settings):
        assert "{" not in problem.problem
        numbers = [int(digits) for digits in re.findall(r"\d+", problem.problem)]
        operands = order(operands_of(problem))
        extra = [
            place
            for place in range(len(numbers))
            if order(numbers[:place] + numbers[place + 1 :]) == operands
        ]
        assert extra if DISTRACTOR in problem.tags else order(numbers) == operands


def test_an_item_depends_on_seed_split_and_index_only():
    assert problems(count=5) == problems(count=50)[:5]
    assert problems(seed=0)[1:] != problems(seed=1)[:-1]
    assert not {p.id for p in problems(seed=0)} & {p.id for p in problems(seed=1)}
    assert problems("test")[0].problem != problems("validation")[0].problem


@pytest.mark.parametrize(
    ("settings", "content"), [(TRAINING, attrgetter("id")), (WIDE, attrgetter("solution"))]
)
def test_splits_share_no_problem_or_no_equations(settings, content):
    assert len(set(SPLIT_BUCKETS.values())) == len(SPLIT_BUCKETS)
    easy = settings.model_copy(update={"level_weights": (1.0,)})
    contents = {}
    for split, own in SPLIT_BUCKETS.items():
        made = [*problems(split, settings=settings), *problems(split, settings=easy)]
        assert {bucket(problem, by=settings.split_by) for problem in made} == {own}
        contents[split] = {content(problem) for problem in made}
    for one, other in itertools.combinations(contents.values(), 2):
        assert not one & other


def test_split_by_equations_every_test_problem_is_unseen():
    sets = synthetic_sets(WIDE.model_copy(update=SIZES), seed=0)
    assert all(UNSEEN_EQUATIONS in each.tags for each in sets.benchmarks["held_out"])


def test_settings_without_a_problem_for_a_split_are_refused():
    narrow = {"split_by": "equations", "level_weights": (1.0,), "max_operand": 2, "max_factor": 2}
    settings = TRAINING.model_copy(update={**narrow, "max_value": 10})
    with pytest.raises(UserError, match=r"prepare\.synthetic: no problem of level 1"):
        for split in SPLIT_BUCKETS:
            problems(count=1, split=split, settings=settings)


def test_levels_follow_their_weights():
    made = problems(count=1000)
    shares = [sum(problem.level == level for problem in made) / 1000 for level in range(1, 6)]
    for share, weight in zip(shares, (1, 3, 2, 0.5, 0), strict=True):
        assert share == pytest.approx(weight / 6.5, abs=0.05)
    assert {problem.level for problem in problems("test_harder", settings=HARDER)} == {5}


def test_weights_of_grpo_leave_the_other_sets_as_they_are():
    plain = TRAINING.model_copy(update=SIZES)
    weights = LevelWeightsBySet(sft=plain.levels_of("sft"), grpo=(0.0,) * 5 + (1.0, 1.0))
    longer = plain.model_copy(update={"level_weights": weights})
    sets, others = (synthetic_sets(settings, seed=3) for settings in (longer, plain))
    assert {problem.level for problem in sets.grpo} == {6, 7}
    assert sets.sft == others.sft
    ids, expected = ([each.id for each in s.benchmarks["harder"]] for s in (sets, others))
    assert ids == expected


def test_a_quarter_of_the_problems_has_a_distractor():
    share = sum(DISTRACTOR in problem.tags for problem in problems(count=1000)) / 1000
    assert share == pytest.approx(0.25, abs=0.04)
    without = TRAINING.model_copy(update={"distractor_rate": 0.0})
    assert not any(problem.tags for problem in problems(settings=without))


def test_every_story_tells_every_operation_in_several_ways():
    for story in wording("wide")["stories"]:
        assert len(story["openings"]) >= 2
        for operation in "+-*/":
            moves, starts = story["moves"][operation], story["starts"][operation]
            assert min(len(set(moves)), len(set(starts))) >= 2
            if operation in "+-":
                assert not any("{n} {things}" in sentence for sentence in moves)
                assert not any("{b} {things}" in sentence for sentence in starts)


def test_a_sentence_names_its_person_whatever_is_before_it():
    """A pronoun could mean the friend of the sentence before, and "them" the last that came."""
    for story in wording("wide")["stories"]:
        moves, starts = (itertools.chain(*story[key].values()) for key in ("moves", "starts"))
        alone = [*story["openings"], *moves, *story["questions"]]
        for sentence in alone:
            assert "{name}" in sentence or "the board" in sentence
            assert not re.search(r"\b(them|they)\b", sentence)
        for sentence in [*alone, *starts, *story["distractors"]]:
            for pronoun in re.finditer("{she}|{her}", sentence):
                before = sentence[: pronoun.start()]
                assert before.rfind("{name}") > before.rfind("{friend}")


def test_one_thing_is_in_the_singular():
    things = [pair for each in wording("wide")["stories"] for pair in each["things"].items()]
    plurals = "|".join(plural for singular, plural in things if singular != plural)
    for problem in problems(count=500, settings=WIDE):
        assert not re.search(rf"\b1 (more )?({plurals})\b", problem.problem)


def test_shortening_depends_on_seed_and_problem_only():
    made = problems()

    def bare(made, share=0.5, seed=0):
        return {p.id for p in shorten_solutions(made, share=share, seed=seed) if not p.solution}

    assert bare(made) == bare(made[::-1])
    assert bare(made) < bare(made, share=0.7)
    assert bare(made) != bare(made, seed=1)


def test_an_equation_sequence_in_no_training_problem_is_tagged():
    def made(name, solution):
        return Problem.create(problem=name, reference="7", solution=solution, tags=(DISTRACTOR,))

    training = [made("a", "2 - 1 = 1\n1 + 6 = 7"), made("b", "3 + 4 = 7")]
    same, part, swapped = made("c", "3 + 4 = 7"), made("d", "1 + 6 = 7"), made("e", "4 + 3 = 7")
    tagged = list(tag_unseen_equations([same, part, swapped], training=training))
    assert tagged[0] == same
    assert [problem.tags for problem in tagged[1:]] == [(DISTRACTOR, UNSEEN_EQUATIONS)] * 2


def test_equations_of_ten_digits_are_unseen_too():
    one, two = (
        Problem.create(problem=end, reference="7", solution=f"1000000000 + {end} = 100000000{end}")
        for end in "12"
    )
    (tagged,) = tag_unseen_equations([one], training=[two])
    assert tagged.tags == (UNSEEN_EQUATIONS,)
