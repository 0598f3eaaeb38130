"""Residency of a group on its devices: what stays, what moves, and what each switch costs. Pure.

The planner is ``weave_rt.overlay``; here jobs become its tenants. A node's bytes are spread evenly
over its GPUs, which are alike, so one of them is planned and stands for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weave_rt.errors import DoesNotFit
from weave_rt.overlay import Plan, Switch, Turn, Usable, make_plan
from weave_scheduler.gpus import Gpu
from weave_scheduler.groupmath import mean_phases, scale_of, turns_of
from weave_scheduler.groupsim import Slice, simulate_slices
from weave_scheduler.laws import DurationLaw
from weave_scheduler.model import (
    POOLS,
    Group,
    Intra,
    Member,
    PairCost,
    PoolModel,
    SwitchCost,
    node_name,
)
from weave_scheduler.policies.residency import members_on, tenants_of, unmanaged_of

__all__ = [
    "NodePlan",
    "cycle_of",
    "device_records",
    "plan_nodes",
    "plan_record",
    "switch_costs",
    "tenth_s",
]

_WARM = 4  # iterations of every job before the cycle that is taken
_MOST_TURNS = 100  # of one job in a cycle that is simulated
_DRAWS = 999  # of a law, for its 10 % quantile


def tenth_s(law: DurationLaw) -> float:
    """The 10 % quantile of a law, from draws that are the same each time."""
    seed = zlib.crc32(repr(law).encode())
    generator = np.random.default_rng(seed)
    return float(np.quantile([law.draw_s(generator) for _ in range(_DRAWS)], 0.1))


def cycle_of(
    group: Group, pool: str, node: int, intra: Intra, order: Sequence[int] | None = None
) -> list[Turn]:
    """The turns on that node between two iterations of the slowest job there, phases of mean length
    in the order in which they would run; each as short as the 10 % quantile of its law. One turn
    each, behind which nothing is hidden, where a cycle would be too long to look at. Tenants are
    numbered as in :func:`members_on`."""
    here = [at for at, one in enumerate(group.members) if node in one.placement.of(pool)]
    number = {at: rank for rank, at in enumerate(here)}
    if _uneven(group):
        return [(rank, 0.0) for rank in number.values()]
    turns = turns_of(group, mean_phases)
    slices = simulate_slices(turns, intra, _WARM + 3, order=order, pairs=group.pairs)
    name = node_name(pool, node)
    own = [one for one in slices if name in turns[one.job].steps[one.step].nodes]
    found: list[Turn] = []
    shortest: dict[tuple[int, int], float] = {}
    for one in _one_cycle(own):
        member = group.members[one.job]
        phase = member.job.phases[one.step]
        key = one.job, one.step
        if key not in shortest:
            shortest[key] = tenth_s(phase.law) * scale_of(group, member, phase)
        seconds = shortest[key]
        if found and found[-1][0] == number[one.job]:
            seconds += found.pop()[1]
        found.append((number[one.job], seconds))
    if len(found) > 1 and found[0][0] == found[-1][0]:
        last = found.pop()
        found[0] = (last[0], found[0][1] + last[1])
    there = {at for at, _ in found}
    return found + [(at, 0.0) for at in number.values() if at not in there]


def _uneven(group: Group) -> bool:
    """Whether a cycle would have too many turns: one job iterates far more often than another."""
    lengths = [one.job.solo_mean_s for one in group.members]
    return max(lengths) > _MOST_TURNS * min(lengths)


def _one_cycle(own: Sequence[Slice]) -> list[Slice]:
    """From the first phase of an iteration of the job that iterates least to its next one."""
    done: dict[int, int] = {}
    for one in own:
        done[one.job] = max(done.get(one.job, 0), one.iteration)
    if not done:
        return []
    slowest = min(done, key=lambda job: (done[job], job))
    starts = sorted(
        min(float(one.granted) for one in own if one.job == slowest and one.iteration == at)
        for at in (done[slowest] - 2, done[slowest] - 1)
    )
    inside = [one for one in own if starts[0] <= float(one.granted) < starts[1]]
    return sorted(inside, key=lambda one: float(one.granted))


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan of every GPU of one node; none, and why, where it is impossible."""

    pool: str
    node: int
    gpus: int
    gpu: Gpu
    usable: Usable | None = None
    plan: Plan | None = None
    mistake: str = ""


def plan_nodes(
    group: Group,
    pools: Mapping[str, PoolModel],
    intra: Intra,
    kind: str = "auto",
    order: Sequence[int] | None = None,
) -> list[NodePlan]:
    """One plan per node of the group whose GPUs are known."""
    plans = []
    for pool in POOLS:
        model = pools[pool].node
        if model.gpu is None:
            continue
        for node in group.nodes(pool):
            members = members_on(group, pool, node)
            cycle = cycle_of(group, pool, node, intra, order)
            empty = NodePlan(pool, node, model.gpus, model.gpu)
            plans.append(_planned(empty, members, kind, cycle))
    return plans


def _planned(empty: NodePlan, members: Sequence[Member], kind: str, cycle: list[Turn]) -> NodePlan:
    gpu = empty.gpu
    try:
        usable = gpu.usable(unmanaged_of(members, empty.pool, empty.gpus))
        tenants = tenants_of(members, empty.pool, gpu, empty.gpus)
        plan = make_plan(tenants, usable.frames, gpu.block_bytes, gpu.link, kind, order=cycle)
    except DoesNotFit as error:
        return replace(empty, mistake=str(error))
    return replace(empty, usable=usable, plan=plan)


def switch_costs(plans: Sequence[NodePlan]) -> tuple[PairCost, ...]:
    """What each switch of a cycle costs: seconds that the nodes wait, and seconds of copies behind
    the phase before. Where a pair switches on several nodes or more than once, the dearest."""
    found: dict[tuple[str, str, str], SwitchCost] = {}
    for one in plans:
        plan = one.plan
        if plan is None:
            continue
        block, names = plan.block_bytes, [tenant.name for tenant in plan.tenants]
        for switch in plan.switches:
            key = one.pool, names[switch.outgoing], names[switch.incoming]
            moved = switch.background
            behind = one.gpu.link.limit_s(moved.out * block, moved.into * block)
            old = found.get(key, SwitchCost())
            found[key] = SwitchCost(
                max(old.foreground_s, switch.modelled_s), max(old.background_s, behind)
            )
    return tuple(PairCost(*key, cost) for key, cost in found.items() if cost != SwitchCost())


def device_records(plans: Sequence[NodePlan]) -> list[dict[str, Any]]:
    """One record per GPU."""
    records = []
    for one in plans:
        record: dict[str, Any] = {"spec": one.gpu.name, "capacity": one.gpu.capacity_bytes}
        if one.usable is None or one.plan is None:
            record["mistake"] = one.mistake
        else:
            block = one.gpu.block_bytes
            record |= {"usable": one.usable.frames * block, "block": block}
            if one.usable.unmanaged:
                record["unmanaged"] = one.usable.unmanaged
            record |= plan_record(one.plan)
        first = one.node * one.gpus
        records += [{"device": node_name(one.pool, first + at), **record} for at in range(one.gpus)]
    return records


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan in bytes and seconds."""
    block = plan.block_bytes
    names = [one.name for one in plan.tenants]
    return {
        "tenants": [
            {
                "name": one.name,
                "keep": one.keep * block,
                "clean": one.clean * block,
                "discard": one.discard * block,
                "may_leave": moving * block,
            }
            for one, moving in zip(plan.tenants, plan.movable, strict=True)
        ],
        "plan": plan.kind,
        "switches": [_switch_record(one, names, block) for one in plan.switches],
        "bytes_per_cycle": round(plan.blocks_per_cycle * block),
        "foreground_s": plan.foreground_s,
        "instead": {
            kind: {"foreground_s": seconds, "bytes_per_cycle": round(blocks * block)}
            for kind, (seconds, blocks) in plan.others.items()
        },
    }


def _switch_record(switch: Switch, names: Sequence[str], block: int) -> dict[str, Any]:
    record: dict[str, Any] = {"out": names[switch.outgoing], "in": names[switch.incoming]}
    for when, moved in (("foreground", switch.foreground), ("background", switch.background)):
        out, into = round(moved.out * block), round(moved.into * block)
        record |= {f"{when}_bytes": out + into, f"{when}_out": out, f"{when}_in": into}
    return record | {"modelled_s": switch.modelled_s}
