"""Tenants come, go and grow: only targets change, blocks follow at the next switch or behind a
phase. Each method returns a new plan or raises; nothing is kept here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weave_rt.errors import DoesNotFit, GrowthRefused, HostMemoryError, UsageError
from weave_rt.overlay.cycle import Turn
from weave_rt.overlay.model import Link, TenantBlocks
from weave_rt.overlay.plan import Plan, make_plan

__all__ = ["Planner"]


@dataclass(frozen=True, slots=True)
class Planner:
    """One device, planned again whenever its members change.

    Attributes:
        frames: F, in blocks.
        kind: `auto`, `fewest-bytes` or `least-stall`.
        background: whether copies behind a phase are allowed.
        host_blocks: what the host pool can hold for this device; None: enough.
    """

    frames: int
    block_bytes: int
    link: Link
    kind: str = "auto"
    background: bool = True
    host_blocks: int | None = None

    def plan(self, tenants: Sequence[TenantBlocks], order: Sequence[Turn] | None = None) -> Plan:
        """The plan for these tenants; `order` as `make_plan` takes it.

        Where the host pool cannot take what a plan must be able to move out, `auto` takes the one
        that moves the fewest bytes. Raises DoesNotFit, HostMemoryError, UsageError."""
        plan = self._planned(tenants, self.kind, order)
        if self._host_suffices(plan):
            return plan
        if self.kind == "auto" and plan.kind != "fewest-bytes":
            plan = self._planned(tenants, "fewest-bytes", order)
            if self._host_suffices(plan):
                return plan
        assert self.host_blocks is not None
        need = sum(plan.must_leave)
        raise HostMemoryError(
            f"{need} blocks must be able to leave the device and the host pool takes"
            f" {self.host_blocks}; raise host.budget",
            bytes_needed=need * self.block_bytes,
            bytes_available=self.host_blocks * self.block_bytes,
        )

    def join(self, tenants: Sequence[TenantBlocks], new: TenantBlocks) -> Plan:
        """`new` comes. Allowed when it fits the device alone and the host pool can take what must
        leave. Raises like :meth:`plan`."""
        return self.plan([*tenants, new])

    def leave(self, tenants: Sequence[TenantBlocks], name: str) -> Plan:
        """A tenant goes; its frames become free and nothing moves. Raises UsageError."""
        _find(tenants, name)
        return self.plan([one for one in tenants if one.name != name])

    def grow(
        self, tenants: Sequence[TenantBlocks], name: str, keep: int = 0, discard: int = 0
    ) -> Plan:
        """A tenant gets larger by so many blocks. Where the frames come from is the map's to say
        (`ResidencyMap.grow`). Raises GrowthRefused, HostMemoryError, UsageError."""
        at = _find(tenants, name)
        old = tenants[at]
        new = replace(old, keep=old.keep + keep, discard=old.discard + discard)
        try:
            return self.plan([*tenants[:at], new, *tenants[at + 1 :]])
        except DoesNotFit as error:
            raise GrowthRefused(
                str(error),
                bytes_needed=new.blocks * self.block_bytes,
                bytes_available=self.frames * self.block_bytes,
                bytes_usable=self.frames * self.block_bytes,
            ) from None

    def _planned(
        self, tenants: Sequence[TenantBlocks], kind: str, order: Sequence[Turn] | None
    ) -> Plan:
        return make_plan(
            tenants,
            self.frames,
            self.block_bytes,
            self.link,
            kind,
            background=self.background,
            order=order,
        )

    def _host_suffices(self, plan: Plan) -> bool:
        return self.host_blocks is None or sum(plan.must_leave) <= self.host_blocks


def _find(tenants: Sequence[TenantBlocks], name: str) -> int:
    for at, one in enumerate(tenants):
        if one.name == name:
            return at
    raise UsageError(f"no tenant of the device is called {name!r}")
