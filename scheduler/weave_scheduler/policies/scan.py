"""The compiled pass over the table of groups: what bounds rule out.

Numba's cache of a compiled function does not see changes in another file, so what this calls and
the constants it reads are defined here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["REASONS", "scan_groups"]

#: As in ``weave_scheduler.policies.quick``.
_ROOM = 1e-9

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
    """A code of REASONS per row; ``passing[i, r]``: node r of that group passes memory and the
    bounds of its component."""
    (jobs, nodes, degree, plain, saturated, _, _, _, _, load, span, whole, memory,
     train_memory) = table  # fmt: skip
    times, train_need, roll_need, plain_job, limit, _, rooms, fixed = asked
    max_group, fifo, prune, equal, hooked = switches
    reason = np.zeros(len(rows), dtype=np.int64)
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
        room = 1 + _ROOM
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
        if hooked or not fixed:
            reason[at] = 1
    return reason


@njit(cache=True)
def _stored(there: Any, need: Any, room: Any, equal: bool) -> bool:
    """Whether the need fits beside what is there: host memory, then device memory."""
    if not fits(there[0] + need[0], room[0], equal):
        return False
    return fits(max(there[1], need[1]) + there[2] + need[2], room[1], equal)


@njit(cache=True)
def fits(need: float, room: float, equal: bool) -> bool:
    """Whether a need of bytes fits; ``equal``: also where nothing is left."""
    return need < room or (equal and need == room)
