"""Many draws of a duration law at once, for Monte Carlo.

Live and replayed runs draw phase by phase with ``laws.draw``; these arrays have the same
distribution, not the same numbers. Laws that follow from response lengths are drawn from a table of
1,024 iterations, the same rows for rollout and training of one job.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.laws import Constant, Drifting, DurationLaw, Empirical, Lognormal
from weave_scheduler.lengths import Lengths, RolloutFromLengths, TrainFromLengths

__all__ = ["sample"]

Floats = NDArray[np.float64]

_ROWS = 1024  # iterations in the table of a law from lengths


def sample(law: DurationLaw, generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Seconds [iteration, replication]; iteration matters where the law drifts."""
    match law:
        case Constant(value_s):
            return np.full(shape, value_s)
        case Lognormal(mean_s, cv, max_s):
            variance = math.log1p(cv**2)
            mu = math.log(mean_s) - variance / 2
            free: Floats = generator.lognormal(mu, variance**0.5, shape)
            return free if max_s is None else np.minimum(free, max_s)
        case Empirical(values_s):
            measured: Floats = np.asarray(values_s)
            return np.take(measured, generator.integers(len(values_s), size=shape))
        case Drifting(inner):
            factors = np.array([law.factor(iteration) for iteration in range(shape[0])])
            drifted: Floats = sample(inner, generator, shape) * factors[:, None]
            return drifted
        case RolloutFromLengths() | TrainFromLengths():
            return np.take(_table(law), generator.integers(_ROWS, size=shape))
        case _:
            each = [law.draw_s(generator, at) for at in range(shape[0]) for _ in range(shape[1])]
            return np.array(each).reshape(shape)


@functools.lru_cache(maxsize=256)
def _table(law: RolloutFromLengths | TrainFromLengths) -> Floats:
    """Seconds of each row of the common table of lengths."""
    rows = _rows(law.lengths)
    if isinstance(law, RolloutFromLengths):
        return np.array([law.seconds_of(tokens) for tokens in rows])
    tokens: Floats = rows.sum(axis=1)
    return law.fixed_s + law.s_per_token * tokens


@functools.lru_cache(maxsize=32)
def _rows(lengths: Lengths) -> Floats:
    generator = np.random.default_rng(0)
    return np.stack([lengths.draw(generator) for _ in range(_ROWS)])
