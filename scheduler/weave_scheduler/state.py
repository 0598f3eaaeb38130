"""The order of phases inside one group, mode ``fifo``: a pure state machine.

``handle(event)`` returns the commands that follow from it. No I/O, clock, thread or randomness; the
caller serialises. A phase enters the queues of all its nodes at one instant and starts when it is
first in all of them and all are free, so nothing overtakes on any node and, because all queues
have one common order, there is no deadlock. Repeated and late events change nothing. The other
modes differ in who may start: ``weave_scheduler.strictstate``, ``weave_scheduler.barrierstate``.
"""

from __future__ import annotations

from collections.abc import Iterable

from weave_scheduler.commands import Command, Grant
from weave_scheduler.events import (
    Event,
    JobJoined,
    JobLeft,
    PhaseCancelled,
    PhaseDone,
    PhaseRequested,
)

__all__ = ["GroupState"]


class GroupState:
    """Jobs, queues and permits of one group; ``fifo``, and the base of the other modes."""

    def __init__(self) -> None:
        self._nodes_of: dict[str, frozenset[str]] = {}  # joined jobs
        self._waiting: dict[int, PhaseRequested] = {}  # in order of arrival = every node's queue
        self._running: dict[int, PhaseRequested] = {}
        self._holder: dict[str, int] = {}  # node -> serial of the phase that runs there
        self._over = _Serials()  # ended or refused; a late event for them is no event

    def handle(self, event: Event) -> list[Command]:
        """What has to be done because of ``event``. Raises ValueError for an unknown node."""
        match event:
            case JobJoined(job, nodes):
                if job not in self._nodes_of:
                    self._nodes_of[job] = frozenset(nodes)
                    self._joined(job)
                return []
            case JobLeft(job):
                return self._leave(job)
            case PhaseRequested():
                return self._request(event)
            case PhaseDone(serial):
                return self._end(serial, done=True) if serial in self._running else []
            case PhaseCancelled(serial):  # may overtake its own request, or come after the grant
                return [] if serial in self._running else self._end(serial)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The joined jobs, in order of joining."""
        return tuple(self._nodes_of)

    @property
    def waiting(self) -> tuple[PhaseRequested, ...]:
        """Requests without a permit, in order of arrival."""
        return tuple(self._waiting.values())

    @property
    def running(self) -> tuple[PhaseRequested, ...]:
        """Requests that hold a permit, in the order of the grants."""
        return tuple(self._running.values())

    def queue(self, node: str) -> tuple[int, ...]:
        """Serials that wait for ``node``, the next one first."""
        return tuple(serial for serial, ask in self._waiting.items() if node in ask.nodes)

    def holder(self, node: str) -> int | None:
        """Serial of the phase that runs on ``node``."""
        return self._holder.get(node)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself or a phase waits in vain."""
        held = [node for ask in self._running.values() for node in set(ask.nodes)]
        assert len(held) == len(set(held)), "two phases on one node"
        assert self._holder == {
            node: serial for serial, ask in self._running.items() for node in ask.nodes
        }, "holders and running phases differ"
        assert not self._waiting.keys() & self._running.keys(), "a phase waits and runs"
        for serial, ask in (self._waiting | self._running).items():
            assert serial not in self._over, "a phase is over and still there"
            assert set(ask.nodes) <= self._nodes_of[ask.job], "a phase on a foreign node"
        assert not self._startable(), "a phase waits though it may run"

    def _leave(self, job: str) -> list[Command]:
        self._nodes_of.pop(job, None)
        for asked in (self._waiting, self._running):
            for serial in [serial for serial, ask in asked.items() if ask.job == job]:
                self._drop(serial)
        self._left(job)
        return self._grant()

    def _request(self, ask: PhaseRequested) -> list[Command]:
        serial = ask.serial
        if serial in self._over or serial in self._waiting or serial in self._running:
            return []
        if ask.job not in self._nodes_of:  # left before its request arrived
            self._over.add(serial)
            return []
        foreign = sorted(set(ask.nodes) - self._nodes_of[ask.job])
        if foreign:
            raise ValueError(f"job {ask.job} has no node {foreign[0]}; join with it first")
        self._waiting[serial] = ask
        return self._grant()

    def _end(self, serial: int, done: bool = False) -> list[Command]:
        ended = self._drop(serial)
        if done and ended is not None:
            self._done(ended)
        return self._grant()

    def _drop(self, serial: int) -> PhaseRequested | None:
        """Forget a request; the one that was running, if it was."""
        self._waiting.pop(serial, None)
        ended = self._running.pop(serial, None)
        for node in ended.nodes if ended else ():
            self._holder.pop(node, None)
        self._over.add(serial)
        return ended

    def _grant(self) -> list[Command]:
        commands: list[Command] = []
        while found := self._startable():
            for ask in found:
                del self._waiting[ask.serial]
                self._running[ask.serial] = ask
                self._holder.update(dict.fromkeys(ask.nodes, ask.serial))
                self._granted(ask)
                commands.append(Grant(ask.serial))
        return commands

    def _startable(self) -> list[PhaseRequested]:
        """All that are first in all their queues and find all their nodes free."""
        return self._first_come(self._waiting.values(), set(self._holder))

    @staticmethod
    def _first_come(asked: Iterable[PhaseRequested], taken: set[str]) -> list[PhaseRequested]:
        """Those whose nodes nobody before them has or waits for; ``taken`` becomes what is not
        free for later ones."""
        found = []
        for ask in asked:
            if taken.isdisjoint(ask.nodes):
                found.append(ask)
            taken.update(ask.nodes)
        return found

    def _joined(self, job: str) -> None:
        """A new member; other modes take note."""

    def _left(self, job: str) -> None:
        """A member is gone, and what it asked for."""

    def _granted(self, ask: PhaseRequested) -> None:
        """A phase starts."""

    def _done(self, ended: PhaseRequested) -> None:
        """A granted phase has ended (not: was withdrawn)."""


class _Serials:
    """A set of serials that are over; a run without gaps is kept as one number."""

    def __init__(self) -> None:
        self._below: int | None = None  # all from the first one seen up to here, exclusive
        self._first = 0
        self._beyond: set[int] = set()

    def __contains__(self, serial: int) -> bool:
        return serial in self._beyond or (
            self._below is not None and self._first <= serial < self._below
        )

    def add(self, serial: int) -> None:
        if serial in self:
            return
        if self._below is None:
            self._first, self._below = serial, serial + 1
            return
        self._beyond.add(serial)
        while self._below in self._beyond:
            self._beyond.discard(self._below)
            self._below += 1
        while self._first - 1 in self._beyond:
            self._first -= 1
            self._beyond.discard(self._first)
