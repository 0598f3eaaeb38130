"""Which bytes of a region the pages of a tensor are. Called by `Tenant.pages`."""

from __future__ import annotations

import operator
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
    dims = tensor.dim()
    if type(dim) is not int or not -dims <= dim < dims:
        raise UsageError(f"dim={dim!r} is not one of a tensor of {dims} dimensions")
    dim %= dims
    count = tensor.shape[dim]
    try:
        wanted = [operator.index(i) for i in indices]
    except TypeError as error:
        raise UsageError(f"pages are named by a list of integers: {error}") from error
    wrong = next((i for i in wanted if not 0 <= i < count), None)
    if wrong is not None:
        raise UsageError(f"page {wrong} is not in 0 to {count - 1}")
    nbytes = prod(tensor.shape[dim + 1 :]) * tensor.element_size()
    start = address - region.address
    rows = range(prod(tensor.shape[:dim]))
    offsets = [start + (row * count + index) * nbytes for row in rows for index in wanted]
    return offsets, [nbytes] * len(offsets)
