"""Publishing torch weights: which bytes of the engine's regions each tensor of the policy becomes.

Called by `publishing`, in the thread of the phase. Engine tensors are only asked for their address,
shape and strides: their memory may belong to another job.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from weave_rt._core import Publication, Region
from weave_rt.errors import UsageError
from weave_rt.publishing import tensors_of

if TYPE_CHECKING:
    from weave_rt.tenant import Tenant

__all__ = ["publish"]


def publish(publication: Publication, tenant: Tenant, engine: Any, source: Any) -> None:
    """Write every tensor of `source` to where the engine's of the same name will be.

    Raises UsageError, before anything is written, for names that only one side has, other shapes,
    and names whose memory is not ``reload``."""
    module = tenant.module_of(engine)
    wanted = tensors_of(module)
    given = tensors_of(source)
    if wanted is None or given is None:
        raise UsageError("publish takes a managed engine, and a torch module or a state dict")
    places = _places(tenant, wanted)
    reloaded = {name for name, place in places.items() if place is not None}
    _check_names(tenant, set(wanted), reloaded, set(given))
    for name in sorted(reloaded):
        if given[name].shape != wanted[name].shape:
            raise UsageError(
                f"{name} has shape {tuple(given[name].shape)}, the engine's "
                f"{tuple(wanted[name].shape)}; the old version stays"
            )
    written: dict[tuple[str, int], torch.Tensor] = {}
    with torch.no_grad():
        for name in sorted(reloaded):
            place, tensor, target = places[name], given[name].detach(), wanted[name]
            if place is None or target.numel() == 0:
                continue
            region, offset = place
            first = written.setdefault((region.tag, offset), tensor)
            if first is not tensor:  # tied in the engine
                if not torch.equal(first, tensor):
                    raise UsageError(f"{name} is tied in the engine and not in what is published")
                continue
            _write(publication, tenant, region, offset, tensor, target)


def _places(
    tenant: Tenant, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[Region, int] | None]:
    """Where in a reload region each tensor is; None for memory of another policy."""
    regions = [r for r in tenant.regions if r.policy == "reload"]
    places: dict[str, tuple[Region, int] | None] = {}
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        home = next((r for r in regions if 0 <= address - r.address < r.bytes_reserved), None)
        places[name] = None if home is None else (home, address - home.address)
    return places


def _check_names(tenant: Tenant, wanted: set[str], reloaded: set[str], given: set[str]) -> None:
    problems = []
    for text, names in (
        ("are missing", reloaded - given),
        ("are unknown to the engine", given - wanted),
        ("are not of a reload tag", (given & wanted) - reloaded),
    ):
        if names:
            listed = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
            problems.append(f"{len(names)} names {text}: {listed}")
    if problems:
        raise UsageError(
            f"the weights do not fit engine {tenant.name!r}: {'; '.join(problems)}; "
            "the old version stays"
        )


def _write(
    publication: Publication,
    tenant: Tenant,
    region: Region,
    offset: int,
    tensor: torch.Tensor,
    target: torch.Tensor,
) -> None:
    nbytes = target.numel() * target.element_size()
    same = tensor.dtype == target.dtype and tensor.stride() == target.stride()
    source = tenant.region_at(tensor.data_ptr()) if same and target.is_contiguous() else None
    if source is not None:
        publication.copy(region, offset, source, tensor.data_ptr() - source.address, nbytes)
        return
    layout = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
    if layout.untyped_storage().nbytes() != nbytes:
        raise UsageError(f"a tensor of shape {tuple(target.shape)} is not dense in the engine")
    layout.copy_(tensor)
    data: Any = (ctypes.c_ubyte * nbytes).from_address(layout.data_ptr())
    publication.write(region, offset, memoryview(data))
