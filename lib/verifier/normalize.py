"""One spelling for one answer: Unicode, spacing, delimiters, thousands separators; and its tokens.

`normalize` is idempotent. It changes how an answer is written, never what it says.
"""

import functools
import re
import unicodedata
from typing import NamedTuple

from lib.verifier.tree import MAX_ANSWER_CHARS, MAX_TOKENS, TooHard, Unparsable
from lib.verifier.vocabulary import (
    DEGREE_WORDS,
    HEDGES,
    ONE_FOR,
    PERCENT_WORDS,
    PLAIN_GREEK,
    PLAIN_WORDS,
    STYLES,
    is_unit,
    pairs,
)

_COMMANDS = pairs(
    "×=times ✕=times ·=cdot ⋅=cdot ∙=cdot ÷=div ±=pm ∓=mp √=sqrt ∛=sqrt[3] ∞=infty ≤=le ⩽=le "
    "≥=ge ⩾=ge ≠=ne ≈=approx ≡=equiv ∈=in ∪=cup ∩=cap ∖=setminus ∅=emptyset ∠=angle ⟨=langle "
    "⟩=rangle ⌊=lfloor ⌋=rfloor ⌈=lceil ⌉=rceil ∑=sum ∏=prod ∫=int λ=lambda Δ=Delta Φ=Phi Ω=Omega "
    "Γ=Gamma"
) | {
    chr(code): unicodedata.name(chr(code)).rsplit(" ", 1)[-1].lower()
    for code in range(0x3B1, 0x3CA)
    if code not in (0x3BB, 0x3C2)
}
_SIGNS = str.maketrans(
    {sign: rf"\{name} " for sign, name in _COMMANDS.items()}
    | pairs("−=- –=- —=- ‐=- ‑=- ⁄=/ ∕=/ ∣=| ′=' ’=' ，=, 、=,")
    | {"°": r"^\circ ", "或": " or ", "且": " and ", "和": " and "}
)
_BEFORE = str.maketrans("º", "°", "“”„\u200b\ufeff\u2061\u2062") | str.maketrans(
    {sign: rf"\mathbb{{{letter}}} " for sign, letter in zip("ℝℤℕ", "RZN", strict=True)}
)
_CIRCLED = re.compile("[①-⑳]")
_VULGAR = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")

_DOUBLED = re.compile(
    r"(?<!\\)\\\\(?=(?:d?frac|tfrac|sqrt|left|right|begin|end|text|pi|cdot|times|infty|boxed|pm|cup"
    r"|in|le|ge|leq|geq|circ|theta|alpha|ln|log|sin|cos|tan|mathbb|mathrm|binom|quad)(?![a-zA-Z]))"
)
_GROUPED_NUMBER = re.compile(
    r"(?<![\d.,^_])\d{1,3}(?:(?: ?\{ ?, ?\} ?|, ?\\! ?|\\[,!;: ]|~| )\d{3})+(?![\d/])"
)
_SEPARATOR = re.compile(r" ?\{ ?, ?\} ?|, ?\\! ?|\\.|~| ")
_NOISE = re.compile(
    r"\\(?:left|right)\s*\.(?!\d)|\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|mathstrut|strut"
    r"|thinspace|negthinspace|negmedspace|negthickspace|medspace|thickspace|nobreakspace"
    r"|hfill|newline|par)(?![a-zA-Z])|\\q?quad|(?<!\\)\\[,;:! ]|\\hspace\*?\{[^{}]*\}|~"
    r"|(?<!\\)\\[()\[\]]|\\?\$|\\(?:color|phantom|vphantom)\{[^{}]*\}"
)
_SPACES = re.compile(r"\s+")
_START = re.compile(
    r"^(?:[\s\"`:;,]|=(?!=)|\.(?!\d)|\\(?:therefore|implies|Rightarrow|approx)(?![a-zA-Z])"
    r")+"
)
_CURRENCIES = pairs(
    r"\$=dollars $=dollars USD=dollars €=euros EUR=euros £=GBP GBP=GBP ¥=yuan ₹=rupees Rs=rupees "
    "Rs.=rupees INR=rupees"
)
_MARK = r"(\\\$|\$(?=[^$]*$)|[€£¥₹]|USD|EUR|GBP|INR|Rs\.?)"
_AMOUNT = r"(-?(?:\.?\d[\d.,{}!\\ ]*|\\[dt]?frac\{-?\d+\}\{\d+\}))"
_MONEY = re.compile(rf"(-?)\s*{_MARK}\s*{_AMOUNT}|{_AMOUNT}\s*([€£¥₹])")
_HAS_MARK = re.compile("[$€£¥₹]|[A-Z]{3}|Rs")
_DAMAGED = re.compile(
    "\t(?=ext|imes|heta|frac|an\\b|au|o\\b|riangle)|\f(?=rac|box|orall)|\v(?=ec|arphi|arepsilon|ert|ee)"
    "|[\b](?=eta|inom|oxed|egin|ar|mod)|\r(?=ight|ho|angle|floor|ceil)|\a(?=lpha|ngle|pprox)"
    "|\n(?=eq|abla|otin)"
)
_ESCAPED = dict(zip("\t\f\v\b\r\a\n", "tfvbran", strict=True))
_RAISED_TAG = re.compile(r"<su([pb])>\s*([^<>]*?)\s*</su\1>")
_EMPTY_EXPONENT = re.compile(r"\^\s*\{\s*\}\s*")
_NOT = re.compile(r"\\not\s*(?:=|\\(?:eq|equiv)(?![a-zA-Z]))")
_WRAPPED = re.compile(r"(\{+)([^{}\\]*)(\}+)")
_MAX_ROUNDS = 8


def normalize(text: str) -> str:
    """`text` in one spelling; see the module. Linear in the length."""
    for _ in range(_MAX_ROUNDS):
        before = text
        text = _once(text)
        if text == before:
            break
    return text


def repaired(text: str) -> str:
    r"""`text` as it was before an escape ate its backslash, with `<sup>` and open braces mended."""
    if not text.isprintable():
        text = _DAMAGED.sub(lambda match: "\\" + _ESCAPED[match[0]], text)
    if "<su" in text:
        text = _RAISED_TAG.sub(
            lambda match: f"{'^' if match[1] == 'p' else '_'}{{{match[2]}}}", text
        )
    open_braces = text.count("{") - text.count("}")
    is_cut = 0 < open_braces < 4 and "\\{" not in text and text[-1] not in "{^_"
    return text + "}" * open_braces if is_cut else text


def _once(text: str) -> str:
    if len(text) <= MAX_ANSWER_CHARS:
        if _HAS_MARK.search(text) and (match := _MONEY.fullmatch(text)):
            sign, mark, amount, other, after = match.groups(default="")
            text = rf"{sign}{amount}{other} \text{{ {_CURRENCIES[mark or after]}}}"
        if not text.isascii():
            text = _ascii(text)
        text = _DOUBLED.sub(r"\\", text)
        text = _GROUPED_NUMBER.sub(lambda match: _SEPARATOR.sub("", match[0]), text)
        text = _EMPTY_EXPONENT.sub("^", text)
        text = _NOT.sub(r"\\ne ", text)
        text = _NOISE.sub(" ", text)
        text = _SPACES.sub(" ", text)
    text = _without_ending(_START.sub("", text.strip()).removesuffix("^"))
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        return text[2:-2]
    wrapped = _WRAPPED.fullmatch(text)
    is_closed = wrapped and len(wrapped[1]) == len(wrapped[3])
    return wrapped[2].strip() if wrapped and is_closed else text


def _without_ending(text: str) -> str:
    """Without punctuation and line breaks at the end; by hand, since `$` would be quadratic."""
    end = len(text)
    while end:
        if text[end - 1] in ' \t\n.,;:"`\\':
            end -= 1
        elif text.endswith("\\ldotp", 0, end):
            end -= len("\\ldotp")
        else:
            break
    return text[:end]


def _ascii(text: str) -> str:
    text = _CIRCLED.sub(lambda match: f"{ord(match[0]) - 0x245F},", text)
    text = _VULGAR.sub(_fraction, text.translate(_BEFORE))
    text = _RAISED.sub(r"^{\g<0>}", text)
    text = _LOWERED.sub(r"_{\g<0>}", text)
    return unicodedata.normalize("NFKC", text).translate(_SIGNS)


def _fraction(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: "number", "letter", "command", "text", "separator", "operator" or "end".
        text: what it says; of a command the name without backslash.
    """

    kind: str
    text: str


END = Token("end", "")

_STYLE_NAMES = "|".join(sorted(STYLES, key=len, reverse=True))
_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?|"
_PATTERN = (
    r"(?P<space>\s+)"
    rf"|\\(?:{_STYLE_NAMES})\*?\s*\{{(?P<style>[^{{}}]*)\}}"
    r"|(?P<number>GROUPED(?:\d+(?:\.\d+|\.(?!\d))?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<command>\\(?:[A-Za-z]+|[{}%|_&#\\]))"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<operator>\*\*|<=|>=|!=|==|:=|=>|[-+*/^_=<>()\[\]{}|,;:!%'&])"
)
_SEPARATE = re.compile(_PATTERN.replace("GROUPED", ""))
_GROUPING = re.compile(_PATTERN.replace("GROUPED", _GROUPED))
_DEPTH = {"(": 1, "[": 1, "{set": 1, ")": -1, "]": -1, "}set": -1}
_CHOICE = re.compile(r"[\s(\[]*([A-Za-z])[\s)\].:]*")
_JOINING = ("and", "or", ",", ";")
_OPERATORS = {"**": "^", "<=": "le", ">=": "ge", "!=": "ne", "==": "=", ":=": "=", "=>": "ge"}
_SIGN_WORDS = {"to": ":", "per": "/"}
_VOWEL = re.compile("[aeiouyAEIOUY]")


def tokenize(text: str) -> list[Token]:
    """Tokens of `text`, the last one of kind "end".

    "1,234" is one number, except between brackets, where a comma more often separates.

    Raises:
        Unparsable: a character that is no part of mathematics.
        TooHard: more than `MAX_TOKENS`.
    """
    tokens: list[Token] = []
    position = depth = 0
    while position < len(text):
        pattern = _SEPARATE if depth else _GROUPING
        match = pattern.match(text, position)
        if match is None:
            raise Unparsable(f"unexpected {text[position]!r}")
        position = match.end()
        if match.lastgroup != "space":
            new = _tokens(match, tokens)
            for token in new:
                depth += _DEPTH.get(token.text, 0)
                tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            raise TooHard(f"more than {MAX_TOKENS} tokens")
    return [*tokens, END]


def _tokens(match: re.Match[str], before: list[Token]) -> list[Token]:
    kind, text = match.lastgroup, match[0]
    if kind == "number":
        return [Token("number", text.replace(",", ""))]
    if kind == "operator":
        return [Token("operator", _OPERATORS.get(text, text))]
    if kind == "command":
        return [_command(text[1:])]
    follows_value = bool(before) and (
        before[-1].kind in ("number", "text") or before[-1].text in (")", "}", "/", "pi", "mu")
    )
    if kind == "word":
        return list(_word(text, follows_value))
    content = match["style"].strip(" ~")
    if follows_value and is_unit(content):
        return [Token("text", content)]
    return _styled(text, content)


def _command(name: str) -> Token:
    name = ONE_FOR.get(name, name)
    if name in _JOINING:
        return Token("separator", name)
    if name in ("{", "}"):
        return Token("operator", f"{name}set")
    is_operator = name in ("{set", "}set", *"<>|()[]:%_&")
    return Token("operator" if is_operator else "command", name)


def _known_word(word: str) -> Token | None:
    """A word that means a separator, a name of mathematics, percent or degrees."""
    lower = word.lower().strip(".")
    if lower.strip(", ") in _JOINING:
        return Token("separator", lower.strip(", "))
    if word in PLAIN_WORDS or word in PLAIN_GREEK:
        return _command(word)
    if lower in PERCENT_WORDS:
        return Token("operator", "%")
    return Token("command", "degree") if lower in DEGREE_WORDS else None


@functools.lru_cache(maxsize=1024)
def _word(word: str, follows_value: bool) -> tuple[Token, ...]:
    """Tokens of letters without a backslash: a name, a unit, a word or a product of letters."""
    if len(word) == 1:
        return (Token("letter", word),)
    if known := _known_word(word):
        return (known,)
    if word in _SIGN_WORDS and follows_value:
        return (Token("operator", _SIGN_WORDS[word]),)
    if word.lower() in HEDGES:
        return (Token("text", word),)
    # Long enough, with a vowel, and not in capitals: a word rather than a product.
    is_english = len(word) >= 4 and _VOWEL.search(word) and word[1:].islower()
    if is_english or (follows_value and is_unit(word)):
        return (Token("text", word),)
    return tuple(Token("letter", letter) for letter in word)


def _styled(whole: str, content: str) -> list[Token]:
    r"""Tokens of `\text{…}` and its like."""
    inside = content.strip()
    if not inside:
        return []
    if known := _known_word(inside):
        return [known]
    if choice := _CHOICE.fullmatch(inside):
        is_set = whole.startswith("\\mathbb")
        return [Token("command", f"mathbb{choice[1]}") if is_set else Token("letter", choice[1])]
    return [Token("text", inside)]
