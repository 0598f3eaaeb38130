"""The Gavel-like baseline: whole jobs take turns on nodes, fractions of time from a linear program.

Heterogeneity-aware and at the level of jobs, as the paper's Gavel+: it knows nothing of phases. In
every round of ``ROUND_S`` a job runs in one of its ways, or not at all: *disaggregated* on its
rollout and training nodes (rate 1), *co-located* on its training nodes, or *on rollout nodes*
(rates relative to disaggregated). The allocation is Gavel's max-min fairness: x[j, w] >= 0 is the
fraction of time that job j spends in way w,

    maximise t   with  t <= weight_j * sum over w of rate[j, w] x[j, w]   for every job j,
                       sum over w of x[j, w] <= 1                         for every job j,
                       sum over j, w of nodes[j, w, pool] x[j, w] <= nodes of the pool.

Rounds turn fractions into a schedule: by the priority x[j, w] / (share of the rounds so far that
it got), highest first (ties: order of jobs, then of ways), as long as nodes are left and the job
has no way yet in this round. scipy solves the program (extra ``weave-rt[exact]``).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["ROUND_S", "Allocation", "GavelJob", "Way", "allocate", "schedule"]

#: Seconds of a round (Gavel's default).
ROUND_S = 360.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a job: how fast, relative to disaggregated, and on how many nodes."""

    name: str
    rate: float
    rollout_nodes: int
    train_nodes: int


@dataclass(frozen=True, slots=True)
class GavelJob:
    name: str
    ways: tuple[Way, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """``fractions[j][w]`` of time; ``least``: the smallest weighted rate of a job."""

    jobs: tuple[GavelJob, ...]
    fractions: tuple[tuple[float, ...], ...]
    least: float
    rates: tuple[float, ...] = field(default=())


def allocate(jobs: Sequence[GavelJob], rollout_nodes: int, train_nodes: int) -> Allocation:
    """Solve the program. Raises ImportError without scipy, ValueError where a job has no way."""
    optimize = importlib.import_module("scipy.optimize")
    for job in jobs:
        if not job.ways or not all(way.rate > 0 for way in job.ways):
            raise ValueError(f"job {job.name}: needs ways with rates above 0")
    pairs = [(at, way) for at, job in enumerate(jobs) for way in job.ways]
    count = len(pairs)
    fair = np.zeros((len(jobs), count + 1))
    once = np.zeros((len(jobs), count + 1))
    nodes = np.zeros((2, count + 1))
    fair[:, count] = 1.0
    for column, (at, way) in enumerate(pairs):
        fair[at, column] = -jobs[at].weight * way.rate
        once[at, column] = 1.0
        nodes[:, column] = way.rollout_nodes, way.train_nodes
    goal = np.zeros(count + 1)
    goal[count] = -1.0
    found = optimize.linprog(
        goal,
        A_ub=np.vstack([fair, once, nodes]),
        b_ub=np.concatenate(
            [np.zeros(len(jobs)), np.ones(len(jobs)), [rollout_nodes, train_nodes]]
        ),
        bounds=(0, None),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS did not solve the allocation: {found.message}")
    shares: list[list[float]] = [[] for _ in jobs]
    for (at, _), value in zip(pairs, found.x[:count].tolist(), strict=True):
        shares[at].append(max(value, 0.0))
    rates = tuple(
        sum(way.rate * share for way, share in zip(job.ways, own, strict=True))
        for job, own in zip(jobs, shares, strict=True)
    )
    return Allocation(tuple(jobs), tuple(map(tuple, shares)), float(found.x[count]), rates)


def schedule(
    allocation: Allocation, rollout_nodes: int, train_nodes: int, rounds: int
) -> npt.NDArray[np.int64]:
    """The way of each job in each round, [round, job]; -1: it does not run."""
    jobs = allocation.jobs
    got = [[0] * len(job.ways) for job in jobs]
    chosen = np.full((rounds, len(jobs)), -1, dtype=np.int64)
    for number in range(rounds):
        order = sorted(
            (
                (-_priority(share, got[at][way], number), at, way)
                for at, own in enumerate(allocation.fractions)
                for way, share in enumerate(own)
                if share > 1e-9
            ),
        )
        left = [rollout_nodes, train_nodes]
        for _, at, way in order:
            need = jobs[at].ways[way].rollout_nodes, jobs[at].ways[way].train_nodes
            if chosen[number, at] >= 0 or need[0] > left[0] or need[1] > left[1]:
                continue
            chosen[number, at] = way
            got[at][way] += 1
            left = [left[0] - need[0], left[1] - need[1]]
    return chosen


def _priority(share: float, got: int, rounds: int) -> float:
    return share * rounds / got if got else float("inf") if share else 0.0
