"""One group under the very policy that will run: the state machine on a modelled clock.

Numbers may be int, Fraction or float; ``weave_scheduler.groupdriver`` has the clock.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from weave_scheduler.eventkernel import step_frees
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

    Strict: the period, exactly. Else ``iterations`` (3 or more) rounds of the slowest job are run;
    where the ends of all steps repeat together it is the mean over one repetition, else that of the
    second half. One job's ends alone may repeat for long between two meetings with another one.
    """
    if intra == "strict":
        return (strict_period(turns, order, pairs),) * len(turns)
    steps = [step for turn in turns for step in turn.steps]
    hold = np.array([[[float(step.seconds)]] for step in steps])
    done = np.array([[[float(step.seconds + step.lag)]] for step in steps])
    most = iterations
    while True:
        most *= 4
        freed = step_frees(
            turns, intra, hold, done, order=order, pairs=pairs, rounds=iterations, most=most
        )[:, :, 0]
        if np.isnan(freed[:, -1]).all():  # so there was room for all that anybody did
            break
    ends = [own[~np.isnan(own)] for own in freed]
    means = _repeated_means(ends) or _late_means(ends)
    first = np.cumsum([0, *(len(turn.steps) for turn in turns)])
    return tuple(means[at] for at in first[:-1])


def _repeated_means(ends: Sequence[NDArray[np.float64]]) -> list[float]:
    """Per step, the mean time between its ends in the last repetition of all; empty: there is none.

    When a step was asked for and who held which node follows from the ends of all steps in a span
    in which each ended; so where two such spans are the same, the future is the past again.
    """
    marks = min(ends, key=len)[:-1]  # at the very last end others may be about to end
    last = len(marks) - 1
    near = 1e-9 * float(marks[last])
    for length in range(1, last // 2 + 1):
        edges = [float(marks[last - times * length]) for times in range(3)]
        now, before = (
            [own[(own > since + near) & (own <= until + near)] - since for own in ends]
            for until, since in itertools.pairwise(edges)
        )
        if all(_near(one, other, near) for one, other in zip(now, before, strict=True)):
            return [(edges[0] - edges[1]) / len(own) for own in now]
    return []


def _late_means(ends: Sequence[NDArray[np.float64]]) -> list[float]:
    half = float(min(ends, key=len)[-1]) / 2
    means = []
    for own in ends:
        late = own[own >= half] if (own >= half).sum() > 1 else own
        means.append(float(late[-1] - late[0]) / (len(late) - 1))
    return means


def _near(one: NDArray[np.float64], other: NDArray[np.float64], near: float) -> bool:
    return 0 < len(one) == len(other) and bool(np.abs(one - other).max() <= near)


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
