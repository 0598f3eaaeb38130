"""The tests of admission for common jobs, compiled: bounds, then fifo itself.

Common: one rollout on some rollout nodes, then one training on all training nodes of the group,
fixed durations, switch costs of the job without a background part. ``fifo_iterations`` is the
compiled second form of the ``fifo`` state machine for such jobs; a test proves it equal to
``weave_scheduler.groupsim``. All loads against limits allow a relative ROOM for rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["MOST_LAPS", "MOST_NODES", "fifo_iterations", "first_admitted"]

ROOM = 1e-9

#: Iterations that a job may do during one of another, by their lower bounds, where fifo is
#: simulated: beyond that a group is refused, for it would take longer than a decision may.
MOST_LAPS = 1000.0

#: Rollout nodes of a group that fit into the bits of a number.
MOST_NODES = 62

#: Iterations of the slowest job after which a trajectory that did not repeat is averaged.
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
    rollout node, at most MOST_NODES. All start at 0 in the order of the rows. Phases are taken in
    the order in which they enter the queues (ties: the job whose phase before was granted first);
    each starts when all its nodes are free of those before it, a switch later where another job was
    there last.
    Ends where the state at a rollout of the slowest job (alone) was seen before (Brent's cycle
    detection), else a mean is that between a job's own first and last end in the second half.
    """
    jobs = len(mask)
    slowest = np.argmax(times[:, 0] + times[:, 2])
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
    half_at, ended_at = np.full(jobs, -1.0), np.zeros(jobs)  # first and last end in second half
    half_done = np.zeros(jobs, dtype=np.int64)
    wait = 1
    since = 0
    count = jobs
    while True:
        job = _next(ready, granted, serial)
        if job == slowest and not training[job] and done[job] > 0:
            now = ready[job]
            _state(now, ready, training, free, last, state)
            if _same(state, saved, now - saved_at):
                means[:] = (now - saved_at) / (done - saved_done)
                return True
            if done[job] >= _LONG and np.all(done > half_done) and np.all(half_at >= 0):
                means[:] = (ended_at - half_at) / (done - half_done)
                return False
            since += 1
            if since >= wait and done[job] <= _LONG // 2:
                saved[:] = state
                saved_done[:] = done
                saved_at = now
                wait *= 2
                since = 0
        held = nodes[first[-1] :] if training[job] else nodes[first[job] : first[job + 1]]
        spent = times[job, 2:] if training[job] else times[job, :2]
        granted[job], ready[job] = _run(job, ready[job], held, spent, free, last)
        if training[job]:
            done[job] += 1
            ended_at[job] = ready[job]
            if done[slowest] >= _LONG // 2 and half_at[job] < 0:
                half_at[job], half_done[job] = ready[job], done[job]
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
    nodes = np.empty(MOST_NODES * len(mask) + 1, dtype=np.int64)
    first = np.zeros(len(mask) + 1, dtype=np.int64)
    count = 0
    for job in range(len(mask)):
        for node in range(MOST_NODES):
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
def first_admitted(
    rows: Any, table: Any, asked: Any, reason: Any, passing: Any, most: int,
    unsaturated: bool, fifo: bool, means: Any,
) -> Any:  # fmt: skip
    """The first candidate that fits, by new nodes, group, load: place, new nodes, start, test.

    Place -1: none. Groups that need the general tests are given code 1 in ``reason``.
    """
    nodes, mask = table[1], table[8]
    wanted = asked[5]
    longest = np.zeros(len(rows), dtype=np.int64)
    for at in range(len(rows)):  # strict order of gangs needs the cycle ratio
        row = rows[at]
        longest[at] = runs(passing[at], nodes[row])
        if not fifo and reason[at] == 0 and not _one_node_each(mask[row], table[0][row], wanted):
            reason[at] = 1
    for new in range(most + 1):
        kept = wanted - new
        for at in range(len(rows)):
            if reason[at] != 0 or longest[at] < kept:
                continue
            row = rows[at]
            for start in range(nodes[row] - kept + 1 if kept else 1):
                if kept and runs(passing[at, start:], kept) < kept:
                    continue
                bits = np.int64(0)
                for node in range(start, start + kept):
                    bits |= np.int64(1) << node
                for node in range(nodes[row], nodes[row] + new):
                    bits |= np.int64(1) << node
                how = _judged(row, table, asked, bits, unsaturated, fifo, means)
                if how >= 0:
                    return at, new, start, how
    return -1, 0, 0, 0


@njit(cache=True)
def _one_node_each(mask: Any, jobs: int, wanted: int) -> bool:
    if wanted != 1:
        return False
    several = False
    for job in range(jobs):
        several = several or mask[job] & (mask[job] - 1) != 0
    return not several


@njit(cache=True)
def _judged(
    row: int, table: Any, asked: Any, bits: int, unsaturated: bool, fifo: bool, means: Any
) -> int:
    """0 closed form, 1 upper bound, 2 simulation; -1 refused. Fills the planned iterations."""
    jobs, degree, limits, mask = table[0][row], table[2][row], table[6][row], table[8][row]
    size = jobs + 1
    times = np.empty((size, 4))
    times[:jobs] = table[5][row, :jobs]
    times[jobs] = asked[0][degree]
    masks = np.empty(size, dtype=np.int64)
    masks[:jobs] = mask[:jobs]
    masks[jobs] = bits
    limit = np.empty(size)
    limit[:jobs] = limits[:jobs]
    limit[jobs] = asked[4]
    if unsaturated and _over(times, masks):
        return -1
    label = np.arange(size)
    for one in range(size):
        for before in range(one):
            if masks[before] & masks[one] and label[before] != label[one]:
                old, new = label[one], label[before]
                for other in range(size):
                    if label[other] == old:
                        label[other] = new
    lower, upper = _bounds(times, masks, label, fifo)
    room = 1 + ROOM
    for one in range(size):
        if lower[one] > limit[one] * room:
            return -1
    closed = not fifo or (np.all(masks == bits) and bits & (bits - 1) == 0 and degree == 1)
    if closed:
        means[:size] = lower
        return 0
    if np.all(upper <= limit * room):
        means[:size] = upper
        return 1
    if np.max(lower) > MOST_LAPS * np.min(lower):
        return -1
    fifo_iterations(times, masks, means[:size])
    for one in range(size):
        if means[one] > limit[one] * room:
            return -1
    return 2


@njit(cache=True)
def _bounds(times: Any, masks: Any, label: Any, fifo: bool) -> Any:
    """Bounds of each job's iteration under fifo; lower also the period of strict order."""
    size = len(masks)
    lower = np.zeros(size)
    upper = np.zeros(size)
    everything = np.sum(times[:, 2]) + np.sum(times[:, 3])
    union = np.int64(0)
    for one in range(size):
        union |= masks[one]
    width = 0
    while union >> width:
        width += 1
    for component in range(size):
        term = 0.0
        trained = 0.0
        rolled = 0.0
        members = 0
        for one in range(size):
            members += not fifo or label[one] == component
        if members == 0:
            continue
        shared = 1.0 if members > 1 else 0.0
        for one in range(size):
            if fifo and label[one] != component:
                continue
            trained += times[one, 2] + shared * times[one, 3]
            rolled += times[one, 0] + times[one, 1]
            alone = True
            for other in range(size):
                alone = alone and (other == one or not masks[other] & masks[one])
            term = max(
                term,
                times[one, 0] + times[one, 2] + shared * times[one, 3]
                + (0.0 if alone else times[one, 1]),
            )  # fmt: skip
        term = max(term, trained)
        for node in range(width):
            bit = np.int64(1) << node
            count = 0
            load = 0.0
            switch = 0.0
            for one in range(size):
                if (not fifo or label[one] == component) and masks[one] & bit:
                    count += 1
                    load += times[one, 0]
                    switch += times[one, 1]
            term = max(term, load + (switch if count > 1 else 0.0))
        for one in range(size):
            if not fifo or label[one] == component:
                lower[one] = term
                upper[one] = rolled + everything
        if not fifo:
            break
    return lower, upper


@njit(cache=True)
def _over(times: Any, masks: Any) -> bool:
    """Whether the group is over-saturated, without switches (paper 4.2)."""
    cycle = np.max(times[:, 0] + times[:, 2])
    load = np.sum(times[:, 2])
    for node in range(MOST_NODES):
        here = 0.0
        for one in range(len(masks)):
            if (masks[one] >> node) & 1:
                here += times[one, 0]
        load = max(load, here)
    return bool(load > cycle * (1 + ROOM))
