"""Keeps the residency plan of each device up to date: its members, their sizes, their phases.

Called by the local runtime when a phase has ended, when a job has left, and when a device has more
or fewer frames. A plan sets targets only; blocks follow at the next switch or behind a phase. It is
made again when a tenant came, left, grew or changed a policy, and when the shortest phases of one
became clearly longer or shorter, since what can be hidden depends on them. Each tenant is
planned for itself, also where a phase brings in two at once: quotas give way then. The planner is
`weave_rt.overlay`. The lock guards small tables and is not held while a core function moves
anything; another one per device keeps the core from being told an older plan after a newer one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weave_rt._core import Device, parse_emulated
from weave_rt.errors import UsageError, WeaveError
from weave_rt.overlay import (
    KINDS,
    Link,
    Plan,
    Planner,
    RegionBlocks,
    TenantBlocks,
    quotas,
    tenant_blocks,
)
from weave_rt.tenant import Tenant

__all__ = ["Replanner", "nominal_link"]

log = logging.getLogger("weave_rt")

HISTORY = 32  # phases remembered per tenant
GPU_RATE, GPU_DUPLEX = 55e9, 0.75  # of a link that nobody measured; as the named models have it


def nominal_link(device: Device) -> Link:
    """What the link should do: the model's rates, or those of a GPU that was not measured."""
    if device.kind != "emulated":
        both = GPU_RATE * GPU_DUPLEX
        return Link(GPU_RATE, GPU_RATE, both, both)
    known = parse_emulated(device.spec)
    d2h, h2d, duplex = (
        float(str(known[key])) for key in ("d2h_bytes_per_s", "h2d_bytes_per_s", "duplex")
    )
    return Link(d2h, h2d, d2h * duplex, h2d * duplex)


@dataclass(slots=True)
class _Desk:
    planner: Planner
    phases_s: dict[Tenant, list[float]] = field(default_factory=dict)
    known: tuple[object, ...] | None = None  # what the plan was made of
    plan: Plan | None = None
    serial: int = 0  # of the plan
    told: int = 0  # the serial that was told last
    telling: threading.Lock = field(default_factory=threading.Lock)


class Replanner:
    """The plans of one runtime's devices.

    Args:
        devices: by name.
        tell: called with a device's name, the blocks of each tenant that may leave, and whether
            copies ahead of a switch are wanted there.
        kind: `auto`, `fewest-bytes` or `least-stall`.
        background: whether copies behind a phase are allowed.
        quiet: devices on which they are not, whatever `background` says.
        links: measured rates by device; the others have those of their model.

    Raises UsageError for an unknown kind."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        tell: Callable[[str, Mapping[Tenant, int], bool], None],
        *,
        kind: str = "auto",
        background: bool = True,
        quiet: Collection[str] = (),
        links: Mapping[str, Link] | None = None,
    ) -> None:
        if kind not in KINDS:
            raise UsageError(f"plan {kind!r} is not one of {', '.join(KINDS)}")
        self._tell = tell
        self._lock = threading.Lock()
        self._desks = {
            name: _Desk(
                Planner(
                    device.usable_bytes // device.block_bytes,
                    device.block_bytes,
                    (links or {}).get(name) or nominal_link(device),
                    kind,
                    background and name not in quiet,
                )
            )
            for name, device in devices.items()
        }

    def plan(self, name: str) -> Plan | None:
        """The plan of device `name` now; None while it has no tenants. Tenants are called
        JOB/TENANT in it."""
        with self._lock:
            return self._desks[name].plan

    def ended(
        self, name: str, ran: Sequence[Tenant], there: Sequence[Tenant], seconds: float
    ) -> None:
        """A phase on device `name` has ended.

        Args:
            ran: the tenants that it brought in.
            there: all that have a place on the device.
            seconds: how long it took, by the device's clock."""
        with self._lock:
            phases_s = self._desks[name].phases_s
            for tenant in ran:
                phases_s[tenant] = [*phases_s.get(tenant, [])[1 - HISTORY :], seconds]
        self.changed(name, there)

    def resized(self, name: str, frames: int, there: Sequence[Tenant]) -> None:
        """Device `name` has so many frames from now on: plan again."""
        with self._lock:
            desk = self._desks[name]
            desk.planner = replace(desk.planner, frames=frames)
            desk.known = None
        self.changed(name, there)

    def changed(self, name: str, there: Sequence[Tenant]) -> None:
        """Plan again if the tenants of the device are not what the plan was made of."""
        with self._lock:
            desk = self._desks[name]
            desk.phases_s = {t: times for t, times in desk.phases_s.items() if t in there}
            blocks = [self._blocks(desk, tenant) for tenant in there]
            known = tuple((id(t), _rough(b)) for t, b in zip(there, blocks, strict=True))
            if known == desk.known:
                return
            desk.known = known
            try:
                desk.plan = desk.planner.plan(blocks) if blocks else None
            except WeaveError as error:  # larger than the device: it will say so when it comes in
                log.debug("no plan for %s: %s", name, error)
                desk.plan = None
            desk.serial += 1
            plan, serial = desk.plan, desk.serial
        movable: dict[Tenant, int] = {}  # nothing moves; who comes next takes what it needs
        ahead = False
        if plan is not None and plan.excess:
            allowed = quotas(plan)
            movable = {t: allowed[b.name] for t, b in zip(there, blocks, strict=True)}
            ahead = plan.kind == "least-stall"
        with desk.telling:
            if serial > desk.told:  # else another thread has told a newer one
                desk.told = serial
                self._tell(name, movable, ahead)

    def _blocks(self, desk: _Desk, tenant: Tenant) -> TenantBlocks:
        size = desk.planner.block_bytes
        regions = []
        for region in tenant.regions:
            blocks = -(-region.bytes // size)
            regions.append(RegionBlocks(region.policy, blocks, blocks if region.clean else 0))
        return tenant_blocks(f"{tenant.job}/{tenant.name}", regions, desk.phases_s.get(tenant, ()))


def _rough(blocks: TenantBlocks) -> tuple[object, ...]:
    """Equal as long as the plan need not change: the shortest phases to within a half."""
    seconds = round(math.log2(blocks.phase_s) * 2) if blocks.phase_s > 0 else None
    return blocks.keep, blocks.clean, blocks.discard, seconds
