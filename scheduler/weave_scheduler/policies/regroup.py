"""Regrouping: all placed jobs are placed anew where that saves more than moving them costs. Pure.

The new grouping comes from the same policy, on an empty cluster, in the order of increasing SLO
(tight jobs first; ties: the longer solo iteration). A group whose members and shapes come out the
same keeps its nodes and nobody in it moves. Moving a job costs ``migrate_s`` seconds during which
the nodes of its new placement are paid and idle. It is done when
saving per hour x horizon > that cost. Whoever drives a desk asks for it as often as it likes
(``regroup_desk``); nothing here knows the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weave_scheduler.model import JobModel
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Decision
from weave_scheduler.policies.desk import Desk, Policy

__all__ = ["Regrouping", "regroup", "regroup_desk"]


@dataclass(slots=True)
class Regrouping:
    """What a regrouping would do.

    Attributes:
        cluster: the cluster afterwards; its node ids are those of a fresh cluster.
        moved: jobs that move, in order of name.
        saving_per_h: price per hour before minus after.
        cost: price of all moves.
        worth: whether the saving over the horizon exceeds the cost.
    """

    cluster: Cluster
    moved: tuple[str, ...] = ()
    saving_per_h: float = 0.0
    cost: float = 0.0
    worth: bool = False
    failed: list[str] = field(default_factory=list)


def regroup(cluster: Cluster, policy: Policy, *, horizon_h: float, migrate_s: float) -> Regrouping:
    """Plan a regrouping; the given cluster stays as it is."""
    if not (horizon_h > 0 and migrate_s >= 0):
        raise ValueError("horizon_h and migrate_s: allowed: more than 0, 0 or more")
    fresh = Cluster(cluster.pools)
    plan = Regrouping(fresh)
    for job in sorted(_jobs(cluster), key=_tightness):
        decision = policy.decide(job, fresh)
        if decision.chosen is None:
            plan.failed.append(job.name)
            continue
        chosen, verdict = decision.chosen, decision.chosen.verdict
        order, by = (None, "") if verdict is None else (verdict.order, verdict.by)
        fresh.place(job, chosen.placement, chosen.group, order, by)
    before = {_shape(one) for one in cluster.residents.values()}
    moving = [one for one in fresh.residents.values() if _shape(one) not in before]
    plan.moved = tuple(sorted(name for one in moving for name in one.group.names))
    price = {pool: model.node.cost_per_h for pool, model in cluster.pools.items()}
    plan.cost = sum(
        price[pool] * len(member.placement.of(pool)) * migrate_s / 3600
        for one in moving
        for member in one.group.members
        for pool in price
    )
    plan.saving_per_h = cluster.cost_per_h - fresh.cost_per_h
    plan.worth = not plan.failed and plan.saving_per_h * horizon_h > plan.cost
    return plan


def regroup_desk(
    desk: Desk, *, horizon_h: float, migrate_s: float
) -> tuple[Regrouping, list[Decision]]:
    """Regroup the jobs of a desk if that is worth it; who waited and could be placed then."""
    plan = regroup(desk.cluster, desk.policy, horizon_h=horizon_h, migrate_s=migrate_s)
    return plan, desk.adopt(plan.cluster) if plan.worth else []


def _jobs(cluster: Cluster) -> list[JobModel]:
    return [member.job for one in cluster.residents.values() for member in one.group.members]


def _tightness(job: JobModel) -> tuple[float, float, str]:
    return (float("inf") if job.slo is None else job.slo, -job.solo_mean_s, job.name)


def _shape(resident: Resident) -> frozenset[tuple[str, int, frozenset[str]]]:
    """Who is in a group, on how many training nodes, and with whom each shares rollout nodes."""
    group = resident.group
    shape = set()
    for member in group.members:
        mine = set(member.placement.rollout)
        beside = frozenset(
            other.job.name for other in group.members if mine & set(other.placement.rollout)
        )
        shape.add((member.job.name, len(member.placement.train), beside))
    return frozenset(shape)
