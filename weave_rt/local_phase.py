"""Entering and leaving phases of a local job: nesting, the gate between threads, permits, versions.

Called by trainers through `LocalPhase`. Which phases enclose the caller is kept per thread and per
asyncio task (a context variable). Each job has a gate: a first-come queue over its own pools, so
that two threads of one job never ask for one pool at the same time. Order: gate, permit, switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

from weave_rt.errors import PhaseNesting, UsageError
from weave_rt.local import Grant
from weave_rt.permits import Ticket
from weave_rt.phases import Phase, PhaseResult, canonical_name, pools_of
from weave_rt.publishing import Sync
from weave_rt.tags import check_tags

if TYPE_CHECKING:
    from weave_rt.local_job import LocalJob

__all__ = ["Active", "LocalPhase", "enclosing"]


@dataclass(eq=False, slots=True)
class Active:
    """A phase that somebody is in."""

    phase: LocalPhase
    result: PhaseResult
    pools: tuple[str, ...]  # taken by this phase itself; none if an outer one holds them
    tags: dict[str, frozenset[str] | None] = field(default_factory=dict)  # by pool; None: all
    outer: list[Active] = field(default_factory=list)  # handed back for this one
    gate: Ticket | None = None
    grant: Grant | None = None  # set as soon as it is asked for, so that nothing can leak
    entered_ns: int = 0
    admitted: bool = False
    ended: bool = False
    thread: int = field(default_factory=get_ident)
    problem: BaseException | None = None  # committing failed

    @property
    def holding(self) -> bool:
        return self.grant is not None and self.grant.started_ns > 0


_stack: ContextVar[tuple[Active, ...]] = ContextVar("weave_rt_phases", default=())


def enclosing(job: LocalJob) -> list[Active]:
    """The phases of `job` around the caller, outermost first."""
    return [a for a in _stack.get() if a.phase.job is job and not a.ended]


class LocalPhase(Phase):
    """See `Job.phase`."""

    def __init__(
        self,
        job: LocalJob,
        name: str,
        step: int | None,
        timeout_s: float | None,
        pool: str | Sequence[str] | None,
        nested: str,
        tags: Sequence[str] | None = None,
    ) -> None:
        if nested not in ("error", "switch"):
            raise UsageError(f"nested={nested!r} is not 'error' or 'switch'")
        if not isinstance(timeout_s, int | float | None):
            raise UsageError(f"timeout_s is a number of seconds or None, not {timeout_s!r}")
        self.job = job
        self.name = canonical_name(name)
        self.step = step
        self.timeout_s = timeout_s
        self.pool = pool
        pools_of(self.name, pool)  # raises for what is not a pool
        self.nested = nested
        self.tags = check_tags(tags)

    @property
    def needed(self) -> tuple[str, ...]:
        """The pools to hold. Publishing leaves the rollout pool to others."""
        pools = pools_of(self.name, self.pool)
        if self.name == "weight_sync" and self.pool is None and self.job.publishes():
            pools = ("train",)
        return tuple(p for p in pools if self.job.placement[p])

    def __enter__(self) -> PhaseResult:
        active = self._plan()
        try:
            self.job.entering.add(active)
            self._hand_back(active)
            if active.pools:
                self._take(active, self.timeout_s)
            else:
                self._check(active)
        except BaseException:
            self._give(active, ok=False)
            self.job.entering.discard(active)
            self._retake(active)
            raise
        return self._push(active)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        active = self._pop(kind is None)
        problem: BaseException | None
        try:
            self._conclude(active, kind is None)
        finally:  # whatever happens: a permit that is not given back stops everybody
            self.job.actives.remove(active)
            problem = self._give(active, ok=kind is None)
            self._retake(active)
        problem = active.problem or problem
        if problem is not None and kind is None:
            raise problem

    async def __aenter__(self) -> PhaseResult:
        active = self._plan()
        try:
            self.job.entering.add(active)
            self._hand_back(active)
            if active.pools:
                await self._take_async(active, self.timeout_s)
            else:
                await self._check_async(active)
        except BaseException:
            self._give(active, ok=False)
            self.job.entering.discard(active)
            await self._retake_async(active)
            raise
        return self._push(active)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> None:
        active = self._pop(kind is None)
        problem: BaseException | None
        try:
            await self._conclude_async(active, kind is None)
        finally:
            self.job.actives.remove(active)
            problem = self._give(active, ok=kind is None)
            await self._retake_async(active)
        problem = active.problem or problem
        if problem is not None and kind is None:
            raise problem

    def _plan(self) -> Active:
        """What to take and what to hand back first. Raises PhaseNesting."""
        self.job.check_open()
        around = enclosing(self.job)
        held = {pool for a in around if a.holding for pool in a.pools}
        result = PhaseResult(self.name, self.step)
        if self.name == "weight_sync":
            result = Sync(self.name, self.step, job=self.job)
        needed = self.needed
        active = Active(self, result, ())
        if not set(needed) <= held:
            active.pools, active.tags = needed, dict.fromkeys(needed, self.tags)
        if active.pools and held:
            if self.nested != "switch":
                inside = next(a.phase.name for a in reversed(around) if a.holding)
                raise PhaseNesting(
                    f"phase {self.name!r} needs {' and '.join(needed)}, but is inside "
                    f"{inside!r}, which holds {' and '.join(sorted(held))}; leave that phase "
                    "first, or pass nested='switch' to hand its pools back meanwhile"
                )
            active.outer = [a for a in around if a.holding]
        return active

    def _take(self, active: Active, timeout_s: float | None) -> None:
        """Gate, permit, switch. On an exception `_give` undoes what was taken."""
        job, start_ns = self.job, self.job.clock.now_ns()
        active.gate = job.gate.request(job.job_id, self.name, active.pools)
        if not active.gate.told.done():
            self._check_tasks(active)
        job.gate.wait(active.gate, timeout_s)
        grant = self._request(active)
        ok = False
        try:
            job.runtime.permits.wait(grant.ticket, _left(job, start_ns, timeout_s))
            ok = True
        finally:
            job.runtime.waited(grant, ok)
        self._begin(active, grant)
        self._taken(active, grant, start_ns)

    def _check_tasks(self, active: Active) -> None:
        """Raise PhaseNesting where waiting would be for ever: for another task of this thread."""
        own = [active, *enclosing(self.job)]
        for other in (*self.job.actives, *tuple(self.job.entering)):
            if (
                other.gate is not None
                and other.thread == get_ident()
                and other not in own
                and set(other.gate.devices) & set(active.pools)
            ):
                raise PhaseNesting(
                    f"phase {self.name!r} would wait for {other.phase.name!r} of another task of "
                    "this thread, which cannot end meanwhile; enter it by `async with`"
                )

    async def _take_async(self, active: Active, timeout_s: float | None) -> None:
        """The same without blocking the event loop: the switch runs in a worker thread."""
        job, start_ns = self.job, self.job.clock.now_ns()
        active.gate = job.gate.request(job.job_id, self.name, active.pools)
        await job.gate.wait_async(active.gate, timeout_s)
        grant = self._request(active)
        ok = False
        try:
            left = _left(job, start_ns, timeout_s)
            await job.runtime.permits.wait_async(grant.ticket, left)
            ok = True
        finally:
            job.runtime.waited(grant, ok)
        await _in_thread(self._begin, active, grant)
        self._taken(active, grant, start_ns)

    def _begin(self, active: Active, grant: Grant) -> None:
        """The switch. The engines of a job come in as one: no version arrives in between."""
        with self.job.versions.changing if "rollout" in active.pools else nullcontext():
            self.job.runtime.begin(grant, self.job.tenants_on(active.pools, active.tags))

    def _request(self, active: Active) -> Grant:
        """Through the gate: look at the versions, then ask for the permit."""
        job = self.job
        if not active.admitted:
            job.versions.check(active)
        devices = job.devices_of(active.pools)
        active.grant = job.runtime.request(job.job_id, self.name, self.step, devices)
        job.check_open()  # after the request: one that closes withdraws it, or is seen here
        return active.grant

    def _taken(self, active: Active, grant: Grant, start_ns: int) -> None:
        result = active.result
        result.waited_s += (grant.granted_ns - start_ns) / 1e9
        result.resumed_s += grant.resumed_s
        result.resumed_bytes += grant.bytes_in
        result.warm = self.job.note_grant(grant)
        if self.job.config.verify != "off":
            for tenant in grant.tenants:
                tenant.verify_addresses()
        self.job.versions.check_contents(active)

    def _check(self, active: Active) -> None:
        """The looks at versions for a phase that an outer one holds the pools for."""
        self.job.versions.check(active)
        if self._narrow():
            self._widen(active)
        self.job.versions.check_contents(active)

    async def _check_async(self, active: Active) -> None:
        self.job.versions.check(active)
        if self._narrow():
            await _in_thread(self._widen, active)
        self.job.versions.check_contents(active)

    def _narrow(self) -> list[tuple[Active, str]]:
        """Outer phases, with a pool of theirs, that lack tags which this phase needs there."""
        return [
            (outer, pool)
            for outer in enclosing(self.job)
            if outer.holding
            for pool in outer.pools
            if pool in self.needed and not _includes(outer.tags[pool], self.tags)
        ]

    def _widen(self, active: Active) -> None:
        """Bring in what an outer phase has left out; it stays to the end of that one. Tasks may
        share an outer phase, so one at a time."""
        job = self.job
        with job.versions.changing:
            for outer, pool in self._narrow():
                if outer.grant is None:
                    continue
                known = len(outer.grant.reports)
                for name, tenants in job.tenants_on((pool,), {pool: self.tags}).items():
                    for tenant, tags in tenants.items():
                        job.runtime.bring_in(outer.grant, name, tenant, tags)
                had = outer.tags[pool]
                outer.tags[pool] = None if had is None or self.tags is None else had | self.tags
                reports = outer.grant.reports[known:]
                seconds = sum(report.seconds for report in reports)
                job.note_switches(reports, seconds)
                active.result.resumed_s += seconds
                active.result.resumed_bytes += sum(report.bytes_in for report in reports)

    def _push(self, active: Active) -> PhaseResult:
        active.admitted = True
        _stack.set((*_stack.get(), active))
        self.job.actives.append(active)
        self.job.entering.discard(active)
        self.job.versions.entered(active)
        active.entered_ns = self.job.clock.now_ns()
        return active.result

    def _pop(self, ok: bool) -> Active:
        stack = _stack.get()
        # left in another context (a generator, a fixture): look among all of the job's phases
        candidates = (*self.job.actives, *stack)
        active = next((a for a in reversed(candidates) if a.phase is self and not a.ended), None)
        if active is None:
            raise UsageError(f"phase {self.name!r} is left, but nobody is in it")
        active.ended = True
        _stack.set(tuple(a for a in stack if not a.ended))
        now_ns = self.job.clock.now_ns()
        if not self.job.is_inside(self.name):  # else the outer one counts these seconds
            self.job.note_phase(self.name, now_ns - active.entered_ns)
        if not self.needed and not enclosing(self.job):  # else an outer phase is seen already
            job = self.job
            job.runtime.outside(job.job_id, self.name, self.step, active.entered_ns, now_ns, ok)
        return active

    def _conclude(self, active: Active, ok: bool) -> None:
        """Commit what the phase has made, while its pools are held."""
        published = active.result.commits if isinstance(active.result, Sync) else frozenset()
        active.problem = active.result.conclude(ok)
        if active.problem is not None or (self.job.publishes() and not published):
            # a sync that published nothing leaves the engine at its version
            ok = ok and active.result.name != "weight_sync"
        if ok:
            self.job.versions.committed(active, published)

    async def _conclude_async(self, active: Active, ok: bool) -> None:
        """The same; a version that is published may have to wait for a rollout that comes in."""
        if isinstance(active.result, Sync):
            await _in_thread(self._conclude, active, ok)
        else:
            self._conclude(active, ok)

    def _give(self, active: Active, ok: bool) -> Exception | None:
        """Give back what `_take` took. Raises nothing but an interrupt, and then too it is done."""
        problem = None
        try:
            if active.grant is not None:
                problem = self.job.runtime.end(active.grant, ok)
                self.job.note_end(active.grant)
        finally:
            active.grant = None
            if active.gate is not None:
                self.job.gate.release(active.gate)
                active.gate = None
        return problem

    def _hand_back(self, active: Active) -> None:
        problem = None
        for outer in reversed(active.outer):
            problem = outer.phase._give(outer, ok=True) or problem
        if problem is not None:
            raise problem

    def _retake(self, active: Active) -> None:
        for outer in active.outer:
            outer.phase._take(outer, self.job.config.acquire_timeout_s)

    async def _retake_async(self, active: Active) -> None:
        for outer in active.outer:
            await outer.phase._take_async(outer, self.job.config.acquire_timeout_s)


def _includes(those: frozenset[str] | None, these: frozenset[str] | None) -> bool:
    """Whether `these` tags are among `those`; None is all tags."""
    return those is None or (these is not None and these <= those)


def _left(job: LocalJob, start_ns: int, timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    return max(0.0, timeout_s - (job.clock.now_ns() - start_ns) / 1e9)


async def _in_thread(function: Callable[..., None], *args: Any) -> None:
    """Call what blocks beside the event loop. It ends before this does, also if it is cancelled:
    a switch or a commit cannot be stopped half way."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settled(task)
        raise


async def _settled(task: asyncio.Future[None]) -> None:
    """Wait for the end of `task`, through further cancellations."""
    while not task.done():
        with suppress(BaseException):
            await asyncio.shield(task)
