"""Vocabulary of the verifier: units, numbers in words, hedges, and words that only frame an answer.

`5 km/h` has a known unit, `two million` is a number, "not 5" has a hedge, and "the final answer
is" only frames the answer.
"""

import functools
import re
from fractions import Fraction
from typing import NamedTuple

from reckon_verifier.tree import FUNCTIONS, names, pairs, remembered

HEDGES = names(
    "not no never nor neither none least most more less fewer than about around nearly almost "
    "roughly approximately approx maybe perhaps possibly probably likely either but except unless "
    "cannot can could may might impossible wrong incorrect false invalid over under up down above "
    "below between half twice double triple squared cubed square cube inverse reciprocal negative "
    "opposite minus plus times divided multiplied added hundred thousand million billion trillion "
    "dozen score other others another different before after previous next without anything "
    "everything something if when while odd even multiple divisor factor factorial mod modulo base "
    "root excluded many few some guess unknown bound exceeds percent percents hundredths tenths "
    "thousandths millionths billionths halves thirds quarters fourths fifths sixths eighths true "
    "all any every each both only lakh crore is are was were and or opposite complement conjugate"
)
"""Words that change the meaning of the answer beside them.

No label, unit or noun with one of them may be left out.
"""

_FRAME = names(
    "the a an final correct required answer answers result results value values solution "
    "solutions so thus therefore hence then we get have obtain of for to in that it this its our "
    "number numbers total set equation expression unique such option choice"
)
_QUANTITIES = names(
    "sum product difference ratio area volume perimeter circumference length width height depth "
    "distance radius diameter angle side triangle circle rectangle maximum minimum max min largest "
    "smallest greatest possible probability expected vertex center focus range domain interval "
    "point points coordinates line curve function integer integers remainder cost price time speed "
    "age amount measure degree elements roots zeros ways"
)


_FIGURE = re.compile(
    r"\b(triangle|quadrilateral|angle|segment|square|rectangle|circle|line) [A-Za-z]{1,4}\b"
    r"(?! [A-Za-z])"
)


def may_label(label: str, problem: str) -> bool:
    """Return True if a label may be left out: `maximum` of `Maximum: 5`, not "less than" or "not".

    It must have no hedge, and only words of `_FRAME` or of the problem; if the problem's text is
    not known (''), words of `_QUANTITIES` instead of those of the problem.
    """
    words = (label if problem else _FIGURE.sub(r"\1", label)).split()
    # `A` is a point, `a` an article.
    words = [word if len(word) == 1 else word.lower() for word in words]
    known = _FRAME | set(re.findall(r"[^\W\d_]+", f"{problem} {problem.lower()}"))
    # A known problem tells which quantity it asks for: the perimeter is not its area.
    known |= set() if problem else _QUANTITIES
    # "the remainder of the answer" is not the answer.
    if _QUANTITIES & {*words} and {"answer", "result", "results", "answers"} & {*words}:
        return False
    return not HEDGES & {*words} and {word for word in words if problem or len(word) > 1} <= known


_NUMBER_WORDS = pairs(
    "zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10 eleven=11 "
    "twelve=12 thirteen=13 fourteen=14 fifteen=15 sixteen=16 seventeen=17 eighteen=18 nineteen=19 "
    "twenty=20 thirty=30 forty=40 fifty=50 sixty=60 seventy=70 eighty=80 ninety=90"
)
SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6,
    "crore": 10**7, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
# One word of a number, the longest first ("seventy" before "seven"), up to a space.
_NUMERAL = rf"(?:{'|'.join(sorted((*_NUMBER_WORDS, *SCALES), key=len, reverse=True))})(?![^ ])"
SPELLED = re.compile(
    rf"(?<![^ ])(?<![/^] )(?:(\d+(?:\.\d+)?) )?({_NUMERAL}(?:(?: (?<=hundred )and)? {_NUMERAL})*)"
)
"""A number in words, also after digits: `two hundred and ten`, `2.5 million`.

Group 1 is the digits, group 2 the words. It matches canonical text: a space is between tokens.
"""
# The hyphen of `twenty-one`; that of `one hundred - five` is a minus sign.
HYPHEN = re.compile(rf"(?i)\b({'|'.join(_NUMBER_WORDS)})-(?=(?:{'|'.join(_NUMBER_WORDS)})\b)")
SIGNS = pairs(
    "squared=^2 cubed=^3 plus=+ minus=- half=/2 halves=/2 third=/3 thirds=/3 quarter=/4 "
    "quarters=/4 fourths=/4 fifth=/5 fifths=/5 sixths=/6 eighths=/8 tenth=/10 tenths=/10 "
    "hundredths=/100 thousandths=/1000 millionths=/1000000"
)
"""The signs for words after a number: `3 quarters` is 3/4."""


def spelled_number(match: re.Match[str]) -> str | None:
    """Return a match of `SPELLED` as digits: `two million three hundred` -> "2000300".

    None for several numbers in a row, `two three` and `20 five`, and for scales from a thousand on
    that do not fall: `two thousand million`.
    """
    # `current` is the number since the last scale from a thousand on, `total` the sum before it;
    # `largest` bounds the next scale, since scales fall.
    total = Fraction(0)
    current = Fraction(match[1]) if match[1] else None
    words = re.findall("[a-z]{3,}", match[2].replace(" and ", " "))
    largest = Fraction(10**100)
    if match[1] and words[0] not in SCALES:
        return None
    for word in words:
        if scale := SCALES.get(word):
            if scale > 100 and (current == 0 or scale >= largest):
                return None
            # "dozen" only is 12; "two hundred" is 2 · 100.
            current = (1 if current is None else current) * Fraction(scale)
            if scale > 100:
                total, current, largest = total + current, Fraction(0), Fraction(scale)
        else:
            value = int(_NUMBER_WORDS[word])
            # "hundred ten" and "twenty one", but neither "ten one" nor "twenty zero".
            if current is not None and (
                not value or current % (100 if value >= 10 else 10) or current % 100 == 10
            ):
                return None
            current = (current or 0) + Fraction(value)
    return str(total + (current or 0))


PIECE = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\b\s*\{(?P<text>[^{}]*)\}"
    r"|\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+"
    # Characters of a script that mathematics does not use, with their marks; or two letters
    # or more: `it's`.
    r"|(?P<word>[\u03e2-\u1fff\u2e80-\U0010ffff]+"
    r"|[^\W\d_\u03e2-\u1fff\u2e80-\U0010ffff]{2,}(?:['’][a-z]+)?)"
)
_MATHS = FUNCTIONS | names(
    "infty oo inf infinity asin acos atan asinh acosh atanh arcsinh arccosh arctanh ceiling sign "
    " log10 pi theta alpha beta gamma delta lambda omega phi and or det mod none union emptyset"
)
_SHORT = names("is it of to so we be in as if no on an by at il")
_CODE = re.compile(
    r"(?<![\\A-Za-z_])[A-Za-z_]{2,}\(|</?\w+>|__|\w\.\w+\(|\b(?:def|lambda|import|return)\b"
)


def has_prose(text: str) -> bool:
    """Return True if `text` is natural language: two words or more, and no program code or tags.

    "the answer" is prose; "x + 1" and "5 apples" are not.
    """
    return _begins_with_prose(text[:4000])


@functools.lru_cache(1024)
def _begins_with_prose(text: str) -> bool:
    """Decide `has_prose` for the beginning of a text; a whole text would be a long cache key."""
    words = _words(text)
    has_enough_words = len(words) >= 2 or any(map(_is_eastern, words))
    return has_enough_words and not _CODE.search(text)


def has_words(text: str) -> bool:
    r"""Return True if `text` has a word outside mathematics and `\text{…}`.

    True for `5 apples`; False for `\sin x` and `5 \text{ apples}`.
    """
    return bool(_words(text))


def _words(text: str) -> list[str]:
    r"""Return the words of a text's beginning without commands, mathematics and variables.

    `the \sin x is xy` -> ["the", "is"].
    """
    words = (piece["word"] for piece in PIECE.finditer(text[:4000]))
    return [word for word in words if word and is_word(word)]


def is_word(word: str) -> bool:
    """Return False for a name in mathematics, `sin`, and for two letters of no word, `xy`."""
    lower = word.lower()
    return lower not in _MATHS and (len(word) > 2 or lower in _SHORT or _is_eastern(word))


def _is_eastern(word: str) -> bool:
    """Return True for Cyrillic, Arabic, Chinese and the like: one run may be a sentence."""
    return ord(word[0]) >= 0x3E2


class Unit(NamedTuple):
    """A unit of measurement: km/h is Unit((("length", 1), ("time", -1)), 5/18).

    Attributes:
        dimension: names of base dimensions (keys of `_DIMENSIONS`) with their powers, sorted.
        factor: number of base units in one unit: a km/h is 5/18 m/s.
    """

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
    "length": "m meter meters metre metres=1 in inch inches=127/5000 ft foot feet=381/1250 "
    "yd yard yards=1143/1250 mi mile miles=201168/125",
    "mass": "g gram grams=1 lb lbs pound pounds=45359237/100000 oz ounce ounces=45359237/1600000 "
    "tonne tonnes=1000000",
    # A ton may be a tonne, or 2000 pounds.
    "ton": "ton tons=1",
    "time": "s sec secs second seconds=1 min mins minute minutes=60 h hr hrs hour hours=3600 "
    "day days=86400 week weeks=604800",
    "month": "month months=1 year years yr yrs=12",
    "volume": "l L liter liters litre litres=1 gal gallon gallons=473176473/125000000 "
    "cup cups=473176473/2000000000",
    "money": "$ dollar dollars USD usd buck bucks=1 cent cents ¢=1/100",
    "euro": "€ euro euros EUR=1",
    "sterling": "£ GBP=1",
    "yuan": "¥ yuan RMB=1",
    "rupee": "₹ rupee rupees Rs=1",
    "current": "A amp amps ampere amperes=1",
    "kelvin": "K kelvin kelvins=1",
    "angle": "rad rads radian radians=1",
    "energy": "J joule joules=1 eV=801088317/5000000000000000000000000000",
    "force": "N newton newtons=1",
    "power": "W watt watts=1",
    "pressure": "Pa pascal pascals=1",
    "voltage": "V volt volts=1",
    "resistance": "Ω Omega ohm ohms=1",
    "frequency": "Hz hertz=1",
    "substance": "mol mole moles=1",
    "data": "MB=8000000 Mb=1000000 GB=8000000000 Gb=1000000000 kB KB=8000 kb Kb=1000 bit bits=1 "
    "byte bytes=8",
    "count": "unit units=1",
}
MONEY = names("money euro sterling yuan rupee")


def _table() -> dict[str, Unit]:
    """Return a table from every name of a unit in `_DIMENSIONS`, also with prefixes, to its unit.

    "km" -> Unit((("length", 1),), 1000)
    """
    units: dict[str, Unit] = {}
    for dimension, spec in _DIMENSIONS.items():
        for synonyms, factor in re.findall(r"([^=]+)=(\S+)", spec):
            powers, scale = ((dimension, 1),), Fraction(factor)
            for name in synonyms.split():
                units[name] = Unit(powers, scale)
                for prefix, size in _PREFIXES.items() if name in _PREFIXED else ():
                    # "kilo" goes before "gram", "k" before "g". If a prefixed name is also a unit's
                    # own name, the own one wins.
                    if (len(prefix) > 2) == (len(name) > 2):
                        units.setdefault(prefix + name, Unit(powers, scale * Fraction(size)))
    return units


UNITS = _table()
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "fps": "ft/s", "cc": "cm^3"}
_PIECE = re.compile(r"([^\W\d_]+|[$€£¥₹¢])\.?\s*(?:\^?\{?(-?\d)\}?)?")


def _unit(word: str) -> Unit | None:
    """Return the unit of one word, or None; case matters only up to three letters: mW is no MW."""
    return UNITS.get(word) or (UNITS.get(word.lower()) if len(word) > 3 else None)


@remembered(2048)
def parse_unit(text: str) -> Unit | None:
    """Return the unit of a text ("cm^2", "km/h", "square feet"), or None if a word is unknown.

    "km/h" -> Unit((("length", 1), ("time", -1)), 5/18): dimensions, and the factor to base units.
    """
    # `_COMPOUND` writes "mph" as "mi/h".
    # An age is as long as any other time: "16 years old".
    text = _COMPOUND.get(text.strip(), text).replace(" per ", " / ").removesuffix(" old")
    dimension: dict[str, int] = {}
    factor, sign, times = Fraction(1), 1, 1
    for piece in re.findall(r"[^\W\d_]+\s*\^?\{?-?\d?\}?|[$€£¥₹¢]|/|\S", text):
        word = piece.strip()
        # One slash after a unit; a second "square" is no unit.
        if word == "/" and sign == 1 and dimension:
            sign = -1
        elif word in ("square", "sq", "cubic", "cu") and times == 1:
            times = 2 if word[0] == "s" else 3
        else:
            match = _PIECE.fullmatch(word)
            known = match and _unit(match[1])
            if not match or not known:
                return None
            power = sign * int(match[2] or times)
            for name, exponent in known.dimension:
                dimension[name] = dimension.get(name, 0) + power * exponent
            factor *= known.factor**power
            times = 1
    # A unit whose dimensions cancel, m/m, is none, nor is a text that ends with "square".
    powers = tuple(sorted((name, power) for name, power in dimension.items() if power))
    return Unit(powers, factor) if powers and times == 1 else None


def is_unit(word: str) -> bool:
    """Return True if a word is a known unit, such as `km` or `km/h`."""
    return parse_unit(word) is not None


_ASKED = re.compile(r"\b(?:in|nearest) (?=((?:[a-z$]+[ .,?/-]*){1,4}))", re.I)
_UNIT_WORD = re.compile(r"[A-Za-z$€£¥₹]+")
# A "cost ratio" or "the cost in percent" has another unit; "how long" may ask for a time.
_QUANTITY = re.compile(
    r"\b(?:what(?:['’]s| is| are| was| were| will be| would be)?|find|compute|calculate|determine"
    r"|how) (?:(?:the|its|his|her|their|total|sum of|total of|difference between|\w+['’]s) )*"
    r"(?:(?!squares? of|cubes? of|products? of)\w+ ){0,2}?"
    r"(?P<quantity>(?P<none>percent(?:age)?|fraction|probability|rat(?:e|io)|(?<=how )fast)"
    r"|areas?|volumes?|distance|lengths?(?! of time)|heights?|width|depth|perimeter|radius|diameter"
    r"|circumference|(?:(?<=how )|(?<=how much ))(?:far(?:ther)?|further|(?:tall|high|deep)(?:er)?"
    r"|(?P<long>long(?:er)?(?! (?:do|does|did|will|would)\b)))"
    r"|(?P<time>(?:length of )?time|long (?:do|does|did|will|would))|(?P<month>ages?|old)"
    r"|(?P<mass>mass|heavy|weights?|(?<=how much )(?:[\w'’]+ ){1,8}?weigh)"
    r"|(?P<money>(?:(?!percent|fraction|rat(?:e|io)\b|probab|number|many|time|points?|scores?)"
    r"[\w'’\"-]+ ){0,5}?(?:costs?|prices?|pay(?:ment)?s?|paid|earn(?:s|ed|ings?)?|spen[dt]s?"
    r"|ow(?:e|ed|es)|bill|fees?|profits?|expens(?:es?|ive)|salary|allowance|money|change|income"
    r"|rent|savings|commission|revenue|tax(?:es)?|pension|premium|wages?"
    r"|(?<=amount )(?:\w+ ){1,3}?received?)))\b"
    r"(?! (?:percent|rat(?:e|io)\b)| [^.?]{0,80}\b(?:in|as) (?:an? )?(?:percent|fraction|ratio))"
)


# "How much does it cost", but not "how much water".
_HOW_MUCH = (
    r"(?i)how much (?:more |less |total )?(?:money|change|profit|interest|cheaper|expensive|revenue"
    r"|pay|cash|credit|capital|commission|can|does|do|did|will|would|is|are|was|were|has|have|should"
    r"|must|in)\b(?! [^.?]{0,200}\bweigh)"
)


@functools.lru_cache(512)
def asked_words(problem: str) -> tuple[str, ...]:
    """Return the rest of the sentence after the last "how many", or else "number of", if any.

    Also without a first "more" and the like; () if a "how much" follows.
    "How many more apples does he have?" -> ("more apples does he have", "apples does he have")
    """
    for cue in ("how many", "number of"):
        rests = re.findall(rf"(?is)\b{cue} ([^.?!,;]+)(?!.*\b(?:how much|amount)\b)", problem)
        if rests:
            rest = rests[-1].strip(" .,?").lower()
            return rest, re.sub("^(?:more|fewer|different|total|additional) ", "", rest)
    return ()


@functools.lru_cache(512)
def _units_of(problem: str) -> tuple[frozenset[Unit], frozenset[Unit]]:
    """Return (units that a problem asks for with "in" or "nearest", all units in it).

    "How far in feet is 5 meters?" asks for feet, and has feet and meters.
    """
    problem = re.sub(r"nearest (?:cent|penny)\b", "", problem)
    asked_units = {
        unit
        for words in _ASKED.findall(problem)
        if (unit := _first_unit(words.lower().replace("-", " ").split()))
    }
    # A single letter is more often a variable than a unit, and "in" is more often no inch.
    words = [word for word in _UNIT_WORD.findall(problem) if len(word) > 1 or word in "$€£¥₹"]
    # "the second artifact" has no unit of time; "mph" has hours.
    words = [word for word in words if word not in ("in", "second")]
    words += ["hour"] * bool(re.search(r"(?i)\b(?:[mk]ph|kmph|km/h)\b", problem))
    joined = re.findall(r"(?:square|cubic) [a-z]+|[a-z]+ per [a-z]+|km/h|m/s", problem)
    named = {unit for word in (*words, *joined) if (unit := parse_unit(word))}
    return frozenset(asked_units), frozenset(named)


def _first_unit(words: list[str]) -> Unit | None:
    """Return the longest unit, of at most four words, at the beginning of `words`, or None."""
    for count in (4, 3, 2, 1):
        text = " ".join(words[:count]).strip(" .,?")
        # "in total" and "in dollars" name no inch.
        if len(words) >= count and words[0] != "in" and (unit := parse_unit(text)):
            return unit
    return None


def may_be_added(unit: Unit, problem: str) -> bool:
    """Return True if an answer may add this unit to the number of a reference without a unit.

    It must be the unit after "how many" or "number of"; without these, the only one of its
    dimension that the problem asks for ("in meters"), the only amount of money after "how much does
    it cost", or the problem's only unit of the quantity that it asks for: of lengths for a length,
    squared for an area, cubed for a volume. A temperature may never be added; any other unit may if
    there is no problem.
    """
    # 20 K is not 20 of anything else.
    if any(name == "kelvin" for name, _ in unit.dimension):
        return False
    if not problem:
        return True
    # Degrees are no unit of the table, but a problem with degrees asks for no radians.
    if "degree" in problem and ("angle", 1) in unit.dimension:
        return False
    if re.search(r"(?i)\b(?:hundred|thousand|million|billion)s of\b", problem):
        return False
    if asked_rest := asked_words(problem):
        return _first_unit(asked_rest[-1].replace("-", " ").split()) == unit
    asked_units, named = _units_of(problem)
    # A cost may be in dollars where the prices are in cents.
    is_whole = unit != UNITS["cents"] or unit in asked_units
    # Metres and feet leave open which one is meant.
    same_kind = {one for one in asked_units or named if one.dimension == unit.dimension}
    if {name for name, _ in unit.dimension} <= MONEY and re.search(_HOW_MUCH, problem):
        same_kind |= {one for one in named if one.dimension == unit.dimension}
        if same_kind:
            return same_kind == {unit} and is_whole
    if asked_units:
        return same_kind == {unit}
    # The quantity that is asked for last; "none" is one of another kind, such as a fraction.
    quantities = [*_QUANTITY.finditer(problem.lower())]
    if not quantities or quantities[-1]["none"]:
        return False
    match = quantities[-1]
    power = {"area": 2, "volume": 3}.get(match["quantity"].removesuffix("s"), 1)
    # Areas and volumes have units of length to a power.
    kinds = [kind for kind in ("time", "month", "mass", "money") if match[kind]] or ["length"]
    if match["long"]:
        kinds += ["time"]
    if match["long"] or match["time"]:
        kinds += ["month"]
    named = frozenset(one for one in named if one.dimension in [((kind, 1),) for kind in kinds])
    # "How old is he" needs no word for years, and "how much does she pay" none for a currency.
    if match["month"]:
        named |= {UNITS["year"]}
    if match["money"] and not named and unit.dimension[0][0] in MONEY:
        named = frozenset({unit})
    return len(named) == 1 and unit == _raised(min(named), power) and is_whole


def _raised(unit: Unit, power: int) -> Unit:
    """Return a unit to a power: cm to the power 2 is cm^2; an area stays as it is."""
    if any(exponent != 1 for _, exponent in unit.dimension):
        return unit
    return Unit(tuple((name, power) for name, _ in unit.dimension), unit.factor**power)
