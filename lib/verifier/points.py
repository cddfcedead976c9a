"""Where functions are compared: values that depend on a symbol's name alone, so on no order."""

import zlib

POINTS = 6
"""Points that are tried: three with positive symbols, three of mixed sign."""

ROUNDING_POINTS = 60
"""Points for functions with floor or ceiling, which agree at most points though they differ."""


_SCALES = (1, 3, 10)


def point(names: frozenset[str], index: int) -> dict[str, float]:
    """Values of symbols at one point: 0.3 to 2.7 times 1, 3 or 10; up to 54 from `POINTS` on.

    The points 3 to 5 are 0 to 2 with some signs turned.
    """
    turned = 3 <= index < POINTS
    place = index - 3 if turned else index
    scale = _SCALES[place] if place < len(_SCALES) else 20
    values = {}
    for name in names:
        drawn = zlib.crc32(f"{place}:{name}".encode())
        size = (0.3 + 2.4 * (drawn & 0xFFFFF) / 0x100000) * scale
        values[name] = -size if turned and (drawn >> 24) % 4 != index % 4 else size
    return values
