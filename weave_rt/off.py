"""A job that is off: every call of the trainer API, with no device and no effect.

Memory asked for is ordinary memory. Used by `init` when ``WEAVE`` is unset or ``off``; neither the
core nor torch is touched before the trainer itself uses torch.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from weave_rt.errors import UsageError
from weave_rt.job import Config, Job, managed_already
from weave_rt.phases import NullPhase, Phase, canonical_name, pools_of
from weave_rt.tags import check_policies, check_tags
from weave_rt.tenant import only_module

if TYPE_CHECKING:
    import torch

__all__ = ["OffJob", "PlainBuffer", "PlainCopy", "PlainReport", "PlainTenant"]


class PlainCopy:
    """The shape of a BackgroundCopy that had nothing to copy."""

    bytes_total = bytes_done = began_ns = ended_ns = 0
    finished = True
    cancelled = failed = False

    def wait(self, timeout_s: float | None = None) -> bool:
        return True

    def cancel(self) -> None:
        return None


class PlainReport:
    """The shape of a SwitchReport where nothing moved."""

    outgoing: Sequence[str] = ()
    incoming = ""
    bytes_out = bytes_in = bytes_background = bytes_skipped = blocks_remapped = started_ns = 0
    seconds = 0.0

    def as_dict(self) -> dict[str, object]:
        return {}


class PlainBuffer:
    """The shape of a Buffer over ordinary memory."""

    def __init__(self, nbytes: int, tag: str) -> None:
        self._memory = (ctypes.c_ubyte * nbytes)()
        self.nbytes = nbytes
        self.tag = tag

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory)

    def view(self) -> memoryview:
        return memoryview(self._memory).cast("B")


class PlainTenant:
    """The shape of a Tenant without a device. Always resident."""

    state = "RESIDENT"
    resident = True
    bytes = 0
    device = None

    def __init__(self, name: str, job: str, pool: str, tags: Mapping[str, str] | None) -> None:
        self.policies = check_policies(tags)
        self.name, self.job, self.pool = name, job, pool
        self.regions: list[Any] = []
        self._device: torch.device | None = None  # torch's default, or that of what is managed
        self._modules: list[Any] = []

    def empty(
        self,
        shape: Sequence[int] | int,
        dtype: torch.dtype | str,
        tag: str = "other",
        policy: str | None = None,
    ) -> torch.Tensor:
        import torch

        from weave_rt.adapters.storage import size_and_dtype

        self._check(tag, policy)
        size, kind = size_and_dtype(shape, dtype)
        return torch.empty(size, dtype=kind, device=self._device)

    def buffer(self, nbytes: int, tag: str = "other", policy: str | None = None) -> PlainBuffer:
        self._check(tag, policy)
        if nbytes <= 0:
            raise UsageError(f"a buffer needs at least one byte, not {nbytes}")
        return PlainBuffer(nbytes, tag)

    def region(self, tag: str, policy: str | None = None) -> AbstractContextManager[object]:
        self._check(tag, policy)
        return nullcontext()

    def adopt(self, *objects: object) -> None:
        importlib.import_module("weave_rt.adapters").check(objects)
        for item in objects:
            parameters = getattr(item, "parameters", None)  # of a module
            if not callable(parameters) or self.manages(item):
                continue
            self._modules.append(item)
            first = next(iter(parameters()), None)
            if first is not None and self._device is None:
                self._device = first.device

    @property
    def publishes(self) -> bool:
        return "reload" in self.policies.values()

    @property
    def has_modules(self) -> bool:
        return bool(self._modules)

    def manages(self, item: object) -> bool:
        return any(item is module for module in self._modules)

    def module_of(self, engine: object) -> object:
        return only_module(self.name, self._modules) if engine is self else engine

    def scan(self) -> int:
        return 0

    def verify_addresses(self) -> None:
        return None

    def is_resident(self, tag: str) -> bool:
        return True

    def check_resident(self, tag: str) -> None:
        return None

    def suspend(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> PlainReport:
        return PlainReport()

    def resume(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> PlainReport:
        return PlainReport()

    def switch(
        self, to: PlainTenant, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> PlainReport:
        return PlainReport()

    def write_back(self, tag: str) -> PlainCopy:
        self._check(tag, None)
        return PlainCopy()

    def rescue(self, path: str | os.PathLike[str]) -> list[str]:
        return []

    def mark_clean(self, tag: str) -> None:
        self._check(tag, None)

    def mark_dirty(self, tag: str) -> None:
        self._check(tag, None)

    def pin(self, tag: str) -> None:
        self._check(tag, None)

    def unpin(self, tag: str) -> None:
        self._check(tag, None)

    def set_fill(self, tag: str, fill: str) -> None:
        self._check(tag, None)

    def page_table(self, tag: str, table: object) -> None:
        self._check(tag, None)

    def pages(
        self, tensor: torch.Tensor, indices: Sequence[int], dim: int = 0
    ) -> tuple[list[int], list[int]]:
        return [], []

    def release(self) -> None:
        return None

    def close(self) -> None:
        self._modules.clear()

    @staticmethod
    def _check(tag: str, policy: str | None) -> None:
        check_policies({tag: policy or "keep"})


class OffJob(Job):
    """Manages nothing: its tenants hold ordinary memory, its phases do nothing."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._tenants: dict[str, PlainTenant] = {}

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        return None

    @property
    def active(self) -> bool:
        return False

    def manage(
        self,
        name: str,
        *objects: object,
        pool: str,
        tags: Mapping[str, str] | None = None,
        device: int = 0,
    ) -> PlainTenant:
        pools_of("reward", pool)
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = PlainTenant(name, self.job_id, pool, tags)
        elif tenant.pool != pool or tags:
            raise managed_already(name, tenant.pool)
        tenant.adopt(*objects)
        self._tenants[name] = tenant
        return tenant

    def phase(
        self,
        name: str,
        step: int | None = None,
        timeout_s: float | None = None,
        pool: str | Sequence[str] | None = None,
        nested: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> Phase:
        pools_of("reward", pool)
        check_tags(tags)
        return NullPhase(canonical_name(name), step)

    def pop_metrics(self) -> dict[str, float]:
        return {}

    def progress(self, done: int, total: int) -> None:
        return None

    def close(self) -> None:
        self._tenants.clear()
