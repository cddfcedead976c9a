"""The steps by which an answer is decided: rows of the table that docs/verifier.md prints."""

from typing import NamedTuple


class Rule(NamedTuple):
    """A step of the comparison, or a conversion between kinds.

    Attributes:
        name: what `decided_by` says.
        rows: right answers of the labelled sets that it decides; `python -m tests.bench.verifier
            rules --write` measures and writes it.
        right: a reference and an answer that it makes equal, and the problem where it needs one.
        wrong: a look-alike that stays unequal.
        is_exact: whether it is a proof; what is not is evidence, and counted in metrics.
    """

    name: str
    rows: int
    description: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    is_exact: bool = True


TABLE: tuple[Rule, ...] = (
    Rule("exact", 1620, "the same text", ("72", "72"), ("72", "73")),
    Rule("number", 335, "rational numbers, exactly", ("72", "72.0"), ("7.2", "7.20001")),
    Rule("structure", 312, "the same tree", ("x+1", "x + 1"), ("[1,3]", "1, 3")),
    Rule(
        "identity",
        46,
        "the same rational expression of the same parts",
        ("x+1", "1+x"),
        ("f(x)", "f(2x)"),
    ),
    Rule(
        "algebraic",
        5,
        "roots, to the precision of a root bound",
        (r"\sqrt8", r"2\sqrt2"),
        (r"\sqrt8", "2.83"),
    ),
    Rule(
        "numeric",
        6,
        r"constants with $\pi$, $e$, logarithms, to a precision that their size sets",
        (r"\ln 6", r"\ln 2 + \ln 3"),
        (r"\pi", "22/7"),
        is_exact=False,
    ),
    Rule(
        "points",
        15,
        "functions with roots, powers, logarithms, at hidden points",
        (r"\sin 2x", r"2\sin x\cos x"),
        (r"\sqrt{x^2}", "x"),
        is_exact=False,
    ),
    Rule(
        "symbolic",
        1,
        "integrals, limits and sums, by sympy",
        ("1/4", r"\int_0^1 x^3 dx"),
        ("1/3", r"\int_0^1 x^3 dx"),
    ),
    Rule(
        "rounding",
        9,
        "a decimal reference, or the rounding that is asked for",
        ("3.14", r"\pi", "Round to two decimal places."),
        ("1200", "1234", "Round to the nearest hundred."),
        is_exact=False,
    ),
    Rule("decimal comma", 3, "`3,14` in the answer", ("3.14", "3,14"), ("3, 14", "3.14")),
    Rule(
        "percent",
        43,
        "a percentage as its number; a reference's sign may go unsaid",
        ("0.1", r"10\%"),
        ("0.25", r"0.25\%"),
    ),
    Rule(
        "angle",
        25,
        r"degrees, minutes; degrees as radians where $\pi$ is written",
        (r"60^\circ", r"\frac{\pi}{3}"),
        (r"\pi", r"\pi^\circ"),
    ),
    Rule(
        "unit",
        45,
        "units, converted; a unit that one side leaves out",
        ("5 cm", "50 mm"),
        ("5 cm", "5 kg"),
    ),
    Rule(
        "ratio", 3, "proportional ratios, zeros in the same places", ("1:2", "3:6"), ("1:2", "0:0")
    ),
    Rule("base", 0, "the same digits in the same base", ("101", "101_{10}"), ("101_2", "101_3")),
    Rule(
        "time",
        2,
        "times of day; a.m. and p.m. may go unsaid",
        ("4:30", "4:30 p.m."),
        ("4:30", "16:31"),
    ),
    Rule(
        "choice",
        10,
        "letters of multiple choice, with a value or not",
        ("A", "(A)"),
        ("A", "A or B"),
    ),
    Rule(
        "option",
        1,
        "the letter of an option for its text, and back",
        ("B", "12", "(A) 10 (B) 12 (C) 14"),
        ("B", "14", "(A) 10 (B) 12 (C) 14"),
    ),
    Rule(
        "words",
        1,
        "the same words, but for case, article and a noun of the question",
        ("obtuse", "an obtuse triangle", "Is the triangle acute or obtuse?"),
        ("odd", "not odd"),
    ),
    Rule(
        "name", 49, "a name or label that one side leaves out", ("5", "x = 5"), ("x = 5", "y = 5")
    ),
    Rule(
        "constraint",
        9,
        "equations and inequalities up to a constant factor",
        ("x+y=1", "2x+2y=2"),
        ("x+y=1", "x+y=2"),
    ),
    Rule(
        "region",
        34,
        "intervals, inequalities and unions as sets of reals",
        ("(0,5)", "0 < x < 5"),
        ("(0,5)", r"0 \le x < 5"),
    ),
    Rule(
        "list",
        51,
        "lists and sets in any order, each element as often",
        ("1, 2", r"\{2, 1\}"),
        ("1, 1, 2", "1, 2, 2"),
    ),
    Rule(
        "set",
        0,
        "sets by the same condition",
        (r"\{(x,y) : x+y=1\}", r"\{(a,b) : a+b=1\}"),
        (r"\{(x,y) : x+y=1\}", r"\{(x,y) : x+y=2\}"),
    ),
    Rule("tuple", 4, "tuples in order", ("(1, 2)", "(1, 4/2)"), ("(1,2)", "(2,1)")),
    Rule(
        "vector",
        6,
        r"a column or a sum of unit vectors as a tuple",
        ("(1,-3)", r"\mathbf{i}-3\mathbf{j}"),
        ("(1,-3)", r"\mathbf{i}+3\mathbf{j}"),
    ),
    Rule(
        "matrix",
        3,
        "matrices, cell by cell",
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,3],[2,4]]"),
    ),
    Rule(
        "cases",
        1,
        "values with their conditions",
        (
            r"\begin{cases} 1 & x>0 \\ 0 & x \le 0 \end{cases}",
            r"\begin{cases} 0 & x \le 0 \\ 1 & x > 0 \end{cases}",
        ),
        (
            r"\begin{cases} 1 & x>0 \\ 0 & x \le 0 \end{cases}",
            r"\begin{cases} 0 & x > 0 \\ 1 & x \le 0 \end{cases}",
        ),
    ),
    Rule(
        "quantifier",
        5,
        "a quantifier over a whole set of numbers, which may go unsaid",
        ("2n", "2n for all n"),
        ("2n", "2n for n > 5"),
    ),
    Rule(
        "parameter",
        3,
        "other letters for parameters that are not the problem's",
        (r"k\pi", r"n\pi", "Solve for x."),
        (r"k\pi", r"n\pi", "Find the area in terms of $n$."),
    ),
    Rule(
        "congruence",
        0,
        "residues",
        (r"x \equiv 3 \pmod 7", r"x \equiv 10 \pmod 7"),
        (r"x \equiv 3 \pmod 7", r"x \equiv 3 \pmod 8"),
    ),
)
"""Every step once, as docs/verifier.md prints it."""

REFUSALS = {
    "echo": "a formula or the text of the problem, repeated",
    "vain": "a relation of constants, which states nothing",
    "no answer": "no answer, which equals nothing",
    "unparsed": "a character that the grammar does not read",
    "undecided": "neither equal nor different for certain",
    "limit": "too large to compare",
    "timeout": "computer algebra took too long",
    "over budget": "computer algebra had no time left for this batch",
    "worker failure": "computer algebra broke down",
    "symbolic failure": "computer algebra broke down on this question",
    "failure": "a fault of the verifier",
}
"""Why an answer is refused, where it is not simply another."""

INEXACT = tuple(rule.name for rule in TABLE if not rule.is_exact)
"""Steps that are evidence, not proof."""

DESCRIPTIONS = {rule.name: rule.description for rule in TABLE} | REFUSALS
"""What `decided_by` means, in words for a reader."""


class Decision(NamedTuple):
    """An equality decided, with the step that decided."""

    equal: bool
    step: str

    def via(self, step: str) -> "Decision":
        """Return the same, by a conversion; what is not exact stays visible."""
        return self if self.step in INEXACT else Decision(self.equal, step)
