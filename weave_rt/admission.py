"""Whether what a tenant is about to take fits its device, before any memory is touched.

A module or an optimizer brings several tags; each region grows by itself, so that the last one's
refusal would come when the others have grown. The torch adapter asks here first, where a tenant
joins a device and where it grows, with the bytes of all tags. The planner decides
(`weave_rt.overlay.admit`); a single buffer or tensor is refused by the core in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weave_rt._core import Region
from weave_rt.errors import ResumeFailed
from weave_rt.overlay import RegionBlocks, admit, tenant_blocks

if TYPE_CHECKING:
    from weave_rt.tenant import Tenant

__all__ = ["admit_bytes", "advising"]


def admit_bytes(tenant: Tenant, more: Mapping[str, int]) -> None:
    """`more`: bytes that are to be put into each tag. Raises GrowthRefused with the numbers; also
    what is let through may be refused by the core, where holes of a region are too small."""
    device = tenant.device
    block = device.block_bytes
    regions = {region.tag: region for region in tenant.regions}
    sizes = [
        RegionBlocks(tenant.policies[tag], _blocks_after(regions.get(tag), more.get(tag, 0), block))
        for tag in {**regions, **more}
    ]
    beside = sum(
        region.bytes // block
        for other in device.tenants
        if (other.job, other.name) != (tenant.job, tenant.name)
        for region in other.regions
        if region.resident
    )
    new = tenant_blocks(f"{tenant.job}/{tenant.name}".lstrip("/"), sizes)
    admit(new, device.stats()["blocks_total"], block, beside)


def _blocks_after(region: Region | None, more: int, block: int) -> int:
    held, used = (region.bytes, region.bytes_allocated) if region is not None else (0, 0)
    return -(-max(held, used + more) // block)


@contextmanager
def advising(job: str, phase: str) -> Iterator[None]:
    """Who cannot come in because the same phase holds the device by another tenant is told what
    helps: nobody can suspend that one inside the phase."""
    try:
        yield
    except ResumeFailed as error:
        if error.holders and all(name.startswith(f"{job}/") for name in error.holders):
            told = str(error).partition("; suspend")[0]
            error.args = (
                f"{told} in the same phase; let {phase!r} name the `tags` that it needs, publish "
                "the weights to a reload tag, or take a larger device",
            )
        raise
