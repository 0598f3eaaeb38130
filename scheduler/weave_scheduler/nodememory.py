"""Memory of the nodes of a run: the rules by which ``weave plan`` admits, asked before anything is
opened. The pools of the open devices hold ``host_memory`` as their budget, and the devices leave
room for what is ``unmanaged`` (``weave_scheduler.devices``), also for jobs whose state nobody
declared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weave_scheduler.devices import listed_gpus
from weave_scheduler.model import Node, Placement, node_name
from weave_scheduler.planinput import UNKNOWN_BYTES, need_of
from weave_scheduler.policies.memory import gpu_mistake, stored_bytes
from weave_scheduler.spec import POOLS, NodeSpec
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
    """Whether the state of these jobs, run together, fits the ``host_memory`` of every node. Only
    that of jobs which have the state that the spec declares. Raises SpecError with the line."""
    gpus = listed_gpus(loaded)
    spill = " (host.spill does not lower it)" if loaded.spec.host.spill is not None else ""
    for pool in POOLS:
        spec: NodeSpec = getattr(loaded.spec.nodes, pool)
        if spec.host_memory is None:
            continue
        model = Node(spec.gpus, spec.price or 0.0, spec.host_memory, gpu=gpus.get(pool))
        needs: dict[int, int] = {}
        for job in loaded.spec.jobs:
            if job.name in names and job.kind == "synthetic":
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
