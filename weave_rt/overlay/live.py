"""From the tenants that are on a device to those of the planner, and from its plan to quotas. Pure:
the runtime says what there is, and hands the quotas to the core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weave_rt.errors import UsageError
from weave_rt.overlay.model import TenantBlocks, tenth
from weave_rt.overlay.plan import Plan

__all__ = ["RegionBlocks", "quotas", "tenant_blocks"]


@dataclass(frozen=True, slots=True)
class RegionBlocks:
    """One region of a tenant: its policy, its size in blocks, and how many of them will have a
    valid host copy when the tenant's phase ends (a region that was marked clean)."""

    policy: str
    blocks: int
    clean: int = 0


def tenant_blocks(
    name: str, regions: Iterable[RegionBlocks], phases_s: Sequence[float] = (), turns: int = 1
) -> TenantBlocks:
    """One tenant of the planner.

    Args:
        phases_s: how long its phases took so far; none: nothing is hidden behind them.
        turns: of it in one cycle of the device.

    Raises UsageError for an unknown policy."""
    keep = clean = discard = 0
    for region in regions:
        if region.policy == "discard":
            discard += region.blocks
        elif region.policy == "reload":
            clean += region.blocks
        elif region.policy == "keep":
            clean += min(region.clean, region.blocks)
            keep += max(0, region.blocks - region.clean)
        else:
            raise UsageError(f"tenant {name}: policy {region.policy!r} is not known")
    return TenantBlocks(name, keep, clean, discard, turns, tenth(phases_s))


def quotas(plan: Plan) -> dict[str, int]:
    """By tenant, how many blocks besides `discard` may be off the device for the sake of others:
    what `Device.set_plan` takes. `discard` moves for nothing and needs no quota."""
    return {
        one.name: max(0, moving - one.discard)
        for one, moving in zip(plan.tenants, plan.movable, strict=True)
    }
