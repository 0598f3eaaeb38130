"""Reading single fields of a row: each raises ValueError with ``field: what is wrong``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

__all__ = ["count", "known", "listed", "number", "shown", "text", "timestamp"]


_MOST_NUMBER = 1e12


def shown(value: object) -> str:
    """The value for a message, cut to 60 characters."""
    found = repr(value)
    return found if len(found) <= 60 else f"{found[:57]}..."


def number(
    value: object, field: str, *, least: float | None = None, above: float | None = None
) -> float:
    """A finite number, at least ``least`` or more than ``above``, and at most 10^12: beyond that a
    clock in seconds is too coarse for phases."""
    allowed = f"at least {least:g}" if least is not None else f"more than {above or 0:g}"
    if value is None:
        raise ValueError(f"{field}: is missing; give a number, {allowed}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field}: {shown(value)} is not a number; allowed: {allowed}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{field}: {value} is not finite; allowed: {allowed}")
    if value > _MOST_NUMBER:
        raise ValueError(f"{field}: {shown(value)} is out of range; allowed: {allowed}, up to 1e12")
    if (least is not None and value < least) or (above is not None and value <= above):
        raise ValueError(f"{field}: {shown(value)} is out of range; allowed: {allowed}")
    return float(value)


def count(value: object, field: str, least: int = 1, most: int = 2**62) -> int:
    """A whole number, at least ``least``; sums of at most 2^62 stay far from what floats hold."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    what = "is missing" if value is None else f"{shown(value)} is out of range"
    raise ValueError(f"{field}: {what}; allowed: a whole number, {least} to {most:g}")


def text(value: object, field: str) -> str:
    """A text that is not empty; a number stands for its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field}: {shown(value)}; allowed: a text that is not empty")
    return value


def listed(value: object, field: str) -> Sequence[object]:
    """A list with something in it."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{field}: must be a list with something in it")
    return value


def known(data: Mapping[str, object], names: Collection[str], field: str = "") -> None:
    """Refuse keys that are not among ``names``."""
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {near[0]}" if near else f"allowed: {', '.join(names)}"
            raise ValueError(f"{field}.{key}: unknown; {hint}".lstrip("."))


def timestamp(value: object, field: str) -> datetime:
    """A date and time in ISO 8601, with or without a time zone."""
    try:
        return datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"{field}: {shown(value)} is no time; allowed: like 2017-10-09 07:01:55"
        ) from None


def seconds_between(first: datetime, time: datetime, field: str) -> float:
    """Seconds from the first time to this one. Refuses times that differ in their zone."""
    if first.utcoffset() != time.utcoffset():
        zones = [_zone(one) for one in (time, first)]
        raise ValueError(f"{field}: has {zones[0]}, the first row {zones[1]}; use one time zone")
    return (time - first).total_seconds()


def _zone(time: datetime) -> str:
    return "no time zone" if time.tzinfo is None else f"time zone {time:%z}"
