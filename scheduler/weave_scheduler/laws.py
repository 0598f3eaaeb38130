"""How long a phase takes: duration laws, and drawing from them.

A law gives the seconds of the real job. Each draw has a generator of its own, seeded from
(seed, iteration, phase): the same numbers come out alone, together with other jobs, and when a
run is continued in the middle. Pure: no clock, no state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weave_scheduler.units import format_duration

__all__ = ["PHASES", "POOLS_OF", "Constant", "DurationLaw", "Lognormal", "draw"]

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

    def draw_s(self, generator: np.random.Generator) -> float:
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

    def draw_s(self, generator: np.random.Generator) -> float:
        variance = math.log1p(self.cv**2)
        drawn = float(generator.lognormal(math.log(self.mean_s) - variance / 2, variance**0.5))
        return drawn if self.max_s is None else min(drawn, self.max_s)

    def __str__(self) -> str:
        limit = "" if self.max_s is None else f", at most {format_duration(self.max_s)}"
        return f"lognormal {format_duration(self.mean_s)}, cv {self.cv:g}{limit}"


DurationLaw = Constant | Lognormal


def draw(law: DurationLaw, seed: int, iteration: int, phase: str) -> float:
    """The seconds of one phase of the real job. pre: seed >= 0, phase in PHASES."""
    entropy = np.random.SeedSequence([seed, iteration, PHASES.index(phase)])
    return law.draw_s(np.random.Generator(np.random.PCG64(entropy)))
