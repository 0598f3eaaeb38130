"""Sizes, durations and prices as people write them: read and printed in one place.

Bytes are plain integers, durations are seconds as floats, prices are money per GPU-hour (only
ratios mean anything). GB is 10^9 bytes and GiB is 2^30. Every function that reads raises
ValueError with one line that says what is allowed; callers put the place in front of it.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

__all__ = [
    "format_bytes",
    "format_duration",
    "format_money",
    "parse_bytes",
    "parse_duration",
    "parse_price",
]

_BYTE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_BYTES_ALLOWED = "allowed: a whole number of bytes, or a number with B, KB, MB, GB, TB, KiB, .. TiB"
_DURATION_ALLOWED = "allowed: a number with ns, us, ms, s, min or h, for example 100s"
_PRICE_ALLOWED = "allowed: a number >= 0 per GPU-hour, for example 1.85"
_BYTES_MAX = 2**62  # beyond any memory; keeps sums inside 64 bits
_SECONDS_MAX = Decimal(10**9)


def parse_bytes(value: object) -> int:
    """Bytes from ``15.2GB``, ``64MiB`` or a whole number; fractions are rounded down."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = Decimal(value)
    elif isinstance(value, str):
        number, unit = _split(value, "a size", _BYTES_ALLOWED)
        if unit == "":
            if "." in value:
                raise ValueError(f"{value!r} has no unit; {_BYTES_ALLOWED}")
            unit = "B"
        factor = _BYTE_UNITS.get(unit.upper())
        if factor is None or unit.endswith("b"):  # Gb would be bits
            raise ValueError(f"unknown unit {unit!r} in {value!r}; {_BYTES_ALLOWED}")
        count = number * factor
    else:
        raise ValueError(f"{_shown(value)} is not a size; {_BYTES_ALLOWED}")
    if not 0 <= count <= _BYTES_MAX:
        raise ValueError(f"{_shown(value)} is out of range; {_BYTES_ALLOWED}")
    return int(count)


def parse_duration(value: object) -> float:
    """Seconds from ``100s``, ``5ms``, ``2min``. A number without a unit is refused."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a duration; {_DURATION_ALLOWED}")
    number, unit = _split(value, "a duration", _DURATION_ALLOWED)
    factor = _SECONDS.get(unit)
    if factor is None:
        what = f"unknown unit {unit!r} in {value!r}" if unit else f"{value!r} has no unit"
        raise ValueError(f"{what}; {_DURATION_ALLOWED}")
    seconds = number * factor
    if seconds > _SECONDS_MAX:
        raise ValueError(f"{value!r} is out of range; {_DURATION_ALLOWED}")
    return float(seconds)


def parse_price(value: object) -> float:
    """Money per GPU-hour from a number (``1.85``)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is not a price; {_PRICE_ALLOWED}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{_shown(value)} is out of range; {_PRICE_ALLOWED}")
    return float(value)


def format_bytes(count: int) -> str:
    """``15.2 GB``, decimal units, three significant digits."""
    for unit in ("TB", "GB", "MB", "KB"):
        factor = _BYTE_UNITS[unit]
        if abs(count) >= factor:
            amount = count / factor
            return f"{amount:.3g} {unit}" if abs(amount) < 999.5 else f"{amount:.0f} {unit}"
    return f"{count} B"


def format_duration(seconds: float) -> str:
    """``1 h 05 min``, ``2 min 03 s``, ``1.53 s``, ``12.3 ms``, ``45 us``."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 99.95:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02d} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us" if seconds else "0 s"


def format_money(amount: float) -> str:
    """``12.35``: at least two digits after the point, more for small amounts."""
    if amount == 0 or abs(amount) >= 1:
        return f"{amount:.2f}"
    return f"{amount:.3g}"


def _split(text: str, what: str, allowed: str) -> tuple[Decimal, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {what}; {allowed}")
    return Decimal(match.group(1)), match.group(2)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
