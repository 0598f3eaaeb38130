"""The compiled passes over the table of groups: what bounds rule out, and the first that fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from weave_scheduler.policies.quick import MOST_LAPS, ROOM, fifo_iterations, fits, runs

__all__ = ["REASONS", "first_admitted", "scan_groups"]

#: What a group's code means; 0: compiled tests may judge it, 1: the general ones must.
REASONS = (
    "",
    "",
    "has the most jobs already",
    "another number of training nodes",
    "saturated before the job joins",
    "training nodes too full",
    "a limit is broken by a lower bound",
)


@njit(cache=True)
def scan_groups(rows: Any, table: Any, asked: Any, switches: Any, passing: Any) -> Any:
    """A code of REASONS per row, and the longest run of nodes that could take the job.

    ``passing[i, r]``: node r of that group passes memory and the bounds of its component.
    """
    (jobs, nodes, degree, plain, saturated, _, _, _, _, load, span, whole, memory,
     train_memory) = table  # fmt: skip
    times, train_need, roll_need, plain_job, limit, _, rooms, fixed = asked
    max_group, fifo, prune, equal, hooked = switches
    reason = np.zeros(len(rows), dtype=np.int64)
    longest = np.zeros(len(rows), dtype=np.int64)
    for at in range(len(rows)):
        row = rows[at]
        size = degree[row]
        if jobs[row] >= max_group:
            reason[at] = 2
            continue
        if size >= len(times) or np.isnan(times[size, 0]):
            reason[at] = 3
            continue
        if prune and saturated[row]:
            reason[at] = 4
            continue
        if not (plain[row] and plain_job):
            reason[at] = 1
            continue
        if not (hooked or _stored(train_memory[row], train_need[size], rooms[1], equal)):
            reason[at] = 5
            continue
        roll, train = times[size, 0], times[size, 2]
        alone = roll + train
        room = 1 + ROOM
        broken = alone > limit * room
        if fifo:
            broken = broken or whole[row, 3] + train / limit > room
        else:
            least = min(limit, whole[row, 0]) * room
            broken = broken or whole[row, 1] + train > least
            broken = broken or max(alone, whole[row, 2]) > least
        if broken:
            reason[at] = 6
            continue
        for node in range(nodes[row]):
            least = min(limit, span[row, node, 0]) * room
            passing[at, node] = (
                load[row, node] + roll <= least
                and span[row, node, 1] + train <= least
                and max(alone, span[row, node, 2]) <= least
                and (hooked or _stored(memory[row, node], roll_need, rooms[0], equal))
            )
        longest[at] = runs(passing[at], nodes[row])
        if hooked or not fixed:
            reason[at] = 1
    return reason, longest


@njit(cache=True)
def _stored(there: Any, need: Any, room: Any, equal: bool) -> bool:
    """Whether the need fits beside what is there: host memory, then device memory."""
    if not fits(there[0] + need[0], room[0], equal):
        return False
    return fits(max(there[1], need[1]) + there[2] + need[2], room[1], equal)


@njit(cache=True)
def first_admitted(
    rows: Any, table: Any, asked: Any, reason: Any, longest: Any, passing: Any, most: int,
    unsaturated: bool, fifo: bool, means: Any,
) -> Any:  # fmt: skip
    """The first candidate that fits, by new nodes, group, load: place, new nodes, start, test.

    Place -1: none. Groups that need the general tests are given code 1 in ``reason``.
    """
    nodes, mask = table[1], table[8]
    wanted = asked[5]
    for at in range(len(rows)):  # strict order of gangs needs the cycle ratio
        row = rows[at]
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
                if nodes[row] + new > 62:
                    continue
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
    alone = times[:, 0] + times[:, 2]
    if np.max(alone) > MOST_LAPS * np.min(alone):
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
    for node in range(62):
        here = 0.0
        for one in range(len(masks)):
            if (masks[one] >> node) & 1:
                here += times[one, 0]
        load = max(load, here)
    return bool(load > cycle * (1 + ROOM))
