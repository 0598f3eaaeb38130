"""Random durations: joint draws, the very policy over them, and quantiles with confidence.

Draws are common random numbers: those of a job depend on its seed and laws only, never on the
group, so candidate groups are compared on the same draws. Layout [phase, iteration, replication],
replication innermost. Times are seconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.eventkernel import event_ends
from weave_scheduler.groupmath import Turn, mean_phases, scale_of, turns_of, why_not_closed
from weave_scheduler.laws import PHASES
from weave_scheduler.model import Group, Intra, JobModel
from weave_scheduler.recursion import recursion_of
from weave_scheduler.samples import sample

__all__ = [
    "QuantileBound",
    "Slowdowns",
    "draw_job",
    "group_slowdowns",
    "least_draws",
    "quantile_bound",
    "solo_iterations",
]

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


@functools.lru_cache(maxsize=64)
def draw_job(job: JobModel, iterations: int, replications: int) -> Floats:
    """Seconds [phase, iteration, replication] at the requested size; kept for the last 64 jobs.

    Laws of one job with a common ``stream`` see the same responses in the same iteration.
    """
    drawn = np.empty((len(job.phases), iterations, replications))
    for at, phase in enumerate(job.phases):
        name = phase.law.stream or phase.name
        stream = PHASES.index(name) if name in PHASES else len(PHASES) + at
        generator = np.random.default_rng([job.seed, stream])
        drawn[at] = sample(phase.law, generator, (iterations, replications))
    drawn.setflags(write=False)
    return drawn


def solo_iterations(job: JobModel, drawn: Floats) -> Floats:
    """Length of each drawn iteration alone [iteration, replication]: the longest path."""
    ends: dict[str, Floats] = {}
    for phase, taken in zip(job.phases, drawn, strict=True):
        begin = functools.reduce(
            np.maximum, [ends[name] for name in phase.after], np.zeros_like(taken)
        )
        ends[phase.name] = begin + taken
    longest: Floats = functools.reduce(np.maximum, ends.values())
    return longest


def group_slowdowns(
    group: Group,
    intra: Intra,
    *,
    order: Sequence[int] | None = None,
    iterations: int = 100,
    replications: int = 1000,
) -> Slowdowns:
    """The members under that very policy over joint draws.

    Each job counts its first min(its iterations, ``iterations``), without the first of all if
    there are more; the others go on meanwhile.
    """
    own = [min(member.job.iterations, iterations) for member in group.members]
    most = max(own, default=1)
    draws = [draw_job(member.job, most, replications) for member in group.members]
    turns = turns_of(group, mean_phases)
    hold, done = _occupied(group, turns, draws)
    ends = _ends(group, turns, intra, order, hold, done)
    ratios = np.empty((len(own), replications))
    means = np.empty_like(ratios)
    for job, count in enumerate(own):
        alone = solo_iterations(group.members[job].job, draws[job])
        if count == 1:
            means[job], alone_mean = ends[job, 0], alone[0]
        else:
            means[job] = (ends[job, count - 1] - ends[job, 0]) / (count - 1)
            alone_mean = alone[1:count].mean(axis=0)
        ratios[job] = means[job] / alone_mean
    return Slowdowns(ratios, means)


def _occupied(
    group: Group, turns: Sequence[Turn], draws: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """How long each step holds its nodes and until it is done [step, iteration, replication]."""
    hold: list[Floats] = []
    done: list[Floats] = []
    for member, turn, drawn in zip(group.members, turns, draws, strict=True):
        for at, (phase, step) in enumerate(zip(member.job.phases, turn.steps, strict=True)):
            scale = scale_of(group, member, phase)
            taken = drawn[at] if scale == 1 else drawn[at] * scale
            if phase.tail is not None and step.lag:
                hold.append(taken * phase.tail.hold_share + phase.tail.migrate_s)
                done.append(taken + phase.tail.migrate_s)
            else:
                hold.append(taken)
                done.append(taken)
    stacked = np.stack(hold)
    same = all(one is other for one, other in zip(hold, done, strict=True))
    return stacked, stacked if same else np.stack(done)


def _ends(
    group: Group,
    turns: Sequence[Turn],
    intra: Intra,
    order: Sequence[int] | None,
    hold: Floats,
    done: Floats,
) -> Floats:
    """On one node pair fifo keeps the order in which it began, so the recursion serves it too."""
    one_pair = intra == "fifo" and why_not_closed(turns, intra, group.pairs) is None
    if intra == "strict" or one_pair:
        return recursion_of(turns, order, group.pairs).ends(hold, done)
    return event_ends(turns, intra, hold, done, order=order, pairs=group.pairs)


def quantile_bound(values: Floats, quantile: float, confidence: float) -> QuantileBound:
    """The quantile of ``values`` and its upper limit, from order statistics (no assumption).

    The limit is the smallest value x_(r) with P(Binomial(n, quantile) < r) >= confidence; ``inf``
    where even the largest of n is not enough: n < log(1 - confidence) / log(quantile).
    """
    if not (0 < quantile < 1 and 0 < confidence < 1):
        raise ValueError(f"quantile {quantile!r}, confidence {confidence!r}: allowed: in (0, 1)")
    ascending = np.sort(values)
    count = len(ascending)
    if not count or not math.isfinite(float(ascending[-1])):
        raise ValueError("values: need finite numbers, at least one")
    estimate = float(ascending[max(0, math.ceil(quantile * count) - 1)])
    rank = _upper_rank(count, quantile, confidence)
    return QuantileBound(estimate, math.inf if rank > count else float(ascending[rank - 1]))


def least_draws(quantile: float, confidence: float) -> int:
    """How many draws give the quantile a finite upper limit."""
    return math.ceil(math.log1p(-confidence) / math.log(quantile))


@functools.lru_cache(maxsize=256)
def _upper_rank(count: int, quantile: float, confidence: float) -> int:
    """Smallest r with P(Binomial(count, quantile) <= r - 1) >= confidence; count + 1: none."""
    below = 0.0
    for successes in range(count):
        log = (
            math.lgamma(count + 1)
            - math.lgamma(successes + 1)
            - math.lgamma(count - successes + 1)
            + successes * math.log(quantile)
            + (count - successes) * math.log1p(-quantile)
        )
        below += math.exp(log)
        if below >= confidence:
            return successes + 1
    return count + 1
