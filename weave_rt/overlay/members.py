"""The members of a device change: whether a tenant may come or grow, and the plan for those who are
there. A plan changes targets only; blocks follow at the next switch or behind a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weave_rt.errors import GrowthRefused
from weave_rt.overlay.model import Link, TenantBlocks
from weave_rt.overlay.plan import Plan, make_plan

__all__ = ["Planner", "admit"]


@dataclass(frozen=True, slots=True)
class Planner:
    """One device, planned again whenever its members or its frames change.

    Attributes:
        frames: F, in blocks.
        kind: `auto`, `fewest-bytes` or `least-stall`.
        background: whether copies behind a phase are allowed.
    """

    frames: int
    block_bytes: int
    link: Link
    kind: str = "auto"
    background: bool = True

    def plan(self, tenants: Sequence[TenantBlocks]) -> Plan:
        """The plan for these tenants. Raises DoesNotFit, UsageError."""
        background = self.background
        return make_plan(
            tenants, self.frames, self.block_bytes, self.link, self.kind, background=background
        )


def admit(new: TenantBlocks, frames: int, block_bytes: int, beside: int = 0) -> None:
    """Whether a tenant may come with these blocks, or grow to them: idle tenants give up all that
    they have, so it must fit beside what runs with it.

    Args:
        beside: blocks of other tenants that run at the same time.

    Raises GrowthRefused with the numbers."""
    can = max(0, frames - beside)
    if new.blocks <= can:
        return
    runs = f", of which {beside} run beside it" if beside else ""
    raise GrowthRefused(
        f"tenant {new.name} would have {new.blocks} blocks of {block_bytes} bytes and the device"
        f" has {frames} frames{runs}; make it smaller or take a larger device",
        bytes_needed=new.blocks * block_bytes,
        bytes_available=can * block_bytes,
        bytes_usable=frames * block_bytes,
    )
