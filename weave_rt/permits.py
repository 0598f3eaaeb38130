"""Permits: who may run a phase on which devices, and when.

A :class:`Policy` decides and is pure state (no clock, no thread, no I/O); :class:`Permits` is the
thread-safe shell around it. :class:`FirstCome` is the policy that is used alone; a scheduler
passes its own. One lock guards policy and tickets; nothing blocks while it is held, and waiters
are woken after it is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout  # not the built-in before 3.11
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from weave_rt.errors import PermitTimeout, UsageError

__all__ = ["FirstCome", "Permits", "Policy", "Request", "Ticket"]


@dataclass(frozen=True, slots=True)
class Request:
    """One phase that wants all of ``devices`` ("rollout:0", "train:0") at once."""

    serial: int
    job: str
    phase: str
    devices: tuple[str, ...]


class Policy(Protocol):
    """Decides the order of phases. Calls never overlap. Each of the methods that return serials
    names the requests that are granted by this very event."""

    def joined(self, job: str, devices: tuple[str, ...]) -> None:
        """A job came, placed on `devices`; it will only ever ask for some of these."""

    def left(self, job: str) -> Sequence[int]:
        """A job went, with all that it held or waited for."""

    def requested(self, request: Request) -> Sequence[int]:
        """A request enters the queues of all its devices at this instant."""

    def released(self, serial: int) -> Sequence[int]:
        """A granted request has ended."""

    def cancelled(self, serial: int) -> Sequence[int]:
        """A request that was not granted is withdrawn."""


class FirstCome:
    """A request is granted when it is first in the queues of all its devices and all of them are
    free. Nothing overtakes. As requests enter all queues at one instant, one list in order of
    arrival is the same as a queue per device."""

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._holding: dict[int, Request] = {}

    def joined(self, job: str, devices: tuple[str, ...]) -> None:
        pass

    def left(self, job: str) -> Sequence[int]:
        for requests in (self._waiting, self._holding):
            for serial in [s for s, r in requests.items() if r.job == job]:
                del requests[serial]
        return self._grant()

    def requested(self, request: Request) -> Sequence[int]:
        self._waiting[request.serial] = request
        return self._grant()

    def released(self, serial: int) -> Sequence[int]:
        self._holding.pop(serial, None)
        return self._grant()

    def cancelled(self, serial: int) -> Sequence[int]:
        self._waiting.pop(serial, None)
        return self._grant()

    def _grant(self) -> list[int]:
        taken = {device for request in self._holding.values() for device in request.devices}
        granted = []
        for serial, request in list(self._waiting.items()):
            if taken.isdisjoint(request.devices):
                self._holding[serial] = self._waiting.pop(serial)
                granted.append(serial)
            taken.update(request.devices)  # granted or not: nothing behind it overtakes
        return granted


@dataclass(eq=False, slots=True)
class Ticket:
    """A request and its way of being told. End it by :meth:`Permits.release` or by
    :meth:`Permits.withdraw`, whatever happened to it; both are safe to repeat."""

    request: Request
    told: Future[None] = field(default_factory=Future)

    @property
    def devices(self) -> tuple[str, ...]:
        return self.request.devices


class Permits:
    """Thread-safe waiting in front of a policy. Safe to call from any thread."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy: Policy = FirstCome() if policy is None else policy
        self._lock = threading.Lock()
        self._waiting: dict[int, Ticket] = {}
        self._holding: dict[int, Ticket] = {}
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._serial = 0
        self._broken: Exception | None = None

    def join(self, job: str, devices: Sequence[str]) -> None:
        """Let `job` ask for any of `devices`. Raises UsageError when the name is taken."""
        with self._lock:
            if job in self._jobs:
                raise UsageError(f"a job named {job!r} runs here already; choose another job_id")
            self._policy.joined(job, tuple(devices))
            self._jobs[job] = tuple(devices)

    def leave(self, job: str) -> None:
        """Forget `job`: its waiters get UsageError, what it holds is free. Twice is fine."""
        with self._lock:
            if self._jobs.pop(job, None) is None:
                return
            gone = [t for t in self._waiting.values() if t.request.job == job]
            for tickets in (self._waiting, self._holding):
                for serial in [s for s, t in tickets.items() if t.request.job == job]:
                    del tickets[serial]
            granted = self._apply(lambda: self._policy.left(job))
        self._tell(granted)
        self._fail(gone, UsageError(f"job {job!r} was closed while a phase waited"))

    def withdraw_waiting(self, job: str) -> None:
        """End the waiting of all of the job's requests by UsageError; keep what it holds."""
        gone: list[Ticket] = []
        granted: list[Ticket] = []
        with self._lock:
            mine = [serial for serial, t in self._waiting.items() if t.request.job == job]
            for serial in reversed(mine):  # the newest first, so that none makes way for another
                if serial in self._waiting:
                    gone.append(self._waiting.pop(serial))
                    granted += self._apply(partial(self._policy.cancelled, serial))
        self._tell(granted)
        self._fail(gone, UsageError(f"job {job!r} was closed while a phase waited"))

    def request(self, job: str, phase: str, devices: Sequence[str]) -> Ticket:
        """Enter the queues of all `devices`. Returns at once; see :meth:`wait`.

        Raises UsageError for an unknown job, no devices, or devices outside its placement."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            placement = self._jobs.get(job)
            if placement is None:
                raise UsageError(f"job {job!r} has not joined or was closed")
            if not devices or not set(devices) <= set(placement):
                raise UsageError(f"job {job!r} is placed on {placement}, not on {tuple(devices)}")
            self._serial += 1
            ticket = Ticket(Request(self._serial, job, phase, tuple(devices)))
            self._waiting[self._serial] = ticket
            granted = self._apply(lambda: self._policy.requested(ticket.request))
        self._tell(granted)
        return ticket

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> None:
        """Block until granted. On any exception the request is withdrawn first.

        Raises PermitTimeout after `timeout_s`, UsageError when the job is closed meanwhile."""
        try:
            ticket.told.result(timeout_s)
            self._check_held(ticket)
        except FutureTimeout:
            self.withdraw(ticket)
            raise self._late(ticket, timeout_s) from None
        except BaseException:
            self.withdraw(ticket)
            raise

    def settled_within(self, ticket: Ticket, seconds: float) -> bool:
        """Whether the ticket is granted, or refused, before `seconds` have passed. It goes on
        waiting if not."""
        return bool(wait_for_futures([ticket.told], seconds).done)

    async def wait_async(self, ticket: Ticket, timeout_s: float | None = None) -> None:
        """The same for a coroutine; a cancelled one withdraws its request."""
        told = asyncio.wrap_future(ticket.told)
        try:
            # shield: cancelling the coroutine must not mark the ticket, which may be granted now
            await asyncio.wait_for(asyncio.shield(told), timeout_s)
            self._check_held(ticket)
        except asyncio.TimeoutError:
            self.withdraw(ticket)
            raise self._late(ticket, timeout_s) from None
        except BaseException:
            self.withdraw(ticket)
            raise

    def release(self, ticket: Ticket) -> None:
        """End a granted ticket and wake whoever is next. Never raises."""
        self.withdraw(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """End a ticket in whatever state it is: granted, waiting, or ended already."""
        serial = ticket.request.serial
        with self._lock:
            if serial in self._holding:
                del self._holding[serial]
                granted = self._apply(lambda: self._policy.released(serial))
            elif serial in self._waiting:
                del self._waiting[serial]
                granted = self._apply(lambda: self._policy.cancelled(serial))
            else:
                return
        self._tell(granted)

    def waiting(self) -> list[Request]:
        """Requests that are not granted yet, oldest first."""
        with self._lock:
            return [ticket.request for ticket in self._waiting.values()]

    def close(self) -> None:
        """All jobs leave."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            self.leave(job)

    def _apply(self, event: Callable[[], Sequence[int]]) -> list[Ticket]:
        """Run one policy event under the lock. A policy that raises breaks these permits: all
        waiters, and all later requests, get its exception instead of waiting for ever."""
        try:
            serials = event()
        except Exception as error:  # a policy is foreign code
            self._broken = error
            gone = list(self._waiting.values())
            self._waiting.clear()
            for ticket in gone:
                ticket.told.set_exception(error)
            return []
        granted = []
        for serial in serials:
            waiter = self._waiting.pop(serial, None)
            if waiter is not None:  # a policy may name one that was withdrawn
                self._holding[serial] = waiter
                granted.append(waiter)
        return granted

    @staticmethod
    def _tell(tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            with suppress(InvalidStateError):  # told otherwise meanwhile; wait() looks again
                ticket.told.set_result(None)

    @staticmethod
    def _fail(tickets: Iterable[Ticket], error: Exception) -> None:
        for ticket in tickets:
            with suppress(InvalidStateError):
                ticket.told.set_exception(error)

    def _check_held(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket.request.serial not in self._holding:
                raise UsageError(f"job {ticket.request.job!r} was closed while a phase waited")

    def _late(self, ticket: Ticket, timeout_s: float | None) -> PermitTimeout:
        request = ticket.request
        with self._lock:
            holders = sorted(
                {
                    f"{t.request.job}/{t.request.phase}"
                    for t in self._holding.values()
                    if set(t.devices) & set(request.devices)
                }
            )
        who = ", ".join(holders) or "requests ahead of it"
        return PermitTimeout(
            f"{request.job}/{request.phase} waited {timeout_s:g} s for "
            f"{', '.join(request.devices)}, held by {who}; raise timeout_s or acquire_timeout_s"
        )
