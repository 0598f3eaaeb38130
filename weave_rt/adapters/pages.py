"""Which bytes of a region the pages of a tensor are. Called by `Tenant.pages`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from weave_rt._core import Region
from weave_rt.errors import UsageError

__all__ = ["pages"]


def pages(
    regions: Sequence[Region], tensor: torch.Tensor, indices: Sequence[int], dim: int
) -> tuple[list[int], list[int]]:
    """Offsets and sizes in bytes; see `Tenant.pages`."""
    address = tensor.data_ptr()
    region = next((r for r in regions if 0 <= address - r.address < r.bytes_reserved), None)
    if region is None or not tensor.is_contiguous():
        raise UsageError("pages are of a contiguous tensor in a region of this tenant")
    count = tensor.shape[dim]
    if any(not 0 <= i < count for i in indices):
        raise UsageError(f"a page index is not in 0 to {count - 1}")
    nbytes = prod(tensor.shape[dim + 1 :]) * tensor.element_size()
    start = address - region.address
    rows = range(prod(tensor.shape[:dim]))
    offsets = [start + (row * count + index) * nbytes for row in rows for index in indices]
    return offsets, [nbytes] * len(offsets)
