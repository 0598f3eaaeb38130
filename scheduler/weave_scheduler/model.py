"""What the planner and the simulator know about jobs, nodes and groups: frozen values.

Times are seconds of the real job (``_s``), memory is bytes (``_bytes``), prices are money per
GPU-hour. Everything is checked when it is made: ValueError names the field. A group is the paper's
G = (J, R, T, Phi): its members with their placements, and the nodes it owns (paper 4.2). Nodes are
in ``weave_scheduler.pools`` and can be had from here too. Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weave_scheduler.gpus import Gpu
from weave_scheduler.laws import Constant, DurationLaw
from weave_scheduler.pools import POOLS, Node, PoolModel, check_number, check_unique, node_name

__all__ = [
    "POOLS",
    "Degree",
    "Gpu",
    "Group",
    "Intra",
    "JobModel",
    "Member",
    "Need",
    "Node",
    "PairCost",
    "Phase",
    "Placement",
    "PoolModel",
    "SwitchCost",
    "Tail",
    "common_job",
    "node_name",
]

Intra = Literal["fifo", "strict", "barrier"]

_MOST_NODES = 4096  # of one job; candidates and placements list every node
_LAST_NODE = 65535  # all ids below a pinned one are kept in a list


@dataclass(frozen=True, slots=True)
class Tail:
    """How a rollout lets its nodes go before its last responses are done (paper 4.3).

    Attributes:
        hold_share: share of its time for which it holds its nodes.
        migrate_s: what packing the tail costs, before the nodes are free.
        kept_share: share of the nodes on which the tail goes on; a rollout that follows is slower
            by 1 / (1 - kept_share), taken for its whole length (an upper bound).
    """

    hold_share: float
    migrate_s: float = 0.0
    kept_share: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.hold_share <= 1 and 0 <= self.kept_share < 1):
            raise ValueError(f"tail: shares {self.hold_share!r}, {self.kept_share!r} out of range")
        check_number(self.migrate_s, "migrate_s")


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of an iteration.

    Attributes:
        pools: the pools whose nodes it holds, all of the job's placement there; none is a latency.
        law: how long it takes at the requested size, without any switch.
        after: phases of the same iteration that must have ended; empty only for the first one,
            which follows all phases of the iteration before (on-policy).
        tail: how its tail migrates; None: it holds its nodes to its end.
    """

    name: str
    pools: tuple[str, ...]
    law: DurationLaw
    after: tuple[str, ...] = ()
    tail: Tail | None = None

    def __post_init__(self) -> None:
        check_unique(self.pools, f"phase {self.name}: pools")
        for pool in self.pools:
            if pool not in POOLS:
                raise ValueError(f"phase {self.name}: pools: {pool!r} is not known")
        most = self.law.max_s
        for seconds in (self.law.mean_s, 1.0 if most is None else most):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"phase {self.name}: {seconds!r} s; allowed: more than 0 s")


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of one job on one node of a pool, at the requested size.

    Attributes:
        host_bytes: host memory that its suspended state needs (the paper's mem_req).
        device_bytes: device memory of its largest phase.
        keep_bytes: the part of its state whose device copy is the truth; a restart set holds it
            once more in host memory.
        residual_bytes: device memory that its sleeping process keeps.
        running_bytes: device memory that it takes outside regions at the peak of its phase.
        spare_bytes: host memory beside all that, for the next version of what is published.
    """

    host_bytes: int = 0
    device_bytes: int = 0
    keep_bytes: int = 0
    residual_bytes: int = 0
    running_bytes: int = 0
    spare_bytes: int = 0

    def __post_init__(self) -> None:
        for field in self.__slots__:
            check_number(getattr(self, field), field)

    @property
    def kinds(self) -> tuple[int, int, int]:
        """Bytes in regions: kept on the device, reloaded from the host, and discarded."""
        stored = max(self.host_bytes, self.keep_bytes)
        discarded = max(0, self.device_bytes - stored)
        return self.keep_bytes, stored - self.keep_bytes, discarded


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """What it costs to bring a job in on one node.

    Attributes:
        foreground_s: the nodes wait for this.
        background_s: copied while the phase before runs; the phase may run from
            max(grant, start of the phase before + background_s) + foreground_s.
    """

    foreground_s: float = 0.0
    background_s: float = 0.0

    def __post_init__(self) -> None:
        check_number(self.foreground_s, "foreground_s")
        check_number(self.background_s, "background_s")


@dataclass(frozen=True, slots=True)
class PairCost:
    """The switch cost of one ordered pair of jobs in one pool, where it depends on the pair."""

    pool: str
    outgoing: str
    incoming: str
    cost: SwitchCost


@dataclass(frozen=True, slots=True)
class Degree:
    """A number of training nodes that the job supports, as its profile measured it.

    Attributes:
        train_factor: training time there divided by that at the requested size; None: N_T / d.
        need: memory per training node there; None: the requested size's times N_T / d.
    """

    nodes: int
    train_factor: float | None = None
    need: Need | None = None

    def __post_init__(self) -> None:
        check_number(self.nodes, "nodes", 1)
        if self.train_factor is not None and not self.train_factor > 0:
            raise ValueError(f"train_factor: {self.train_factor!r}; allowed: more than 0")


@dataclass(frozen=True)
class JobModel:
    """One job as the planner sees it.

    Attributes:
        phases: of one iteration, each after those it depends on.
        slo: the tolerated slowdown of the mean iteration against solo, 1 or more.
        rollout_nodes, train_nodes: how many nodes it asks for (the requested size).
        degrees: further numbers of training nodes it supports.
        rollout_pins, train_pins: node ids it insists on, or none.
        switch_rollout, switch_train: cost of bringing it in, whoever was there before.
        restart: whether it keeps a second host copy of its ``keep`` bytes (``restart_every``).
    """

    name: str
    phases: tuple[Phase, ...]
    slo: float | None = None
    iterations: int = 1
    arrival_s: float = 0.0
    rollout_nodes: int = 1
    train_nodes: int = 1
    degrees: tuple[Degree, ...] = ()
    rollout_pins: tuple[int, ...] = ()
    train_pins: tuple[int, ...] = ()
    rollout_need: Need = Need()
    train_need: Need = Need()
    switch_rollout: SwitchCost = SwitchCost()
    switch_train: SwitchCost = SwitchCost()
    restart: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        at = f"job {self.name}"
        if not self.name or not self.phases:
            raise ValueError(f"{at}: name and phases must not be empty")
        if self.slo is not None:
            check_number(self.slo, f"{at}: slo", 1)
        check_number(self.arrival_s, f"{at}: arrival_s")
        check_number(self.iterations, f"{at}: iterations", 1)
        for pool in POOLS:
            check_number(self.nodes(pool), f"{at}: {pool}_nodes", 1, _MOST_NODES)
            for node in self.pins(pool):
                check_number(node, f"{at}: {pool}_pins", 0, _LAST_NODE)
        check_unique((phase.name for phase in self.phases), f"{at}: phases")
        check_unique((degree.nodes for degree in self.degrees), f"{at}: degrees")
        seen: set[str] = set()
        for phase in self.phases:
            missing = [name for name in phase.after if name not in seen]
            if missing or (seen and not phase.after):
                what = f"{missing[0]!r} does not stand before it" if missing else "is missing"
                raise ValueError(f"{at}: phase {phase.name}: after: {what}")
            seen.add(phase.name)
        for pool in POOLS:
            pins = self.pins(pool)
            if pins and len(pins) != self.nodes(pool):
                raise ValueError(f"{at}: {pool}_pins: {len(pins)} ids for {self.nodes(pool)} nodes")

    def pins(self, pool: str) -> tuple[int, ...]:
        return self.rollout_pins if pool == "rollout" else self.train_pins

    def nodes(self, pool: str) -> int:
        """How many nodes of the pool it asks for."""
        return self.rollout_nodes if pool == "rollout" else self.train_nodes

    def switch(self, pool: str) -> SwitchCost:
        return self.switch_rollout if pool == "rollout" else self.switch_train

    def degree(self, train_nodes: int) -> Degree:
        """What it is on that many training nodes. Raises KeyError where not supported."""
        for degree in self.degrees:
            if degree.nodes == train_nodes:
                return degree
        if train_nodes == self.train_nodes:
            return Degree(train_nodes, 1.0)
        raise KeyError(train_nodes)

    def supported(self) -> tuple[int, ...]:
        """All numbers of training nodes it can run on, the requested one included, ascending."""
        return tuple(sorted({self.train_nodes, *(degree.nodes for degree in self.degrees)}))

    def train_factor(self, train_nodes: int) -> float:
        """T_train on that many nodes over T_train at the requested size (design: N_T / d)."""
        factor = self.degree(train_nodes).train_factor
        return self.train_nodes / train_nodes if factor is None else factor

    def need(self, pool: str, train_nodes: int | None = None) -> Need:
        """Memory per node of ``pool`` when it trains on ``train_nodes`` (default: requested)."""
        if pool == "rollout":
            return self.rollout_need
        if train_nodes is None or train_nodes == self.train_nodes:
            return self.train_need
        measured = self.degree(train_nodes).need
        if measured is not None:
            return measured
        one, parts = self.train_need, self.train_nodes
        return Need(
            -(-one.host_bytes * parts // train_nodes),
            -(-one.device_bytes * parts // train_nodes),
            -(-one.keep_bytes * parts // train_nodes),
            one.residual_bytes,
            one.running_bytes,
            -(-one.spare_bytes * parts // train_nodes),
        )

    @cached_property
    def solo_mean_s(self) -> float:
        """Mean-law length of one iteration alone, without switches: the longest path."""
        return self._longest({phase.name: phase.law.mean_s for phase in self.phases})

    @cached_property
    def solo_max_s(self) -> float:
        """Worst case of one iteration alone. Raises ValueError where a law has no ``max``."""
        longest: dict[str, float] = {}
        for phase in self.phases:
            most = phase.law.max_s
            if most is None:
                raise ValueError(
                    f"job {self.name}: phase {phase.name}: law has no max;"
                    " mode worst-case needs one"
                )
            longest[phase.name] = most
        return self._longest(longest)

    def _longest(self, seconds: Mapping[str, float]) -> float:
        ends: dict[str, float] = {}
        for phase in self.phases:
            begin = max((ends[name] for name in phase.after), default=0.0)
            ends[phase.name] = begin + seconds[phase.name]
        return max(ends.values())


def common_job(name: str, rollout_s: float, train_s: float, **more: object) -> JobModel:
    """The common case: one rollout, then one training phase, of constant length."""
    phases = (
        Phase("rollout", ("rollout",), Constant(rollout_s)),
        Phase("train", ("train",), Constant(train_s), ("rollout",)),
    )
    return JobModel(name, phases, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Placement:
    """The node ids of one job in each pool."""

    rollout: tuple[int, ...]
    train: tuple[int, ...]

    def of(self, pool: str) -> tuple[int, ...]:
        return self.rollout if pool == "rollout" else self.train

    def names(self, pools: Iterable[str] = POOLS) -> frozenset[str]:
        """Names of its nodes in the pools, like ``rollout:0``."""
        return frozenset(node_name(pool, node) for pool in pools for node in self.of(pool))


@dataclass(frozen=True, slots=True)
class Member:
    """A job in a group, pinned to its nodes; it trains with the degree of its placement."""

    job: JobModel
    placement: Placement

    def __post_init__(self) -> None:
        at = f"job {self.job.name}"
        for pool in POOLS:
            check_unique(self.placement.of(pool), f"{at}: {pool} nodes")
        used = {pool for phase in self.job.phases for pool in phase.pools}
        for pool in sorted(used):
            if not self.placement.of(pool):
                raise ValueError(f"{at}: has no {pool} node, but a phase there")
        if "train" in used and len(self.placement.train) not in self.job.supported():
            raise ValueError(f"{at}: does not support {len(self.placement.train)} train nodes")


@dataclass(frozen=True, slots=True)
class Group:
    """A co-execution group. ``rollout`` and ``train`` are the ids of the nodes it owns.

    Attributes:
        members: in order of joining; strict order where no other is given.
        pairs: switch costs that depend on the pair; they replace those of the jobs.
    """

    members: tuple[Member, ...]
    rollout: tuple[int, ...]
    train: tuple[int, ...]
    pairs: tuple[PairCost, ...] = ()

    def __post_init__(self) -> None:
        check_unique((member.job.name for member in self.members), "members")
        for member in self.members:
            for pool in POOLS:
                foreign = set(member.placement.of(pool)) - set(self.nodes(pool))
                if foreign:
                    raise ValueError(
                        f"job {member.job.name}: {node_name(pool, min(foreign))} is not the group's"
                    )

    def nodes(self, pool: str) -> tuple[int, ...]:
        return self.rollout if pool == "rollout" else self.train

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.job.name for member in self.members)
