"""Phase times that follow from the lengths of responses and the speed of an engine.

One draw of lengths gives the rollout and the training of an iteration, so the two are correlated as
in a real job. An engine that decodes n sequences with lengths l_1 <= .. <= l_n at a step time of
base + per_active * (active sequences) takes sum_k (l_k - l_{k-1}) (base + per_active (n - k + 1));
a rollout ends with its slowest engine (notes 3.8). Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.units import format_duration

__all__ = ["Lengths", "RolloutFromLengths", "TrainFromLengths", "engine_seconds"]

_MEAN_DRAWS = 256  # behind ``mean_s`` of a rollout, which has no closed form


@dataclass(frozen=True, slots=True)
class Lengths:
    """The tokens of the responses of one iteration.

    Attributes:
        quantiles: tokens at equally spaced probabilities 0 .. 1, ascending (inverse CDF).
        max_tokens: the limit at which a response is cut.
        responses: how many per iteration.
    """

    quantiles: tuple[float, ...]
    max_tokens: int
    responses: int

    def __post_init__(self) -> None:
        table = self.quantiles
        if len(table) < 2 or not all(math.isfinite(value) and value >= 1 for value in table):
            raise ValueError("quantiles: must be two or more token counts, each at least 1")
        if any(later < earlier for earlier, later in itertools.pairwise(table)):
            raise ValueError("quantiles: must ascend")
        if self.max_tokens < 1 or self.responses < 1:
            raise ValueError("max_tokens and responses: must be at least 1")

    @classmethod
    def lognormal(cls, mean: float, cv: float, max_tokens: int, responses: int) -> Lengths:
        """A lognormal body with that mean and CV; what is longer is cut at the limit."""
        if not (mean >= 1 and cv > 0):
            raise ValueError("mean and cv: must be at least 1 token and above 0")
        sigma = math.log1p(cv**2) ** 0.5
        normal = NormalDist(math.log(mean) - sigma**2 / 2, sigma)
        inner = [max(1.0, math.exp(normal.inv_cdf(k / 1024))) for k in range(1, 1024)]
        return cls((inner[0], *inner, max(inner[-1], float(max_tokens))), max_tokens, responses)

    @property
    def mean_tokens(self) -> float:
        """Mean of a response as drawn, cut at the limit."""
        cut = np.minimum(self.quantiles, self.max_tokens)
        return float(((cut[:-1] + cut[1:]) / 2).mean())

    def draw(self, generator: np.random.Generator) -> NDArray[np.float64]:
        """Tokens of each response of one iteration."""
        at = generator.random(self.responses) * (len(self.quantiles) - 1)
        drawn = np.interp(at, np.arange(len(self.quantiles)), self.quantiles)
        tokens: NDArray[np.float64] = np.minimum(np.ceil(drawn), self.max_tokens)
        return tokens


def engine_seconds(tokens: NDArray[np.float64], base_s: float, per_active_s: float) -> float:
    """How long one engine decodes these responses, all started together."""
    ascending = np.sort(tokens)
    steps = np.diff(ascending, prepend=0.0)
    active = np.arange(len(ascending), 0, -1)
    return float((steps * (base_s + per_active_s * active)).sum())


@dataclass(frozen=True, slots=True)
class RolloutFromLengths:
    """A rollout on ``engines`` engines, the responses dealt out in turn.

    Attributes:
        base_s, per_active_s: step time of an engine is base + per_active * active sequences.
        fixed_s: what is not decoding.
    """

    lengths: Lengths
    engines: int
    base_s: float
    per_active_s: float
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.engines < 1 or not (self.base_s > 0 and self.per_active_s >= 0):
            raise ValueError("engines, base_s and per_active_s: must be positive")
        if self.engines > self.lengths.responses:
            raise ValueError("engines: more than responses")

    @property
    def mean_s(self) -> float:
        """Mean of 256 draws from a fixed seed; there is no closed form."""
        return _mean(self)

    @property
    def max_s(self) -> float | None:
        most = -(-self.lengths.responses // self.engines)
        step_s = self.base_s + self.per_active_s * most
        return self.fixed_s + self.lengths.max_tokens * step_s

    @property
    def stream(self) -> str | None:
        return "rollout"

    def seconds_of(self, tokens: NDArray[np.float64]) -> float:
        """The rollout with these responses."""
        dealt = (tokens[engine :: self.engines] for engine in range(self.engines))
        slowest = max(engine_seconds(one, self.base_s, self.per_active_s) for one in dealt)
        return self.fixed_s + slowest

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        return self.seconds_of(self.lengths.draw(generator))

    def hold_share(self, share: float) -> float:
        """Time until ``share`` of the responses is done over the whole time, mean of draws.

        What a tail migration at that threshold leaves of the rollout (paper 4.3).
        """
        generator = np.random.default_rng(0)
        ratios = []
        for _ in range(_MEAN_DRAWS):
            tokens = self.lengths.draw(generator)
            ends = np.concatenate(
                [
                    _ends(tokens[engine :: self.engines], self.base_s, self.per_active_s)
                    for engine in range(self.engines)
                ]
            )
            ends.sort()
            done = math.ceil(share * len(ends)) - 1
            ratios.append((self.fixed_s + ends[done]) / (self.fixed_s + ends[-1]))
        return float(np.mean(ratios))

    def __str__(self) -> str:
        return f"rollout of {self.lengths.responses} responses, mean {format_duration(self.mean_s)}"


@dataclass(frozen=True, slots=True)
class TrainFromLengths:
    """Training in proportion to the tokens of the rollout before, plus ``fixed_s``."""

    lengths: Lengths
    s_per_token: float
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.s_per_token > 0 and self.fixed_s >= 0):
            raise ValueError("s_per_token and fixed_s: must be positive")

    @property
    def mean_s(self) -> float:
        tokens = self.lengths.responses * self.lengths.mean_tokens
        return self.fixed_s + self.s_per_token * tokens

    @property
    def max_s(self) -> float | None:
        tokens = self.lengths.responses * self.lengths.max_tokens
        return self.fixed_s + self.s_per_token * tokens

    @property
    def stream(self) -> str | None:
        return "rollout"

    def draw_s(self, generator: np.random.Generator, iteration: int = 0) -> float:
        return self.fixed_s + self.s_per_token * float(self.lengths.draw(generator).sum())

    def __str__(self) -> str:
        return f"{self.s_per_token:g} s per token, mean {format_duration(self.mean_s)}"


def _ends(tokens: NDArray[np.float64], base_s: float, per_active_s: float) -> NDArray[np.float64]:
    ascending = np.sort(tokens)
    active = np.arange(len(ascending), 0, -1)
    ends: NDArray[np.float64] = np.cumsum(
        np.diff(ascending, prepend=0.0) * (base_s + per_active_s * active)
    )
    return ends


@functools.lru_cache(maxsize=4096)
def _mean(law: RolloutFromLengths) -> float:
    generator = np.random.default_rng(0)
    return math.fsum(law.draw_s(generator) for _ in range(_MEAN_DRAWS)) / _MEAN_DRAWS
