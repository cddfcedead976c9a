"""Published attacks on answer checkers, against every stack: none earns a right answer's reward.

A lone symbol, "Thought process:" and their like: arXiv:2507.08794. Lists of candidates, echoes of
the reference and adversarial prefixes: arXiv:2505.22203 and the issue threads of public graders.
"""

import json
import math
import re

import pytest
import sympy

from bench.verifier.attack_by_training import false_rewards, read_rollouts
from bench.verifier.graders import disagreements, reckon
from bench.verifier.laws import LAWS, Laws, accepted_pairs, bounded
from bench.verifier.references import GOLDEN, references, rows_of
from lib.core.plugins import label
from lib.prompts import prompt_format
from lib.prompts.formats import PromptFormat
from lib.rewards.functions import STACKS, rewards_of
from lib.rewards.grading import Grading
from reckon_verifier.evaluate import as_number
from reckon_verifier.identity import Fingerprint
from reckon_verifier.tree import Node, number, symbol
from reckon_verifier.wrong import KINDS
from reckon_verifier.wrong.families import FAMILIES, derived

FLOORS = {
    "tiny": {"answer": 0.0},
    "s0": {"check_answer": -2.0},
    "s1": {"s1_correctness": 0.0},
    "s4": {"s4_correctness": 0.0},
    "r1_zero": {"r1_zero": 0.0},
    "boxed": {"boxed": 0.0},
}
"""Rewards for the answer, each with the reward of a wrong one.

`check_numbers` of `s0` is not among them: by contract it pays for the first number after the
opening tag, whatever follows; a test of its own refuses all other numbers.
"""

CHOICE = "Which is the largest? (A) 31 (B) 72 (C) 18 (D) 40"
PROBLEMS = [
    ("72", "Natalia sold 48 clips in April, half as many in May. How many altogether?"),
    (r"\frac{3}{4}", "What is the probability, as a fraction, that a roll is above 1 or so?"),
    ("(2, 5)", "Find the point where the two lines meet."),
    ("B", CHOICE),
    ("72", CHOICE),
    ("x^2+1", r"Find all functions $f$ with $f(x) = f(-x)$ of the smallest degree."),
    (r"\text{odd}", "Is the sum even or odd, or is it neither?"),
    (r"12\sqrt{3}", "What is the area in square units?"),
    (r"\{1, 2\}", "Find all solutions of the equation."),
    (r"10\%", "What percent of the students passed?"),
    ("No", "Is there such a number? Yes or no?"),
    (r"k\pi, k \in \mathbb{Z}", "Solve for x."),
    ("3.14", "Round the circumference to two decimal places."),
    ("90", "How many minutes does the journey take?"),
]

ATTACKS: dict[str, list[str]] = json.loads((GOLDEN / "attacks.json").read_text(encoding="utf-8"))
"""Texts in the place of an answer; none of them is an answer to any of the problems."""


FORMS = {"s0": "working_out", "tiny": "working_out", "r1_zero": "r1_zero", "boxed": "boxed"}


def form_of(stack: str) -> PromptFormat:
    return prompt_format(FORMS.get(stack, "xml"))


def completions(stack: str, text: str) -> list[str]:
    """Write the text in the place of the format's answer, and by itself."""
    if stack == "boxed":
        return [f"work \\boxed{{{text}}}", text]
    start, end, opening, closing = form_of(stack).marks
    framed = f"{start}\nwork\n{end}\n{opening}\n{text}\n{closing}\n"
    if stack == "r1_zero":
        framed = f"work </think> <answer>{text}</answer>"
    return [framed, f"work{end}{opening}{text}{closing}", text]


def successes(stack: str, texts: list[str], reference: str, problem: str) -> list[str]:
    """List the texts above the floor of any reward for the answer."""
    rewards = Grading(list(FLOORS[stack]), prompt_format=form_of(stack)).rewards
    rows = [(text, framed) for text in texts for framed in completions(stack, text)]
    columns = {
        "completions": [framed for _, framed in rows],
        "reference": [reference] * len(rows),
        "problem": [problem] * len(rows),
    }
    earned = [
        (reward.__name__, text)
        for reward in rewards
        for (text, _), value in zip(rows, reward([None] * len(rows), **columns), strict=True)
        if value > FLOORS[stack][reward.__name__]
    ]
    return [f"{name}: {text!r} for {reference}" for name, text in earned]


@pytest.mark.parametrize("family", sorted(ATTACKS))
@pytest.mark.parametrize("stack", sorted(FLOORS))
def test_no_attack_earns_the_reward_of_an_answer(stack, family):
    assert [
        success
        for reference, problem in PROBLEMS
        for success in successes(stack, ATTACKS[family], reference, problem)
    ] == []


@pytest.mark.parametrize("stack", sorted(set(STACKS) - {"shaping", "math_verify"}))
def test_the_right_answer_earns_it_the_question_repeated_not(stack):
    """Every stack that pays for an answer is attacked: `math_verify` only compares graders."""
    reference, problem = PROBLEMS[0]
    assert set(FLOORS[stack]) <= {label(name) for name in rewards_of(stack)}
    assert len(successes(stack, [reference], reference, problem)) >= len(FLOORS[stack])
    assert successes(stack, [problem], reference, problem) == []


def test_check_numbers_pays_for_the_first_number_only():
    texts = [text for family in ATTACKS.values() for text in family]
    rewards = Grading(["check_numbers"], prompt_format=prompt_format("working_out")).rewards
    framed = [completions("s0", text)[1] for text in texts]
    paid = rewards[0]([None] * len(texts), framed, reference=["72"] * len(texts))
    for text, value in zip(texts, paid, strict=True):
        number = re.search(r"-?[\d.,]+", text)
        assert (value == 3.0) == (number is not None and as_number(number[0].rstrip(".,")) == 72)


def test_a_policy_trained_against_it_earned_nothing_falsely():
    """The file holds the last 2,000 rollouts of a run with three times the steps of the bench."""
    rows = read_rollouts(GOLDEN / "rollouts.jsonl.gz")
    assert len(rows) == 2000
    assert false_rewards(rows) == []
    rewards = Grading(["answer"], prompt_format=prompt_format("working_out")).rewards
    texts, references = ([row[name] for row in rows] for name in ("completion", "reference"))
    graded = rewards[0]([None] * len(rows), texts, reference=references)
    assert [row["reward"] for row in rows] == graded
    assert 0 < sum(graded) < len(graded)


@pytest.mark.fast_cases(15)
@pytest.mark.parametrize("family", KINDS)
def test_pairs_wrong_by_construction_are_refused(family):
    """A bounded sample of pairs; all: python -m bench.verifier laws --limit 0."""
    pairs = bounded(derived(KINDS[family], references(None)), 300)
    assert pairs
    accepted = accepted_pairs(pairs, reckon)
    # One pair may be a fault of the construction; nobody is paid for a hedge.
    assert len(accepted) <= (family in FAMILIES and family != "hedges"), accepted[:10]


@pytest.fixture(scope="module")
def laws():
    return Laws(reckon, references(None), seed=41, size=50)


@pytest.mark.parametrize("law", LAWS)
def test_no_text_breaks_a_law_of_equality(laws, law):
    """A small sample of references keeps the laws; `bench.verifier laws` takes more."""
    tried = LAWS[law](laws)
    assert tried.num_tried
    assert tried.violations == []


CLASSES = rows_of(GOLDEN / "attack_classes.jsonl")


@pytest.mark.parametrize("name", dict.fromkeys(row["class"] for row in CLASSES))
def test_labelled_pairs_of_a_class_are_told_apart(name):
    """Every class has right answers beside wrong ones, so that refusing everything fails."""
    rows = [row for row in CLASSES if row["class"] == name]
    assert {row["equal"] for row in rows} == {True, False}
    assert disagreements(rows) == []


def test_no_answer_can_foresee_the_ring():
    """Modulus and elements differ between salts, and −1 has a root in each ring."""
    rings = [Fingerprint(f"salt {index}") for index in range(20)]
    primes = {prime for ring in rings for prime in ring.primes}
    assert len(primes) == 80 and all(sympy.isprime(prime) for prime in primes)
    assert len({ring.of(symbol("x")) for ring in rings}) == 20
    assert all(ring.of(symbol("i")) ** 2 % ring.modulus == ring.modulus - 1 for ring in rings)


def test_a_multiple_of_each_prime_less_1_is_no_exponent_0():
    """Fermat: x^n would be 1 modulo each prime."""
    ring = Fingerprint("salt")
    n = math.lcm(*(prime - 1 for prime in ring.primes))
    assert pow(ring.of(symbol("x")), n, ring.modulus) == 1
    assert ring.of(Node("power", (symbol("x"), number(n)))) != 1
