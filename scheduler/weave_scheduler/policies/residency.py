"""What the runtime takes of a node whose GPUs are known. Pure; the planner is ``weave_rt.overlay``.

A node's bytes are spread evenly over its GPUs, which are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weave_rt.overlay import TenantBlocks, Unmanaged, blocks_of, check_feasible
from weave_scheduler.gpus import Gpu
from weave_scheduler.model import Group, Member, Need, PoolModel
from weave_scheduler.policies.memory import Residency, host_bytes, summed_host_bytes

__all__ = ["PlannedResidency", "members_on", "residency_of", "tenants_of", "unmanaged_of"]


def members_on(group: Group, pool: str, node: int) -> list[Member]:
    """The jobs that have state there, in the group's order."""
    return [one for one in group.members if node in one.placement.of(pool)]


def _need(member: Member, pool: str) -> Need:
    return member.job.need(pool, len(member.placement.train))


def tenants_of(members: Sequence[Member], pool: str, gpu: Gpu, gpus: int) -> list[TenantBlocks]:
    """What each job has on one GPU of a node, in whole blocks of each kind."""
    return [
        TenantBlocks(one.job.name, *gpu.blocks(_need(one, pool).kinds, gpus)) for one in members
    ]


def unmanaged_of(members: Sequence[Member], pool: str, gpus: int) -> list[Unmanaged]:
    """What each job takes outside regions on one GPU of a node."""
    needs = [(one.job.name, _need(one, pool)) for one in members]
    return [
        Unmanaged(name, blocks_of(need.running_bytes, gpus), blocks_of(need.residual_bytes, gpus))
        for name, need in needs
    ]


@dataclass(frozen=True)
class PlannedResidency:
    """Host memory that a node needs: a place for every block that is kept or reloaded, as the core
    takes it when the block is made, however few of them move; another one for the next version of
    what is reloaded, and for the `keep` bytes of jobs that hold a restart set.
    """

    pools: Mapping[str, PoolModel]

    def __call__(self, pool: str, members: Sequence[Member]) -> int:
        """Raises DoesNotFit where a job is larger than its GPU."""
        node = self.pools[pool].node
        if node.gpu is None:
            return summed_host_bytes(pool, members)
        usable = node.gpu.usable(unmanaged_of(members, pool, node.gpus))
        check_feasible(tenants_of(members, pool, node.gpu, node.gpus), usable.frames)
        return sum(host_bytes(one.job, pool, len(one.placement.train), node) for one in members)


def residency_of(pools: Mapping[str, PoolModel]) -> Residency:
    """In blocks where GPUs are known, else the plain sum."""
    known = any(model.node.gpu is not None for model in pools.values())
    return PlannedResidency(pools) if known else summed_host_bytes
