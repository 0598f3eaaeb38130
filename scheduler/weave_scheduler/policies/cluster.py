"""The state that inter-group policies look at: groups, the nodes they own, who waits. Pure.

Policies only read a cluster; ``weave_scheduler.policies.desk`` changes it by their decisions.
Nodes have ids per pool; a new node gets the smallest id that no group owns. A rollout node that no
member uses is released at once, training nodes with the last member (the paper never resizes a
training pool, footnote 2).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weave_scheduler.model import POOLS, Group, JobModel, Member, Placement, PoolModel

__all__ = ["Cluster", "Resident"]


@dataclass(frozen=True, slots=True)
class Resident:
    """One group in the cluster.

    Attributes:
        id: of the group; never used again after it is gone.
        order: positions of members in strict order; None: the order of joining.
        admitted_by: the test that admitted its latest member.
    """

    id: int
    group: Group
    order: tuple[int, ...] | None = None
    admitted_by: str = ""


class Cluster:
    """Groups on nodes of two pools. Raises ValueError where a change contradicts the state."""

    def __init__(self, pools: Mapping[str, PoolModel]) -> None:
        for pool in POOLS:
            if pool not in pools:
                raise ValueError(f"pools: {pool} is missing")
        self.pools = dict(pools)
        self.residents: dict[int, Resident] = {}
        self.changed: set[int] = set()  # groups that differ since a policy last looked
        self._home: dict[str, int] = {}
        self._next_group = 0
        self._next_node = dict.fromkeys(POOLS, 0)
        self._released: dict[str, list[int]] = {pool: [] for pool in POOLS}

    def __contains__(self, job: str) -> bool:
        return job in self._home

    def __len__(self) -> int:
        """How many jobs are placed."""
        return len(self._home)

    def home(self, job: str) -> Resident:
        """The group of a placed job. Raises KeyError."""
        return self.residents[self._home[job]]

    def free(self, pool: str) -> int | None:
        """How many nodes no group owns; None: as many as asked for."""
        count = self.pools[pool].count
        return None if count is None else count - self.owned(pool)

    def owned(self, pool: str) -> int:
        return self._next_node[pool] - len(self._released[pool])

    def next_nodes(self, pool: str, count: int) -> tuple[int, ...]:
        """The ids that ``count`` new nodes would get. pre: that many are free."""
        ids = heapq.nsmallest(count, self._released[pool])
        first = self._next_node[pool]
        return (*ids, *range(first, first + count - len(ids)))

    @property
    def cost_per_h(self) -> float:
        """Price of all nodes that groups own."""
        return sum(self.pools[pool].node.cost_per_h * self.owned(pool) for pool in POOLS)

    def place(
        self,
        job: JobModel,
        placement: Placement,
        group: int | None,
        order: tuple[int, ...] | None = None,
        admitted_by: str = "",
    ) -> Resident:
        """Put a job into a group, or into a new one (None), taking new nodes as needed."""
        if job.name in self._home:
            raise ValueError(f"job {job.name} is placed already")
        member = Member(job, placement)
        if group is None:
            number, owned = self._next_group, Placement((), ())
            members: tuple[Member, ...] = (member,)
        else:
            number = group
            known = self.residents[group].group
            members, owned = (*known.members, member), Placement(known.rollout, known.train)
        nodes = {
            pool: (*owned.of(pool), *self._take(pool, placement.of(pool), owned.of(pool)))
            for pool in POOLS
        }
        made = Resident(
            number, Group(members, nodes["rollout"], nodes["train"]), order, admitted_by
        )
        self._next_group = max(self._next_group, number + 1)
        self._home[job.name] = number
        self.residents[number] = made
        self.changed.add(number)
        return made

    def restore(self, resident: Resident) -> None:
        """Put a whole group in as it was, with its id and nodes."""
        group = resident.group
        for name in group.names:
            if name in self._home:
                raise ValueError(f"job {name} is placed already")
            self._home[name] = resident.id
        for pool in POOLS:
            self._take(pool, group.nodes(pool), ())
        self.residents[resident.id] = resident
        self._next_group = max(self._next_group, resident.id + 1)
        self.changed.add(resident.id)

    def remove(self, job: str) -> Resident | None:
        """Take a job out and release the nodes that nobody needs; the group that is left."""
        number = self._home.pop(job)
        resident = self.residents[number]
        group = resident.group
        members = tuple(one for one in group.members if one.job.name != job)
        used = {node for one in members for node in one.placement.rollout}
        rollout = tuple(node for node in group.rollout if node in used)
        train = group.train if members else ()
        self._release("rollout", set(group.rollout) - set(rollout))
        self._release("train", set(group.train) - set(train))
        self.changed.add(number)
        if not members:
            del self.residents[number]
            return None
        order = _without(resident, job)
        left = replace(resident, group=Group(members, rollout, train), order=order)
        self.residents[number] = left
        return left

    def _take(self, pool: str, wanted: Iterable[int], owned: tuple[int, ...]) -> tuple[int, ...]:
        new = tuple(node for node in wanted if node not in owned)
        count = self.pools[pool].count
        released = set(self._released[pool])
        for node in new:
            if node >= self._next_node[pool]:
                if count is not None and node >= count:
                    raise ValueError(f"{pool}:{node}: the pool has {count} nodes")
                released.update(range(self._next_node[pool], node + 1))
                self._next_node[pool] = node + 1
            if node not in released:
                raise ValueError(f"{pool}:{node} belongs to another group")
            released.discard(node)
        self._released[pool] = sorted(released)
        return new

    def _release(self, pool: str, nodes: Iterable[int]) -> None:
        for node in nodes:
            heapq.heappush(self._released[pool], node)


def _without(resident: Resident, job: str) -> tuple[int, ...] | None:
    if resident.order is None:
        return None
    gone = resident.group.names.index(job)
    return tuple(one - (one > gone) for one in resident.order if one != gone)
