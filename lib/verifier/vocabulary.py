"""Names that the tokenizer knows: functions, constants, operators, text commands."""

FUNCTIONS = frozenset(
    [
        *("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth"),
        *("arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "arsinh", "arcosh", "artanh"),
        *("ln", "log", "lg", "exp", "sqrt", "abs", "floor", "ceil", "sgn", "erf", "Gamma"),
        *("max", "min", "gcd", "lcm", "factorial", "binomial", "det", "Re", "Im"),
    ]
)
"""Functions that are evaluated; whatever else is applied to arguments is opaque."""

ALIASES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "acot": "arccot", "tg": "tan",
    "ctg": "cot", "arctg": "arctan", "csch": "csch", "cosec": "csc", "ceiling": "ceil",
    "asinh": "arsinh", "acosh": "arcosh", "atanh": "artanh", "arcsinh": "arsinh",
    "arccosh": "arcosh", "arctanh": "artanh", "GCD": "gcd", "LCM": "lcm", "Max": "max",
    "Min": "min", "sign": "sgn", "binom": "binomial", "dbinom": "binomial", "tbinom": "binomial",
    "log10": "lg", "Abs": "abs", "gamma_function": "Gamma",
}  # fmt: skip

ONE_FOR = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "geq": "ge", "neq": "ne",
    "leqslant": "le", "geqslant": "ge", "lt": "<", "gt": ">", "cdotp": "cdot", "ast": "cdot",
    "star": "cdot", "bullet": "cdot", "varnothing": "emptyset", "varphi": "phi",
    "vartheta": "theta",
    "varepsilon": "epsilon", "lvert": "|", "rvert": "|", "vert": "|", "mid": "mid", "lVert": "|",
    "rVert": "|", "Vert": "|", "colon": ":", "backslash": "setminus", "smallsetminus": "setminus",
    "bigcup": "cup", "bigcap": "cap", "simeq": "approx", "sim": "approx", "cong": "approx",
    "doteq": "approx", "lbrace": "{set", "rbrace": "}set", "lbrack": "[", "rbrack": "]",
    "land": "and", "wedge": "and", "lor": "or", "vee": "or", "degree": "degree", "lparen": "(",
    "rparen": ")", "oo": "infty", "inf": "infty", "infinity": "infty", "Infinity": "infty",
    "union": "cup", "imaginaryI": "i", "exponentialE": "e", "dotsc": "dots", "dotsb": "dots",
    "ldots": "dots", "cdots": "dots", "dotsm": "dots",
}  # fmt: skip
"""Commands with the same meaning."""

GREEK = frozenset([
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi",
    "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi",
    "Psi", "Omega", "hbar", "ell", "nabla", "partial", "aleph", "triangle", "square", "Box",
    "odot", "oplus", "dagger", "mho", "circ", "perp", "parallel", "dots",
])  # fmt: skip

ACCENTS = frozenset([
    "vec", "hat", "bar", "tilde", "dot", "ddot", "overline", "overrightarrow", "widehat",
    "underline", "overset",
])  # fmt: skip
"""Marks over a symbol; `overline` over digits is a repeating decimal."""

STYLES = frozenset([
    "mathbf", "mathrm", "mathit", "mathsf", "mathcal", "mathbb", "mathfrak", "mathscr",
    "boldsymbol", "bm", "rm", "bf", "it", "emph", "text", "mbox", "textbf", "textrm", "textit",
    "textsf", "texttt", "textup", "operatorname", "hbox", "textnormal",
])  # fmt: skip

PLAIN_WORDS = frozenset([*FUNCTIONS, *ALIASES, "infty", "oo", "inf", "infinity", "Infinity"]) - {
    "Re", "Im", "Gamma",
}  # fmt: skip
"""Words that mean mathematics without a backslash."""

PLAIN_GREEK = frozenset(
    ["pi", "theta", "alpha", "beta", "gamma", "delta", "lambda", "omega", "phi"]
)

PERCENT_WORDS = frozenset(["percent", "percentage", "pct", "percents"])
DEGREE_WORDS = frozenset(["degree", "degrees", "deg"])
