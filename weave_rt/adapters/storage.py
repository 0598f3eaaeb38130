"""Torch storages over device regions, and moving a storage's bytes there and back.

Called by `adapters.torch`. A storage is moved whole: torch's `_swap_data_ptr_` exchanges the memory
of two storages in place, so tensors, views, hooks, saved graphs and optimizer references all
follow. Where torch does not have it, every known alias is given new data instead, which is refused
as soon as anybody unknown could still look at the old memory.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weave_rt._core import Device, Span
from weave_rt.errors import UsageError

__all__ = [
    "Group",
    "exchange",
    "move_problem",
    "needs_aliases",
    "ordinary_bytes",
    "region_bytes",
    "size_and_dtype",
    "storage_bytes",
    "torch_device",
]

SWAPS = hasattr(torch.UntypedStorage, "_swap_data_ptr_")


def needs_aliases() -> bool:
    """Whether moving depends on knowing every tensor on the storage."""
    return not SWAPS


def size_and_dtype(
    shape: Sequence[int] | int, dtype: torch.dtype | str
) -> tuple[tuple[int, ...], torch.dtype]:
    """What `Tenant.empty` was asked for. Raises UsageError."""
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"{dtype!r} is not a torch dtype")
    try:
        size = tuple(map(operator.index, (shape,) if isinstance(shape, int) else shape))
    except TypeError as error:
        raise UsageError(f"shape {shape!r:.80} is not made of integers") from error
    if min(size, default=0) < 0:
        raise UsageError(f"shape {size} has a negative number")
    return size, kind


@dataclass(slots=True)
class Group:
    """One storage and the tensors that are known to use it."""

    storage: torch.UntypedStorage
    tag: str
    label: str
    aliases: list[torch.Tensor] = field(default_factory=list)


class _CudaBytes:
    """Lets torch see `span` as uint8 on its GPU, and keeps it alive."""

    def __init__(self, span: Span, nbytes: int) -> None:
        self.span = span
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (span.address, False),
            "strides": None,
            "version": 3,
        }


def torch_device(device: Device) -> torch.device:
    """Where torch sees the memory of `device`: the CPU for an emulated one."""
    return torch.device("cpu" if device.kind == "emulated" else device.spec)


def region_bytes(span: Span, nbytes: int, device: Device) -> torch.Tensor:
    """A uint8 tensor of `nbytes` > 0 over `span`; the span lives as long as its storage."""
    if device.kind == "emulated":
        return torch.frombuffer(span, dtype=torch.uint8, count=nbytes)
    return torch.as_tensor(_CudaBytes(span, nbytes), device=torch_device(device))


def storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of `storage` as a uint8 tensor that shares it."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage)


def ordinary_bytes(data: memoryview | None, nbytes: int, device: torch.device) -> torch.Tensor:
    """A uint8 tensor of `nbytes` in torch's own memory with the contents of `data`, or zeros."""
    if data is None:
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    host = torch.empty(nbytes, dtype=torch.uint8)
    target: Any = (ctypes.c_ubyte * nbytes).from_address(host.data_ptr())
    memoryview(target).cast("B")[:] = data
    return host.to(device)


def move_problem(group: Group, device: Device) -> str | None:
    """Why this storage cannot be moved to `device`, or None."""
    here = torch_device(device)
    storage = group.storage
    if storage.device != here:
        return f"is on {storage.device}, and the tenant on {here}; move it there first"
    if any(t.layout is not torch.strided for t in group.aliases):
        return "is not a strided tensor"
    if storage.device.type == "cpu":
        if storage.is_shared():
            return "is in memory shared with other processes; pass a clone"
        if not storage.resizable():
            return "has memory that torch does not own (numpy, a mapped file); pass a clone"
    if not SWAPS:
        return _repoint_problem(group)
    return None


def _repoint_problem(group: Group) -> str | None:
    # the handle held by group.storage is one use; each tensor on the storage is one more
    known = {id(t): t for t in group.aliases}
    uses = torch._C._storage_Use_Count(group.storage._cdata)
    if uses > len(known) + 1:
        return "shares its memory with a tensor that is not managed (a view?); drop that first"
    if any(t._use_count() > 1 for t in known.values()):  # type: ignore[attr-defined]
        return "is still used by an autograd graph; drop the loss first"
    return None


def exchange(group: Group, target: torch.Tensor) -> torch.UntypedStorage:
    """Give the group's tensors the memory of `target` (uint8, as many bytes), whose contents must
    be right already. Returns the storage that they have now.

    Raises UsageError, without torch's swap, when an alias appeared that is not known."""
    new = target.untyped_storage()
    if SWAPS:
        group.storage._swap_data_ptr_(new)  # type: ignore[attr-defined]
        return group.storage
    problem = _repoint_problem(group)
    if problem is not None:
        raise UsageError(f"{group.label} {problem}")
    for tensor in {id(t): t for t in group.aliases}.values():
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        view.set_(new, tensor.storage_offset(), tensor.shape, tensor.stride())
        tensor.data = view
    return new
