"""Baselines that ask about no limits: a random group, the most idle one, or none at all. Pure.

The paper names them without defining them (7.5). Ours: a group can take a job when it has room for
one more, its training nodes are of a number that the job supports, and at least as many of its
rollout nodes as the job asks for have the memory. ``random`` takes any such group with equal
probability and random nodes; ``most-idle`` takes the group whose nodes idle the largest share of a
cycle, weighted by their price (idle share of a node: 1 - its load / max(T_cycle, T_load) of paper
4.2; ties: the older group), and its least loaded nodes. Where no group can, the job gets a group of
its own. Neither tests an SLO, neither scales a group. ``solo`` gives every job nodes of its own, at
the requested size; ``weave_scheduler.policies.dedicated`` has what that costs, without arrivals.
"""

from __future__ import annotations

import abc

import numpy as np

from weave_scheduler.groupmath import closed_form, longest_phases, mean_phases, turns_of
from weave_scheduler.model import Group, JobModel, Placement, PoolModel
from weave_scheduler.policies.candidates import grown, isolated, rollout_loads, shaped, too_wide
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Candidate, Decision, Verdict
from weave_scheduler.policies.memory import memory_mistake, too_large_alone
from weave_scheduler.policies.settings import Settings

__all__ = ["MostIdlePolicy", "RandomPolicy", "SoloPolicy", "idle_share"]


class _Packing(abc.ABC):
    """What both share: which groups can take a job, and a group of its own where none can."""

    name = ""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def decide(self, job: JobModel, cluster: Cluster, *, explain: bool = False) -> Decision:
        """Where the job goes; there is nothing more to explain."""
        able = [
            (resident, nodes)
            for resident in sorted(cluster.residents.values(), key=lambda one: one.id)
            if len(nodes := self._nodes(job, resident, cluster)) >= job.rollout_nodes
        ]
        if not able:
            waiting = "no group has room, and too few nodes are free"
            return _of_its_own(self.name, job, cluster, waiting)
        chosen = self._choose(job, able, cluster)
        return Decision(job.name, self.name, chosen, candidates=[chosen])

    def _nodes(self, job: JobModel, resident: Resident, cluster: Cluster) -> list[int]:
        """Rollout nodes of the group with memory for the job; none where the group is full."""
        group = resident.group
        if len(group.members) >= self.settings.max_group or shaped(group, job) is not None:
            return []
        if job.rollout_pins:
            return list(job.rollout_pins) if set(job.rollout_pins) <= set(group.rollout) else []
        return [node for node in group.rollout if _fits(job, resident, node, cluster)]

    @abc.abstractmethod
    def _choose(
        self, job: JobModel, able: list[tuple[Resident, list[int]]], cluster: Cluster
    ) -> Candidate:
        """The one of these groups, and of their nodes, where the job goes."""


class RandomPolicy(_Packing):
    """Any group that can, any nodes of it; ``seed`` fixes the sequence of choices."""

    name = "random"

    def __init__(self, settings: Settings | None = None, seed: int = 0) -> None:
        super().__init__(settings)
        self._generator = np.random.default_rng(seed)

    def _choose(
        self, job: JobModel, able: list[tuple[Resident, list[int]]], cluster: Cluster
    ) -> Candidate:
        resident, nodes = able[int(self._generator.integers(len(able)))]
        picked = self._generator.choice(nodes, job.rollout_nodes, replace=False)
        return _joining(resident, tuple(sorted(picked.tolist()))).judged(Verdict(True, "untested"))


class MostIdlePolicy(_Packing):
    """The group that idles most, its least loaded nodes."""

    name = "most-idle"

    def _choose(
        self, job: JobModel, able: list[tuple[Resident, list[int]]], cluster: Cluster
    ) -> Candidate:
        resident, nodes = max(
            able, key=lambda one: (idle_share(one[0].group, cluster.pools), -one[0].id)
        )
        loads = rollout_loads(resident.group)
        picked = sorted(nodes, key=lambda node: (loads[node], node))[: job.rollout_nodes]
        return _joining(resident, tuple(sorted(picked))).judged(Verdict(True, "untested"))


class SoloPolicy:
    """Solo disaggregated: a group of its own for every job."""

    name = "solo"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def decide(self, job: JobModel, cluster: Cluster, *, explain: bool = False) -> Decision:
        """Nodes of the job's own; there is nothing more to explain."""
        return _of_its_own(self.name, job, cluster, "too few nodes are free")


def _of_its_own(policy: str, job: JobModel, cluster: Cluster, waiting: str) -> Decision:
    """A new group at the requested size; a refusal for good, or to wait for the reason given."""
    mistake = too_large_alone(job, cluster.pools, job.train_nodes, equal=True)
    reason = too_wide(job, cluster) if mistake is None else f"fits on no node: {mistake}"
    if reason is not None:
        return Decision(job.name, policy, None, never=True, reason=reason)
    alone = isolated(job, cluster, (job.train_nodes,))
    candidates = [one.judged(Verdict(True, "untested")) for one in alone]
    if not candidates:
        return Decision(job.name, policy, None, reason=f"waits: {waiting}")
    return Decision(job.name, policy, candidates[0], candidates=candidates)


def _fits(job: JobModel, resident: Resident, node: int, cluster: Cluster) -> bool:
    group = grown(_joining(resident, (node,)), job, cluster)
    return memory_mistake(group, cluster.pools, job.name, equal=True) is None


def _joining(resident: Resident, nodes: tuple[int, ...]) -> Candidate:
    return Candidate(
        "direct packing", resident.id, Placement(nodes, resident.group.train), 0.0,
        Placement((), ()),
    )  # fmt: skip


def idle_share(group: Group, pools: dict[str, PoolModel]) -> float:
    """The idle share of the group's nodes, weighted by price (equal weights without prices)."""
    bounded = all(
        phase.law.max_s is not None for member in group.members for phase in member.job.phases
    )
    turns = turns_of(group, longest_phases if bounded else mean_phases)
    cycle = float(closed_form(turns).seconds)
    busy = paid = 0.0
    for pool, nodes in (("rollout", group.rollout), ("train", group.train)):
        price = pools[pool].node.cost_per_h or 1.0
        for node in nodes:
            name = f"{pool}:{node}"
            load = sum(float(s.seconds) for turn in turns for s in turn.steps if name in s.nodes)
            busy += price * load / cycle
            paid += price
    return 1 - busy / paid
