"""The tests of admission for common jobs, compiled: bounds over all groups, then fifo itself.

Common: one rollout on some rollout nodes, then one training on all training nodes of the group,
fixed durations, switch costs of the job without a background part. ``fifo_iterations`` is the
compiled second form of the ``fifo`` state machine for such jobs; a test proves it equal to
``weave_scheduler.groupsim``. All loads against limits allow a relative ROOM for rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["MOST_LAPS", "ROOM", "fifo_iterations", "fits", "runs"]

ROOM = 1e-9

#: Iterations that a job may do during one of another, both alone, where fifo is simulated: groups
#: beyond that are refused, for simulating them would take longer than a decision may.
MOST_LAPS = 1000.0

#: Iterations of the first job after which a trajectory that did not repeat is averaged.
_LONG = 64


@njit(cache=True)
def runs(passing: Any, count: int) -> int:
    """The longest run of true values among the first ``count``."""
    longest = now = 0
    for at in range(count):
        now = now + 1 if passing[at] else 0
        longest = max(longest, now)
    return longest


@njit(cache=True)
def fifo_iterations(times: Any, mask: Any, means: Any) -> bool:
    """Long-run mean iteration of each job into ``means``; whether the trajectory repeated.

    ``times`` is [job, (rollout, its switch, training, its switch)], ``mask`` has a bit for each
    rollout node, at most 62. All start at 0 in the order of the rows. Phases are taken in the order
    in which they enter the queues (ties: the job whose phase before was granted first); each starts
    when all its nodes are free of those before it, a switch later where another job was there last.
    Ends where the state at a rollout of the first job was seen before (Brent's cycle detection),
    else the mean is that of the second half.
    """
    jobs = len(mask)
    nodes, first = _nodes_of(mask)
    pool = nodes[-1]
    ready = np.zeros(jobs)
    granted = np.zeros(jobs)
    serial = np.arange(jobs)
    training = np.zeros(jobs, dtype=np.bool_)
    free = np.zeros(pool + 1)
    last = np.full(pool + 1, -1, dtype=np.int64)
    done = np.zeros(jobs, dtype=np.int64)
    saved = np.full(2 * (jobs + pool + 1), np.inf)
    state = np.empty(2 * (jobs + pool + 1))
    saved_done = np.zeros(jobs, dtype=np.int64)
    saved_at = 0.0
    wait = 1
    since = 0
    count = jobs
    while True:
        job = _next(ready, granted, serial)
        if job == 0 and not training[0] and done[0] > 0:
            now = ready[0]
            _state(now, ready, training, free, last, state)
            repeated = _same(state, saved, now - saved_at)
            if repeated or (done[0] >= _LONG and np.all(done > saved_done)):
                for one in range(jobs):
                    means[one] = (now - saved_at) / (done[one] - saved_done[one])
                return repeated
            since += 1
            if since >= wait and done[0] <= _LONG // 2:
                saved[:] = state
                saved_done[:] = done
                saved_at = now
                wait *= 2
                since = 0
        held = nodes[first[-1] :] if training[job] else nodes[first[job] : first[job + 1]]
        spent = times[job, 2:] if training[job] else times[job, :2]
        granted[job], ready[job] = _run(job, ready[job], held, spent, free, last)
        done[job] += training[job]
        training[job] = not training[job]
        serial[job] = count
        count += 1


@njit(cache=True)
def _run(job: int, ready: float, held: Any, spent: Any, free: Any, last: Any) -> Any:
    """One phase: when it was granted, and when its nodes are free again."""
    start = ready
    switched = False
    for node in held:
        start = max(start, free[node])
        switched = switched or (last[node] != job and last[node] >= 0)
    end = start + spent[0] + (spent[1] if switched else 0.0)
    for node in held:
        free[node] = end
        last[node] = job
    return start, end


@njit(cache=True)
def _nodes_of(mask: Any) -> Any:
    """Rollout nodes of the jobs, one job after the other, then the training pool as one more
    node; and where each of them begins."""
    nodes = np.empty(62 * len(mask) + 1, dtype=np.int64)
    first = np.zeros(len(mask) + 1, dtype=np.int64)
    count = 0
    for job in range(len(mask)):
        for node in range(62):
            if (mask[job] >> node) & 1:
                nodes[count] = node
                count += 1
        first[job + 1] = count
    nodes[count] = np.max(nodes[:count]) + 1
    return nodes[: count + 1], first


@njit(cache=True)
def _next(ready: Any, granted: Any, serial: Any) -> int:
    """The job whose phase enters its queues next."""
    job = 0
    for one in range(1, len(ready)):
        if ready[one] > ready[job]:
            continue
        if (
            ready[one] < ready[job]
            or granted[one] < granted[job]
            or (granted[one] == granted[job] and serial[one] < serial[job])
        ):
            job = one
    return job


@njit(cache=True)
def _state(now: float, ready: Any, training: Any, free: Any, last: Any, state: Any) -> None:
    """What the future depends on, relative to now."""
    jobs = len(ready)
    for job in range(jobs):
        state[2 * job] = ready[job] - now
        state[2 * job + 1] = 1.0 if training[job] else 0.0
    for node in range(len(free)):
        state[2 * (jobs + node)] = max(free[node] - now, 0.0)
        state[2 * (jobs + node) + 1] = last[node]


@njit(cache=True)
def _same(state: Any, saved: Any, span: float) -> bool:
    same = True
    for at in range(len(state)):
        same = same and abs(state[at] - saved[at]) <= 1e-9 * span
    return same


@njit(cache=True)
def fits(need: float, room: float, equal: bool) -> bool:
    """Whether a need of bytes fits; ``equal``: also where nothing is left."""
    return need < room or (equal and need == room)
