"""Residency of a group on its devices: what stays, what moves, and what each switch costs. Pure.

The planner is ``weave_rt.overlay``; here jobs become its tenants. A node's bytes are spread evenly
over its GPUs, which are alike, so one of them is planned and stands for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weave_rt.errors import DoesNotFit
from weave_rt.overlay import Plan, Turn, make_plan
from weave_scheduler.gpus import Gpu
from weave_scheduler.groupmath import mean_phases, scale_of, turns_of
from weave_scheduler.groupsim import Slice, simulate_slices
from weave_scheduler.laws import DurationLaw
from weave_scheduler.model import POOLS, Group, Intra, Member, PoolModel, node_name
from weave_scheduler.policies.residency import members_on, tenants_of, unmanaged_of

__all__ = ["cycle_of", "device_records", "plan_record", "tenth_s"]

_WARM = 4  # iterations of every job before the cycle that is taken
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
    in the order in which they would run; each as short as the 10 % quantile of its law. Tenants are
    numbered as in :func:`members_on`."""
    turns = turns_of(group, mean_phases)
    slices = simulate_slices(turns, intra, _WARM + 3, order=order, pairs=group.pairs)
    name = node_name(pool, node)
    own = [one for one in slices if name in turns[one.job].steps[one.step].nodes]
    here = [at for at, one in enumerate(group.members) if node in one.placement.of(pool)]
    number = {at: rank for rank, at in enumerate(here)}
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


def device_records(
    group: Group,
    pools: Mapping[str, PoolModel],
    intra: Intra,
    kind: str = "auto",
    order: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """One record per device of the group's nodes whose GPUs are known."""
    records = []
    for pool in POOLS:
        one = pools[pool].node
        if one.gpu is None:
            continue
        for node in group.nodes(pool):
            members = members_on(group, pool, node)
            cycle = cycle_of(group, pool, node, intra, order)
            record = _node_record(members, pool, one.gpu, one.gpus, kind, cycle)
            names = [node_name(pool, node * one.gpus + at) for at in range(one.gpus)]
            records += [{"device": name, **record} for name in names]
    return records


def _node_record(
    members: Sequence[Member], pool: str, gpu: Gpu, gpus: int, kind: str, order: Sequence[Turn]
) -> dict[str, Any]:
    record: dict[str, Any] = {"spec": gpu.name, "capacity": gpu.capacity_bytes}
    try:
        usable = gpu.usable(unmanaged_of(members, pool, gpus))
        tenants = tenants_of(members, pool, gpu, gpus)
        plan = make_plan(tenants, usable.frames, gpu.block_bytes, gpu.link, kind, order=order)
    except DoesNotFit as error:
        return record | {"mistake": str(error)}
    record |= {"usable": usable.frames * gpu.block_bytes, "block": gpu.block_bytes}
    if usable.unmanaged:
        record["unmanaged"] = usable.unmanaged
    return record | plan_record(plan)


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
        "switches": [
            {
                "out": names[one.outgoing],
                "in": names[one.incoming],
                "foreground_bytes": (one.foreground.out + one.foreground.into) * block,
                "background_bytes": (one.background.out + one.background.into) * block,
                "foreground_out": one.foreground.out * block,
                "foreground_in": one.foreground.into * block,
                "background_out": one.background.out * block,
                "background_in": one.background.into * block,
                "modelled_s": one.modelled_s,
            }
            for one in plan.switches
        ],
        "bytes_per_cycle": plan.blocks_per_cycle * block,
        "foreground_s": plan.foreground_s,
        "instead": {
            kind: {"foreground_s": seconds, "bytes_per_cycle": blocks * block}
            for kind, (seconds, blocks) in plan.others.items()
        },
    }
