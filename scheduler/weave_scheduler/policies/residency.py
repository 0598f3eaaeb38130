"""What a planned residency needs of a node: less host memory than all state, more than the sum of
what fits. Pure; the planner is ``weave_rt.overlay``.

A node's bytes are spread evenly over its GPUs, which are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weave_rt.overlay import TenantBlocks, Unmanaged, blocks_of, moving_blocks
from weave_scheduler.gpus import Gpu
from weave_scheduler.model import Group, Member, Need, PoolModel
from weave_scheduler.policies.memory import Residency, summed_host_bytes

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
    """Host memory that a node needs when the planner moves as little as it can.

    That is what must be able to leave: the moving `keep` bytes and all that is reloaded, and once
    more the `keep` bytes of jobs that hold a restart set.
    """

    pools: Mapping[str, PoolModel]

    def __call__(self, pool: str, members: Sequence[Member]) -> int:
        """Raises DoesNotFit where a job is larger than its GPU."""
        node = self.pools[pool].node
        if node.gpu is None:
            return summed_host_bytes(pool, members)
        usable = node.gpu.usable(unmanaged_of(members, pool, node.gpus))
        tenants = tenants_of(members, pool, node.gpu, node.gpus)
        total = 0
        moving = moving_blocks(tenants, usable.frames)
        for member, tenant, blocks in zip(members, tenants, moving, strict=True):
            need = _need(member, pool)
            out = max(0, blocks - tenant.discard - tenant.clean) * node.gpu.block_bytes * node.gpus
            total += min(out, need.keep_bytes) + need.kinds[1]
            total += need.keep_bytes if member.job.restart else 0
        return total


def residency_of(pools: Mapping[str, PoolModel]) -> Residency:
    """The planner's need where GPUs are known, else the plain sum."""
    known = any(model.node.gpu is not None for model in pools.values())
    return PlannedResidency(pools) if known else summed_host_bytes
