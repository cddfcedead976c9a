"""The built-in generator of multi-step word problems with worked solutions."""

from lib.problems.synthetic.equations import Bounds, Equation, draw_chain, written_equations
from lib.problems.synthetic.generator import (
    DISTRACTOR,
    NUM_BUCKETS,
    SPLIT_BUCKETS,
    UNSEEN_EQUATIONS,
    GeneratorSettings,
    bucket,
    equation_sequence,
    generate,
    shorten_solutions,
    tag_unseen_equations,
)

__all__ = [
    "DISTRACTOR",
    "NUM_BUCKETS",
    "SPLIT_BUCKETS",
    "UNSEEN_EQUATIONS",
    "Bounds",
    "Equation",
    "GeneratorSettings",
    "bucket",
    "draw_chain",
    "equation_sequence",
    "generate",
    "shorten_solutions",
    "tag_unseen_equations",
    "written_equations",
]
