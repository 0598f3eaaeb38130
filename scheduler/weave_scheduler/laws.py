"""How long a phase takes: duration laws, and drawing from them.

A law gives the seconds of the real job. Each draw has a generator of its own, seeded from
(seed, iteration, phase): the same numbers come out alone, together with other jobs, and when a
run is continued in the middle. Pure: no clock, no state. Laws that follow from the lengths of
responses are in ``weave_scheduler.lengths``.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weave_scheduler.units import format_duration

__all__ = [
    "PHASES",
    "POOLS_OF",
    "Constant",
    "Drifting",
    "DurationLaw",
    "Empirical",
    "Lognormal",
    "draw",
]

#: All phase names; the position is part of the seed of a draw, so append only.
PHASES = ("init", "rollout", "reward", "train", "weight_sync", "eval", "save")

#: The pools that a phase holds, in the order in which they are taken.
POOLS_OF: dict[str, tuple[str, ...]] = {
    "init": ("train", "rollout"),
    "rollout": ("rollout",),
    "reward": (),
    "train": ("train",),
    "weight_sync": ("train", "rollout"),
    "eval": ("rollout",),
    "save": ("train",),
}


class DurationLaw(Protocol):
    """How long a phase takes, in seconds of the real job; every law is a frozen value.

    ``stream`` names the phase whose draw it shares, so that two laws of one job can follow from
    the same responses; None: that of its own phase.
    """

    @property
    def mean_s(self) -> float: ...
    @property
    def max_s(self) -> float | None:
        """No draw exceeds it; None where the law has no such bound."""

    @property
    def stream(self) -> str | None: ...
    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always ``value_s`` seconds."""

    value_s: float

    @property
    def mean_s(self) -> float:
        return self.value_s

    @property
    def max_s(self) -> float | None:
        return self.value_s

    @property
    def stream(self) -> str | None:
        return None

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        return self.value_s

    def __str__(self) -> str:
        return format_duration(self.value_s)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with the given mean and coefficient of variation, cut off at ``max_s``.

    What would be longer takes ``max_s`` (a response that reaches the token limit), so the mean of
    the draws lies a little below ``mean_s``.
    """

    mean_s: float
    cv: float
    max_s: float | None = None

    @property
    def stream(self) -> str | None:
        return None

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        variance = math.log1p(self.cv**2)
        drawn = float(generator.lognormal(math.log(self.mean_s) - variance / 2, variance**0.5))
        return drawn if self.max_s is None else min(drawn, self.max_s)

    def __str__(self) -> str:
        limit = "" if self.max_s is None else f", at most {format_duration(self.max_s)}"
        return f"lognormal {format_duration(self.mean_s)}, cv {self.cv:g}{limit}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """One of the measured values, each as likely; ``limit_s`` is the worst case, if measured.

    Attributes:
        values_s: ascending; ``Empirical.of`` sorts.
        limit_s: how long the phase takes with every response at the token limit; absent: the
            largest measured value is no bound, and the law has no ``max``.
    """

    values_s: tuple[float, ...]
    limit_s: float | None = None

    def __post_init__(self) -> None:
        values = self.values_s
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError("values_s: must be seconds above 0, at least one")
        if any(later < earlier for earlier, later in itertools.pairwise(values)):
            raise ValueError("values_s: must ascend")
        if self.limit_s is not None and not self.limit_s >= values[-1]:
            raise ValueError(f"limit_s: {self.limit_s!r} is below the largest measured value")

    @classmethod
    def of(cls, values_s: object, limit_s: float | None = None) -> Empirical:
        """From values in any order."""
        return cls(tuple(sorted(float(value) for value in values_s)), limit_s)  # type: ignore[attr-defined]

    @property
    def mean_s(self) -> float:
        return math.fsum(self.values_s) / len(self.values_s)

    @property
    def max_s(self) -> float | None:
        return self.limit_s

    @property
    def stream(self) -> str | None:
        return None

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        return self.values_s[int(generator.integers(len(self.values_s)))]

    def share_below(self, seconds: float) -> float:
        """Share of the measured values that are at most ``seconds``."""
        return bisect.bisect_right(self.values_s, seconds) / len(self.values_s)

    def __str__(self) -> str:
        return f"{len(self.values_s)} measured, mean {format_duration(self.mean_s)}"


@dataclass(frozen=True, slots=True)
class Drifting:
    """A law whose draws are multiplied by a factor that goes from ``start`` to ``end``.

    Linear over ``over`` iterations, then constant. ``mean_s`` is that of the larger of the two
    factors and ``max_s`` likewise, so that a plan holds over the whole drift.
    """

    law: DurationLaw
    start: float
    end: float
    over: int

    def __post_init__(self) -> None:
        if not (self.start > 0 and self.end > 0 and self.over >= 1):
            raise ValueError("drift: factors must be above 0 and over at least 1 iteration")

    def factor(self, iteration: int) -> float:
        return self.start + (self.end - self.start) * min(iteration / self.over, 1.0)

    @property
    def mean_s(self) -> float:
        return self.law.mean_s * max(self.start, self.end)

    @property
    def max_s(self) -> float | None:
        return None if self.law.max_s is None else self.law.max_s * max(self.start, self.end)

    @property
    def stream(self) -> str | None:
        return self.law.stream

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        return self.law.draw_s(generator, iteration) * self.factor(iteration)

    def __str__(self) -> str:
        return f"{self.law}, x{self.start:g} to x{self.end:g} over {self.over} iterations"


def draw(law: DurationLaw, seed: int, iteration: int, phase: str) -> float:
    """The seconds of one phase of the real job. pre: seed >= 0, phase in PHASES."""
    if isinstance(law, Constant):
        return law.value_s
    stream = PHASES.index(law.stream or phase)
    entropy = np.random.SeedSequence([seed, iteration, stream])
    return law.draw_s(np.random.Generator(np.random.PCG64(entropy)), iteration)
