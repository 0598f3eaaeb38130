"""The dispatch mode behind ``with tenant.region(tag):``: fresh outputs move into a region.

Called by torch for each operation of the thread that entered it, below autograd, so gradients made
inside count too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weave_rt.adapters.walk import plain_tensors

__all__ = ["RegionMode"]

_aten = torch.ops.aten
_EMPTY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty}
_EMPTY.add(_aten.new_empty_strided)


class RegionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each new storage on `device` to `claim(tensor, copy)`."""

    def __init__(self, device: torch.device, claim: Callable[[torch.Tensor, bool], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._claim = claim

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        for tensor in _tensors(result):
            for plain in plain_tensors(tensor):
                if plain.device != self._device:
                    continue
                storage = plain.untyped_storage()
                # not resizable: in a region already, or memory that torch does not own
                if storage.nbytes() == 0 or not storage.resizable():
                    continue
                if packet is not _aten.lift_fresh and _uses(storage, (args, kwargs)):
                    continue  # an alias of an argument: it was there before
                self._claim(plain, packet not in _EMPTY)
        return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _uses(storage: torch.UntypedStorage, arguments: Any) -> bool:
    for tensor in _tensors(arguments):
        for plain in plain_tensors(tensor):
            layout = plain.layout is torch.strided
            if layout and plain.untyped_storage()._cdata == storage._cdata:
                return True
    return False
