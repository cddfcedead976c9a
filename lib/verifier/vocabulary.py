"""Names that the tokenizer knows, and what tells words from mathematics."""

import functools
import re


def names(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


FUNCTIONS = names(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc "
    "arsinh arcosh artanh ln log lg exp sqrt abs floor ceil sgn erf Gamma max min gcd lcm "
    "factorial binomial det Re Im"
)
"""Functions that are evaluated; whatever else is applied to arguments is opaque."""


def pairs(text: str) -> dict[str, str]:
    """The words of `text`, split at their first equals sign."""
    return dict(word.split("=", 1) for word in text.split())


ALIASES = pairs(
    "asin=arcsin acos=arccos atan=arctan acot=arccot tg=tan ctg=cot arctg=arctan csch=csch "
    "cosec=csc ceiling=ceil asinh=arsinh acosh=arcosh atanh=artanh arcsinh=arsinh arccosh=arcosh "
    "arctanh=artanh GCD=gcd LCM=lcm Max=max Min=min sign=sgn binom=binomial dbinom=binomial "
    "tbinom=binomial log10=lg Abs=abs gamma_function=Gamma"
)

ONE_FOR = pairs(
    "dfrac=frac tfrac=frac cfrac=frac leq=le geq=ge neq=ne leqslant=le geqslant=ge lt=< gt=> "
    "cdotp=cdot ast=cdot star=cdot bullet=cdot varnothing=emptyset varphi=phi vartheta=theta "
    "varepsilon=epsilon lvert=| rvert=| vert=| mid=mid lVert=| rVert=| Vert=| colon=: "
    "backslash=setminus smallsetminus=setminus bigcup=cup bigcap=cap simeq=approx sim=approx "
    "cong=approx doteq=approx lbrace={set rbrace=}set lbrack=[ rbrack=] land=and wedge=and lor=or "
    "vee=or degree=degree lparen=( rparen=) oo=infty inf=infty infinity=infty Infinity=infty "
    "union=cup imaginaryI=i exponentialE=e dotsc=dots dotsb=dots ldots=dots cdots=dots dotsm=dots"
)
"""Commands with the same meaning."""

GREEK = names(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi "
    "Omega hbar ell nabla partial aleph triangle square Box odot oplus dagger mho circ perp "
    "parallel dots"
)

ACCENTS = names("vec hat bar tilde dot ddot overline overrightarrow widehat underline overset")
"""Marks over a symbol; `overline` over digits is a repeating decimal."""

STYLES = names(
    "mathbf mathrm mathit mathsf mathcal mathbb mathfrak mathscr boldsymbol bm rm bf it emph "
    "text mbox textbf textrm textit textsf texttt textup operatorname hbox textnormal"
)

PLAIN_WORDS = frozenset([*FUNCTIONS, *ALIASES, "infty", "oo", "inf", "infinity", "Infinity"]) - {
    "Re", "Im", "Gamma",
}  # fmt: skip
"""Words that mean mathematics without a backslash."""

PLAIN_GREEK = names("pi theta alpha beta gamma delta lambda omega phi")
PERCENT_WORDS = names("percent percentage pct percents")
DEGREE_WORDS = names("degree degrees deg")

FORMATTING = r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\b"
_FORMATTED = re.compile(rf"{FORMATTING}\s*\{{[^{{}}]*\}}")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_\u2e80-\U0010ffff]{2,}|[\u2e80-\U0010ffff]+")
_MATHS = PLAIN_WORDS | PLAIN_GREEK | {"and", "or", "det", "mod", "none", "union", "emptyset"}
_SHORT = names("is it of to so we be in as if no on an by at il")
_CODE = re.compile(
    r"(?<![\\A-Za-z_])[A-Za-z_]{2,}\(|</?\w+>|__|\w\.\w+\(|\b(?:def|lambda|import|return)\b"
)


@functools.lru_cache(maxsize=4096)
def has_prose(text: str) -> bool:
    """Whether `text` is natural language: two words at least, and no program code or tags."""
    words = _words(text)
    enough = len(words) >= 2 or any(map(_is_eastern, words))
    return enough and not _CODE.search(text[:4000])


def has_words(text: str) -> bool:
    """Whether `text` has a word that is neither mathematics nor marked as text."""
    return bool(_words(text))


def _words(text: str) -> list[str]:
    bare = _COMMAND.sub(" ", _FORMATTED.sub(" ", text[:4000]))
    words = [word for word in _WORD.findall(bare) if word.lower() not in _MATHS]
    return [word for word in words if len(word) > 2 or word.lower() in _SHORT or _is_eastern(word)]


def _is_eastern(word: str) -> bool:
    """Written without spaces, so that one run of letters may be a sentence."""
    return ord(word[0]) >= 0x2E80
