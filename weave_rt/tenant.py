"""Tenants: what one job keeps on one device for one pool, as Python sees it.

`Tenant` wraps the core's tenant and adds memory for torch tensors (through `adapters.torch`,
loaded on first use) and for plain bytes. Called by users, jobs and the local runtime. A tenant
belongs to the thread that runs its phase; it has no lock of its own and holds none while it calls
the core.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from weave_rt._core import Device, Region, Span, SwitchReport
from weave_rt._core import Tenant as CoreTenant
from weave_rt.errors import NotResident, TenantFailed, UsageError, VerifyFailed
from weave_rt.saved import Saved
from weave_rt.tags import DEFAULT_POLICIES, POLICIES, PageTable, TagCalls, check_policies, listed

if TYPE_CHECKING:
    import torch

    from weave_rt.adapters.torch import Book

__all__ = ["DEFAULT_POLICIES", "POLICIES", "Buffer", "Tenant", "check_policies", "naming_tensors"]

log = logging.getLogger("weave_rt")

_TAGS = frozenset(DEFAULT_POLICIES)

# Every tenant that somebody refers to, to find whose bytes an address or an error is about.
_open: weakref.WeakValueDictionary[int, Tenant] = weakref.WeakValueDictionary()


@contextmanager
def naming_tensors() -> Iterator[None]:
    """A verification that fails inside says in which managed tensor."""
    try:
        yield
    except VerifyFailed as error:
        for tenant in list(_open.values()):
            book = tenant._book
            if book is not None and (tenant.job, tenant.name) == (error.job, error.tenant):
                error.tensor = book.name_at(error.tag, error.offset)
        if error.tensor:
            error.args = (f"{error}; the first difference is in tensor {error.tensor}",)
        raise


def only_module(name: str, modules: Sequence[object]) -> object:
    """The one module of the tenant `name`. Raises UsageError."""
    if len(modules) != 1:
        raise UsageError(f"tenant {name!r} has {len(modules)} modules; name one of them")
    return modules[0]


class Buffer:
    """Plain bytes in a region, `span` of `tenant`; freed with the last reference to the buffer."""

    def __init__(self, tenant: Tenant, span: Span) -> None:
        self.tenant = tenant
        self.span = span

    @property
    def address(self) -> int:
        """Device address; the same for the buffer's whole life."""
        return self.span.address

    @property
    def nbytes(self) -> int:
        return self.span.bytes

    @property
    def tag(self) -> str:
        return self.span.region.tag

    def view(self) -> memoryview:
        """The bytes, writable, unsigned. Take a new view in each phase: an older one reads memory
        that may have been handed over.

        Raises NotResident outside the tenant's phase, UsageError on a GPU."""
        self.tenant.check_resident(self.tag)
        if self.tenant.device.kind != "emulated":
            raise UsageError("a buffer on a GPU has no CPU view; use its address")
        return memoryview(self.span).cast("B")


class Tenant(TagCalls):
    """The state of one job on one device for one pool: regions suspended and resumed as one.

    Args:
        device: where it lives.
        name: unique on the device among the tenants of the job.
        job, pool: used in messages; `pool` also names the phase to wrap an access in.
        tags: policy by tag (``keep``, ``reload`` or ``discard``) where the default does not fit.

    Touching managed memory while not resident raises NotResident where this library is asked, and
    faults where it is not. Errors of the core pass through: DriverError, GrowthRefused, ..."""

    def __init__(
        self,
        device: Device,
        name: str,
        *,
        job: str = "",
        pool: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise UsageError(f"a tenant's name is a text, not {name!r:.80}")
        self.policies = check_policies(tags)
        self.name, self.job, self.pool = name, job, pool
        self.device = device
        self._core: CoreTenant | None = device.add_tenant(name, job)
        self._book: Book | None = None
        self._page_tables: dict[str, PageTable] = {}
        self._hosted: set[str] = set()  # reload tags that have left once
        _open[id(self)] = self

    def __repr__(self) -> str:
        return f"<Tenant {self.job}/{self.name} {self.state} {self.bytes} bytes>"

    @property
    def core(self) -> CoreTenant:
        """The core's tenant. Raises UsageError once closed."""
        if self._core is None:
            raise UsageError(f"tenant {self.name!r} of job {self.job!r} is closed")
        return self._core

    @property
    def state(self) -> str:
        """RESIDENT, HOST, PARTIAL, FAILED or CLOSED; see the core."""
        core = self._core  # once: another thread may close
        return "CLOSED" if core is None else core.state

    @property
    def resident(self) -> bool:
        """Whether its memory may be touched now: all of it, or that of the tags it runs with."""
        core = self._core
        return core is not None and core.running

    def is_resident(self, tag: str) -> bool:
        """Whether memory of `tag` may be touched now, or made if there is none yet."""
        region = next((r for r in self.regions if r.tag == tag), None)
        return self.resident if region is None else region.resident

    @property
    def bytes(self) -> int:
        """Bytes of whole blocks, on the device or the host."""
        core = self._core
        return 0 if core is None else core.bytes

    @property
    def regions(self) -> list[Region]:
        core = self._core
        return [] if core is None else core.regions

    @property
    def publishes(self) -> bool:
        """Whether it has a ``reload`` tag, which gets its bytes by publishing."""
        return "reload" in self.policies.values()

    def manages(self, item: object) -> bool:
        """Whether `item` is a torch module that this tenant was given."""
        return self._book is not None and any(item is m for m in self._book.modules)

    def module_of(self, engine: object) -> object:
        """`engine`, or for a tenant the one module that it has. Raises UsageError."""
        if engine is not self:
            return engine
        return only_module(self.name, self._book.modules if self._book is not None else [])

    @staticmethod
    def region_at(address: int) -> Region | None:
        """The region of any tenant of this process that has a device address, if it may be read."""
        for tenant in list(_open.values()):
            for region in tenant.regions:
                if 0 <= address - region.address < region.bytes and region.resident:
                    return region
        return None

    def region_of(self, tag: str, policy: str | None = None) -> Region:
        """Get or create the region of a tag.

        Raises UsageError for an unknown tag, or a policy other than the region's."""
        wanted = check_policies({tag: policy or self.policies.get(tag, "keep")})[tag]
        region = self.core.region(tag, wanted)
        self.policies[tag] = region.policy
        if region.policy != wanted:
            raise UsageError(
                f"tag {tag!r} of tenant {self.name!r} has policy {region.policy!r} already"
            )
        return region

    def check_resident(self, tag: str) -> None:
        """Raise NotResident, naming the phase to wrap the access in or the tag to bring in, unless
        memory of `tag` may be touched now."""
        if not self.is_resident(tag):
            raise self.not_resident(tag)

    def not_resident(self, tag: str) -> NotResident:
        phase = {"rollout": "rollout", "train": "train"}.get(self.pool, "")
        what = f"{tag} of tenant {self.name!r}" + (f" of job {self.job!r}" if self.job else "")
        if self.resident:
            named = "name it in the tags of the phase, or " if phase else ""
            hint = f"only other tags are in; {named}call resume(tags=[{tag!r}]) first"
        else:
            hint = f"wrap it in `with job.phase({phase!r})`" if phase else "call resume() first"
        return NotResident(
            f"{what} was touched while the device may belong to another job; {hint}",
            job=self.job,
            tenant=self.name,
            tag=tag,
            phase=phase,
        )

    def span(self, nbytes: int, tag: str, policy: str | None = None) -> Span:
        """Space in the region of `tag`, aligned to 512 bytes. Raises NotResident, GrowthRefused,
        HostMemoryError."""
        region = self.region_of(tag, policy)
        self.check_resident(tag)
        return region.allocate(nbytes)

    def empty(
        self,
        shape: Sequence[int] | int,
        dtype: torch.dtype | str,
        tag: str = "other",
        policy: str | None = None,
    ) -> torch.Tensor:
        """An uninitialised tensor of `shape` that lives in the region of `tag`. `dtype`: a torch
        dtype or its name ("float32"). Raises like :meth:`span`."""
        return self.torch_book().empty(shape, dtype, tag, policy)

    def buffer(self, nbytes: int, tag: str = "other", policy: str | None = None) -> Buffer:
        """`nbytes` plain bytes in the region of `tag`, uninitialised. Raises like :meth:`span`."""
        if nbytes <= 0:
            raise UsageError(f"a buffer needs at least one byte, not {nbytes}")
        return Buffer(self, self.span(nbytes, tag, policy))

    def region(self, tag: str, policy: str | None = None) -> AbstractContextManager[object]:
        """Inside ``with tenant.region(tag):`` every new tensor that a torch operation makes on
        this tenant's device lives in the region of `tag`. This thread only."""
        self.region_of(tag, policy)
        return self.torch_book().mode(tag)

    def adopt(self, *objects: object) -> None:
        """Move the state of torch modules, optimizers and tensors into regions, and look again at
        each :meth:`scan`. An object that is managed here already is skipped.

        Raises UsageError (an object of another type, of another tenant, or whose memory somebody
        else uses, with its name) before anything has moved; NotResident."""
        if objects:
            self.check_resident("weights")
            adapters = importlib.import_module("weave_rt.adapters")
            adapters.adopt(self, objects)

    def scan(self) -> int:
        """Adopt what managed objects have got since the last scan (gradients, optimizer state,
        tensors that were replaced). Returns the number of storages moved."""
        return self._book.scan() if self._book is not None else 0

    def verify_addresses(self) -> None:
        """Raise StateChanged if a managed tensor is not where it was at the last scan."""
        if self._book is not None:
            self._book.verify()

    @property
    def has_modules(self) -> bool:
        return self._book is not None and bool(self._book.modules)

    def torch_book(self) -> Book:
        """The record of torch storages of this tenant; imports torch."""
        if self._book is None:
            self._book = importlib.import_module("weave_rt.adapters.torch").Book(self)
        assert self._book is not None
        return self._book

    def suspend(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> SwitchReport:
        """Stop and move everything to the host. Suspended already: a counted no-op.

        With `tags` only these leave, and the tenant goes on with the others; with the last one it
        stops. Raises UsageError for a tag that nothing was put in, RegionPinned."""
        self._before_leaving()
        try:
            with naming_tensors():
                return self.core.suspend(drain_timeout_s, listed(tags))
        finally:
            self.update_guards()

    def resume(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> SwitchReport:
        """Bring everything in. Idle tenants give up what is needed; ResumeFailed when running
        ones would have to. Running already: a counted no-op.

        With `tags` only these come in (weights first, the KV cache later); touching or growing
        another one raises NotResident. What is in already is a counted no-op. Raises UsageError
        for a tag that nothing was put in."""
        try:
            with naming_tensors():
                return self.core.resume(drain_timeout_s, listed(tags))
        finally:
            self.update_guards()

    def switch(
        self, to: Tenant, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> SwitchReport:
        """Hand the device to tenant `to` (with `tags`: to these of it), as one transaction."""
        self._before_leaving()
        try:
            with naming_tensors():
                return self.device.switch(self.core, to.core, drain_timeout_s, listed(tags))
        finally:
            self.update_guards()
            to.update_guards()

    def release(self) -> None:
        """Stop; the bytes stay on the device until another tenant needs the place. What
        :meth:`scan` and page tables raise is raised when the tenant has stopped."""
        try:
            self._before_leaving()
        finally:
            core = self._core
            if core is not None:
                core.release()
            self.update_guards()

    def update_guards(self) -> None:
        """Make managed modules and optimizers refuse to run exactly while not resident."""
        if self._book is None:
            return
        away = {r.tag for r in self.regions if not r.selected} if self.resident else _TAGS
        self._book.guard(away)
        self._hosted |= {tag for tag in away if self.policies[tag] == "reload"}
        if self._hosted:  # what was written there is not the truth any more
            self._book.refuse_loads(
                frozenset(self._hosted),
                f"the {' and '.join(sorted(self._hosted))} of tenant {self.name!r} are reload and"
                " their host copy is what counts: write them by `with job.phase('weight_sync') as"
                " sync: sync.publish(engine, policy)`, or manage them as keep",
            )

    def rescue(self, path: str | os.PathLike[str]) -> list[str]:
        """Write every region whose bytes are complete to a safetensors file, in any state.

        One uint8 tensor per tag; the metadata key ``tensors`` is JSON: name ->
        {tag, offset, nbytes, dtype, shape}. The bytes are streamed: nothing is held in memory a
        second time. Returns the tags written. Raises StateFileError."""
        index = self._book.index() if self._book is not None else {}
        metadata = {"job": self.job, "tenant": self.name, "tensors": json.dumps(index)}
        return sorted(self.core.rescue_to(os.fspath(path), metadata))

    def close(self) -> None:
        """Give everything back; managed tensors hold the same values in ordinary memory, those
        of a discarded tag zeros. Twice is fine.

        Raises TenantFailed, when closed, if bytes of a ``keep`` tag were lost. Whatever else
        interrupts it (no memory for the tensors, Ctrl-C) leaves it open: close it again."""
        core = self._core
        if core is None:
            return
        lost: TenantFailed | None = None
        if self._book is not None:
            if core.running:
                self._book.scan_quietly()
            try:
                self._book.evict(Saved(core, f"job {self.job}, tenant {self.name}"))
            except TenantFailed as error:
                lost = error
        self._core = None  # with it go the regions' addresses, where no storage is any more
        core.close()
        if lost is not None:
            raise lost

    def _before_leaving(self) -> None:
        """Adopt what is new, and ask for the pages in use: all tables, also where the scan or one
        of them raises. Whatever interrupts it, the core never goes by the pages of the phase
        before: they are forgotten first, so that all of a tag counts as in use."""
        if not self.resident:
            return
        paged = [tag for tag in self._page_tables if self.region_of(tag).resident]
        for tag in paged:
            self.region_of(tag).forget_pages()
        with ExitStack() as asked:
            for tag in paged:
                asked.callback(self.ask_pages, tag)
            self.scan()
