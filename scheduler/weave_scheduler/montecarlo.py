"""Random durations: joint draws, the recursion over them, and quantiles with confidence.

Draws are common random numbers: those of a job depend on its seed and laws only, never on the
group, so candidate groups are compared on the same draws. Layout [iteration, job, replication],
replication innermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.model import Group, Intra, JobModel

__all__ = ["QuantileBound", "Slowdowns", "draw_job", "group_slowdowns", "quantile_bound"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QuantileBound:
    """An estimate of a quantile and its upper confidence limit (order statistics)."""

    estimate: float
    upper: float


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Per job: (mean of its iterations / mean of its own phase times in the same draws).

    ``ratios`` is [job, replication], ``iterations_s`` the mean iteration [job, replication].
    """

    ratios: Floats
    iterations_s: Floats


def draw_job(job: JobModel, iterations: int, replications: int) -> Floats:
    """Seconds [phase, iteration, replication] at the requested size; cached per job and shape."""
    raise NotImplementedError


def group_slowdowns(
    group: Group,
    intra: Intra,
    *,
    order: Sequence[int] | None = None,
    iterations: int = 100,
    replications: int = 1000,
) -> Slowdowns:
    """The members under that very policy over joint draws, min(iterations, 100) iterations."""
    raise NotImplementedError


def quantile_bound(values: Floats, quantile: float, confidence: float) -> QuantileBound:
    """Upper limit: the smallest order statistic that lies above the quantile with ``confidence``
    (binomial). ``inf`` where there are too few values to say (n < log(1-c)/log(q))."""
    raise NotImplementedError
