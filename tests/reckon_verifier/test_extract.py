"""A completion's most deliberate mark gives its answer; without an answer it is None."""

from itertools import combinations

import pytest

from lib.prompts import prompt_format
from lib.rewards.rollout import Rollout
from reckon_verifier import extract_answer, is_equivalent, parse_gsm8k_number, parse_mmlu_letter
from reckon_verifier.extract import applied_rules

WORKING_OUT = prompt_format("working_out")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1}. No, \boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1}, \boxed{2} and \boxed{3}", r"\boxed{1}, \boxed{2} and \boxed{3}"),
        (r"I get <answer>\boxed{5}</answer>. Done.", "5"),
        ("hm <answer>5", "5"),
        (r"$x = -\boxed{5}$.", r"-\boxed{5}"),
        (r"It is \boxed{5}\%. Done.", r"\boxed{5}\%"),
        (r"\boxed{5} is wrong, so \boxed{6}", "6"),
        (r"<think>\boxed{3}?</think> <answer>4</answer>", "4"),
        ("<answer>1</answer> then <answer>2</answer>", "2"),
        ("48 / 2 = 24\n#### 1,024\n", "1,024"),
        ("The answer is 7. I hope it is correct.", "7"),
        (
            r"Final Answer: The final answer is $\left(\frac{1}{5}, 2\right)$.",
            r"\left(\frac{1}{5}, 2\right)",
        ),
        ("The final answer is $3$ and $4$.", "$3$ and $4$"),
        (r"4\sqrt{2}", r"4\sqrt{2}"),
        ("Therefore $x < 5$ is the solution.", "x < 5"),
        ("He gives 99 marbles to the boys", "99"),
        ("He has 11 boys and gives 99 marbles", "He has 11 boys and gives 99 marbles"),
        ("所以总共有99颗弹珠。", "99"),
        ("It costs 12.50 in all", "12.50"),
        ("the ratio is 13/28", "13/28"),
        ("The answer is 5.<|im_end|>user 9", "5"),
        (r"\boxed{\frac{1}{2}", r"\frac{1}{2}"),
        (r"<think> I get \boxed{9}", "9"),
    ],
)
def test_the_most_deliberate_mark_wins(completion, answer):
    assert extract_answer(completion) == answer


REFERENCES = ["5", r"\frac{3}{4}", r"2\sqrt{3}", "(2,3)", "x^2+1"]
SENTENCES = r"""
At most $@$ of them fit.
It cannot be even, so it is not $@$ but close.
The number greater than 10 is $@$ (since it is prime).
We have $@$ squared centimetres, a $@$ percent rise when divided by 12?
so $a=5$, and $b=@$.
Since $1024=2^{10}$, $x=@$ - as claimed.
Of $360^\circ$, or $@$ [by symmetry].
so $x+y \ge 2+2 = @$ -- the minimum
$@ = 2+3$ and $A\approx\frac{256}{3}\approx @$
$3!\cdot 5!=@$ is $6! = @$
$3^5 \equiv @ \pmod{7}$
Step 2: @
Part (b): $@$
1. @
| answer | @ |
\begin{align*} x &= 2+3\\ &\equiv @\ (\text{mod } p)\end{align*}
there are $@$ $3$-digit numbers, \$@ or $@ \mathrm{~cm}$
\[3AB = 6DC, \quad \text{and} \quad \frac{AB}{DC} = @.\][asy]draw((0,0)--(1,1));[/asy]
First I had $\boxed{77}$. Now I have $@$; is that right?
""".strip().splitlines()
"""Each commits to the box @, whatever its words say."""
FORMS = (
    r"""
-@ | $-$@ | $x=- \left(@\right)$ | \pm @ | $2@$ | $@\cdot 10^3$ | $@x$ | 3(@) | $@(x+1)$ | 2**@
$@^2$ | $2^{@}$ | $\sqrt{@}$ | \sqrt[3]{@} | $\frac{7}{@}$ | {@ \over 7} | 7/@ | $@\div 7$ | 2:@
$f(@)$ | \ln(@) | $\lfloor @/2\rfloor$ | $\lim_{x\to @} f(x)$ | $@+1$ | 2 apples + @ | $@$ + $2$
$@_2$ | $@!$ | $@\%$ | 0.@ | $@0$ | $@'$ | $(7,@)$ | $(7,~@)$ | $\{@,7\}$ | 7, @
$x_1 = 7, x_2 = @$ | \begin{pmatrix}7~\\~@~\end{pmatrix} | $\begin{cases} x=7\\ y=@\end{cases}$
$x\ne @$ | x != @ | $n\not\equiv @\pmod 7$ | $x < @$ | $7=@$ | @ = (9,9)
\boxed{77} or @ | $@$ and $\boxed{77}$ | \boxed{77},~@ | $x=\boxed{77}\\ y = @$
$x=-~@$ | $2 \cdot~@$ | $@$(2) | $$~@~!~$$
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)
"""None says the value in the box @; ~ is the end of a line."""


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_box_commits_whatever_words_are_around_it(reference):
    texts = [text.replace("@", rf"\boxed{{{reference}}}") for text in SENTENCES]
    answers = [extract_answer(text) for text in texts]
    assert [
        text
        for text, answer in zip(texts, answers, strict=True)
        if not is_equivalent(reference=reference, answer=answer)
    ] == []


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_touches_a_box_changes_what_it_says(reference):
    box = rf"\boxed{{{reference}}}"
    texts = [form.replace("~", "\n").replace("@", box) for form in FORMS]
    answers = [extract_answer(text) for text in texts]
    assert [
        text
        for text, answer in zip(texts, answers, strict=True)
        if is_equivalent(reference=reference, answer=answer)
    ] == []


BY_RULE = {
    "boxed": r"Thus \boxed{%s}.",
    "tagged": "<answer>%s</answer>",
    "hashed": "#### %s",
    "announced": "So the answer is that there are %s apples left.",
    "guessed": "There are %s pears.",
}
"""A text for each rule that reads a part of a text, in the rules' order."""


def test_no_earlier_rule_loses_to_a_later_one():
    for (number, earlier), (other, later) in combinations(enumerate(BY_RULE), 2):
        texts = BY_RULE[earlier] % (number + 11), BY_RULE[later] % (other + 11)
        for text in ("\n".join(texts), "\n".join(reversed(texts))):
            assert extract_answer(text) == str(number + 11), (earlier, later)


def test_each_text_is_read_by_its_rule_in_the_stated_order():
    rules = [next(applied_rules(text % 5))[0] for text in BY_RULE.values()]
    assert rules == list(BY_RULE)
    everything = "\n".join(text % 5 for text in BY_RULE.values())
    order = [rule for rule, _ in applied_rules(everything)]
    assert [rule for rule in order if rule in BY_RULE] == list(BY_RULE)


@pytest.mark.parametrize("completion", ["", "   ", "I do not know, sorry", "AZYUK2A is the code"])
def test_no_answer_is_none(completion):
    assert extract_answer(completion) is None


def test_the_formats_marks_come_before_everything_else():
    completion = r"<end_working_out><SOLUTION>2</SOLUTION> \boxed{1}, so the answer is 3"
    rollout = Rollout(completion=completion, reference="2", prompt_format=WORKING_OUT)
    assert rollout.answer == "2"
    assert extract_answer(completion) == "1"


def test_a_completion_without_the_marks_still_answers():
    completion = "So the answer is 12."
    rollout = Rollout(completion=completion, reference="12", prompt_format=WORKING_OUT)
    assert rollout.answer == "12"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The correct answer is B.", "B"),
        ("B", "B"),
        ("(C)", "C"),
        (r"\boxed{\text{D}}", "D"),
        ("**Answer: A**", "A"),
        ("C) because 2 + 2 = 4", "C"),
        ("I choose option D, not A", None),
        ("The correct option is D.", "D"),
        ("The answer is option (D), a prime.", "D"),
        ("The answer is B, not option C.", None),
        ("The answer is A or B", None),
        ("I reject option A", None),
        ("I do not think the answer is A", None),
        ("The answer is B. Choice A is wrong.", "B"),
        ("A number is prime.", None),
        ("The answer is E.", None),
        ("the answer is 12", None),
        ("", None),
    ],
)
def test_a_multiple_choice_letter_is_read_only_as_an_answer(text, letter):
    assert parse_mmlu_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Natalia sold 48/2 = 24 clips in May. 48+24 = 72 altogether.", "72"),
        ("It is 1,234.50 dollars", "1234.50"),
        ("from 5 to -3", "-3"),
        ("R2D2", None),
        ("no number at all", None),
    ],
)
def test_the_last_number_is_read_without_separators(text, number):
    assert parse_gsm8k_number(text) == number
