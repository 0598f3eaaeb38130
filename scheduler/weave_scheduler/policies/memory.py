"""Whether the state of several jobs fits one node: host memory, and device memory.

The need of a node in host memory is the sum of what its jobs have there (the paper's mem_req). The
runtime takes a place on the host for every block that is kept or reloaded, when the block is made
and whether or not it ever leaves; so that is what is counted, with a second place for the next
version of what is published, and once more the ``keep`` bytes of jobs that hold a restart set. In
device memory the largest phase runs beside what the sleeping processes of the others keep. Where
the GPUs are known, ``weave_scheduler.policies.residency`` also tests F and replaces
``summed_host_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weave_rt.errors import DoesNotFit
from weave_rt.overlay import Unmanaged, blocks_of
from weave_scheduler.model import POOLS, Group, JobModel, Member, Need, Node, PoolModel
from weave_scheduler.units import format_bytes

__all__ = [
    "Residency",
    "gpu_mistake",
    "host_bytes",
    "memory_mistake",
    "stored_bytes",
    "summed_host_bytes",
    "too_large_alone",
]

#: Bytes of host memory that these jobs need on one node of a pool, given their training nodes.
Residency = Callable[[str, Sequence[Member]], int]


def stored_bytes(need: Need, node: Node | None = None) -> int:
    """Host memory that the state of one job takes on one node; in whole blocks where the GPU of the
    node is known."""
    if node is None or node.gpu is None:
        return need.host_bytes + need.spare_bytes
    kept, reloaded, _ = need.kinds
    blocks = node.gpu.blocks((kept, reloaded, need.spare_bytes), node.gpus)
    return sum(blocks) * node.gpu.block_bytes * node.gpus


def host_bytes(job: JobModel, pool: str, train_nodes: int, node: Node | None = None) -> int:
    """Host memory of one job on one node: its state, and its restart set."""
    need = job.need(pool, train_nodes)
    return stored_bytes(need, node) + (need.keep_bytes if job.restart else 0)


def summed_host_bytes(pool: str, members: Sequence[Member]) -> int:
    return sum(host_bytes(one.job, pool, len(one.placement.train)) for one in members)


def device_bytes(pool: str, members: Sequence[Member]) -> int:
    """The most that is on the node's devices at once: one phase, and the others asleep."""
    needs = [one.job.need(pool, len(one.placement.train)) for one in members]
    asleep = sum(need.residual_bytes for need in needs)
    return max(
        (one.device_bytes + one.running_bytes + asleep - one.residual_bytes for one in needs),
        default=0,
    )


def memory_mistake(
    group: Group,
    pools: dict[str, PoolModel],
    job: str,
    *,
    equal: bool,
    residency: Residency = summed_host_bytes,
) -> str | None:
    """Why the nodes of that member cannot hold it and its neighbours; None where they can.

    ``equal``: whether a need of exactly the node's memory fits. A device size of 0 is unknown and
    tests nothing.
    """
    own = next(one for one in group.members if one.job.name == job)
    for pool in POOLS:
        node = pools[pool].node
        for number in own.placement.of(pool):
            there = [one for one in group.members if number in one.placement.of(pool)]
            where = f"{pool}:{number}"
            try:
                need = residency(pool, there)
            except DoesNotFit as error:
                return f"{where}: {error}"
            mistake = _host_mistake(where, node, need, equal) or _device_mistake(
                where, node, device_bytes(pool, there), equal
            )
            if mistake is not None:
                return mistake
    return None


def _host_mistake(where: str, node: Node, need: int, equal: bool) -> str | None:
    if need < node.host_bytes or (equal and need == node.host_bytes):
        return None
    return f"{where} would hold {format_bytes(need)} of {format_bytes(node.host_bytes)} host memory"


def _device_mistake(where: str, node: Node, need: int, equal: bool) -> str | None:
    if not node.device_bytes or need < node.device_bytes or (equal and need == node.device_bytes):
        return None
    return (
        f"{where} would need {format_bytes(need)} of {format_bytes(node.device_bytes)}"
        " device memory"
    )


def gpu_mistake(where: str, node: Node, need: Need, others: Sequence[Need] = ()) -> str | None:
    """Where the GPU is known: whether the job fits one beside what it and the others that share the
    node take outside regions."""
    if node.gpu is None:
        return None
    outside = [
        Unmanaged(
            "the job" if one is need else "another job",
            blocks_of(one.running_bytes, node.gpus),
            blocks_of(one.residual_bytes, node.gpus),
        )
        for one in (need, *others)
    ]
    try:
        frames = node.gpu.usable(outside).frames
    except DoesNotFit as error:
        return f"{where}: {error}"
    blocks = sum(node.gpu.blocks(need.kinds, node.gpus))
    if blocks <= frames:
        return None
    size = node.gpu.block_bytes
    return (
        f"{where} would need {format_bytes(blocks * size)} of {format_bytes(frames * size)} for"
        " jobs on each GPU"
    )


def too_large_alone(
    job: JobModel, pools: dict[str, PoolModel], train_nodes: int, *, equal: bool
) -> str | None:
    """Why a node of its own cannot hold the job, with that many training nodes."""
    for pool in POOLS:
        node = pools[pool].node
        need = job.need(pool, train_nodes)
        stored = host_bytes(job, pool, train_nodes, node)
        where = f"a {pool} node"
        mistake = (
            _host_mistake(where, node, stored, equal)
            or _device_mistake(where, node, need.device_bytes + need.running_bytes, equal)
            or gpu_mistake(where, node, need)
        )
        if mistake is not None:
            return mistake
    return None
