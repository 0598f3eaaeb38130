"""``weave plan``: where the jobs of a spec go, how fast they will be there, and why.

The jobs are placed one after the other in order of arrival, and none leaves: the plan is the moment
when all are there. Every figure is planned, none measured. Pure; the record is what ``--json``
prints, without its ``conditions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weave_scheduler.groupmath import Turn, closed_form, longest_phases, mean_phases, turns_of
from weave_scheduler.groupsim import simulated_iterations
from weave_scheduler.model import (
    POOLS,
    Group,
    JobModel,
    Member,
    PairCost,
    Placement,
    PoolModel,
)
from weave_scheduler.planinput import UNKNOWN_BYTES
from weave_scheduler.policies.admission import judge, laps
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Decision, Verdict
from weave_scheduler.policies.desk import Desk
from weave_scheduler.policies.memory import host_bytes
from weave_scheduler.policies.names import policy_of
from weave_scheduler.policies.quick import MOST_LAPS
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.snapshot import snapshot
from weave_scheduler.residency import device_records, plan_nodes, switch_costs

__all__ = ["Plan", "group_record", "make_plan", "one_group"]


@dataclass(slots=True)
class Plan:
    """A plan as a record, and the groups it is about.

    Attributes:
        desk: where the jobs are.
        explained: the decision about the job that was asked for, every candidate judged.
        snapshot: what the policy saw when it decided about that job, without ``conditions``.
    """

    record: dict[str, Any]
    residents: list[Resident]
    desk: Desk
    explained: Decision | None = None
    snapshot: dict[str, Any] = field(default_factory=dict)


def make_plan(
    jobs: Sequence[JobModel],
    pools: Mapping[str, PoolModel],
    settings: Settings,
    policy: str = "weave",
    why: str | None = None,
    residency: str = "auto",
) -> Plan:
    """Place the jobs in the given order. ``why``: the job whose decision explains itself (default:
    the last one). ``residency``: the plan of each device whose GPU is known. Raises ValueError for
    a name that no job has."""
    asked = why if why is not None else jobs[-1].name
    if asked not in {job.name for job in jobs}:
        raise ValueError(f"job {asked!r} is not in the spec")
    desk = Desk(policy_of(policy, settings, pools), pools)
    explained: Decision | None = None
    taken: dict[str, Any] = {}
    refused: list[dict[str, str]] = []
    for job in jobs:
        if job.name == asked:
            explained = desk.policy.decide(job, desk.cluster, explain=True)
            taken = snapshot(job, desk.cluster, policy, desk.policy.settings, explained)
        decision = desk.submit(job)
        if decision.never:
            refused.append({"job": job.name, "reason": decision.reason})
    residents = sorted(desk.cluster.residents.values(), key=lambda one: one.id)
    nodes = [
        plan_nodes(one.group, desk.cluster.pools, settings.intra, residency, one.order)
        for one in residents
    ]
    waiting = [{"job": one.job.name, "reason": one.reason} for one in desk.waiting]
    record = {
        "format": "weave-plan",
        "version": 1,
        "policy": policy,
        "intra": settings.intra,
        "mode": settings.mode,
        "devices": [record for plans in nodes for record in device_records(plans)],
        "groups": [
            group_record(one, desk.cluster.pools, settings, pairs=switch_costs(plans))
            for one, plans in zip(residents, nodes, strict=True)
        ],
        "waiting": waiting,
        "refused": refused,
        "totals": _totals(desk.cluster, jobs),
    }
    return Plan(record, residents, desk, explained, taken)


def _totals(cluster: Cluster, jobs: Sequence[JobModel]) -> dict[str, Any]:
    placed = [job for job in jobs if job.name in cluster]
    solo = sum(
        cluster.pools[pool].node.cost_per_h * job.nodes(pool) for job in placed for pool in POOLS
    )
    totals: dict[str, Any] = {"jobs": len(placed), "groups": len(cluster.residents)}
    for pool in POOLS:
        totals[f"{pool}_nodes"] = cluster.owned(pool)
    if any(model.node.price for model in cluster.pools.values()):
        totals |= {"cost": cluster.cost_per_h, "cost_solo": solo}
    return totals


def one_group(
    jobs: Sequence[tuple[JobModel, Placement]], pools: Mapping[str, PoolModel], settings: Settings
) -> dict[str, Any]:
    """The record of jobs that are together on given nodes, whether or not their limits are kept.

    Raises ValueError where a law has no max and the mode needs it.
    """
    nodes = {
        pool: tuple(sorted({node for _, place in jobs for node in place.of(pool)}))
        for pool in POOLS
    }
    members = tuple(
        Member(replace(job, rollout_pins=(), train_pins=()), place) for job, place in jobs
    )
    group = Group(members, nodes["rollout"], nodes["train"])
    return group_record(Resident(0, group), pools, settings, judge(group, settings))


def group_record(
    resident: Resident,
    pools: Mapping[str, PoolModel],
    settings: Settings,
    verdict: Verdict | None = None,
    pairs: Sequence[PairCost] = (),
) -> dict[str, Any]:
    """One group of the plan: what binds, how slow its jobs are, what idles, what it costs.
    ``pairs``: what switches cost by the plans of the devices, shown apart."""
    group = resident.group
    if verdict is None:
        verdict = judge(group, settings, resident.order)
    order = verdict.order if verdict.order is not None else resident.order
    mean_turns = turns_of(group, mean_phases)
    means: list[float | None] = [None] * len(mean_turns)  # absent where that cannot be simulated
    simulated = settings.intra != "fifo" or laps(mean_turns) <= MOST_LAPS
    if simulated:
        found = simulated_iterations(mean_turns, settings.intra, order=order)
        means = [float(one) for one in found]
    turns = turns_of(group, longest_phases) if settings.mode == "worst-case" else mean_turns
    iterations = list(verdict.iterations_s)
    record: dict[str, Any] = {
        "id": resident.id,
        "jobs": list(group.names),
        "period_s": verdict.period_s,
        "binds": verdict.binds or closed_form(turns).what,
        "admitted_by": resident.admitted_by or verdict.by,
        "kept": verdict.admitted,
        "members": [
            _member_record(member, longest, mean)
            for member, longest, mean in zip(group.members, iterations, means, strict=True)
        ],
        "bubbles": _bubbles(group, turns, iterations),
        "memory": _memory(group, pools),
    }
    if pairs and simulated:
        switched = simulated_iterations(mean_turns, settings.intra, order=order, pairs=pairs)
        for one, seconds in zip(record["members"], switched, strict=True):
            one["iteration_switched_s"] = float(seconds)
    if verdict.slack is not None:
        record["slack"] = verdict.slack
    if verdict.reason:
        record["reason"] = verdict.reason
    if order is not None:
        record["order"] = [group.names[at] for at in order]
    price = sum(
        pools[pool].node.cost_per_h * len(group.nodes(pool)) for pool in POOLS if pool in pools
    )
    if price:
        record["cost"] = price
    return record


def _member_record(member: Member, planned: float, mean: float | None) -> dict[str, Any]:
    job = member.job
    record: dict[str, Any] = {
        "name": job.name,
        "rollout": list(member.placement.rollout),
        "train": list(member.placement.train),
        "iteration_s": planned,
    }
    if mean is not None:
        record |= {"iteration_mean_s": mean, "slowdown_mean": mean / job.solo_mean_s}
    if all(phase.law.max_s is not None for phase in job.phases):
        record["slowdown_worst"] = planned / job.solo_max_s
    if job.slo is not None:
        record["slo"] = job.slo
    return record


def _bubbles(group: Group, turns: Sequence[Turn], iterations: Sequence[float]) -> dict[str, float]:
    """Idle share of every node in the long run, at planned durations; switches count as idle."""
    idle: dict[str, float] = {}
    for pool in POOLS:
        for node in group.nodes(pool):
            name = f"{pool}:{node}"
            busy = sum(
                float(step.seconds) / seconds
                for turn, seconds in zip(turns, iterations, strict=True)
                for step in turn.steps
                if name in step.nodes
            )
            idle[name] = max(0.0, 1 - busy)
    return idle


def _memory(group: Group, pools: Mapping[str, PoolModel]) -> list[dict[str, Any]]:
    """Host memory of every node: what its jobs need, and what there is where that is known."""
    rows = []
    for pool in POOLS:
        capacity = pools[pool].node.host_bytes
        for node in group.nodes(pool):
            there = [one for one in group.members if node in one.placement.of(pool)]
            model = pools[pool].node
            need = sum(host_bytes(one.job, pool, len(one.placement.train), model) for one in there)
            row: dict[str, Any] = {"node": f"{pool}:{node}", "host_bytes": need}
            if capacity < UNKNOWN_BYTES:
                row["host_capacity"] = capacity
            rows.append(row)
    return rows
