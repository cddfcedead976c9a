"""Words: names of mathematics, units and how they convert, numbers and times, what is prose."""

import functools
import re
from fractions import Fraction
from typing import NamedTuple


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


def has_prose(text: str) -> bool:
    """Whether `text` is natural language: two words at least, and no program code or tags."""
    return _begins_with_prose(text[:4000])


@functools.lru_cache(1024)
def _begins_with_prose(text: str) -> bool:
    words = _words(text)
    enough = len(words) >= 2 or any(map(_is_eastern, words))
    return enough and not _CODE.search(text)


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


class Unit(NamedTuple):
    """A product of powers of base dimensions with a factor to the base units."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction


_PREFIXES = pairs(
    "n=1/1000000000 u=1/1000000 μ=1/1000000 m=1/1000 c=1/100 k=1000 M=1000000 "
    "G=1000000000 milli=1/1000 centi=1/100 kilo=1000 mega=1000000"
)
_PREFIXED = names(
    "m g s L l A V W J N Pa Hz eV Ω ohm ohms "
    "meter meters metre metres gram grams second seconds liter liters litre litres "
    "amp amps ampere amperes volt volts watt watts joule joules newton newtons "
    "pascal pascals hertz"
)
_DIMENSIONS = {
    # dimension: "names=factor" in its base unit
    "length": "m meter meters metre metres=1 in inch inches=127/5000 ft foot feet=381/1250 "
    "yd yard yards=1143/1250 mi mile miles=201168/125",
    "mass": "g gram grams=1 lb lbs pound pounds=45359237/100000 oz ounce ounces=45359237/1600000 "
    "ton tons tonne tonnes=1000000",
    "time": "s sec secs second seconds=1 min mins minute minutes=60 h hr hrs hour hours=3600 "
    "day days=86400 week weeks=604800 month months=2629746 year years yr yrs=31556952",
    "volume": "l L liter liters litre litres=1 gal gallon gallons=473176473/125000000",
    "money": "dollar dollars USD usd buck bucks=1 cent cents ¢=1/100",
    "euro": "euro euros EUR=1",
    "sterling": "GBP=1",
    "yuan": "yuan RMB=1",
    "rupee": "rupee rupees Rs=1",
    "current": "A amp amps ampere amperes=1",
    "kelvin": "K kelvin kelvins=1",
    "celsius": "°C=1",
    "fahrenheit": "°F=1",
    "angle": "rad rads radian radians=1",
    "energy": "J joule joules=1 eV=801088317/5000000000000000000000000000",
    "force": "N newton newtons=1",
    "power": "W watt watts=1",
    "pressure": "Pa pascal pascals=1",
    "voltage": "V volt volts=1",
    "resistance": "Ω Omega ohm ohms=1",
    "frequency": "Hz hertz=1",
}


def _table() -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for dimension, spec in _DIMENSIONS.items():
        for same, factor in re.findall(r"([^=]+)=(\S+)", spec):
            powers, scale = ((dimension, 1),), Fraction(factor)
            for name in same.split():
                units[name] = Unit(powers, scale)
                for prefix, size in _PREFIXES.items() if name in _PREFIXED else ():
                    if (len(prefix) > 2) == (len(name) > 2):
                        units.setdefault(prefix + name, Unit(powers, scale * Fraction(size)))
    return units


UNITS = _table()

COUNTED = names(
    "unit units people person persons student students apple apples way ways time times "
    "marble marbles page pages book books car cars ticket tickets point points coin coins "
    "piece pieces cup cups box boxes bag bags egg eggs child children boy boys girl girls "
    "meal meals candy candies mph kph rpm solution solutions number numbers digit digits "
    "ball balls card cards pair pairs step steps side sides edge edges vertex vertices "
    "triangle triangles square squares set sets term terms integer integers"
)
"""Common words for what is counted, in the units of the problem or not."""

HEDGES = names(
    "not no never nor neither none least most more less fewer than about around nearly almost "
    "roughly approximately approx maybe perhaps possibly probably likely either but except unless "
    "cannot can could may might impossible wrong incorrect false invalid over under up down above "
    "below between half twice double triple squared cubed square cube inverse reciprocal negative "
    "opposite minus plus times divided multiplied added hundred thousand million billion dozen "
    "score other others another different before after previous next without anything everything "
    "something if when while odd even multiple divisor factor factorial mod modulo base root "
    "excluded many few some guess unknown bound exceeds percent"
)
"""Words that make another statement of the number beside them; no rule may leave one out."""

FRAME = names(
    "the a an final correct required answer answers result results value values solution "
    "solutions so thus therefore hence then we get have obtain of for to in and that it this its "
    "total number numbers sum product difference ratio area volume perimeter circumference length "
    "width height depth distance radius diameter angle side triangle circle rectangle maximum "
    "minimum max min largest smallest greatest possible probability expected vertex center focus "
    "range domain interval set point points coordinates equation line curve function expression "
    "integer integers remainder cost price time speed age amount measure degree only unique such "
    "elements roots zeros ways do"
)
"""Words that say what the number beside them is, without making it another."""


def hedges(text: str) -> frozenset[str]:
    """The words of `HEDGES` in `text`."""
    return HEDGES & set(re.findall(r"(?<![\\a-z])[a-z']+", text.lower()))


_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "fps": "ft/s"}
_PART = re.compile(r"([A-Za-zΩμ°¢]+)\.?(?:\^?\{?(-?\d)\}?)?")
_POWERS = re.compile(r"\b(square|sq\.?|cubic|cu\.?) ([A-Za-z]+)")


_NUMBER_WORDS = pairs(
    "zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10 eleven=11 "
    "twelve=12 thirteen=13 fourteen=14 fifteen=15 sixteen=16 seventeen=17 eighteen=18 nineteen=19 "
    "twenty=20 thirty=30 forty=40 fifty=50 sixty=60 seventy=70 eighty=80 ninety=90"
)
_SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6,
    "crore": 10**7, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_ATTACHED = pairs(
    "squared=^2 cubed=^3 half=/2 halves=/2 third=/3 thirds=/3 quarters=/4 fourths=/4 fifths=/5 "
    "sixths=/6 eighths=/8 tenth=/10 tenths=/10 hundredths=/100 plus=+ minus=-"
)
"""What a word right after a number says in signs."""
_NUMBER_WORD = "|".join([*_NUMBER_WORDS, *_SCALES])
_SPOKEN = re.compile(
    rf"(?<![\w.^])(?:(\d[\d.]*)\s+(?=(?:{'|'.join(_SCALES)})\b))?"
    rf"\b((?:{_NUMBER_WORD})(?:(?:[\s-]|\s+and\s+)(?:{_NUMBER_WORD}))*)\b(?!\s+and\s+a\b)",
    re.IGNORECASE,
)
_ATTACHMENT = re.compile(
    rf"(-?\d[\d.,/]*)[\s-]+({'|'.join(_ATTACHED)})(\s+\d[\d.,/]*)?", re.IGNORECASE
)


def in_digits(text: str) -> str:
    """`text` with its numbers in digits: `twenty-one`, `3 hundred`, `7 tenths`."""
    spoken = _SPOKEN.sub(lambda match: _number(match[2].lower(), match[1]) or match[0], text)
    attached = _ATTACHMENT.fullmatch(spoken.strip())
    if not attached or bool(attached[3]) != (attached[2] in ("plus", "minus")):
        return spoken
    return f"{attached[1]}{_ATTACHED[attached[2].lower()]}{attached[3] or ''}"


def _number(words: str, digits: str | None) -> str:
    """The number that words spell, after digits or not; '' where they are several in a row."""
    total, current = Fraction(0), Fraction((digits or "0").rstrip("."))
    starts = digits is None
    for word in re.findall("[a-z]+", words.replace(" and ", " ")):
        if scale := _SCALES.get(word):
            current = (Fraction(1) if starts else current) * scale
            if scale > 100:
                total, current = total + current, Fraction(0)
        else:
            value = int(_NUMBER_WORDS[word])
            is_next = not current % (100 if value >= 10 else 10) and current % 100 != 10
            if not starts and not (value and is_next):
                return ""
            current += value
        starts = False
    return str(total + current)


def number_word(word: str) -> Fraction | None:
    """The number that one word names."""
    value = _NUMBER_WORDS.get(word)
    return None if value is None else Fraction(value)


def is_unit(word: str) -> bool:
    """Whether a bare word after a number is a unit or a thing that is counted."""
    return word in UNITS or word.lower() in UNITS or word.lower() in COUNTED


_SQUARE_UNITS = re.compile(r"(?:square |cubic |sq\.? |cu\.? )?units?(?:\^\{?[23]\}?)?")


def may_go_unsaid(unit: str) -> bool:
    """Whether a number with `unit` after it is the number: a known unit, or what is counted."""
    unit = unit.strip()
    known = unit.lower() in COUNTED or parse_unit(unit) is not None
    return known or _SQUARE_UNITS.fullmatch(unit) is not None


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` spells ("cm^2", "km/h", "square feet"), None where it is not known."""
    text = _COMPOUND.get(text.strip(), text)
    words = text.replace("\\cdot", " ").replace("per ", "/").replace("^", "")
    words = _POWERS.sub(lambda match: match[2] + ("2" if match[1][0] == "s" else "3"), words)
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    sign = 1
    for piece in re.findall(r"[A-Za-zΩμ°¢]+\.?\{?-?\d*\}?|/|\S", words):
        if piece == "/":
            sign = -1
            continue
        match = _PART.fullmatch(piece)
        known = match and (UNITS.get(match[1]) or UNITS.get(match[1].lower()))
        if not match or not known:
            return None
        power = sign * int(match[2] or 1)
        for name, exponent in known.dimension:
            dimension[name] = dimension.get(name, 0) + power * exponent
        factor *= known.factor**power
    powers = tuple(sorted((name, power) for name, power in dimension.items() if power))
    return Unit(powers, factor) if powers else None


_TIME = re.compile(r"([01]?\d|2[0-4])(?:\s*:\s*([0-5]\d))?\s*(?:([ap])\.?\s*m?\.?)?", re.IGNORECASE)
_FORMATTING = re.compile(r"\\(?:text|mathrm|mbox)\b|[{}]")


def same_time(reference: str, answer: str) -> bool | None:
    """Whether both are the same time, None where one is no time; a.m. and p.m. may go unsaid.

    A ratio such as 7:32 looks the same, so both must be times.
    """
    times, faces, halves = [], [], []
    for text in (reference, answer):
        match = _TIME.fullmatch(_FORMATTING.sub(" ", text).strip())
        if match is None or not (match[2] or match[3]):
            return None
        hour, minute, half = match.groups(default="")
        halves.append(half)
        faces.append(60 * int(hour) + int(minute or 0))
        times.append(faces[-1] % 720 + 720 * (half in "pP") if half else faces[-1])
    return times[0] == times[1] or (faces[0] == faces[1] and not all(halves))
