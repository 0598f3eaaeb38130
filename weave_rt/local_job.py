"""A job that runs on devices of this process.

Made by `init`. The trainer's threads call in; blocking core functions run with no lock held but
the job's phase gate. Lock order: gate, permits, then the small locks of runtime, versions and
metrics.
"""

from __future__ import annotations

import importlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock, get_ident

from weave_rt._core import HostGrowth, SwitchReport
from weave_rt.device import POOLS
from weave_rt.errors import UsageError, WeaveError
from weave_rt.job import Config, Job, managed_already
from weave_rt.local import Grant, LocalRuntime, quietly
from weave_rt.local_phase import Active, LocalPhase, enclosing
from weave_rt.permits import Permits
from weave_rt.process_runtime import leave_process_runtime, process_runtime
from weave_rt.tenant import Tenant
from weave_rt.unmanaged import pinned_records
from weave_rt.versions import Versions

__all__ = ["LocalJob"]

log = logging.getLogger("weave_rt")

PATIENCE_S = 30.0  # how long closing waits for phases of other threads before it says so


class LocalJob(Job):
    """See :class:`~weave_rt.job.Job`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shared = config.runtime is None
        self.runtime: LocalRuntime = config.runtime or process_runtime(
            config.rollout_device or "auto", config.train_device or "auto"
        )
        try:
            self.placement = {pool: self._place(pool, getattr(config, pool)) for pool in POOLS}
            if not self.devices_of(POOLS):
                raise UsageError(f"job {self.job_id!r} is placed on no device")
            pinned = pinned_records(self.job_id, config.unmanaged, self.placement)
            self.runtime.join(self.job_id, self.devices_of(POOLS), pinned)
            try:
                self._growths = self._pin_ahead(config.pin_ahead or {})
            except BaseException:
                self.runtime.leave(self.job_id)
                raise
        except BaseException:
            if shared:
                leave_process_runtime(self.runtime)
            raise
        self.clock = self.runtime.devices[self.devices_of(POOLS)[0]]
        if config.verify == "checksum":
            for name in self.devices_of(POOLS):
                self.runtime.devices[name].set_verify(True)
        self.gate = Permits()
        self.gate.join(self.job_id, POOLS)
        self.versions = Versions(self)
        self.entering: set[Active] = set()  # waiting for their permit, or in the switch
        self.actives: list[Active] = []
        self._tenants: dict[str, tuple[str, str, Tenant]] = {}  # name: pool, device, tenant
        self._ran: set[str] = set()
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._metrics_lock = Lock()
        self._close_lock = Lock()
        self._closing = False
        self._closed = False

    def _pin_ahead(self, wanted: Mapping[str, int]) -> list[HostGrowth]:
        growths: list[HostGrowth] = []
        try:
            for pool, nbytes in wanted.items():
                for name in self.placement[pool] if nbytes > 0 else ():
                    device = self.runtime.devices[name]
                    growths.append(device.host_pool.reserve(self.job_id, nbytes, device.numa_node))
        except BaseException:
            for growth in growths:
                growth.cancel()
            raise
        return growths

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            self.close()
        except Exception as problem:
            if kind is None:
                raise
            log.error("closing job %s: %s", self.job_id, problem)

    @property
    def active(self) -> bool:
        return not self._closed

    def manage(
        self,
        name: str,
        *objects: object,
        pool: str,
        tags: Mapping[str, str] | None = None,
        device: int = 0,
    ) -> Tenant:
        self.check_open()
        if pool not in POOLS:
            raise UsageError(f"pool {pool!r} is not rollout or train")
        importlib.import_module("weave_rt.adapters").check(objects)
        known = self._tenants.get(name)
        if known is not None and (known[0] != pool or tags):
            raise managed_already(name, known[0])
        places = self.placement[pool]
        if not 0 <= device < len(places):
            raise UsageError(
                f"job {self.job_id!r} has {len(places)} devices in pool {pool!r}; no {device}"
            )
        if known is not None:
            tenant = known[2]
        else:
            core_device = self.runtime.devices[places[device]]
            tenant = Tenant(core_device, name, job=self.job_id, pool=pool, tags=tags)
        try:
            self._bring_and_adopt(tenant, places[device], pool, objects, known is None)
        except BaseException:
            if known is None:
                self._tenants.pop(name, None)
                tenant.close()
            raise
        self.versions.written()
        return tenant

    def _bring_and_adopt(
        self, tenant: Tenant, place: str, pool: str, objects: Sequence[object], new: bool
    ) -> None:
        holder = next((a for a in enclosing(self) if a.holding and pool in a.pools), None)
        if holder is None and objects:
            # the device may be another job's now; this is a short phase of its own
            if new:
                self._tenants[tenant.name] = (pool, place, tenant)
            with self.phase("init", pool=pool):
                tenant.adopt(*objects)
            return
        if new and holder is not None and holder.grant is not None:
            self.runtime.bring_in(holder.grant, place, tenant)
            self._ran.add(tenant.name)
        if new:
            self._tenants[tenant.name] = (pool, place, tenant)
        tenant.adopt(*objects)

    def phase(
        self,
        name: str,
        step: int | None = None,
        timeout_s: float | None = None,
        pool: str | Sequence[str] | None = None,
        nested: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> LocalPhase:
        limit = self.config.acquire_timeout_s if timeout_s is None else timeout_s
        return LocalPhase(self, name, step, limit, pool, nested or self.config.nested, tags)

    def pop_metrics(self) -> dict[str, float]:
        with self._metrics_lock:
            values, self._metrics = self._metrics, defaultdict(float)
        metrics = {key: float(value) for key, value in values.items()}
        metrics["weave/weight_version"] = float(self.versions.engine)
        records = self.runtime.unmanaged(self.job_id)
        for pool in POOLS:
            found = [records[name] for name in self.placement[pool] if name in records]
            if found:
                for when in ("running", "sleeping"):
                    most = max(getattr(one, when) for one in found)
                    metrics[f"weave/unmanaged_{when}_bytes/{pool}"] = float(most)
        metrics["weave/pinned_bytes"] = float(self.clock.host_pool.bytes_registered)
        return metrics

    def progress(self, done: int, total: int) -> None:
        if not 0 <= done <= total:
            raise UsageError(f"progress({done}, {total}): needs 0 <= done <= total")
        around = enclosing(self)
        name = around[-1].result.name if around else ""
        self.runtime.progress(self.job_id, name, done, total)

    def close(self) -> None:
        if self._closed:
            return
        under_way = (*self.actives, *tuple(self.entering))
        if enclosing(self) or any(active.thread == get_ident() for active in under_way):
            raise UsageError(
                f"job {self.job_id!r} is closed inside its own phase, or beside one of another "
                "task of this thread, which cannot end meanwhile; leave it first"
            )
        with self._close_lock:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._closing = True  # from here on no phase gets further than its request
        self.runtime.permits.withdraw_waiting(self.job_id)
        self.gate.withdraw_waiting(self.job_id)
        last = self.gate.request(self.job_id, "close", POOLS)
        try:
            if not self.gate.settled_within(last, PATIENCE_S):
                running = ", ".join(a.result.name for a in self.actives) or "one that begins"
                log.warning("job %s: closing waits for a phase to end: %s", self.job_id, running)
            self.gate.wait(last)
            for growth in self._growths:
                growth.cancel()
            tenants = [tenant for _, _, tenant in self._tenants.values()]
            problems = [quietly(tenant, tenant.close) for tenant in tenants]
        finally:
            self.gate.release(last)
        problem = next((p for p in problems if p is not None), None)
        if problem is not None and any(tenant.state != "CLOSED" for tenant in tenants):
            raise problem  # its tensors are still in place; the job can be closed again
        self._closed = True
        self.gate.close()
        for growth in self._growths:
            with suppress(WeaveError):
                growth.wait()
        if self._growths:  # a tenant's end gives back its job's memory, but there may be none
            for name in self.devices_of(POOLS):
                self.runtime.devices[name].host_pool.trim(self.job_id)
        self.runtime.leave(self.job_id)
        if self.config.runtime is None:
            leave_process_runtime(self.runtime)
        if problem is not None:
            raise problem

    # What phases and versions ask for.

    def check_open(self) -> None:
        if self._closing:
            raise UsageError(f"job {self.job_id!r} is closed")

    def devices_of(self, pools: Sequence[str]) -> tuple[str, ...]:
        """Device names of the placement, train first, each once."""
        return tuple(dict.fromkeys(n for p in POOLS if p in pools for n in self.placement[p]))

    def tenants_in(self, *pools: str) -> list[Tenant]:
        return [t for pool, _, t in list(self._tenants.values()) if pool in pools]

    def tenants_on(
        self, pools: Sequence[str], tags: Mapping[str, frozenset[str] | None]
    ) -> dict[str, dict[Tenant, list[str] | None]]:
        """The tenants that a phase with these pools brings in, by device name, each with those of
        its tags that come; None for all. tags: by pool, what the phase names there."""
        result: dict[str, dict[Tenant, list[str] | None]] = {}
        for pool, place, tenant in list(self._tenants.values()):
            if pool not in pools:
                continue
            wanted, present = tags.get(pool), [region.tag for region in tenant.regions]
            mine = None if wanted is None else [tag for tag in present if tag in wanted]
            if mine != []:
                result.setdefault(place, {})[tenant] = mine
        return result

    def is_inside(self, *names: str) -> bool:
        return any(a.result.name in names for a in enclosing(self))

    def publishes(self) -> bool:
        """Whether weights reach the engine through the host: it has a ``reload`` tag."""
        return any(tenant.publishes for tenant in self.tenants_in("rollout"))

    def has_modules_in_both_pools(self) -> bool:
        return all(any(t.has_modules for t in self.tenants_in(pool)) for pool in POOLS)

    def note_phase(self, name: str, elapsed_ns: int) -> None:
        with self._metrics_lock:
            self._metrics[f"{self.config.metrics_prefix}{name}"] += elapsed_ns / 1e9

    def note_grant(self, grant: Grant) -> bool:
        """Count what a grant took. Returns whether it was warm."""
        names = {tenant.name for tenant in grant.tenants}
        warm = names <= self._ran
        self._ran |= names
        with self._metrics_lock:
            self._metrics[f"{self.config.metrics_prefix}permit_wait"] += grant.waited_s
            self._metrics["weave/warm_resumes" if warm else "weave/cold_starts"] += 1
        self.note_switches(grant.reports, grant.resumed_s)
        return warm

    def note_switches(self, reports: Sequence[SwitchReport], seconds: float) -> None:
        """Count what came in for a phase, and what made room."""
        with self._metrics_lock:
            self._metrics[f"{self.config.metrics_prefix}resume"] += seconds
            self._metrics["weave/bytes_resumed"] += sum(r.bytes_in for r in reports)
            self._metrics["weave/bytes_suspended"] += sum(r.bytes_out for r in reports)
            self._metrics["weave/evictions"] += sum(len(r.outgoing) for r in reports if r.bytes_out)

    def note_end(self, grant: Grant) -> None:
        """Count what was found out when a grant ended."""
        if grant.excesses:
            with self._metrics_lock:
                self._metrics["weave/unmanaged_excesses"] += grant.excesses

    def _place(self, pool: str, indices: Sequence[int] | None) -> tuple[str, ...]:
        if indices is None:
            indices = self.runtime.default_indices(pool)
        return self.runtime.placement(pool, indices)
