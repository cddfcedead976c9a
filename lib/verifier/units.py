"""Quantities in words: units of measure and how they convert, number words, times of day."""

import itertools
import re
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.vocabulary import names


class Unit(NamedTuple):
    """A product of powers of base dimensions with a factor to the base units."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction


_DIMENSIONS = {
    # dimension: "names=factor" in its base unit
    "length": "m meter meters metre metres=1 km kilometer kilometers kilometre kilometres=1000 "
    "cm centimeter centimeters centimetre centimetres=1/100 mm millimeter millimeters=1/1000 "
    "in inch inches=127/5000 ft foot feet=381/1250 yd yard yards=1143/1250 "
    "mi mile miles=201168/125 nm=1/1000000000",
    "mass": "g gram grams=1 kg kilogram kilograms=1000 mg milligram milligrams=1/1000 "
    "lb lbs pound pounds=45359237/100000 oz ounce ounces=45359237/1600000 "
    "ton tons tonne tonnes=1000000",
    "time": "s sec secs second seconds=1 min mins minute minutes=60 h hr hrs hour hours=3600 "
    "day days=86400 week weeks=604800 month months=2629746 year years yr yrs=31556952",
    "volume": "l L liter liters litre litres=1 ml mL milliliter milliliters=1/1000 "
    "gal gallon gallons=473176473/125000000",
    "money": "dollar dollars USD usd buck bucks=1 cent cents=1/100",
    "euro": "euro euros EUR=1",
    "yuan": "yuan RMB=1",
    "rupee": "rupee rupees Rs=1",
    "current": "A amp amps ampere amperes=1",
    "temperature": "K kelvin kelvins=1",
    "energy": "J joule joules=1 kJ=1000",
    "force": "N newton newtons=1",
    "power": "W watt watts=1 kW=1000",
    "voltage": "V volt volts=1",
    "frequency": "Hz hertz=1",
}


def _table() -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for dimension, spec in _DIMENSIONS.items():
        for same, factor in re.findall(r"([^=]+)=(\S+)", spec):
            # A volume is a length cubed, so that a litre is 1000 cm³.
            powers, scale = ((dimension, 1),), Fraction(factor)
            if dimension == "volume":
                powers, scale = (("length", 3),), scale / 1000
            units |= dict.fromkeys(same.split(), Unit(powers, scale))
    return units


UNITS = _table()

_COUNTED = names(
    "unit units people person persons student students apple apples way ways time times "
    "marble marbles page pages book books car cars ticket tickets point points coin coins "
    "piece pieces cup cups box boxes bag bags egg eggs child children boy boys girl girls "
    "meal meals candy candies mph kph rpm"
)
"""Common words for what is counted; other nouns are read as units only after `\\text`."""

_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "fps": "ft/s"}
_NUMBER_WORDS = (
    "zero,one,two,three,four,five,six,seven,eight,nine,ten,eleven,twelve,thirteen,fourteen,"
    "fifteen,sixteen,seventeen,eighteen,nineteen,twenty"
)
_PART = re.compile(r"([A-Za-z]+)\.?(?:\^?\{?(-?\d)\}?)?")
_POWERS = re.compile(r"\b(square|sq\.?|cubic|cu\.?) ([A-Za-z]+)")


def number_word(word: str) -> Fraction | None:
    """The number that a word up to twenty names."""
    known = _NUMBER_WORDS.split(",")
    return Fraction(known.index(word)) if word in known else None


def is_unit(word: str) -> bool:
    """Whether a bare word after a number is a unit or a thing that is counted."""
    return word in UNITS or word.lower() in UNITS or word.lower() in _COUNTED


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` spells ("cm^2", "km/h", "square feet"), None where it is not known."""
    text = _COMPOUND.get(text.strip(), text)
    words = text.replace("\\cdot", " ").replace("per ", "/").replace("^", "")
    words = _POWERS.sub(lambda match: match[2] + ("2" if match[1][0] == "s" else "3"), words)
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    sign = 1
    for piece in re.findall(r"[A-Za-z]+\.?\{?-?\d*\}?|/|\S", words):
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


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)[\s,]*(?:and\s+)?")


def compound_quantity(text: str) -> str:
    """`3 hours 30 minutes` in its first unit; `text` where it is no such sum of one dimension."""
    amounts = _AMOUNT.findall(text) if re.fullmatch(rf"(?:{_AMOUNT.pattern}){{2,}}", text) else []
    known = [UNITS[name] for _, name in amounts if name in UNITS]
    if not known or len(known) < len(amounts) or len({unit.dimension for unit in known}) > 1:
        return text
    if any(one.factor <= two.factor for one, two in itertools.pairwise(known)):
        return text
    total = sum(
        Fraction(amount) * unit.factor for (amount, _), unit in zip(amounts, known, strict=True)
    )
    return rf"{total / known[0].factor} \text{{ {amounts[0][1]}}}"


_TIME = re.compile(r"(\d{1,2})(?:\s*:\s*(\d{2}))?(?:\s*:\s*(\d{2}))?\s*([aApP])?\.?\s*(?:[mM]\.?)?")
_FORMATTING = re.compile(r"\\(?:text|mathrm|mbox)\b|[{}]")


def time_of_day(text: str) -> tuple[int, int, int, str] | None:
    """Hour, minute, second and "a", "p" or ''; None where `text` is no time.

    A ratio such as 7:32 looks the same, so both sides of a comparison must be times.
    """
    match = _TIME.fullmatch(_FORMATTING.sub(" ", text).strip())
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    half = (match[4] or "").lower()
    if not match[2] and not half:
        return None
    if hour > 24 or minute > 59 or (half and not 1 <= hour <= 12):
        return None
    return hour, minute, second, half


def same_time(reference: str, answer: str) -> bool | None:
    """Whether both are the same time, None where one is no time; a.m. and p.m. may go unsaid."""
    expected, actual = time_of_day(reference), time_of_day(answer)
    if expected is None or actual is None:
        return None
    if bool(expected[3]) == bool(actual[3]):
        return expected == actual
    marked, plain = (expected, actual) if expected[3] else (actual, expected)
    hour = marked[0] % 12 + (12 if marked[3] == "p" else 0)
    return plain[:3] in ((hour, *marked[1:3]), marked[:3])
