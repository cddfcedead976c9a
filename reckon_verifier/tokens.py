r"""Split an answer's text into tokens: `2\sin x` -> number 2, command sin, letter x.

Each character is part of a token or neutral; a text with any other character is refused.
Neutral characters set how an answer looks, not what it means: spacing, sizes of brackets, math
delimiters, a box, underline or colour around the answer, quotes, bold, and a full stop at the end.
`\text` and similar commands only mark their letters as words.
"""

import re
import unicodedata
from typing import NamedTuple

from reckon_verifier.tree import (
    FUNCTIONS,
    MAX_ANSWER_CHARS,
    MAX_TOKENS,
    TooHard,
    Unparsable,
    names,
    pairs,
    remembered,
)
from reckon_verifier.words import HEDGES, is_unit

# The LaTeX command of each Unicode sign, without backslash.
_COMMANDS = pairs(
    "×=times ✕=times ·=cdot ⋅=cdot ∙=cdot ÷=div ±=pm ∓=mp √=sqrt ∛=sqrt[3] ∞=infty ≤=le ⩽=le "
    "≥=ge ⩾=ge ≠=ne ≈=approx ≡=equiv ∈=in ∉=notin ∪=cup ∩=cap ∖=setminus ∅=emptyset ∠=angle "
    "⟨=langle ⟩=rangle ⌊=lfloor ⌋=rfloor ⌈=lceil ⌉=rceil ∑=sum ∏=prod ∫=int λ=lambda Δ=Delta "
    "Φ=Phi Ω=Omega Γ=Gamma Σ=Sigma Π=Pi Θ=Theta →=to ⇒=Rightarrow ↦=mapsto ¬=lnot ∧=land "
    "∨=lor ∀=forall ∃=exists ⊂=subset ⊆=subseteq ⊃=supset ⊇=supseteq ∥=parallel ⊥=perp ∘=circ "
    "≅=cong ∼=sim △=triangle …=ldots ⋯=cdots ✓=checkmark ■=blacksquare "
    "↔=leftrightarrow ⇔=iff ℓ=ell α=alpha β=beta γ=gamma δ=delta ε=epsilon ζ=zeta η=eta θ=theta "
    "ι=iota κ=kappa μ=mu ν=nu ξ=xi ο=omicron π=pi ρ=rho σ=sigma τ=tau υ=upsilon φ=phi χ=chi ψ=psi "
    "ω=omega"
)
_SIGNS = str.maketrans(
    {sign: rf"\{name} " for sign, name in _COMMANDS.items() if len(sign) == 1}
    | pairs(
        "¼=\\frac{1}{4} ½=\\frac{1}{2} ¾=\\frac{3}{4} ⅓=\\frac{1}{3} ⅔=\\frac{2}{3} ⅕=\\frac{1}{5} "
        "⅖=\\frac{2}{5} ⅗=\\frac{3}{5} ⅘=\\frac{4}{5} ⅙=\\frac{1}{6} ⅚=\\frac{5}{6} ⅐=\\frac{1}{7} "
        "⅛=\\frac{1}{8} ⅜=\\frac{3}{8} ⅝=\\frac{5}{8} ⅞=\\frac{7}{8} ⅑=\\frac{1}{9} ⅒=\\frac{1}{10}"
    )
    | pairs("−=- –=- ‐=- ‑=- ⁄=/ ∕=/ ∣=| ′=' ″='' ’=' ，=, 、=, 。=. ；=; ：=:")
    | {"°": r"^\circ ", "º": r"^\circ ", "或": " or ", "且": " and ", "和": " and "}
    # Removed: characters without width (space, byte-order mark, function application).
    | dict.fromkeys("\u200b\ufeff\u2061")
    | {sign: rf"\mathbb{{{letter}}} " for sign, letter in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
)
_CIRCLED = re.compile("[①-⑳][①-⑳, ]*")

_RAISED, _LOWERED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁿ]+"), re.compile("[₀-₉₊₋₍₎]+")
# A control character and the rest of a command that lost its backslash: a tab before "ext" was
# `\text`, a form feed before "rac" was `\frac`.
_DAMAGED = re.compile(
    "\t(?=ext|imes|heta|frac|an\\b|au|o\\b|riangle)|\f(?=rac|box|orall)|\v(?=ec|arphi"
    "|arepsilon|ert|ee)"
    "|[\b](?=eta|inom|oxed|egin|ar|mod)|\r(?=ight|ho|angle|floor|ceil)|\a(?=lpha|ngle|pprox)"
    "|\n(?=eq|abla|otin)"
)
_ESCAPED = dict(zip("\t\f\v\b\r\a\n", "tfvbran", strict=True))
_RAISED_TAG = re.compile(r"<su([pb])>\s*([^<>]*?)\s*</su\1>")
# The two backslashes of `\\frac`, an escaped text; `\\` before any other word ends a row.
_DOUBLED = re.compile(
    r"(?<!\\)\\\\(?=(?:d?frac|tfrac|sqrt|left|right|begin|end|text|pi|cdot|times|infty|boxed|pm|cup"
    r"|in|le|ge|leq|geq|circ|theta|alpha|ln|log|sin|cos|tan|mathbb|mathrm|binom|quad"
    r"|[bB]igg?[lrm]?)(?![a-zA-Z]))"
)


# `\mathrm{d}x`, `\mathrm dx`; the d of `v_\mathrm{d} t` is a subscript, and `\rm dm` a unit.
_DIFFERENTIAL = re.compile(
    r"(?<![_^])\\(?:(?:mathrm|text|operatorname|rm)\s*\{d\}|(?:mathrm|text|operatorname)\s+d)"
    r"\s*([a-z])(?![a-zA-Z])"
)


def repaired(text: str) -> str:
    r"""Restore backslashes that were read as escapes, and mend `<sup>` and unbalanced braces.

    A tab before `ext` was `\text`: JSON and Python read `\t` as a tab. `x<sup>2</sup>` ->
    `x^{2}`; `\frac{1}{2` -> `\frac{1}{2}`; `5}` -> `5`.
    """
    if not text.isprintable():
        text = _DAMAGED.sub(lambda match: "\\" + _ESCAPED[match[0]], text)
    if "<su" in text:
        text = _RAISED_TAG.sub(
            lambda match: f"{'^' if match[1] == 'p' else '_'}{{{match[2]}}}", text
        )
    open_braces = text.count("{") - text.count("}")
    if open_braces == -1 and text.endswith("}") and "\\}" not in text:
        return text[:-1]
    # A text cut at its end lacks a few closing braces; `\{` was counted as `{`.
    is_cut = 0 < open_braces < 4 and "\\{" not in text and text[-1] not in "{^_"
    return text + "}" * open_braces if is_cut else text


def _ascii(text: str) -> str:
    r"""Write Unicode's mathematical signs as LaTeX: `½` -> `\frac{1}{2}`, `x²` -> `x^{2}`.

    Raises:
        Unparsable: a sign has another meaning than its ASCII letter or digit: bold `𝐯`, `5①`.
    """
    # A list of options, `①②` -> `1,2`. The circled numbers begin with ① at 0x2460.
    if _CIRCLED.fullmatch(text):
        return ",".join(str(ord(sign) - 0x245F) for sign in text if sign not in ", ")
    if any(map(_is_marked, _LOWERED.sub("", _RAISED.sub("", text)).translate(_SIGNS))):
        raise Unparsable("a letter of a mathematical alphabet, or a digit in a circle")
    text = _LOWERED.sub(r"_{\g<0>}", _RAISED.sub(r"^{\g<0>}", text))
    # `_SIGNS` comes before NFKC, which writes `½` as `1⁄2` (`5½` would be 51/2), and after it, for
    # signs that it returns.
    return unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)


def _is_marked(sign: str) -> bool:
    """Return True if NFKC would drop a mark that has a meaning: `𝐯` is no v, and `5①` no 51.

    False for italics, `𝑣`: an italic v is only a v.
    """
    tag = unicodedata.decomposition(sign).partition(" ")[0]
    if tag == "<font>":
        # Unicode has the italic h apart from the other letters, as Planck's constant.
        return sign != "ℎ" and not unicodedata.name(sign).startswith("MATHEMATICAL ITALIC")
    has_digit = any(map(str.isdigit, unicodedata.normalize("NFKC", sign)))
    return tag in ("<circle>", "<square>", "<super>", "<sub>") or (tag == "<compat>" and has_digit)


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: "number", "letter", "command", "separator", "operator", "end" or one of `WORDS`.
        text: the token's text; a command's name has no backslash.
    """

    kind: str
    text: str


END = Token("end", "")
WORDS = ("word", "text", "name")
"""Kinds of words: plain words, words in `\\text` and similar commands, and names such as AB."""
# The braces of a LaTeX group; the braces of a set are `{set` and `}set`.
OPEN, CLOSE = Token("operator", "{"), Token("operator", "}")

CANONICAL_NAME = pairs(
    "dfrac=frac tfrac=frac cfrac=frac leq=le geq=ge neq=ne leqslant=le geqslant=ge lt=< gt=> "
    "cdotp=cdot varnothing=emptyset varphi=phi vartheta=theta varepsilon=epsilon "
    "lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ |=‖ colon=: backslash=setminus "
    "smallsetminus=setminus bigcup=cup bigcap=cap doteq=approx lbrace={set "
    "rbrace=}set {={set }=}set lbrack=[ rbrack=] lparen=( rparen=) oo=infty inf=infty "
    "infinity=infty Infinity=infty union=cup imaginaryI=i exponentialE=e rightarrow=to "
    "longrightarrow=to Rightarrow=to Longrightarrow=to implies=to leftrightarrow=iff "
    "Leftrightarrow=iff Longleftrightarrow=iff neg=lnot wedge=land vee=lor dotsc=ldots "
    "dotsb=ldots dots=ldots cdots=ldots dotsm=ldots dbinom=binom tbinom=binom overrightarrow=vec "
    "bar=overline asin=arcsin acos=arccos atan=arctan acot=arccot tg=tan ctg=cot "
    "arctg=arctan cosec=csc ceiling=ceil asinh=arsinh acosh=arcosh atanh=artanh arcsinh=arsinh "
    "arccosh=arcosh arctanh=artanh GCD=gcd LCM=lcm Max=max Min=min sign=sgn log10=lg Abs=abs "
    "widehat=hat not=ne notmid=nmid noteq=ne measuredangle=angle prime='"
)
"""A command's or sign's other name -> the one that its token has: `\\dfrac` is `frac`."""
_SIGN_FOR = {"<=": "le", ">=": "ge", "!=": "ne", "==": "=", ":=": "=", "**": "^", "->": "to",
             "=>": "to", "<->": "iff", "...": "ldots"}  # fmt: skip

_PLAIN = (
    FUNCTIONS
    | names(
        "infty oo inf infinity Infinity asin acos atan asinh acosh atanh arcsinh arccosh arctanh "
        "ceiling GCD LCM Max Min sign log10 Abs pi theta alpha beta gamma delta lambda omega phi "
        "union emptyset mod"
    )
) - names("Re Im Gamma")
"""Words that are commands also without a backslash."""

_UPRIGHT = names(
    "mathrm mathit mathsf rm it emph text mbox textbf textrm textit textsf texttt textup "
    "operatorname hbox textnormal mathtt"
)
# Each becomes a prefix of the letter's name: `\mathbf{v}` is bf:v, `\mathbb{R}` is bb:R.
_BOLD = pairs("mathbf=bf boldsymbol=bf bm=bf bf=bf mathcal=cal mathscr=cal mathfrak=frak mathbb=bb")
# Commands that draw a frame or a line around their argument, and style no letters.
_FRAMES = names("boxed fbox framebox beginboxed underline")
_NEUTRAL = (
    # Spacing; `\left.` and `\right.`, brackets that are not drawn.
    r"\s+|~|\\[,;:! ]|\\(?:left|right)\s*\.(?!\d)|\\q?quad"
    r"|\\(?:thinspace|negthinspace|negmedspace|negthickspace|medspace"
    r"|thickspace|nobreakspace|hfill|newline|par|displaystyle|textstyle|limits|nolimits|mathstrut"
    r"|left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])|\\hspace\*?\{[^{}]*\}|\\[()\[\]]|\$"
    r"|\\(?:text)?color\{[a-zA-Z]+\}"
)
_NUMBER = (
    # Digits that repeat: `2.(6)`, `0.\overline{3}`, `0.1\dot{6}`, `0.333\ldots`.
    r"\d*\.\d*\(\d+\)(?!\d)|\d*\.\d*\\overline\s*\{\d+\}|\d*\.\d*(?:\\dot\s*\{?\d\}?)+"
    r"|\d*\.\d+\s*(?:\\ldots|\\dots|\\cdots|\.\.\.)"
    # Groups of three digits: `1{,}234`, `1,\!234`, `1\,234`, `1'234`, `1 234.50`.
    r"|(?<![\^_])\d{1,3}(?:(?: ?\{ ?, ?\} ?|, ?\\! ?"
    r"|\\[,!;:] ?|'| )\d{3})+(?![\d/])(?:[MARK]\d{1,2}(?!\d))?"
    r"|\d{1,3}(?:\.\d{3})+(?<=\.\d{3}\.\d{3})(?!,\d{1,2}(?!\d))(?![\d.])"
    # `_SEPARATE` has nothing for GROUPED. Then `1.5`, `.5`, the `3.` of `3./4`, and `12`.
    r"|GROUPED\d+\.\d+|\.\d+|\d+\.(?=/)|\d+(?:(?=[eE][+-]?\d))?"
)
# One token or one neutral piece; `_Scanner._read` reads the name of the group that matched.
_PATTERN = (
    rf"(?P<neutral>{_NEUTRAL})"
    rf"|\\(?P<style>{'|'.join(sorted(_UPRIGHT | _BOLD.keys() | _FRAMES, key=len, reverse=True))})"
    r"\*?(?![a-zA-Z])\s*(?P<open>\{)?"
    rf"|(?P<number>(?:{_NUMBER})(?:[eE][+-]?\d{{1,3}}(?![\d.]))?)"
    r"|\\not\s*(?:=|\\(?P<denied>[a-z]+))"
    r"|(?P<command>\\(?:[A-Za-z]+|[{}%|_&#\\$]))"
    r"|(?P<word>[^\W\d_]+)"
    r"|(?P<operator>\*\*|<->|->|<=|>=|(?<![!\w)}\]])!=(?!=)|==|:=|=>|\.\.\.|[-+*/^_=<>()\[\]{}|,;:!%'&?.€£¥₹])"
)
# Inside brackets, where "1,234" is two numbers; and outside, where it is one.
_SEPARATE = re.compile(_PATTERN.replace("GROUPED", "").replace("[MARK]", r"\."))
_GROUPS = r"[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)(?!\.)|"
_GROUPING = re.compile(_PATTERN.replace("GROUPED", _GROUPS).replace("[MARK]", "[.,]"))
_DEPTH = {"(": 1, "[": 1, "{set": 1, "langle": 1, ")": -1, "]": -1, "}set": -1, "rangle": -1}
_APART = re.compile(r"\\(?:q?quad|hspace|hfill|newline|par$)")
"""Spacing that separates: `a \\quad b` is no product."""
_BETWEEN = names(
    "in notin le ge ne approx equiv to iff land lor cup cap setminus pm mp times cdot "
    "div forall end \\\\ & % }set mid checkmark blacksquare square"
)
# Roman numerals and nothing else: `iv`, `(ii), (iv)`.
_ROMAN = re.compile(r"(?:[ivx]|and|or|[\s$(),.;{}])*")
# Other pairs of small letters, `xy`, are a product, a differential or a unit.
_TWO_LETTERS = names("is it of to so we be in as if no on an by at do he us my am pm or vs")
_PLAIN_UNITS = names("cm mm km kg ft lb yd oz hr ml mL kJ kW Hz Pa")
"""Units of two letters that are units also in plain letters; `mg` may be a product, m times g."""
_SEPARATORS = pairs("and=and or=or land=and lor=or ,=, ;=;")
_VOWEL = re.compile("[aeiouyAEIOUY]|[^a-zA-Z]")
_SIGN_WORDS = pairs(
    "percent=% percents=% percentage=% pct=% degree=degree degrees=degree deg=degree"
)
# Spacing and end signs after an answer: `5 \quad \blacksquare`.
_END_MARKS = re.compile(
    r"[\s$]*(?:\\(?:checkmark|blacksquare|square|qquad|quad|ldotp|\\|,|;|!| |$)[\s$]*)+$"
)
# Marks that are written like exponents: `30^\circ`, `f^{\prime}`.
_ON_TOP = ("degree", "circ", "'", "''", "'''")
# Marks that may be in `\text{…}` beside letters: `\text{(B)}`.
_MARKS = ("(", ")", ".", ":", "%", "degree")
_WRAPPINGS = (("```", "```"), ("**", "**"), ("`", "`"), ('"', '"'), ("“", "”"), ("``", "''"))
CURRENCIES = frozenset("$€£¥₹")


@remembered(8192)
def tokenize(text: str) -> tuple[Token, ...]:
    r"""Return the tokens of `text`, without the end token.

    `x^2 \text{ cm}` -> letter x, operator ^, number 2, text cm. "1,234" is one number, except
    between brackets: in `(1,234)` the comma separates.

    Raises:
        Unparsable: a character is neither part of a token nor neutral, braces do not match, or the
            notation is ambiguous (`x2`).
        TooHard: a limit of length is passed.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise TooHard(f"more than {MAX_ANSWER_CHARS} characters")
    text = repaired(text)
    text = text if text.isascii() else _ascii(text)
    text = _DIFFERENTIAL.sub(r" d\1", text)
    scanner = _Scanner(_DOUBLED.sub(r"\\", _unwrapped(text)))
    scanner.run()
    return tuple(scanner.tokens)


def canonical(tokens: tuple[Token, ...]) -> str:
    r"""Join the texts of tokens with spaces; words of three letters or more are in lower case.

    The tokens of `The area is 2\pi` give `the area is 2 \pi`. Two texts with the same tokens have
    the same canonical text.
    """
    return " ".join(map(_spelled, tokens))


_CAPITAL_WORDS = names(
    "yes true none even odd all any real the zero one two six ten four five nine half noon may "
    "june july jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun left "
    "east west both and not per"
)


def _spelled(token: Token) -> str:
    r"""Return a token's canonical text: `\pi` for a command, words in lower case, else as it is."""
    if token.kind == "command":
        return f"\\{token.text}"
    lower = token.text.lower()
    # Two letters are a word only if listed, "is"; others, `Ab`, may be names and keep their case.
    is_word = token.kind in WORDS and (len(token.text) > 2 or lower in _TWO_LETTERS)
    # `XYZ` may be a product or a figure, and is no `xyz`; "YES" is a word.
    is_name = token.text.isupper() and len(lower) in (3, 4) and lower not in _CAPITAL_WORDS
    return lower if is_word and not is_name else token.text


_EUROPEAN = re.compile(r"(\d{1,3}(?:\D+\d{3})+),(\d{1,2})")


def _plain_number(text: str) -> str:
    """Return a literal without grouping of its digits, and with a decimal point.

    `1 234` -> `1234`; `1,234.50` -> `1234.50`; `1.234,56` -> `1234.56`. A literal with repeating
    digits, `2.(6)`, loses only its spaces.
    """
    if "(" in text or "\\overline" in text or "dot" in text or "..." in text:
        return re.sub(r"\s", "", text)
    # `1.234,56`: a comma after groups of digits is the decimal point.
    if european := _EUROPEAN.fullmatch(text):
        text = re.sub(r"\D", "", european[1]) + "." + european[2]
    mantissa, exponent_mark, power = text.lower().partition("e")
    mantissa = mantissa if mantissa.count(".") < 2 else mantissa.replace(".", "")
    return re.sub(r"[^\d.]", "", mantissa) + exponent_mark + power


def says_something(text: str) -> bool:
    r"""Return True if a text has a letter or digit, apart from spacing and empty commands.

    False for `$ $` and `\text{}`; True for `\text{5}` and `\pi`.
    """
    text = _EMPTY_COMMAND.sub("", text[:MAX_ANSWER_CHARS])
    return any(map(str.isalnum, re.sub(_NEUTRAL, "", text)))


_EMPTY_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{\s*\}")


def _unwrapped(text: str) -> str:
    r"""Remove the marks around a text: quotes, bold, an end sign (■, ✓).

    Also spacing commands at its end, such as `\quad`. `**"5"**` -> `5`.
    """
    # A mark may be inside another one: repeat until nothing changes.
    while True:
        before = text
        text = text.strip()
        # The search takes time quadratic in a run of spaces or marks (4,000 spaces: 1.3 s).
        if len(text) < 3000 and (mark := _END_MARKS.search(text)) and mark.start():
            text = text[: mark.start()]
        for opening, closing in _WRAPPINGS:
            inside = text[len(opening) : len(text) - len(closing)]
            # The marks must be around the whole: `"a" or "b"` keeps its quotes.
            is_around = f"{opening}{inside}{closing}" == text
            if is_around and inside and opening not in inside and closing not in inside:
                text = inside
        if text == before:
            return text


class _Scanner:
    r"""Turns a text into tokens in one pass.

    Attributes:
        text: the text, after `repaired`, `_ascii` and `_unwrapped`.
        tokens: the tokens so far.
        depth: number of open brackets, without the braces of LaTeX groups.
        end: index in the text after the current match.
        groups: a stack of the open braces: for each, its style (`mathrm`, or '' for a plain brace)
            and the index of its token.
        next_style: style of the next token only: `\mathrm d`.
        currency: index of a dollar sign that is a currency; -1 if there is none, or if the text
            has `\$` first, so that a single `$` is a stray delimiter.
        is_apart: whether `\quad` precedes the next token.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.depth = self.end = 0
        self.groups: list[tuple[str, int]] = []
        self.next_style = ""
        self.is_apart = False
        # Math delimiters come in pairs: if the number of dollars is odd, the first is a currency.
        self.currency = text.find("$") if len(re.findall(r"(?<!\\)\$", text)) % 2 else -1

    def run(self) -> None:
        """Read the whole text into `tokens`.

        Raises:
            Unparsable, TooHard: see `tokenize`.
        """
        position = 0
        while position < len(self.text):
            pattern = _SEPARATE if self.depth else _GROUPING
            match = pattern.match(self.text, position)
            if match is None:
                raise Unparsable(f"unexpected {self.text[position]!r}")
            # A `$` is neutral (a math delimiter), except one without a partner: a currency.
            if position == self.currency:
                self.tokens.append(Token("text", "$"))
            else:
                self._read(match)
            position = match.end()
            if len(self.tokens) > MAX_TOKENS:
                raise TooHard("tokens")
        if self.groups:
            raise Unparsable("a group that is not closed")

    @property
    def style(self) -> str:
        """The style in force, such as `mathrm`, or ''; plain braces inside a style keep it."""
        return self.next_style or next((style for style, _ in self.groups[::-1] if style), "")

    def _read(self, match: re.Match[str]) -> None:
        r"""Add the token of a match of `_PATTERN`; `\text{` opens a group of its style instead.

        Neutral text adds nothing.
        """
        kind, text, self.end = match.lastgroup, match[0], match.end()
        if kind == "neutral":
            if text == "~" and not self.tokens:
                # Before an answer, ~ means about.
                raise Unparsable("~ before an answer")
            self.is_apart |= bool(_APART.match(text))
            return
        # `a \quad b` is no product.
        if self.is_apart and self._joins(match):
            raise Unparsable("a wide space between factors")
        self.is_apart = False
        if match["style"]:
            if match["open"]:
                self.groups.append((match["style"], len(self.tokens)))
                self.tokens.append(OPEN)
            # `\mathrm d`, without a brace, styles the next token only; `\boxed` and `\underline`
            # (`_FRAMES`) style no letters.
            elif match["style"] not in _FRAMES:
                self.next_style = match["style"]
            return
        if kind == "number":
            self._add_number(match)
        elif kind == "command":
            self._add_sign(CANONICAL_NAME.get(text[1:], text[1:]), is_command=True)
        elif kind == "word":
            self._add_word(text, match.start())
        elif kind == "operator":
            self._add_sign(_SIGN_FOR.get(text, text), is_command=False)
        else:
            name = f"not{match['denied'] or ''}"
            self._add_sign(CANONICAL_NAME.get(name, name), is_command=True)
        self.next_style = ""

    def _joins(self, match: re.Match[str]) -> bool:
        r"""Return True if a match after a wide space would be a factor, as the b of `a \quad b`.

        False if it begins words in a style, `5 \quad \text{for}`, or is `\forall`; after a
        separator, `1, \quad 2`; and for a sign between two sides, `a \quad = b`.
        """
        last = self.tokens[-1] if self.tokens else END
        is_sign = match.lastgroup == "operator" and match[0] not in ("(", "[", "{", "|")
        name = CANONICAL_NAME.get(match[0][1:], match[0][1:])
        is_between = is_sign or match["style"] in _UPRIGHT or name in _BETWEEN
        return not (is_between or last.kind in ("end", "separator"))

    def _add_number(self, match: re.Match[str]) -> None:
        """Add a number; digits that are a symbol, or directly after a letter, are refused."""
        # `\mathbb{1}` is a symbol, and a bold 0 the zero vector; digits in bold are a number.
        if _BOLD.get(self.style, "bf") != "bf":
            raise Unparsable("digits as a symbol")
        if self.style in _BOLD and match[0] == "0":
            raise Unparsable("a zero vector")
        last = self.tokens[-1] if self.tokens else END
        # `x2` may be x_2 or a product, and is refused; `k2^n` is k · 2^n, and `x 2` a product.
        is_base = self.text.startswith("^", match.end())
        if last.kind == "letter" and self.text[match.start() - 1].isalpha() and not is_base:
            raise Unparsable("digits after a letter")
        self.tokens.append(Token("number", _plain_number(match[0])))

    def _add_sign(self, name: str, *, is_command: bool) -> None:
        """Add the token of a command or sign, such as "le" or "+", and count brackets.

        `name` has no backslash. If a command has several names, it is the one of `CANONICAL_NAME`.
        """
        if name == "{":
            self.groups.append(("", len(self.tokens)))
        # The brace of a group; the brace of a set, `\}`, has the name "}set".
        if name == "}" and not is_command:
            return self._close()
        last = self.tokens[-1].text if self.tokens else ""
        if last == "^" and name in _ON_TOP:
            # `30^\circ` and `f^'` have no exponent: the mark replaces the "^".
            self.tokens.pop()
            name = "degree" if name == "circ" else name
        # A second or third prime joins the last token: {*last} are its different characters.
        if name == "'" and {*last} == {"'"}:
            self.tokens[-1] = Token("operator", f"{last}'")
            return None
        # A comma, a semicolon, "and" (`\land`) or "or" (`\lor`).
        if separator := _SEPARATORS.get(name):
            self.tokens.append(Token("separator", separator))
            return None
        self.depth += _DEPTH.get(name, 0)
        if name in CURRENCIES:
            self.tokens.append(Token("text", name))
        elif name in FUNCTIONS or (name.isalpha() and len(name) > 1):
            self.tokens.append(Token("command", name))
        else:
            is_letters = name.isalpha() and len(name) == 1
            self.tokens.append(Token("letter" if is_letters else "operator", name))
        return None

    def _close(self) -> None:
        r"""Close the innermost group; drop its braces if they do not matter to the parser.

        Dropped: braces around one token that is no argument (`{5}`, `2^{10}`), those of a style
        around words (`\text{cm}`), and those around a raised mark (`30^{\circ}`). Kept:
        `\frac{1}{2}`.
        """
        if not self.groups:
            raise Unparsable("a group that is not open")
        style, start = self.groups.pop()
        inside = self.tokens[start + 1 :]
        # The token before the group, and the only token in it; END if there is none, or several.
        before = self.tokens[start - 1] if start else END
        only = inside[0] if len(inside) == 1 else END
        has_words = any(token.kind in (*WORDS, "separator") for token in inside)
        # `\text{(B)}`, `\mathrm{d}`, `\text{ percent}`: letters and marks, which need no group.
        is_mark = all(token.kind == "letter" or token.text in _MARKS for token in inside)
        # Not of a frame such as `\boxed`; `x_{\text{a b}}` keeps its braces.
        is_text = style and style not in _FRAMES and before.text not in ("^", "_")
        # Braces stay around an argument, as in `\frac{1}{2}`.
        is_plain = only.kind in ("number", "letter", *WORDS) and before != CLOSE
        is_plain &= before.kind in ("operator", "separator", "end", *WORDS)
        # The style is around the whole answer: `\mathrm{x+1}`.
        is_whole = not start and not self.text[self.end :].strip(" $.")
        if is_plain or (is_text and (has_words or is_mark or is_whole or only.text in FUNCTIONS)):
            del self.tokens[start]
        elif before.text == "^" and only.text in _ON_TOP:
            del self.tokens[start:]
            self._add_sign(only.text, is_command=True)
        else:
            self.tokens.append(CLOSE)

    def _add_word(self, run: str, start: int) -> None:
        r"""Add a run of letters, whose first is at index `start` of the text.

        It becomes a letter (`x`), a separator (`and`), a command (`sin`), a unit (`kg` after a
        number), a word (`was`), a name (`AB`), or a differential (`dx`). Any other run is a
        product, and each of its letters a token: `xy`. The branches are tried in order.
        """
        style, lower, previous_char = self.style, run.lower(), self.text[start - 1 : start]
        prefix = _BOLD.get(style, "")
        name = f"{prefix}:{run}" if prefix else run
        # The last token, without opening braces after it.
        last = next((token for token in self.tokens[::-1] if token != OPEN), END)
        # A unit may come after a value, `5 kg`, `(x + 1) kg`, or after the slash of another unit.
        follows_value = last.kind == "number" or last.text in (")", "}", "/", "pi", "mu", "degree")
        is_styled_unit = (
            style in _UPRIGHT and (follows_value or last.kind == "text") and is_unit(run)
        )
        # A unit without `\text`: three letters or more, or a listed one, such as `km`. "in" is an
        # inch only after a space, as in `5 in`.
        is_plain_unit = (
            len(run) > 2 or run in _PLAIN_UNITS or (run == "in" and previous_char.isspace())
        )
        # Two ASCII letters without an upright style are a product, `xy`, unless both are capitals.
        is_word = len(run) > 2 or not run.isascii() or style in _UPRIGHT or run.isupper()
        kind = ""
        if len(run) == 1 and run.isascii() and not is_styled_unit:
            kind = "letter"
        elif lower in ("and", "or"):
            kind, name = "separator", lower
        elif run in _PLAIN and not prefix:
            self._add_sign(CANONICAL_NAME.get(run, run), is_command=True)
        elif follows_value and lower in _SIGN_WORDS:
            self._add_sign(_SIGN_WORDS[lower], is_command=True)
        elif (
            is_styled_unit
            or (is_plain_unit and follows_value and is_unit(run))
            or (run in ("st", "nd", "rd", "th") and (last.kind == "number" or last.text == "^"))
        ):
            kind, name = "text", run
        # `iv` by itself is a Roman numeral, and not `vi`.
        elif len(run) == 2 and not prefix and _ROMAN.fullmatch(self.text):
            kind = "word"
        elif len(run) == 2 and not style and run.islower() and run[0] == "d" and run != "do":
            kind = "letter"
        # Bold capitals are letters, not words: `\mathbf{AB}`.
        elif (is_word and not (prefix == "bf" and run.isupper())) or lower in _TWO_LETTERS:
            # A word beside mathematics, in capitals or without a vowel is a name; a hedge ("NOT")
            # is always a word.
            is_name = re.match(r"[\w)}^]", previous_char) or run.isupper() or not _VOWEL.search(run)
            is_name = is_name and lower not in HEDGES
            kind = "name" if is_name or prefix else "word"
            if style in _UPRIGHT:
                kind = "text"
            name = name if len(run) < 3 else run
        else:
            self.tokens += [Token("letter", f"{prefix}:{x}" if prefix else x) for x in run]
        if kind:
            self.tokens.append(Token(kind, name))
