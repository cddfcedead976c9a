"""Units of measure: which words are units, and how the known ones convert."""

import re
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """A product of powers of base dimensions with a factor to the base units."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction


_NAMES: dict[str, tuple[str, str]] = {
    # dimension: "names=factor" in its base unit
    "length": (
        "m",
        "m meter meters metre metres=1 km kilometer kilometers kilometre kilometres=1000 "
        "cm centimeter centimeters centimetre centimetres=1/100 mm millimeter millimeters=1/1000 "
        "in inch inches=127/5000 ft foot feet=381/1250 yd yard yards=1143/1250 "
        "mi mile miles=201168/125 nm=1/1000000000",
    ),
    "mass": (
        "g",
        "g gram grams=1 kg kilogram kilograms=1000 mg milligram milligrams=1/1000 "
        "lb lbs pound pounds=45359237/100000 oz ounce ounces=45359237/1600000 "
        "ton tons tonne tonnes=1000000",
    ),
    "time": (
        "s",
        "s sec secs second seconds=1 min mins minute minutes=60 h hr hrs hour hours=3600 "
        "day days=86400 week weeks=604800 month months=2629746 year years yr yrs=31556952",
    ),
    "volume": ("L", "l L liter liters litre litres=1 ml mL milliliter milliliters=1/1000 "
               "gal gallon gallons=473176473/125000000"),
    "money": ("dollar", "dollar dollars USD usd buck bucks=1 cent cents=1/100"),
    "euro": ("euro", "euro euros EUR=1"),
    "yuan": ("yuan", "yuan RMB=1"),
    "rupee": ("rupee", "rupee rupees Rs=1"),
    "current": ("A", "A amp amps ampere amperes=1"),
    "temperature": ("K", "K kelvin kelvins=1"),
    "energy": ("J", "J joule joules=1 kJ=1000"),
    "force": ("N", "N newton newtons=1"),
    "power": ("W", "W watt watts=1 kW=1000"),
    "voltage": ("V", "V volt volts=1"),
    "frequency": ("Hz", "Hz hertz=1"),
}  # fmt: skip


def _table() -> dict[str, Unit]:
    units = {}
    for dimension, (_, spec) in _NAMES.items():
        names: list[str] = []
        for word in spec.split():
            name, _, factor = word.partition("=")
            names.append(name)
            if factor:
                for known in names:
                    units[known] = _single(dimension, Fraction(factor))
                names = []
    return units


def _single(dimension: str, factor: Fraction) -> Unit:
    """Volume is a length cubed, so that a litre is 1000 cm³."""
    if dimension == "volume":
        return Unit((("length", 3),), factor / 1000)
    return Unit(((dimension, 1),), factor)


UNITS = _table()

_COUNTED = frozenset(
    [
        "unit",
        "units",
        "people",
        "person",
        "persons",
        "student",
        "students",
        "apple",
        "apples",
        "way",
        "ways",
        "time",
        "times",
        "marble",
        "marbles",
        "page",
        "pages",
        "book",
        "books",
        "car",
        "cars",
        "ticket",
        "tickets",
        "point",
        "points",
        "coin",
        "coins",
        "piece",
        "pieces",
        "cup",
        "cups",
        "box",
        "boxes",
        "bag",
        "bags",
        "egg",
        "eggs",
        "child",
        "children",
        "boy",
        "boys",
        "girl",
        "girls",
        "meal",
        "meals",
        "candy",
        "candies",
        "mph",
        "kph",
        "rpm",
    ]
)
"""Common words for what is counted; other nouns are read as units only after `\\text`."""

_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "fps": "ft/s"}
_NUMBER_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]


def number_word(word: str) -> Fraction | None:
    """The number that a word up to sixteen names."""
    return Fraction(_NUMBER_WORDS.index(word)) if word in _NUMBER_WORDS else None


_PART = re.compile(r"([A-Za-z]+)\.?(?:\^?\{?(-?\d)\}?)?")


def is_unit(word: str) -> bool:
    """Whether a bare word after a number is a unit or a thing that is counted."""
    return word in UNITS or word.lower() in UNITS or word.lower() in _COUNTED


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` spells ("cm^2", "km/h", "square feet"), None where it is not known."""
    text = _COMPOUND.get(text.strip(), text)
    words = text.replace("\\cdot", " ").replace("per ", "/").replace("^", "")
    words = re.sub(r"\b(?:square|sq\.?) ([A-Za-z]+)", r"\g<1>2", words)
    words = re.sub(r"\b(?:cubic|cu\.?) ([A-Za-z]+)", r"\g<1>3", words)
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    sign = 1
    for piece in re.findall(r"[A-Za-z]+\.?\{?-?\d*\}?|/|\S", words):
        if piece == "/":
            sign = -1
            continue
        found = _PART.fullmatch(piece)
        known = found and (UNITS.get(found[1]) or UNITS.get(found[1].lower()))
        if not found or not known:
            return None
        power = sign * int(found[2] or 1)
        for name, exponent in known.dimension:
            dimension[name] = dimension.get(name, 0) + power * exponent
        factor *= known.factor**power
    powers = tuple(sorted((name, power) for name, power in dimension.items() if power))
    return Unit(powers, factor) if powers else None
