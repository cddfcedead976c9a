"""Laws of every answer, tried by hypothesis."""

import re
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.verifier.laws import LEAVES, PIECES, SHAPES
from reckon_verifier import (
    compare,
    extract_answer,
    is_equivalent,
    is_placeholder,
    reference_problem,
)
from reckon_verifier.tokens import canonical, tokenize
from reckon_verifier.tree import TooHard, Unparsable

RATIONALS = st.fractions(min_value=-10_000, max_value=10_000, max_denominator=400)
DECIMALS = st.builds(
    lambda number, places: Fraction(number, 10**places),
    st.integers(-(10**7), 10**7),
    st.integers(0, 5),
)
TEXTS = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join)
)

FORMULAS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.builds(
        lambda shape, *parts: shape % parts, st.sampled_from(SHAPES), inner, inner
    ),
    max_leaves=12,
)


def equal(reference: str, answer: str | None) -> bool:
    return is_equivalent(reference=reference, answer=answer)


def fraction_spellings(value: Fraction) -> list[str]:
    above, below = value.numerator, value.denominator
    sign = "-" if above < 0 else ""
    return [
        f"{above}/{below}",
        rf"\frac{{{above}}}{{{below}}}",
        rf"{sign}\dfrac{{{abs(above)}}}{{{below}}}",
        rf"$\frac{{{2 * above}}}{{{2 * below}}}$",
        rf"\left({above} \div {below}\right)",
        rf"x = {above}/{below}",
    ]


def mixed_number(value: Fraction) -> str:
    whole, rest = divmod(abs(value.numerator), value.denominator)
    sign = "-" if value < 0 else ""
    if not rest:
        return f"{sign}{whole}"
    part = rf"\frac{{{rest}}}{{{value.denominator}}}"
    return f"{sign}{whole}{part}" if whole else f"{sign}{part}"


def decimal_spellings(value: Fraction) -> list[str]:
    digits = f"{float(value):.5f}"
    return [
        digits,
        f"{float(value):,.5f}",
        f"{float(value * 100):.3f}\\%",
        rf"{float(value / 1000):.8f} \times 10^{{3}}",
        f"{value.numerator}/{value.denominator}",
    ]


@given(RATIONALS)
def test_every_spelling_of_a_rational_equals_every_other(value):
    spellings = [*fraction_spellings(value), mixed_number(value)]
    for reference in spellings:
        for answer in spellings:
            assert equal(reference, answer), (reference, answer)


@given(RATIONALS, RATIONALS)
def test_spellings_of_different_rationals_differ(one, two):
    assume(one != two)
    for answer in (*fraction_spellings(two), mixed_number(two)):
        assert not equal(fraction_spellings(one)[1], answer)


@given(DECIMALS)
def test_every_spelling_of_a_decimal_equals_every_other(value):
    for answer in decimal_spellings(value):
        assert equal(decimal_spellings(value)[0], answer), answer


@given(DECIMALS, st.integers(1, 9))
def test_a_decimal_differs_from_its_neighbours(value, step):
    neighbour = value + Fraction(step, 10**5)
    assert not equal(decimal_spellings(value)[0], decimal_spellings(neighbour)[0])


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms())
def test_order_is_free_in_a_set_and_counts_in_a_tuple(items, random):
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (", ".join(map(str, order)) for order in (items, shuffled))
    assert equal(rf"\{{{one}\}}", rf"\{{{two}\}}")
    assert equal(one, two)
    assert equal(f"({one})", f"({two})") == (items == shuffled)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.integers(51, 99))
def test_an_element_more_or_less_makes_another_set(items, extra):
    one = ", ".join(map(str, items))
    assert not equal(one, f"{one}, {extra}")
    assert not equal(f"{one}, {extra}", one)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=4))
def test_a_polynomial_equals_its_factors_multiplied_out(roots):
    coefficients = [1]
    for root in roots:
        shifted = [*coefficients, 0]
        for place, coefficient in enumerate(coefficients):
            shifted[place + 1] -= root * coefficient
        coefficients = shifted
    degree = len(coefficients) - 1
    expanded = " + ".join(f"({c})x^{{{degree - k}}}" for k, c in enumerate(coefficients))
    factors = "".join(f"(x - ({root}))" for root in roots)
    assert equal(factors, expanded)
    assert not equal(factors, f"{expanded} + 1")


@given(TEXTS)
def test_no_letter_or_digit_of_a_text_that_is_read_is_lost(text):
    try:
        tokens = canonical(tokenize(text))
    except (Unparsable, TooHard):
        return
    # Signs of two characters have a name of their own.
    single = re.sub("[<>!]=|=>", "", text)
    for sign in "0123456789éx=<>!%?&;":
        assert tokens.count(sign) >= (sign in single and sign not in NEUTRAL_IN_COMMANDS)


NEUTRAL_IN_COMMANDS = frozenset("!;x<>")
"""Signs that may be part of a command for spacing or a relation, or of a style's name."""


ANSWERS = r"""1; -1; 0.5; \frac{1}{2}; 50\%; 1/2; \sqrt{2}; \frac{2}{\sqrt{2}}; \pi; x; y; 2x; x+x;
    x^2;
    f(x); x=1; y=1; f(x)=2x; \sin 2x; 2\sin x\cos x; 1, 2; 2, 1; \{1,2\}; 1 or 2; 1 and 2; 1, 1, 2;
    (1,2); (2,1); [1,2]; 1 < x < 2; 1 \le x \le 2; \begin{pmatrix}1\\2\end{pmatrix}; 1:2; 2:4; 0:0;
    odd; not odd; even; 60^\circ; \frac{\pi}{3}; 5 cm; 50 mm; 5 kg; x+y=1; 2x+2y=2; x<y; y>x; AB;
    BA; A; (A); B; 4:30 pm; 16:30; 101_2; \emptyset; no solution; x \equiv 3 \pmod 7"""
PARSED = st.sampled_from(ANSWERS.split(";"))
INTRANSITIVE = frozenset(
    ["x=1", "y=1", "5 cm", "5 kg", "f(x)=2x", r"60^\circ", "1 or 2", "1 and 2", "(1,2)"]
)
"""Answers that equal more texts than they are equivalent to (its README): a unit, a name, the word
that joins a list, a point that may be an interval."""


@settings(max_examples=400, deadline=None)
@given(PARSED, PARSED, PARSED)
def test_equality_is_an_equivalence_relation(one, two, three):
    assert equal(one, one)
    assert equal(one, two) == equal(two, one)
    triple = [text.strip() for text in (one, two, three)]
    if equal(one, two) and equal(two, three) and not INTRANSITIVE & {*triple}:
        assert equal(one, three)


@settings(max_examples=300, deadline=None)
@given(FORMULAS | TEXTS, FORMULAS | TEXTS)
def test_arbitrary_text_is_graded_without_a_failure(reference, answer):
    assert compare(reference=reference, answer=answer).decided_by != "failure"
    extract_answer(answer)
    reference_problem(reference)


@given(
    st.text(min_size=1, max_size=30).filter(lambda text: text.strip() and not is_placeholder(text))
)
def test_every_text_equals_itself_and_none_equals_nothing(text):
    assert equal(text, text)
    assert not equal(text, None)
    assert not equal(text, "")
