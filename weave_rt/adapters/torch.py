"""The torch adapter: which storages of a tenant live in its regions, and how they get there.

Imported when a torch object is first managed, never before. One `Book` per tenant, used by the
thread that runs the tenant's phase (and by the one that closes it); no lock of its own. A scan
compares addresses with the regions' ranges, so a phase in which nothing changed costs one
`data_ptr()` per tensor.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from weave_rt.adapters.guard import Guard
from weave_rt.adapters.mode import RegionMode
from weave_rt.adapters.storage import (
    Group,
    exchange,
    move_problem,
    needs_aliases,
    ordinary_bytes,
    region_bytes,
    size_and_dtype,
    storage_bytes,
    torch_device,
)
from weave_rt.adapters.walk import PLAIN_TYPES, Entry, label_of, lie_within, plain_tensors, walk
from weave_rt.admission import admit_bytes
from weave_rt.errors import StateChanged, TenantFailed, UsageError

if TYPE_CHECKING:
    from weave_rt.tenant import Tenant

__all__ = ["Book", "keep"]

ALIGNMENT = 512  # of tensors in a region, bytes

log = logging.getLogger("weave_rt")

_live: weakref.WeakSet[Book] = weakref.WeakSet()
_live_lock = threading.Lock()


@dataclass(slots=True)
class Slot:
    """A storage that was moved into a region. The region's space is freed with the storage."""

    storage: weakref.ref[torch.UntypedStorage]
    tag: str
    label: str
    address: int
    offset: int  # from the start of the region
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class Book:
    """What of torch a tenant has."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._tensors: list[torch.Tensor] = []
        self._guard = Guard(tenant.not_resident)
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        self._refused: set[str] = set()
        with _live_lock:
            _live.add(self)

    @property
    def modules(self) -> list[torch.nn.Module]:
        return self._modules

    def name_at(self, tag: str, offset: int) -> str:
        """The storage at an offset of a region, or ""."""
        for slot in list(self._slots.values()):
            if slot.tag == tag and slot.offset <= offset < slot.offset + slot.nbytes:
                return slot.label
        return ""

    def add(self, objects: Sequence[object]) -> None:
        """Manage modules, optimizers and tensors: move their storages, watch them from now on."""
        fresh = [item for item in objects if not self._is_managed(item)]
        modules = [o for o in fresh if isinstance(o, torch.nn.Module)]
        optimizers = [o for o in fresh if isinstance(o, torch.optim.Optimizer)]
        tensors = [o for o in fresh if isinstance(o, torch.Tensor)]
        groups = self._groups(walk(modules, optimizers, tensors))
        for group, problem in self._with_problems(groups):
            if problem is not None:
                raise UsageError(f"{group.label} ({group.tag}) {problem}")
        moved: list[int] = []
        with _quiet_torch():
            try:
                self._prepare(groups)
                moved.extend(self._move_in(group) for group in groups)  # as they come
            except BaseException:
                for number in moved:
                    self._move_out(self._slots.pop(number), None, live=True)
                raise
        self._modules += modules
        self._optimizers += optimizers
        self._tensors += tensors

    def scan(self) -> int:
        """Move what managed objects have got outside the regions. Returns how many storages.

        A storage that cannot be moved stays in ordinary memory, with one warning for its name.
        Raises GrowthRefused and HostMemoryError; what is not moved then is still in place."""
        managed = self._modules, self._optimizers, self._tensors
        if lie_within(self._ranges_by_tag(), *managed):
            return 0
        groups = self._groups(walk(*managed))
        if not groups:
            return 0
        fine = []
        for group, problem in self._with_problems(groups):
            if problem is None:
                fine.append(group)
            elif group.label not in self._refused:
                self._refused.add(group.label)
                text = "%s (%s) stays in ordinary memory: it %s"
                log.warning(text, group.label, group.tag, problem)
        with _quiet_torch():
            self._prepare(fine)
            for group in fine:
                self._move_in(group)
        return len(fine)

    def verify(self) -> None:
        """Raise StateChanged if a storage that was moved in has left its address."""
        for slot in list(self._slots.values()):
            storage = slot.storage()
            if storage is not None and storage.data_ptr() != slot.address:
                raise StateChanged(
                    f"{slot.label} ({slot.tag}) moved from {slot.address:#x} to "
                    f"{storage.data_ptr():#x} outside a phase"
                )

    def guard(self, away: Set[str]) -> None:
        """Make modules and optimizers refuse what they need of the tags that are `away`."""
        self._guard.set(away, self._modules, self._optimizers)

    def refuse_loads(self, reloaded: Set[str], message: str) -> None:
        """Make modules refuse ``load_state_dict`` into the tags `reloaded`."""
        self._guard.refuse_loads(reloaded, self._modules, message)

    def index(self) -> dict[str, dict[str, object]]:
        """Where each named storage is in its region, for `Tenant.rescue`."""
        return {
            f"{slot.tag}/{slot.label}": {
                "tag": slot.tag,
                "offset": slot.offset,
                "nbytes": slot.nbytes,
                "dtype": slot.dtype,
                "shape": list(slot.shape),
            }
            for slot in list(self._slots.values())
            if slot.storage() is not None
        }

    def empty(
        self, shape: Sequence[int] | int, dtype: torch.dtype | str, tag: str, policy: str | None
    ) -> torch.Tensor:
        """An uninitialised tensor in the region of `tag`."""
        size, kind = size_and_dtype(shape, dtype)
        device = self._tenant.device
        nbytes = prod(size) * kind.itemsize
        self._tenant.check_resident(tag)
        with _quiet_torch():
            if nbytes == 0:
                return torch.empty(size, dtype=kind, device=torch_device(device))
            span = self._tenant.span(_whole(nbytes), tag, policy)
            tensor = region_bytes(span, nbytes, device).view(kind).view(size)
            self._record(tensor.untyped_storage(), tag, f"empty{size}", span.offset, tensor)
        return tensor

    def mode(self, tag: str) -> AbstractContextManager[object]:
        here = torch_device(self._tenant.device)
        return RegionMode(here, lambda tensor, copy: self.claim(tensor, tag, copy))

    def claim(self, tensor: torch.Tensor, tag: str, copy: bool = True) -> None:
        """Move the fresh storage of `tensor` into the region of `tag`; without `copy` its
        contents are not worth keeping."""
        group = Group(tensor.untyped_storage(), tag, f"new{tuple(tensor.shape)}", [tensor])
        if group.storage.nbytes() > 0:
            with _quiet_torch():
                self._move_in(group, copy)

    def evict(self, contents: MutableMapping[str, bytes]) -> None:
        """Give every storage ordinary memory with its bytes in `contents` (by tag) and forget
        all. Empties `contents` as it goes: there may be no room for everything twice.

        Raises TenantFailed, when done, if bytes of a keep tag are missing."""
        self.guard(frozenset())
        self.refuse_loads(frozenset(), "")
        keeps = {region.tag for region in self._tenant.regions if region.policy == "keep"}
        by_tag: dict[str, list[Slot]] = {}
        for slot in list(self._slots.values()):
            by_tag.setdefault(slot.tag, []).append(slot)
        for tag in contents.keys() - by_tag.keys():
            del contents[tag]
        lost: list[str] = []
        for tag, slots in by_tag.items():
            missing = self._evict_tag(slots, contents.pop(tag, b""))
            lost += missing if tag in keeps else []
        self._slots.clear()
        self._modules, self._optimizers, self._tensors = [], [], []
        with _live_lock:
            _live.discard(self)
        if lost:
            raise TenantFailed(
                f"tenant {self._tenant.name!r} lost the bytes of {len(lost)} tensors, "
                f"{lost[0]} the first; they are zero now"
            )

    def _evict_tag(self, slots: Iterable[Slot], data: bytes) -> list[str]:
        """Move the storages of one tag out. Returns the names of those without bytes in `data`,
        which have zeros now."""
        missing = []
        for slot in slots:
            part: memoryview | None = memoryview(data)[slot.offset : slot.offset + slot.nbytes]
            if part is not None and part.nbytes < slot.nbytes:
                part = None
                if slot.storage() is not None:
                    missing.append(f"{slot.label} ({slot.tag})")
            try:
                with _quiet_torch():
                    self._move_out(slot, part)
            except UsageError as error:  # only without torch's swap
                log.error("%s; it must not be touched any more", error)
        return missing

    def scan_quietly(self) -> None:
        """A scan whose failure leaves tensors where they are, which is ordinary memory."""
        try:
            self.scan()
        except Exception as error:
            log.warning("tenant %s: %s", self._tenant.name, error)

    def _is_managed(self, item: object) -> bool:
        with _live_lock:
            books = list(_live)
        for book in books:
            if any(item is o for o in (*book._modules, *book._optimizers, *book._tensors)):
                if book is self:
                    return True
                other = book._tenant
                raise UsageError(
                    f"this {type(item).__name__} is managed by tenant {other.name!r} of job "
                    f"{other.job!r} already"
                )
        return False

    def _ranges(self) -> list[tuple[int, int]]:
        return [(r.address, r.address + r.bytes_reserved) for r in self._tenant.regions]

    def _ranges_by_tag(self) -> dict[str, tuple[int, int]]:
        return {r.tag: (r.address, r.address + r.bytes_reserved) for r in self._tenant.regions}

    def _groups(self, entries: Iterable[Entry]) -> list[Group]:
        """The storages of `entries` that are not in this tenant's regions, each once."""
        ranges = self._ranges()
        by_tag = self._ranges_by_tag()
        nowhere = (0, 0)
        groups: dict[int, Group] = {}
        for tensor, tag, prefix, key in entries:
            if type(tensor) in PLAIN_TYPES and tensor.layout is torch.strided:
                low, high = by_tag.get(tag, nowhere)
                if low <= tensor.data_ptr() < high:  # where it belongs, nearly always
                    continue
            self._gather(groups, ranges, tensor, tag, label_of(prefix, key))
        return list(groups.values())

    @staticmethod
    def _gather(
        groups: dict[int, Group],
        ranges: list[tuple[int, int]],
        tensor: torch.Tensor,
        tag: str,
        label: str,
    ) -> None:
        for plain in plain_tensors(tensor):
            if plain.layout is not torch.strided or plain.device.type == "meta":
                continue
            storage = plain.untyped_storage()
            start = storage.data_ptr()
            if storage.nbytes() == 0 or any(a <= start < b for a, b in ranges):
                continue
            group = groups.setdefault(storage._cdata, Group(storage, tag, label))
            group.aliases.append(plain)

    def _with_problems(self, groups: list[Group]) -> list[tuple[Group, str | None]]:
        """Each group with the reason why it cannot be moved here, or None."""
        if not groups:
            return []
        with _live_lock:
            books = [book for book in _live if book is not self]
        foreign = [(a, b, book._tenant) for book in books for a, b in book._ranges()]
        result: list[tuple[Group, str | None]] = []
        for group in groups:
            start = group.storage.data_ptr()
            problem = move_problem(group, self._tenant.device)
            for a, b, owner in foreign:
                if a <= start < b:
                    problem = f"is managed by tenant {owner.name!r} of job {owner.job!r} already"
            result.append((group, problem))
        return result

    def _prepare(self, groups: list[Group]) -> None:
        """Grow regions that are empty so far in one step; one that has holes fills these first."""
        sizes: Counter[str] = Counter()
        for group in groups:
            sizes[group.tag] += _whole(group.storage.nbytes())
        admit_bytes(self._tenant, sizes)
        for tag, nbytes in sizes.items():
            region = self._tenant.region_of(tag)
            if region.bytes_allocated == 0:
                region.prepare(nbytes)

    def _move_in(self, group: Group, copy: bool = True) -> int:
        storage, device = group.storage, self._tenant.device
        nbytes = storage.nbytes()
        span = self._tenant.span(_whole(nbytes), group.tag)
        target = region_bytes(span, nbytes, device)
        if copy:
            target.copy_(storage_bytes(storage))
        storage = exchange(group, target)
        return self._record(storage, group.tag, group.label, span.offset, group.aliases[0])

    def _record(
        self,
        storage: torch.UntypedStorage,
        tag: str,
        label: str,
        offset: int,
        tensor: torch.Tensor,
    ) -> int:
        number = next(self._numbers)
        slots = self._slots
        self._slots[number] = Slot(
            weakref.ref(storage, lambda _: slots.pop(number, None)),
            tag,
            label,
            storage.data_ptr(),
            offset,
            storage.nbytes(),
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
        )
        return number

    def _move_out(self, slot: Slot, data: memoryview | None, live: bool = False) -> None:
        """Ordinary memory for a slot: with the bytes of `data`, zeros, or (`live`) its own."""
        storage = slot.storage()
        if storage is None or storage.data_ptr() != slot.address:
            return
        managed = walk(self._modules, self._optimizers, self._tensors) if needs_aliases() else ()
        aliases = [t for e in managed for t in plain_tensors(e[0]) if _same(t, storage)]
        group = Group(storage, slot.tag, slot.label, aliases)
        target = ordinary_bytes(data, slot.nbytes, storage.device)
        if live:
            target.copy_(storage_bytes(storage))
        exchange(group, target)


def _whole(nbytes: int) -> int:
    """Space for a storage: whole steps of the alignment, so that no useless holes are left."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Our own operations: no graph, and no mode of the caller's sees them."""
    with torch.no_grad(), _disable_current_modes():
        yield


def _same(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    return bool(tensor.untyped_storage()._cdata == storage._cdata)


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in ordinary memory on the same device, without its graph."""
    with _quiet_torch():
        return tensor.detach().clone()
