"""One spelling for one answer: Unicode, spacing, delimiters and thousands separators.

`normalize` is idempotent. It changes how an answer is written, never what it says.
"""

import re
import unicodedata

from lib.verifier.limits import MAX_ANSWER_CHARS

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "⁄": "/", "∕": "/",
        "×": r"\times ", "✕": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
        "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\sqrt[3] ",
        "∞": r"\infty ", "°": r"^\circ ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ",
        "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∪": r"\cup ",
        "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "∠": r"\angle ", "∣": "|",
        "或": " or ", "且": " and ", "和": " and ",
        "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ",
        "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "′": "'", "’": "'", "，": ",",
        "、": ",", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ",
            }
)  # fmt: skip
_SIGNS |= {
    code: rf"\{unicodedata.name(chr(code)).rsplit(' ', 1)[-1].lower()} "
    for code in range(0x3B1, 0x3CA)
    if code not in (0x3BB, 0x3C2)
} | str.maketrans(
    {"λ": r"\lambda ", "Δ": r"\Delta ", "Φ": r"\Phi ", "Ω": r"\Omega ", "Γ": r"\Gamma "}
)
_BEFORE = str.maketrans(
    {
        "ℝ": r"\mathbb{R} ",
        "ℤ": r"\mathbb{Z} ",
        "ℕ": r"\mathbb{N} ",
        "º": "°",
        "“": "",
        "”": "",
        "„": "",
        "\u200b": "",
        "\ufeff": "",
        "\u2061": "",
        "\u2062": "",
    }
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
_BUILDER = re.compile(r"\{\s*[A-Za-z]\s*(?:\||\\mid\b|:)")
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LARGE = re.compile(rf"(\d)\s*(?:\\text\{{\s*)?\b({'|'.join(_ZEROS)})\b\s*\}}?")
_CURRENCIES = {
    r"\$": "dollars", "$": "dollars", "USD": "dollars", "€": "euros", "EUR": "euros", "£": "GBP",
    "GBP": "GBP", "¥": "yuan", "₹": "rupees", "Rs": "rupees", "Rs.": "rupees", "INR": "rupees",
}  # fmt: skip
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
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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
        if "\\" in text or "$" in text or "~" in text or " " in text or "{" in text:
            text = _DOUBLED.sub(r"\\", text) if "\\\\" in text else text
            text = _GROUPED_NUMBER.sub(lambda match: _SEPARATOR.sub("", match[0]), text)
            if "illion" in text or "thousand" in text:
                text = _LARGE.sub(_power_of_ten, text)
            text = _EMPTY_EXPONENT.sub("^", text) if "^" in text else text
            text = _NOT.sub(r"\\ne ", text) if "\\not" in text else text
            text = _NOISE.sub(" ", text)
        text = _SPACES.sub(" ", text)
    text = _without_ending(_START.sub("", text.strip()).removesuffix("^"))
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        return text[2:-2]
    if _BUILDER.match(text) and text.endswith("}"):
        return f"\\{text[:-1]}\\}}"
    return _without_braces(text) if text.startswith("{") and text.endswith("}") else text


def _power_of_ten(match: re.Match[str]) -> str:
    return rf"{match[1]} \times 10^{{{_ZEROS[match[2]]}}} "


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


def _without_braces(text: str) -> str:
    """Without the braces that enclose all of `text`, however many; linear in its length."""
    opened = len(text) - len(text.lstrip("{"))
    closed = len(text) - len(text.rstrip("}"))
    depth, inner = 0, min(opened, closed)
    for match in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if opened <= match.end() <= len(text) - closed:
            inner = min(inner, depth)
    if depth or text.endswith("\\}") or inner <= 0:
        return text
    return text[inner : len(text) - inner].strip()
