"""A mean over independent repetitions with its interval (Student's t). Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MeanInterval", "mean_interval", "t_quantile"]


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean and the ends of its interval; the same value three times where nothing varies."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """pre: two values or more, independent; about normal, or many."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return MeanInterval(mean, mean - half, mean + half)


@functools.lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t. pre: 0.5 <= probability < 1, degrees >= 1.

    By bisection of the distribution function, which for whole degrees of freedom is a finite sum
    (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(degrees))
    for _ in range(200):
        middle = (low + high) / 2
        below = _central(middle, degrees) < 2 * probability - 1
        low, high = (middle, high) if below else (low, middle)
    return math.tan(low) * math.sqrt(degrees)


def _central(angle: float, degrees: int) -> float:
    """P(|t| <= tan(angle) sqrt(degrees))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
