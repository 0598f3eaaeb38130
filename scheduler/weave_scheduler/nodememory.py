"""Memory of the nodes of a run: the rules by which ``weave plan`` admits, asked before anything is
opened. The pools of the open devices hold ``host_memory`` as their budget, or share
``host.budget``, and the devices leave room for what is ``unmanaged`` (``weave_scheduler.devices``),
also for jobs whose state nobody declared.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from weave_rt.device import resolve_spec
from weave_scheduler.devices import listed_gpus, own_host_memory
from weave_scheduler.gpus import Gpu
from weave_scheduler.jobphases import pools_held, turn_phases
from weave_scheduler.model import Node, Placement, node_name
from weave_scheduler.planinput import UNKNOWN_BYTES, need_of
from weave_scheduler.policies.memory import gpu_mistake, stored_bytes
from weave_scheduler.spec import POOLS, Devices, JobSpec, NodeSpec
from weave_scheduler.specfile import SpecFile
from weave_scheduler.units import format_bytes

__all__ = ["check_device_memory", "check_host_memory"]


def check_device_memory(loaded: SpecFile, placements: Mapping[str, Placement]) -> None:
    """Whether each job whose state the spec declares fits the devices that the spec lists, beside
    what it and the jobs that share them take outside regions. Raises SpecError with the line."""
    for pool, gpu in listed_gpus(loaded).items():
        spec: NodeSpec = getattr(loaded.spec.nodes, pool)
        node = Node(spec.gpus, spec.price or 0.0, UNKNOWN_BYTES, gpu=gpu)
        needs = {job.name: need_of(job, pool) for job in loaded.spec.jobs}
        for index, job in enumerate(loaded.spec.jobs):
            if job.kind != "synthetic":
                continue
            need, own = needs[job.name], placements[job.name].of(pool)
            others = [
                needs[name]
                for name, place in placements.items()
                if name != job.name and set(own) & set(place.of(pool))
            ]
            mistake, how = gpu_mistake(f"a {pool} node", node, need), "fits on no node"
            if mistake is None:
                where = node_name(pool, own[0])
                mistake = gpu_mistake(where, node, need, others)
                how = "does not fit beside what other jobs take outside regions"
            if mistake is not None:
                raise loaded.error(
                    f"{how}: {mistake}; make the job smaller or the device larger",
                    *("jobs", index, "state", pool),
                )


def check_host_memory(
    loaded: SpecFile, placements: Mapping[str, Placement], names: Collection[str]
) -> None:
    """Whether the state of these jobs, run together, fits the ``host_memory`` of every node and
    the ``host.budget``. Only that of jobs which have the state that the spec declares. Raises
    SpecError with the line."""
    gpus = listed_gpus(loaded)
    jobs = [one for one in loaded.spec.jobs if one.name in names and one.kind == "synthetic"]
    _check_budget(loaded, placements, jobs, gpus)
    spill = " (host.spill does not lower it)" if loaded.spec.host.spill is not None else ""
    for pool in POOLS:
        spec: NodeSpec = getattr(loaded.spec.nodes, pool)
        if spec.host_memory is None:
            continue
        model = Node(spec.gpus, spec.price or 0.0, spec.host_memory, gpu=gpus.get(pool))
        needs: dict[int, int] = {}
        for job in jobs:
            for node in placements[job.name].of(pool):
                needs[node] = needs.get(node, 0) + stored_bytes(need_of(job, pool), model)
        for node, need in sorted(needs.items()):
            if need > spec.host_memory:
                raise loaded.error(
                    f"the jobs on {pool}:{node} need {format_bytes(need)} of host memory for what"
                    f" they keep and reload, the node has {format_bytes(spec.host_memory)}; run"
                    f" fewer or smaller jobs, or give it more{spill}",
                    *("nodes", pool, "host_memory"),
                )


@dataclass(frozen=True, slots=True)
class _Turn:
    """A phase of a job: the devices that it holds, and the pinned memory of what runs in it."""

    job: str
    phase: str
    devices: frozenset[str]
    bytes: int


def _check_budget(
    loaded: SpecFile,
    placements: Mapping[str, Placement],
    jobs: Collection[JobSpec],
    gpus: Mapping[str, Gpu],
) -> None:
    """Without ``host.spill`` all that the jobs keep and reload must fit. With it only what runs: a
    phase of one job, or two of different jobs on different devices."""
    host = loaded.spec.host
    if host.budget is None:
        return
    if host.spill is None:
        need = sum(sum(_shares(loaded, job, pool, gpus)) for job in jobs for pool in POOLS)
        who, advice = "the jobs", "raise it, give host.spill, or run fewer or smaller jobs"
    else:
        turns = [turn for job in jobs for turn in _turns(loaded, job, placements[job.name], gpus)]
        together: list[tuple[_Turn, ...]] = [(turn,) for turn in turns]
        together += [
            (one, two)
            for one, two in itertools.combinations(turns, 2)
            if one.job != two.job and one.devices.isdisjoint(two.devices)
        ]
        most = max(together, key=_pinned, default=())
        need, who = _pinned(most), " beside ".join(f"{one.job} in {one.phase}" for one in most)
        advice = "raise it, or run smaller jobs; host.spill has no room for what runs"
    if need > host.budget:
        raise loaded.error(
            f"{who} would pin {format_bytes(need)} for what is kept and reloaded, that is"
            f" {format_bytes(need - host.budget)} more than there is; {advice}",
            *("host", "budget"),
        )


def _turns(
    loaded: SpecFile, job: JobSpec, placement: Placement, gpus: Mapping[str, Gpu]
) -> Iterator[_Turn]:
    shares: dict[str, tuple[int, int]] = {p: _shares(loaded, job, p, gpus) for p in POOLS}
    listed = loaded.spec.devices or Devices()
    for phase in ("init", *turn_phases(job)):
        pools = pools_held(job, phase)
        devices = set()
        for pool in pools:
            for node in placement.of(pool):
                spec = resolve_spec(getattr(listed, pool)[node], pool)
                devices.add(spec if spec.startswith("cuda:") else node_name(pool, node))
        need = sum(shares[pool][0] for pool in pools)
        if phase == "weight_sync":
            need += shares["rollout"][1]
        yield _Turn(job.name, phase, frozenset(devices), need)


def _shares(loaded: SpecFile, job: JobSpec, pool: str, gpus: Mapping[str, Gpu]) -> tuple[int, int]:
    """What the job pins of ``host.budget`` on its node of the pool: its state, and the next version
    of what is published."""
    if own_host_memory(loaded, pool) is not None:
        return 0, 0
    spec: NodeSpec = getattr(loaded.spec.nodes, pool)
    node, need = Node(spec.gpus, 0.0, UNKNOWN_BYTES, gpu=gpus.get(pool)), need_of(job, pool)
    stored = stored_bytes(replace(need, spare_bytes=0), node)
    return stored, stored_bytes(need, node) - stored


def _pinned(turns: Collection[_Turn]) -> int:
    return sum(turn.bytes for turn in turns)
