"""One group under the very policy that will run: the state machine on a modelled clock.

Numbers may be int, Fraction or float; ``weave_scheduler.groupdriver`` has the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.eventkernel import event_ends
from weave_scheduler.groupdriver import Agenda, GroupDriver, Ran
from weave_scheduler.groupmath import Number, Turn
from weave_scheduler.intra import state_for
from weave_scheduler.model import Intra, PairCost
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


class _Model:
    """One group of fixed members, all of which go on for ever."""

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
        self._at = {turn.job: job for job, turn in enumerate(first)}
        self._order = list(range(len(turns)) if order is None else order)
        self._agenda = Agenda()
        state = state_for(intra, first, self._order)
        self._driver = GroupDriver(self._agenda, state, self, pairs)

    def run(self, iterations: int) -> None:
        self._driver.join({
            self.turns[job][0].job: functools.partial(_of_iteration, self.turns[job])
            for job in self._order
        })  # fmt: skip
        while min(len(ends) for ends in self.ends) < iterations:
            if not self._agenda.step():
                raise RuntimeError("the group stands still: every phase waits for another one")

    def ran(self, one: Ran) -> None:
        job = self._at[one.job]
        self.slices.append(
            Slice(job, one.step, one.iteration, one.granted, one.begun, one.freed, one.done)
        )

    def iterated(self, job: str) -> None:
        self.ends[self._at[job]].append(self._agenda.now)


def _of_iteration(own: Sequence[Turn], iteration: int) -> Turn:
    return own[iteration % len(own)]
