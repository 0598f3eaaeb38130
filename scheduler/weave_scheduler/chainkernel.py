"""``fifo`` over drawn durations where every job is a chain of phases, compiled; the usual case.

The same as ``weave_scheduler.eventkernel``, event for event and bit for bit (a test holds them
together), several times faster: a job in a chain waits for one thing at a time, so a number per job
says what, and a request can enter its queues and all grants be made in one pass. One group per
call; every replication has its own clock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["run_chains"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WAITS, _HOLDS, _LAGS = 0, 1, 2  # in its queues, on its nodes, or done with them but for the tail


@numba.njit(cache=True)
def run_chains(
    order: Ints, base: Ints, nodes: Ints, fore: Floats, back: Floats,
    hold: Floats, done: Floats, ends: Floats, freed: Floats,
) -> None:  # fmt: skip
    """Fill ``ends`` [job, iteration, replication], and ``freed`` [step, iteration, replication] as
    far as it goes.

    ``base`` is the first step of each job and the number of all, ``nodes`` a bit set per step,
    ``fore`` and ``back`` [node, job before, step] what a switch costs, ``hold`` and ``done``
    [replication, step, iteration].
    """
    costs = np.any(fore > 0) or np.any(back > 0)
    first, which = _lists(nodes, fore.shape[0] if costs else 0)
    for rep in range(hold.shape[0]):
        _replication(
            order, base, nodes, first, which, fore, back, hold[rep], done[rep], ends[:, :, rep],
            freed[:, :, rep],
        )  # fmt: skip


@numba.njit(cache=True)
def _replication(
    order: Ints, base: Ints, nodes: Ints, first: Ints, which: Ints, fore: Floats, back: Floats,
    hold: Floats, done: Floats, ends: Floats, freed: Floats,
) -> None:  # fmt: skip
    """From the first requests until every job has done its iterations."""
    jobs, count, drawn = len(base) - 1, ends.shape[1], hold.shape[1]
    step, turn, queue = base[:-1].copy(), np.zeros(jobs, np.int64), order.copy()
    does, at, planned = np.full(jobs, _WAITS), np.empty(jobs), np.empty(jobs, np.int64)
    last, since = np.full(fore.shape[0], -1), np.zeros(fore.shape[0])
    costs = len(which) > 0
    held, waiting, passes, left, now = 0, jobs, 0, jobs, 0.0
    while True:
        taken, kept, serial = held, 0, passes * (jobs + 1)
        passes += 1
        for place in range(waiting):  # first in all its queues, and all its nodes free
            job = queue[place]
            own = nodes[step[job]]
            blocked = taken & own
            taken |= own
            if blocked:
                queue[kept] = job
                kept += 1
                continue
            held |= own
            ready = now
            if costs:
                spots = which[first[step[job]] : first[step[job] + 1]]
                ready = _switched(job, step[job], now, spots, fore, back, last, since)
            does[job], planned[job] = _HOLDS, serial
            at[job] = ready + hold[step[job], turn[job] % drawn]
            serial += 1
        waiting = kept
        job = _earliest(does, at, planned)
        now = at[job]
        if does[job] == _HOLDS:
            held &= ~nodes[step[job]]
            if turn[job] < freed.shape[1]:
                freed[step[job], turn[job]] = now
            draw = turn[job] % drawn
            lag = done[step[job], draw] - hold[step[job], draw]
            if lag > 0.0:
                does[job], at[job] = _LAGS, now + lag
                planned[job] = passes * (jobs + 1) + jobs  # after the grants of the next pass
                continue
        step[job] += 1
        if step[job] == base[job + 1]:
            step[job] = base[job]
            if turn[job] < count:
                ends[job, turn[job]] = now
                left -= turn[job] == count - 1
                if left == 0:
                    return
            turn[job] += 1
        does[job], queue[waiting] = _WAITS, job
        waiting += 1


@numba.njit(cache=True)
def _earliest(does: Ints, at: Floats, planned: Ints) -> int:
    """The job whose planned end comes first; of equal ones the one planned first."""
    found = -1
    for job in range(len(does)):
        if does[job] != _WAITS and (
            found < 0
            or at[job] < at[found]
            or (at[job] == at[found] and planned[job] < planned[found])
        ):
            found = job
    return found


@numba.njit(cache=True)
def _switched(
    job: int, step: int, now: float, spots: Ints, fore: Floats, back: Floats, last: Ints,
    since: Floats,
) -> float:  # fmt: skip
    """When the phase runs, after the switch on those of its nodes where another job was."""
    ready, wait = now, 0.0
    for node in spots:
        before = last[node]
        if before >= 0 and before != job:
            ready = max(ready, since[node] + back[node, before, step])
            wait = max(wait, fore[node, before, step])
    for node in spots:
        last[node] = job
        since[node] = ready + wait
    return ready + wait


@numba.njit(cache=True)
def _lists(nodes: Ints, width: int) -> Any:
    """The nodes of all steps one after the other, and where those of each step begin; ``width``
    0: none, for nothing is paid anywhere."""
    first = np.zeros(len(nodes) + 1, np.int64)
    which = np.empty(len(nodes) * width, np.int64)
    count = 0
    for step in range(len(nodes)):
        for node in range(width):
            if (nodes[step] >> node) & 1:
                which[count] = node
                count += 1
        first[step + 1] = count
    return first, which
