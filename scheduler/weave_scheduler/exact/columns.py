"""Feasible groups of jobs with one rollout node each, with the least price of each group. Pure.

A group with a training pool of d nodes is feasible when every training fits into the shortest
limit P = min_k SLO_k solo_k, every job alone does, and the rollouts fit into rollout nodes of P
seconds and of the node's memory (the closed form of the period, so the optimum is that of strict
order and of worst-case durations). A switch is paid in a training where there are others, and in a
rollout on a node that others use. Its price is that of d training nodes and of the fewest rollout
nodes, found by enumeration: at most 52 ways at five jobs. A part of a feasible group is feasible,
so groups are enumerated level by level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["Columns", "Instance", "feasible_groups"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Relative room for the rounding of sums when a load is held against a limit.
ROOM = 1e-12


@dataclass(frozen=True, slots=True)
class Instance:
    """The jobs of one instant as arrays: a row a job, a column a size of the training pool.

    Attributes:
        rollout_s: seconds of one rollout.
        train_s: seconds of one training on ``degrees[d]`` nodes; inf where not supported.
        rollout_switch_s, train_switch_s: of bringing the job in, where another one was there.
        limit_s: SLO times the solo iteration at the requested size.
        rollout_bytes, train_bytes: need per node.
        degrees: sizes of training pools, in nodes.
        rollout_price, train_price: of one node, per hour.
        rollout_memory, train_memory: bytes of one node.
    """

    rollout_s: Floats
    train_s: Floats
    rollout_switch_s: Floats
    train_switch_s: Floats
    limit_s: Floats
    rollout_bytes: Floats
    train_bytes: Floats
    degrees: Integers
    rollout_price: float
    train_price: float
    rollout_memory: float
    train_memory: float
    max_group: int

    @property
    def jobs(self) -> int:
        return len(self.limit_s)


@dataclass(frozen=True, slots=True)
class Columns:
    """Feasible groups: ``members`` is padded with -1, prices per hour, of a group and of a node."""

    members: Integers
    prices: Floats
    rollout_nodes: Integers
    train_nodes: Integers
    rollout_price: float
    train_price: float

    def __len__(self) -> int:
        return len(self.prices)

    def group(self, index: int) -> tuple[int, ...]:
        """The jobs of one group, by their row, ascending."""
        return tuple(int(job) for job in self.members[index] if job >= 0)


def feasible_groups(instance: Instance) -> Columns:
    """Every feasible group, each once, at its cheapest size of the training pool.

    Raises ValueError where a job fits nowhere even alone.
    """
    best: dict[tuple[int, ...], tuple[float, int, int]] = {}
    for place, degree in enumerate(instance.degrees):
        for members, nodes in _levels(instance, place):
            prices = nodes * instance.rollout_price + int(degree) * instance.train_price
            for row, count, price in zip(members.tolist(), nodes.tolist(), prices, strict=True):
                known = best.get(tuple(row))
                if known is None or price < known[0]:
                    best[tuple(row)] = (float(price), count, int(degree))
    for job in range(instance.jobs):
        if (job,) not in best:
            raise ValueError(f"job {job} keeps its SLO on no node even alone")
    width = max(len(row) for row in best)
    padded = np.full((len(best), width), -1, dtype=np.int64)
    for index, group in enumerate(best):
        padded[index, : len(group)] = group
    found = list(best.values())
    return Columns(
        padded,
        np.array([one[0] for one in found]),
        np.array([one[1] for one in found], dtype=np.int64),
        np.array([one[2] for one in found], dtype=np.int64),
        instance.rollout_price,
        instance.train_price,
    )


def _levels(instance: Instance, place: int) -> list[tuple[Integers, Integers]]:
    """Members and rollout nodes of the feasible groups of 1, 2, .. jobs with one size of pool."""
    table = (
        instance.rollout_s,
        np.ascontiguousarray(instance.train_s[:, place]),
        instance.rollout_switch_s,
        instance.train_switch_s,
        instance.limit_s,
        instance.rollout_bytes,
        np.ascontiguousarray(instance.train_bytes[:, place]),
        instance.rollout_memory,
        instance.train_memory,
    )
    level = np.empty((1, 0), dtype=np.int64)
    levels = []
    for _ in range(min(instance.max_group, instance.jobs)):
        none = np.empty((0, level.shape[1] + 1), dtype=np.int64)
        count = _extend(level, none, np.empty(0, dtype=np.int64), *table)
        members = np.empty((count, level.shape[1] + 1), dtype=np.int64)
        nodes = np.empty(count, dtype=np.int64)
        _extend(level, members, nodes, *table)
        if not count:
            break
        levels.append((members, nodes))
        level = members
    return levels


@njit(cache=True)
def _extend(
    level: Any, members: Any, nodes: Any, rollout_s: Any, train_s: Any, rollout_switch_s: Any,
    train_switch_s: Any, limit_s: Any, rollout_bytes: Any, train_bytes: Any, rollout_memory: Any,
    train_memory: Any,
) -> int:  # fmt: skip
    """Groups of ``level`` with one later job more; written where there is room, and counted."""
    size = level.shape[1] + 1
    group = np.empty(size, dtype=np.int64)
    shared = np.empty(size)  # a rollout with its switch; inf where the job must not pay that
    count = 0
    for row in range(level.shape[0]):
        group[: size - 1] = level[row]
        for job in range(group[size - 2] + 1 if size > 1 else 0, len(limit_s)):
            group[size - 1] = job
            limit = np.inf
            for one in group:
                limit = min(limit, limit_s[one])
            limit *= 1 + ROOM
            trained = 0.0
            stored = 0.0
            fits = True
            for at in range(size):
                one = group[at]
                spent = train_s[one] + (train_switch_s[one] if size > 1 else 0.0)
                trained += spent
                stored += train_bytes[one]
                fits = fits and rollout_s[one] + spent <= limit
                fits = fits and rollout_bytes[one] <= rollout_memory
                switched = rollout_s[one] + rollout_switch_s[one]
                shared[at] = switched if switched + spent <= limit else np.inf
            if not fits or trained > limit or stored > train_memory:
                continue
            if count < len(nodes):
                members[count] = group
                nodes[count] = _fewest_nodes(group, shared, rollout_bytes, limit, rollout_memory)
            count += 1
    return count


@njit(cache=True)
def _fewest_nodes(group: Any, shared: Any, rollout_bytes: Any, limit: Any, memory: Any) -> int:
    """The fewest nodes for the rollouts, by restricted growth; pre: each fits a node alone.
    ``shared``: seconds of each on a node that it shares."""
    size = len(group)
    best = size
    node_of = np.zeros(size, dtype=np.int64)
    load = np.zeros((size + 1, size))
    stored = np.zeros((size + 1, size))
    used = np.zeros(size + 1, dtype=np.int64)
    depth = 0
    node_of[0] = -1
    while depth >= 0:
        node_of[depth] += 1
        node = node_of[depth]
        if node > used[depth] or node >= best:
            depth -= 1
            continue
        one = group[depth]
        if node < used[depth] and (
            load[depth, node] + shared[depth] > limit
            or stored[depth, node] + rollout_bytes[one] > memory
        ):
            continue
        load[depth + 1] = load[depth]
        stored[depth + 1] = stored[depth]
        load[depth + 1, node] += shared[depth]
        stored[depth + 1, node] += rollout_bytes[one]
        used[depth + 1] = max(used[depth], node + 1)
        if used[depth + 1] >= best and depth + 1 < size:
            continue
        if depth + 1 == size:
            best = min(best, used[depth + 1])
            continue
        depth += 1
        node_of[depth] = -1
    return best
