"""Who comes next on a device, and copies that prepare for it while another phase runs.

Called by the local runtime in the thread of a phase. The next one is the head of the permit queue,
else whoever followed the last time (order of the last cycle). A wrong guess costs bytes, never
correctness; a job that is alone on a device, or fits beside the others, is never touched. The lock
guards small tables and is not held while a core function runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weave_rt._core import BackgroundCopy, Device
from weave_rt._core import Tenant as CoreTenant
from weave_rt.errors import WeaveError
from weave_rt.tenant import Tenant

__all__ = ["LookAhead"]

log = logging.getLogger("weave_rt")

HISTORY = 64  # turns remembered per device: a few cycles of any sensible group

Group = tuple[Tenant, ...]  # what one phase brought in on a device, in that order


@dataclass(slots=True)
class _Desk:
    """What is known of one device."""

    turns: list[Group] = field(default_factory=list)  # no two equal ones in a row
    phases: dict[tuple[str, str], Group] = field(default_factory=dict)  # by job and phase name
    copies: list[tuple[Tenant, BackgroundCopy]] = field(default_factory=list)
    movable: dict[Tenant, int] = field(default_factory=dict)
    ahead: bool = True  # whether the plan wants copies ahead of a switch


class LookAhead:
    """Prefetches on the devices of one runtime.

    Args:
        devices: by name.
        waiting: requests without a permit for a device, as (job, phase), the next one first.
        background: false only orders who makes room, and copies nothing ahead.
        quiet: the same for these devices.
        copied: told of each prefetch that moved something, when it is over, with the name of the
            device."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        waiting: Callable[[str], Sequence[tuple[str, str]]],
        *,
        background: bool = True,
        quiet: Collection[str] = (),
        copied: Callable[[str, Tenant, BackgroundCopy], None] = lambda name, tenant, copy: None,
    ) -> None:
        self._copied = copied
        self.background = background
        self._quiet = frozenset(quiet)
        self._devices = devices
        self._waiting = waiting
        self._lock = threading.Lock()
        self._desks = {name: _Desk() for name in devices}

    def set_plan(
        self, name: str, movable: Mapping[Tenant, int], *, ahead: bool | None = None
    ) -> None:
        """How many blocks of each tenant may leave device `name` (see the core's set_plan).
        ahead: whether to copy ahead of a switch there; None leaves that as it is."""
        with self._lock:
            desk = self._desks[name]
            desk.movable = dict(movable)
            desk.ahead = desk.ahead if ahead is None else ahead
        self._devices[name].set_plan({tenant.core: n for tenant, n in movable.items()})

    def tenants(self, name: str) -> list[Tenant]:
        """Those that have run on device `name`, in order of their first turn."""
        with self._lock:
            return _open(t for group in self._desks[name].turns for t in group)

    def granted(self, name: str, job: str, phase: str, tenants: Sequence[Tenant]) -> None:
        """A phase may begin: end what is under way for others, and say who comes after it."""
        group = tuple(tenants)
        with self._lock:
            desk = self._desks[name]
            copies, desk.copies = desk.copies, []
            desk.phases[job, phase] = group
            if group and desk.turns[-1:] != [group]:
                desk.turns = [*desk.turns[1 - HISTORY :], group]
            movable = dict(desk.movable)
        for tenant, copy in copies:
            if tenant not in group:
                copy.cancel()
        for tenant, copy in copies:
            self._over(name, tenant, copy)
        order = self._order(name, job, group)
        if order or movable:
            self._tell_plan(name, movable, order)

    def began(self, name: str, job: str, tenants: Sequence[Tenant]) -> None:
        """The phase runs: prepare for the next one."""
        if not self._copies_on(name):
            return
        group = tuple(tenants)
        order = self._order(name, job, group)
        if not order:
            return
        first = self._next_group(name, order)
        # who runs now comes last, should it end before the copies do
        everybody = [*order, *(t for t in group if t not in order)]
        copies: list[tuple[Tenant, BackgroundCopy]] = []
        try:
            cores = _cores(everybody)
            copies += [(t, self._devices[name].prefetch(t.core, cores)) for t in first]
        except WeaveError as error:  # a tenant that closes just now, or failed
            log.debug("looking ahead on %s: %s", name, error)
        with self._lock:
            self._desks[name].copies += copies

    def queued(self, name: str, job: str) -> None:
        """Somebody waits now. If that changes who is next, prepare for that one instead."""
        with self._lock:
            desk = self._desks[name]
            holder = next((g for g in reversed(desk.turns) if any(t.resident for t in g)), None)
            aim = [tenant for tenant, _ in desk.copies]
        if holder is None or not self._copies_on(name):
            return
        waiting = self._waiting(name)
        if not waiting or waiting[0][0] != job:
            return  # it is not the head of the queue
        order = self._order(name, holder[0].job, holder)
        if not order or list(self._next_group(name, order)) == aim:
            return
        with self._lock:
            stale, desk.copies = desk.copies, []
        for tenant, copy in stale:
            copy.cancel()
            self._over(name, tenant, copy)
        self.began(name, holder[0].job, holder)

    def left(self, job: str) -> None:
        """A job has gone, and its tenants with it."""
        with self._lock:
            for desk in self._desks.values():
                desk.turns = [g for g in desk.turns if not any(t.job == job for t in g)]
                desk.phases = {key: g for key, g in desk.phases.items() if key[0] != job}
                desk.movable = {t: n for t, n in desk.movable.items() if t.job != job}
                desk.copies = [(t, copy) for t, copy in desk.copies if t.job != job]

    def _over(self, name: str, tenant: Tenant, copy: BackgroundCopy) -> None:
        _note_failure(name, copy)
        if copy.began_ns:
            self._copied(name, tenant, copy)

    def _copies_on(self, name: str) -> bool:
        return self.background and name not in self._quiet and self._desks[name].ahead

    def _order(self, name: str, job: str, group: Group) -> list[Tenant]:
        """Tenants of others in the order of their next use, as far as it can be told."""
        waiting = self._waiting(name)
        with self._lock:
            desk = self._desks[name]
            groups = [desk.phases.get(key, ()) for key in waiting if key[0] != job]
            groups += _successors(desk.turns, group)
        return _open(t for g in groups for t in g if t not in group)

    def _tell_plan(self, name: str, movable: Mapping[Tenant, int], order: Sequence[Tenant]) -> None:
        """What only orders who makes room must not end a phase."""
        try:
            cores = {tenant.core: movable[tenant] for tenant in _open(movable)}
            self._devices[name].set_plan(cores, _cores(order))
        except WeaveError as error:
            log.debug("planning on %s: %s", name, error)

    def _next_group(self, name: str, order: Sequence[Tenant]) -> Group:
        """The tenants that come in with the first of `order`: those of its job that follow it."""
        count = 1
        while count < len(order) and order[count].job == order[0].job:
            count += 1
        return tuple(order[:count])


def _successors(turns: Sequence[Group], group: Group) -> list[Group]:
    """What followed `group` the last time, up to its next turn; nothing if it is new."""
    earlier = [i for i, turn in enumerate(turns[:-1]) if turn == group]
    if not earlier:
        return []
    return [turn for turn in turns[earlier[-1] + 1 :] if turn != group]


def _open(tenants: Iterable[Tenant]) -> list[Tenant]:
    """Each once, without those that are closed."""
    return [tenant for tenant in dict.fromkeys(tenants) if tenant.state != "CLOSED"]


def _cores(tenants: Iterable[Tenant]) -> list[CoreTenant]:
    return [tenant.core for tenant in _open(tenants)]


def _note_failure(name: str, copy: BackgroundCopy) -> None:
    """Its switch will do what a failed copy did not; somebody should know why it takes longer."""
    if not copy.failed:
        return
    try:
        copy.wait(0)
    except WeaveError as error:
        log.warning("copying in the background on %s: %s", name, error)
