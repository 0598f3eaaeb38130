"""The runtime of one process: permits, and the switch that follows a grant.

Called by jobs, in the thread that runs the phase. Who holds the permits of a device is the only
one that switches it, so the core is called without any lock held; the lock here guards small
tables for the length of a dictionary operation. Lock order: a job's phase gate, then permits,
then the lock of this module; none is held while a core function blocks, except the gate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from weave_rt import calibration
from weave_rt._core import BackgroundCopy, Device, SwitchReport
from weave_rt.admission import advising
from weave_rt.device import POOLS
from weave_rt.errors import UsageError, WeaveError
from weave_rt.lookahead import LookAhead
from weave_rt.overlay import Link, Plan, Unmanaged
from weave_rt.permits import Permits, Policy, Ticket
from weave_rt.replanning import Replanner
from weave_rt.tenant import Tenant, naming_tensors
from weave_rt.unmanaged import UnmanagedMemory

__all__ = ["Grant", "LocalRuntime", "Slice", "quietly"]

log = logging.getLogger("weave_rt")


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time. Times are those of the device clock.

    kind: ``wait`` (for a permit), ``switch`` (one core call; `report` is its switch report),
    ``phase``, or ``background`` (a tenant came in beside the phase of another; told when the next
    phase begins; `report` has ``bytes_in`` and ``tenant``), ``unmanaged`` (no time: the job took
    more of the device outside regions than its record says; `report` has the bytes of
    `weave_rt.unmanaged.Excess`). ok: false when it ended by an exception."""

    kind: str
    job: str
    phase: str
    step: int | None
    devices: tuple[str, ...]
    start_ns: int
    end_ns: int
    report: dict[str, Any] | None = None
    ok: bool = True


@dataclass(slots=True)
class Grant:
    """A phase that runs, from :meth:`LocalRuntime.request` to :meth:`LocalRuntime.end`."""

    job: str
    phase: str
    step: int | None
    ticket: Ticket
    requested_ns: int
    clock: Device
    granted_ns: int = 0
    started_ns: int = 0
    tenants: list[Tenant] = field(default_factory=list)
    reports: list[SwitchReport] = field(default_factory=list)
    excesses: int = 0  # over what the job's records say

    @property
    def devices(self) -> tuple[str, ...]:
        return self.ticket.devices

    @property
    def waited_s(self) -> float:
        return (self.granted_ns - self.requested_ns) / 1e9

    @property
    def resumed_s(self) -> float:
        return (self.started_ns - self.granted_ns) / 1e9

    @property
    def bytes_in(self) -> int:
        return sum(report.bytes_in for report in self.reports)


class LocalRuntime:
    """Devices of this process, shared by its jobs.

    Args:
        devices: by pool, ``rollout`` and ``train``; device i of a pool is called ``rollout:i``.
            One device may be in both pools; it is one thing to wait for then.
        policy: who goes first; :class:`~weave_rt.permits.FirstCome` by default.
        observer: called with each :class:`Slice`, in the thread that made it, maybe in several at
            once; what it raises is logged and dropped.
        drain_timeout_s: how long a switch waits for work on a device to finish.
        background: while a phase runs, bring in what fits of the tenants that come next. It does
            nothing where everything fits, or nobody comes next, and is off on a device whose
            phases lose more than 3 % by it, as ``weave doctor`` has measured.
        plan: what moves, see `weave_rt.overlay`: `auto`, `fewest-bytes` or `least-stall`.

    :meth:`close` closes the devices too. Safe to call from any thread."""

    def __init__(
        self,
        devices: Mapping[str, Sequence[Device]],
        *,
        policy: Policy | None = None,
        observer: Callable[[Slice], None] | None = None,
        drain_timeout_s: float = 60.0,
        background: bool = True,
        plan: str = "auto",
    ) -> None:
        self._names: dict[str, list[str]] = {}
        self._devices: dict[str, Device] = {}
        if set(devices) - set(POOLS):
            raise UsageError(f"pools are rollout and train, not {sorted(devices)}")
        for pool in POOLS:
            self._names[pool] = [
                self._name(device, f"{pool}:{i}") for i, device in enumerate(devices.get(pool, ()))
            ]
        if not self._devices:
            raise UsageError("a runtime needs at least one device")
        # Known rates give reports a limit, and may forbid background copies.
        found = ((name, calibration.recall(device)) for name, device in self._devices.items())
        known = {name: rates for name, rates in found if rates is not None}
        quiet = [name for name, rates in known.items() if calibration.is_disturbed(rates)]
        links = {n: Link(**{key: r[key] for key in calibration.RATES}) for n, r in known.items()}
        self.permits = Permits(policy)
        self._ahead = LookAhead(
            self._devices, self._queue, background=background, quiet=quiet, copied=self._copied
        )
        self._plans = Replanner(
            self._devices, self._planned, kind=plan, background=background, quiet=quiet, links=links
        )
        self._outside = UnmanagedMemory(self._devices, self._resized)
        self.observer = observer
        self.drain_timeout_s = drain_timeout_s
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._closed = False

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _name(self, device: Device, name: str) -> str:
        for known, other in self._devices.items():
            if other is device:
                return known
        self._devices[name] = device
        return name

    @property
    def devices(self) -> dict[str, Device]:
        """By name; a device in both pools is listed once."""
        return dict(self._devices)

    def set_plan(self, device: str, movable: Mapping[Tenant, int]) -> None:
        """From now on at most so many blocks of a tenant leave device `device` ("rollout:0") for
        the sake of others, `discard` not counted, as long as that suffices. Tenants that are not
        named are not held. Holds until this runtime plans again, because a tenant came, left, grew
        or has other phases. Raises UsageError for an unknown device."""
        if device not in self._devices:
            raise UsageError(f"there is no device {device!r}; known: {', '.join(self._devices)}")
        self._ahead.set_plan(device, movable)

    def plan(self, device: str) -> Plan | None:
        """The residency plan of a device ("rollout:0"); None while nothing has run there."""
        return self._plans.plan(device)

    def _planned(self, name: str, movable: Mapping[Tenant, int], ahead: bool) -> None:
        try:
            self._ahead.set_plan(name, movable, ahead=ahead)
        except WeaveError as error:  # a tenant that closes just now; the next phase plans again
            log.debug("planning on %s: %s", name, error)

    def _resized(self, name: str, frames: int) -> None:
        self._plans.resized(name, frames, self._ahead.tenants(name))

    def unmanaged(self, job: str) -> dict[str, Unmanaged]:
        """What `job` takes outside regions, by device name, as recorded; see
        `weave_rt.unmanaged`. Without devices where nothing was measured or pinned."""
        return self._outside.records(job)

    def tenants_on(self, device: str) -> list[Tenant]:
        """The open tenants that have run on `device`, in order of their first turn."""
        return self._ahead.tenants(device)

    def _queue(self, name: str) -> list[tuple[str, str]]:
        return [(r.job, r.phase) for r in self.permits.waiting() if name in r.devices]

    def placement(self, pool: str, indices: Sequence[int]) -> tuple[str, ...]:
        """Names of the devices with these indices in `pool`. Raises UsageError."""
        names = self._names[pool]
        for index in indices:
            if not 0 <= index < len(names):
                raise UsageError(f"the {pool} pool has {len(names)} devices; there is no {index}")
        return tuple(dict.fromkeys(names[index] for index in indices))

    def default_indices(self, pool: str) -> tuple[int, ...]:
        """The placement of a job that asks for none: the pool's first device, if it has one."""
        return (0,) if self._names[pool] else ()

    def join(
        self, job: str, devices: Sequence[str], unmanaged: Mapping[str, Unmanaged] | None = None
    ) -> None:
        """A job comes, placed on `devices`. unmanaged: its pinned records, by device name. Raises
        UsageError for a name that is taken."""
        with self._lock:
            if self._closed:
                raise UsageError("this runtime is closed")
        self.permits.join(job, devices)
        self._outside.join(job, unmanaged or {})
        with self._lock:
            self._jobs.add(job)

    def leave(self, job: str) -> None:
        """A job goes; its tenants are closed already. Twice is fine."""
        self.permits.leave(job)
        self._ahead.left(job)
        self._outside.leave(job)
        for name in self._devices:
            self._plans.changed(name, self._ahead.tenants(name))
        with self._lock:
            self._jobs.discard(job)

    def request(self, job: str, phase: str, step: int | None, devices: Sequence[str]) -> Grant:
        """Queue for `devices`. Follow with `permits.wait` and :meth:`begin`."""
        clock = self._devices[devices[0]]
        now = clock.now_ns()
        ticket = self.permits.request(job, phase, devices)
        try:
            if not ticket.told.done():
                for name in devices:
                    self._ahead.queued(name, job)
        except BaseException:  # nobody else knows of the ticket
            self.permits.withdraw(ticket)
            raise
        return Grant(job, phase, step, ticket, now, clock)

    def waited(self, grant: Grant, ok: bool) -> None:
        """The wait is over: granted, or given up (the ticket is withdrawn already)."""
        grant.granted_ns = grant.clock.now_ns()
        self._observe(grant, "wait", grant.requested_ns, grant.granted_ns, ok=ok)

    def begin(
        self, grant: Grant, tenants: Mapping[str, Mapping[Tenant, Sequence[str] | None]]
    ) -> None:
        """Bring the phase's tenants in, by device name, in the order of the grant; of each the
        tags that are named, None for all.

        On failure everything that came in is released, the permit passes on, and the exception of
        the core is raised: ResumeFailed, DrainTimeout, DriverError, TenantFailed and others."""
        try:
            for name in grant.devices:
                self._outside.begins(name, grant.job, grant.phase, grant.step)
                here = tenants.get(name, {})
                self._ahead.granted(name, grant.job, grant.phase, tuple(here))
                for tenant, tags in here.items():
                    self.bring_in(grant, name, tenant, tags)
            grant.started_ns = grant.clock.now_ns()
            for name in grant.devices:
                self._ahead.began(name, grant.job, tuple(tenants.get(name, ())))
        except BaseException:
            self._release(grant)
            raise

    def bring_in(
        self, grant: Grant, name: str, tenant: Tenant, tags: Sequence[str] | None = None
    ) -> None:
        """Bring one tenant in, or these tags of it, within a phase that holds the device `name`.
        Whoever ran there before was released, so the core takes what it needs from any of them."""
        device = self._devices[name]
        start = device.now_ns()
        if tenant not in grant.tenants:  # first: Ctrl-C in the switch is raised when it is in
            grant.tenants.append(tenant)
        try:
            with naming_tensors(), advising(grant.job, grant.phase):
                report = tenant.core.resume(self.drain_timeout_s, tags)
        except BaseException:
            self._observe(grant, "switch", start, device.now_ns(), (name,), ok=False)
            raise
        finally:
            tenant.update_guards()
        grant.reports.append(report)
        self._observe(grant, "switch", start, device.now_ns(), (name,), dict(report.as_dict()))

    def end(self, grant: Grant, ok: bool = True) -> Exception | None:
        """The phase has ended: scan, release, pass the permit on. Never raises; returns what
        was met (GrowthRefused by a scan, say, or VerifyFailed), for the caller to raise where that
        does no harm."""
        return self._release(grant, ok)

    def outside(
        self, job: str, phase: str, step: int | None, start_ns: int, end_ns: int, ok: bool
    ) -> None:
        """A phase has ended that held no device."""
        self._notify(Slice("phase", job, phase, step, (), start_ns, end_ns, ok=ok))

    def progress(self, job: str, phase: str, done: int, total: int) -> None:
        """How far a phase is. For policies that act on it; this runtime does not."""

    def close(self) -> None:
        """Close permits and devices. Twice is fine. Raises UsageError while a job is open."""
        with self._lock:
            if self._jobs:
                raise UsageError(f"close the jobs first: {', '.join(sorted(self._jobs))}")
            self._closed = True
        self.permits.close()
        self._outside.close()
        for device in self._devices.values():
            device.close()

    def _release(self, grant: Grant, ok: bool = True) -> Exception | None:
        """Each step is made, also where Ctrl-C ends the one before."""
        failures: list[Exception | None] = []
        with ExitStack() as steps:
            steps.callback(self.permits.release, grant.ticket)
            steps.callback(self._concluded, grant, ok, failures)
            for tenant in reversed(grant.tenants):
                steps.callback(lambda one: failures.append(quietly(one, one.release)), tenant)
        return next((failure for failure in reversed(failures) if failure is not None), None)

    def _concluded(self, grant: Grant, ok: bool, failures: list[Exception | None]) -> None:
        """The tenants are released, the permit is not: measure, tell, plan."""
        try:
            failures.append(self._measure(grant))
            if grant.started_ns:
                now = grant.clock.now_ns()
                self._observe(grant, "phase", grant.started_ns, now, ok=ok)
                self._replan(grant, (now - grant.started_ns) / 1e9)
        finally:
            grant.tenants, grant.started_ns = [], 0

    def _measure(self, grant: Grant) -> Exception | None:
        failure: Exception | None = None
        for name in grant.devices:
            found, problem = self._outside.ends(name, grant.job)
            failure = problem or failure
            if found is not None:
                grant.excesses += 1
                now = grant.clock.now_ns()
                self._observe(grant, "unmanaged", now, now, (name,), dict(found.as_dict()))
        return failure

    def _replan(self, grant: Grant, seconds: float) -> None:
        for name in grant.devices:
            ran = [one for one in grant.tenants if one.device is self._devices[name]]
            self._plans.ended(name, ran, self._ahead.tenants(name), seconds)

    def _observe(
        self,
        grant: Grant,
        kind: str,
        start_ns: int,
        end_ns: int,
        devices: tuple[str, ...] | None = None,
        report: dict[str, Any] | None = None,
        ok: bool = True,
    ) -> None:
        where = grant.devices if devices is None else devices
        self._notify(
            Slice(kind, grant.job, grant.phase, grant.step, where, start_ns, end_ns, report, ok)
        )

    def _copied(self, name: str, tenant: Tenant, copy: BackgroundCopy) -> None:
        began, ended, bytes_done = copy.began_ns, copy.ended_ns, copy.bytes_done
        report = {"bytes_in": bytes_done, "tenant": tenant.name}
        self._notify(
            Slice(
                "background", tenant.job, "", None, (name,), began, ended, report, not copy.failed
            )
        )

    def _notify(self, item: Slice) -> None:
        if self.observer is None:
            return
        try:
            self.observer(item)
        except Exception:  # an observer is foreign code and only looks on
            log.exception("the observer of the runtime failed")


def quietly(tenant: Tenant, action: Callable[[], None]) -> Exception | None:
    """Do it to the tenant; what it raises is logged and returned, so that others get their turn."""
    try:
        action()
    except Exception as error:
        log.warning("job %s, tenant %s: %s", tenant.job, tenant.name, error)
        return error
    return None
