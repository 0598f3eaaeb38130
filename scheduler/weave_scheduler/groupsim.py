"""One group under the very policy that will run: the state machine on a modelled clock.

Numbers may be int, Fraction or float; the clock only adds and compares them. Events at the same
time are taken in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.commands import Command
from weave_scheduler.eventkernel import event_ends
from weave_scheduler.events import JobJoined, PhaseDone, PhaseRequested
from weave_scheduler.groupmath import Number, Step, Turn
from weave_scheduler.intra import state_for
from weave_scheduler.model import Intra, PairCost
from weave_scheduler.state import GroupState
from weave_scheduler.strictorder import strict_period

__all__ = ["JobTimes", "Slice", "simulate_group", "simulate_slices", "simulated_iterations"]


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Ends of a job's iterations in seconds from the start."""

    job: str
    ends: tuple[Number, ...]

    def mean_after(self, warm: int) -> Number:
        """Mean iteration after the first ``warm`` ones. pre: 0 < warm < iterations."""
        count = len(self.ends) - warm
        total = self.ends[-1] - self.ends[warm - 1]
        return total / count if isinstance(total, float) else Fraction(total) / count


@dataclass(frozen=True, slots=True)
class Slice:
    """One phase that ran: granted, running, nodes free, done (a tail ends later)."""

    job: int
    step: int
    iteration: int
    granted: Number
    begun: Number
    freed: Number
    done: Number


def simulate_group(
    turns: Sequence[Turn] | Sequence[Sequence[Turn]],
    intra: Intra,
    iterations: int,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
) -> tuple[JobTimes, ...]:
    """Event for event what ``weave_scheduler.state`` decides, all jobs starting at 0.

    ``turns`` is one turn per job, or per job one turn for each iteration (taken again from the
    first when they are used up). Jobs go on until every job has finished ``iterations``, so that
    none runs alone at the end; only those are returned.
    """
    model = _Model(_by_iteration(turns), intra, order, pairs)
    model.run(iterations)
    return tuple(
        JobTimes(own[0].job, tuple(model.ends[job][:iterations]))
        for job, own in enumerate(model.turns)
    )


def simulate_slices(
    turns: Sequence[Turn] | Sequence[Sequence[Turn]],
    intra: Intra,
    iterations: int,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
) -> tuple[Slice, ...]:
    """The same, as the phases that ran, in the order of their grants."""
    model = _Model(_by_iteration(turns), intra, order, pairs)
    model.run(iterations)
    return tuple(model.slices)


def simulated_iterations(
    turns: Sequence[Turn],
    intra: Intra,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
    iterations: int = 60,
) -> tuple[Number, ...]:
    """The long-run mean iteration seconds of each job under that policy, all durations fixed.

    Strict: the period, exactly. Else ``iterations`` rounds of the slowest job are run; where a
    job's iteration times repeat it is the mean of one repetition, else that of the second half.
    """
    if intra == "strict":
        return (strict_period(turns, order, pairs),) * len(turns)
    steps = [step for turn in turns for step in turn.steps]
    hold = np.array([[[float(step.seconds)]] for step in steps])
    done = np.array([[[float(step.seconds + step.lag)]] for step in steps])
    ends = event_ends(turns, intra, hold, done, order=order, pairs=pairs, iterations=iterations)[
        :, :, 0
    ]
    return tuple(_settled_mean(np.diff(own)) for own in ends)


def _settled_mean(seconds: NDArray[np.float64]) -> float:
    """Mean of the last repetition of a series that repeats, else of its second half."""
    count = len(seconds)
    near = 1e-9 * float(seconds.max(initial=0.0))
    for length in range(1, count // 4 + 1):
        last = seconds[count - 3 * length :]
        if np.abs(last[length:] - last[:-length]).max() <= near:
            return float(seconds[count - length :].mean())
    return float(seconds[count // 2 :].mean())


def _by_iteration(turns: Sequence[Turn] | Sequence[Sequence[Turn]]) -> list[Sequence[Turn]]:
    return [(turn,) if isinstance(turn, Turn) else turn for turn in turns]


@dataclass(slots=True)
class _Job:
    """Where one job is in its iteration."""

    iteration: int = 0
    asked: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)


class _Model:
    """The clock, the machine and what runs."""

    def __init__(
        self,
        turns: list[Sequence[Turn]],
        intra: Intra,
        order: Sequence[int] | None,
        pairs: Sequence[PairCost],
    ) -> None:
        self.turns = turns
        self.ends: list[list[Number]] = [[] for _ in turns]
        self.slices: list[Slice] = []
        first = [own[0] for own in turns]
        self._order = list(range(len(turns)) if order is None else order)
        self._state: GroupState = state_for(intra, first, self._order)
        self._costs = {(pair.pool, pair.outgoing, pair.incoming): pair.cost for pair in pairs}
        self._jobs = [_Job() for _ in turns]
        self._asks: list[tuple[int, int]] = []  # serial -> job, step
        self._ahead: list[tuple[Number, int, str, int]] = []  # time, order, what, serial
        self._last: dict[str, tuple[int, Number]] = {}  # node -> job there last, begun
        self._now: Number = 0
        self._planned = 0

    def run(self, iterations: int) -> None:
        for job in self._order:
            nodes = {node for step in self.turns[job][0].steps for node in step.nodes}
            self._state.handle(JobJoined(self.turns[job][0].job, tuple(sorted(nodes))))
        for job in self._order:
            self._ask(job)
        while min(len(ends) for ends in self.ends) < iterations:
            self._now, _, what, serial = heapq.heappop(self._ahead)
            if what == "free":
                self._grant(self._state.handle(PhaseDone(serial)))
            self._step_over(serial, what)

    def _turn(self, job: int) -> Turn:
        own = self.turns[job]
        return own[self._jobs[job].iteration % len(own)]

    def _ask(self, job: int) -> None:
        """Request every step whose predecessors are over."""
        where, turn = self._jobs[job], self._turn(job)
        for at, step in enumerate(turn.steps):
            if at not in where.asked and where.over.issuperset(step.after):
                where.asked.add(at)
                serial = len(self._asks)
                self._asks.append((job, at))
                nodes = tuple(sorted(step.nodes))
                event = PhaseRequested(turn.job, step.phase, nodes, serial)
                self._grant(self._state.handle(event))

    def _grant(self, commands: Sequence[Command]) -> None:
        for command in commands:
            serial = command.serial
            job, at = self._asks[serial]
            step = self._turn(job).steps[at]
            begun = self._begin(job, step)
            freed = begun + step.seconds
            done = freed + step.lag
            iteration = self._jobs[job].iteration
            self.slices.append(Slice(job, at, iteration, self._now, begun, freed, done))
            self._plan(freed, "free", serial)

    def _begin(self, job: int, step: Step) -> Number:
        """When it may run: after the switch on those of its nodes where another job was."""
        ready = self._now
        fore: Number = 0
        for node in sorted(step.nodes):
            last, since = self._last.get(node, (job, self._now))
            if last != job:
                key = node.split(":")[0], self.turns[last][0].job, self.turns[job][0].job
                cost = self._costs.get(key)
                fore = max(fore, step.foreground if cost is None else cost.foreground_s)
                ready = max(ready, since + (step.background if cost is None else cost.background_s))
        begun = ready + fore
        for node in step.nodes:
            self._last[node] = job, begun
        return begun

    def _step_over(self, serial: int, what: str) -> None:
        job, at = self._asks[serial]
        lag = self._turn(job).steps[at].lag
        if what == "free" and lag:
            self._plan(self._now + lag, "done", serial)
            return
        where = self._jobs[job]
        where.over.add(at)
        if len(where.over) == len(self._turn(job).steps):
            self.ends[job].append(self._now)
            self._jobs[job] = _Job(where.iteration + 1)
        self._ask(job)

    def _plan(self, at: Number, what: str, serial: int) -> None:
        self._planned += 1
        heapq.heappush(self._ahead, (at, self._planned, what, serial))
