"""The state machine of a group on a modelled clock: from grants to the times of phases.

``weave_scheduler.groupsim`` drives one group of fixed members with it, and
``weave_scheduler.simulator`` all groups of a cluster, on one agenda. Numbers may be int, Fraction
or float; the clock only adds and compares them. Events at the same time are taken in the order in
which they were scheduled.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weave_scheduler.commands import Command
from weave_scheduler.events import JobJoined, JobLeft, PhaseDone, PhaseRequested
from weave_scheduler.groupmath import Number, Step, Turn
from weave_scheduler.model import PairCost
from weave_scheduler.state import GroupState

__all__ = ["Agenda", "GroupDriver", "Ran", "Watcher"]


class Agenda:
    """What is to happen, by time; ``now`` is the time of the last event taken.

    Attributes:
        taken: events so far.
    """

    def __init__(self) -> None:
        self.now: Number = 0
        self.taken = 0
        self._planned = 0
        self._ahead: list[tuple[Number, int, Callable[[], None]]] = []

    def plan(self, at: Number, act: Callable[[], None]) -> None:
        """Call ``act`` at that time, after all that was planned for the same time before."""
        self._planned += 1
        heapq.heappush(self._ahead, (at, self._planned, act))

    def step(self) -> bool:
        """Take the next event; whether there was one."""
        if not self._ahead:
            return False
        self.now, _, act = heapq.heappop(self._ahead)
        self.taken += 1
        act()
        return True


@dataclass(frozen=True, slots=True)
class Ran:
    """One phase from its grant on: granted, running, nodes free, done (a tail ends later)."""

    job: str
    step: int
    phase: str
    nodes: frozenset[str]
    iteration: int
    granted: Number
    begun: Number
    freed: Number
    done: Number


class Watcher(Protocol):
    """Told what happens in a group, at the time at which it does."""

    def ran(self, one: Ran) -> None:
        """A phase was granted; when it ends is known."""

    def iterated(self, job: str) -> None:
        """An iteration is over. The job goes on unless it is made to leave here."""


@dataclass(slots=True)
class _Job:
    """One member, and where it is in its iteration."""

    turn: Callable[[int], Turn]
    iteration: int = 0
    asked: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)


class GroupDriver:
    """One group: its machine, its members, and who was last on each node."""

    def __init__(
        self,
        agenda: Agenda,
        state: GroupState,
        watcher: Watcher,
        pairs: Sequence[PairCost] = (),
    ) -> None:
        self._agenda = agenda
        self._state = state
        self._watcher = watcher
        self._jobs: dict[str, _Job] = {}
        self._asks: dict[int, tuple[str, int]] = {}  # serial -> job, step
        self._serial = 0
        self._last: dict[str, tuple[str, Number]] = {}  # node -> job there last, begun
        self.set_pairs(pairs)

    def set_pairs(self, pairs: Sequence[PairCost]) -> None:
        """Switch costs that depend on the pair, from now on."""
        self._costs = {(pair.pool, pair.outgoing, pair.incoming): pair.cost for pair in pairs}

    def join(self, jobs: Mapping[str, Callable[[int], Turn]]) -> None:
        """New members begin their first iterations now, in this order.

        A job's callable gives the turn of an iteration and is asked whenever a phase is requested,
        granted or over: durations and switches may change until the grant, phases may not.
        """
        for name, turn in jobs.items():
            nodes = {node for step in turn(0).steps for node in step.nodes}
            self._jobs[name] = _Job(turn)
            self._state.handle(JobJoined(name, tuple(sorted(nodes))))
        for name in jobs:
            self._ask(name)

    def leave(self, job: str) -> None:
        """A member goes, between two iterations."""
        del self._jobs[job]
        self._grant(self._state.handle(JobLeft(job)))

    def _ask(self, name: str) -> None:
        """Request every step whose predecessors are over."""
        job = self._jobs[name]
        for at, step in enumerate(job.turn(job.iteration).steps):
            if at not in job.asked and job.over.issuperset(step.after):
                job.asked.add(at)
                serial, self._serial = self._serial, self._serial + 1
                self._asks[serial] = name, at
                event = PhaseRequested(name, step.phase, tuple(sorted(step.nodes)), serial)
                self._grant(self._state.handle(event))

    def _grant(self, commands: Sequence[Command]) -> None:
        for command in commands:
            serial = command.serial
            name, at = self._asks.pop(serial)
            job = self._jobs[name]
            step = job.turn(job.iteration).steps[at]
            now = self._agenda.now
            begun = self._begin(name, step)
            freed = begun + step.seconds
            lag = step.lag
            self._agenda.plan(freed, functools.partial(self._freed, serial, name, at, lag))
            self._watcher.ran(
                Ran(name, at, step.phase, step.nodes, job.iteration, now, begun, freed, freed + lag)
            )

    def _begin(self, name: str, step: Step) -> Number:
        """When it may run: after the switch on those of its nodes where another job was."""
        ready = self._agenda.now
        fore: Number = 0
        for node in sorted(step.nodes):
            last, since = self._last.get(node, (name, 0))
            if last != name:
                cost = self._costs.get((node.split(":")[0], last, name))
                fore = max(fore, step.foreground if cost is None else cost.foreground_s)
                ready = max(ready, since + (step.background if cost is None else cost.background_s))
        begun = ready + fore
        for node in step.nodes:
            self._last[node] = name, begun
        return begun

    def _freed(self, serial: int, name: str, at: int, lag: Number) -> None:
        self._grant(self._state.handle(PhaseDone(serial)))
        if lag:
            self._agenda.plan(self._agenda.now + lag, functools.partial(self._over, name, at))
        else:
            self._over(name, at)

    def _over(self, name: str, at: int) -> None:
        job = self._jobs[name]
        job.over.add(at)
        if len(job.over) == len(job.turn(job.iteration).steps):
            job.iteration += 1
            job.asked, job.over = set(), set()
            self._watcher.iterated(name)
            if name not in self._jobs:
                return
        self._ask(name)
