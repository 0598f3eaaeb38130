"""Tags: their policies, and what a tenant's owner may say about one. The part of `Tenant` that only
passes on to regions; same thread, no lock."""

from __future__ import annotations

import abc
import importlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weave_rt._core import BackgroundCopy, Region
from weave_rt._core import Tenant as CoreTenant
from weave_rt.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_POLICIES",
    "POLICIES",
    "PageTable",
    "TagCalls",
    "check_policies",
    "check_tags",
    "listed",
]

PageTable = Callable[[], tuple[Iterable[int], Iterable[int]]]

POLICIES = ("keep", "reload", "discard")

DEFAULT_POLICIES: Mapping[str, str] = {
    "weights": "keep",
    "grads": "keep",
    "optimizer": "keep",
    "kv_cache": "discard",
    "cuda_graph": "keep",
    "buffers": "keep",
    "scratch": "discard",
    "other": "keep",
}


def check_policies(tags: Mapping[str, str] | None) -> dict[str, str]:
    """`tags` over the defaults. Raises UsageError for an unknown tag or policy."""
    if not isinstance(tags, Mapping | None):
        raise UsageError(f"policies go by tag, like {{'kv_cache': 'keep'}}, not {tags!r:.80}")
    for tag, policy in (tags or {}).items():
        if tag not in DEFAULT_POLICIES:
            raise UsageError(f"tag {tag!r} is not one of {', '.join(DEFAULT_POLICIES)}")
        if policy not in POLICIES:
            raise UsageError(f"policy {policy!r} of tag {tag!r} is not keep, reload or discard")
    return {**DEFAULT_POLICIES, **(tags or {})}


def listed(tags: Sequence[str] | None) -> list[str] | None:
    """Tags that somebody names, None for all. Raises UsageError for what is no list of texts."""
    if tags is None:
        return None
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise UsageError(f"tags is a list of tags, not {tags!r:.80}")
    found = list(tags)
    if not all(isinstance(tag, str) for tag in found):
        raise UsageError(f"tags is a list of tags, not {found!r:.80}")
    return found


def check_tags(tags: Sequence[str] | None) -> frozenset[str] | None:
    """The tags that a phase names; None for all. Raises UsageError for no tag or an unknown one."""
    found = listed(tags)
    if found is None:
        return None
    if not found:
        raise UsageError("no tag is named; leave `tags` out for all of them")
    check_policies(dict.fromkeys(found, "keep"))
    return frozenset(found)


class TagCalls(abc.ABC):
    """See :class:`weave_rt.Tenant`."""

    _page_tables: dict[str, PageTable]

    name: str

    @property
    @abc.abstractmethod
    def core(self) -> CoreTenant: ...

    @abc.abstractmethod
    def scan(self) -> int: ...

    @abc.abstractmethod
    def region_of(self, tag: str, policy: str | None = None) -> Region: ...

    @abc.abstractmethod
    def check_resident(self, tag: str) -> None: ...

    @property
    @abc.abstractmethod
    def regions(self) -> list[Region]: ...

    def mark_clean(self, tag: str) -> None:
        """Promise that the bytes of `tag` stay as they are until :meth:`mark_dirty` (a reference
        model, an adapter that is not trained): they leave for the host once, and later departures
        move nothing out. What is put into the tag afterwards leaves once, too.

        Raises UsageError unless the policy is keep."""
        self.region_of(tag).mark_clean()

    def mark_dirty(self, tag: str) -> None:
        """Before writing to a tag that was marked clean, or written back early."""
        self.region_of(tag).mark_dirty()

    def write_back(self, tag: str) -> BackgroundCopy:
        """Copy out now, beside the phase, what will not change any more before its end: the switch
        then skips it. Who writes there again says so by ``mark_dirty(tag)``, which also cancels
        this; tensors made in the tag afterwards are left to the switch. Of a tag with a page table
        these are the pages in use now, unless others are when the tenant stops. Of a tag without
        memory (an optimizer's, after its first step) what :meth:`scan` finds. Returns at once;
        ``wait()`` raises what went wrong. Raises NotResident, UsageError for a tag that nothing
        was put in or that is not keep, HostMemoryError, and what scan and the table raise."""
        check_policies({tag: "keep"})
        self.check_resident(tag)
        if not self._has(tag):
            self.scan()
            if not self._has(tag):
                raise UsageError(f"nothing was put in tag {tag!r} of tenant {self.name!r} yet")
        self.ask_pages(tag)
        return self.core.write_back(tag)

    def _has(self, tag: str) -> bool:
        return any(region.tag == tag for region in self.regions)

    def pin(self, tag: str) -> None:
        """Keep the memory of `tag` on the device until as many :meth:`unpin`: somebody outside has
        registered it (a NIC, a peer). Other tenants get the rest; to suspend this one raises
        RegionPinned."""
        self.region_of(tag).pin()

    def unpin(self, tag: str) -> None:
        """Raises UsageError if `tag` is not pinned."""
        self.region_of(tag).unpin()

    def page_table(self, tag: str, table: PageTable | None) -> None:
        """Say which bytes of a ``keep`` tag are in use (a paged KV cache): only these move.

        `table` is called whenever the tenant stops, while its memory can be read, and by
        ``write_back``. It returns offsets from the start of the region and sizes, in bytes (arrays
        or lists of integers, as many of each); :meth:`pages` makes them. What is in none of them
        is undefined after a return. None: all bytes again.

        Pinned memory is taken for pages in use alone, so name the table before the tag has
        memory: it then never takes any for the rest. What `table` raises, UsageError for bytes
        outside the region, and HostMemoryError is raised by what stops the tenant, before anything
        has moved; all bytes are in use then, until the table is asked again.

        Raises UsageError for a tag that is not keep, and for what cannot be called."""
        if table is not None and not callable(table):
            raise UsageError(f"the page table of tag {tag!r} is a function, not {table!r:.60}")
        region = self.region_of(tag)
        if region.policy != "keep":
            raise UsageError(f"tag {tag!r} is {region.policy}; only pages of a keep tag move")
        if table is not None:
            self._page_tables[tag] = table
            if region.resident:
                region.set_pages([], [])  # gives back what it has
                region.forget_pages()
        elif tag in self._page_tables:
            self.check_resident(tag)
            region.clear_pages()
            del self._page_tables[tag]

    def ask_pages(self, tag: str) -> None:
        """Take what the page table of `tag`, if it has one, says now. Raises like what stops the
        tenant; see :meth:`page_table`."""
        table = self._page_tables.get(tag)
        if table is not None:
            self.region_of(tag).set_pages(*_numbers(tag, table()))

    def pages(
        self, tensor: torch.Tensor, indices: Sequence[int], dim: int = 0
    ) -> tuple[list[int], list[int]]:
        """Offsets in their region and sizes, in bytes, of ``tensor.select(dim, i)`` for each i of
        `indices`: pages of a KV cache like (2, pages, tokens, heads, size) with dim=1.

        Raises UsageError for a tensor that is not contiguous or not in a region of this tenant,
        and for an index or a dim outside it."""
        adapter = importlib.import_module("weave_rt.adapters.pages")
        found: tuple[list[int], list[int]] = adapter.pages(self.regions, tensor, indices, dim)
        return found

    def set_fill(self, tag: str, fill: str) -> None:
        """What memory of a ``discard`` tag holds when it comes back or is new: ``none`` (whatever
        was there, the default), ``zero``, or ``poison``: every byte 0xA5, so that reading before
        writing shows. Memory that stayed on the device keeps its bytes. Raises UsageError."""
        self.region_of(tag).set_fill(fill)


def _numbers(tag: str, given: Any) -> tuple[list[int], list[int]]:
    """What a page table gave, as numbers of bytes. Raises UsageError with the tag."""
    try:
        offsets, sizes = (list(map(operator.index, part)) for part in given)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the page table of tag {tag!r} gives offsets and sizes, two lists of integers, not"
            f" {given!r:.80}"
        ) from error
    lowest = min(min(offsets, default=0), min(sizes, default=0))
    if lowest < 0:
        raise UsageError(f"the page table of tag {tag!r} gave {lowest}, a negative number of bytes")
    return offsets, sizes
