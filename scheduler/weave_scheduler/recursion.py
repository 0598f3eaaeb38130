"""The max-plus recursion of a strict order over drawn durations, compiled.

The event graph of ``strictorder`` is retimed so that every arc points from an earlier or the same
round, then each round is one pass over the steps in topological order, all replications at once
(replication innermost, so that the compiler vectorises). Source: notes 3.1 and 3.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from weave_scheduler.groupmath import Turn
from weave_scheduler.model import PairCost
from weave_scheduler.strictorder import Arc, arcs_of

__all__ = ["Recursion", "recursion_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Recursion:
    """A strict order ready to run over many draws."""

    jobs: Ints  # step -> job
    steps: Ints  # in topological order of one round
    shift: Ints  # step -> rounds by which it is late
    first: Ints  # position of a step's first arc; arcs are sorted by head
    tails: Ints
    tokens: Ints  # after retiming, 0 or more
    done: NDArray[np.bool_]  # arc waits until the tail is done, not only until its nodes are free
    least: Floats  # at least this after the tail began (background copies)
    start: NDArray[np.bool_]  # arc counts in the first iteration of its head only
    fore: Floats  # arc -> foreground of the switch, if it switches

    def ends(self, hold: Floats, done: Floats) -> Floats:
        """Ends [job, iteration, replication] from [step, iteration, replication].

        ``hold`` is how long a step holds its nodes, ``done`` until it is done; seconds. Draws are
        taken again from the first iteration where later rounds need more.
        """
        jobs = int(self.jobs.max()) + 1 if len(self.jobs) else 0
        ends = np.zeros((jobs, hold.shape[1], hold.shape[2]))
        _rounds(
            self.jobs, self.steps, self.shift, self.first, self.tails, self.tokens, self.done,
            self.least, self.start, self.fore, hold, done, ends,
        )  # fmt: skip
        return ends


def recursion_of(
    turns: Sequence[Turn], order: Sequence[int] | None = None, pairs: Sequence[PairCost] = ()
) -> Recursion:
    """Only the shape and the switch costs of ``turns`` count. Raises ValueError for a deadlock."""
    count = sum(len(turn.steps) for turn in turns)
    arcs = arcs_of(turns, range(len(turns)) if order is None else order, pairs)
    arcs.sort(key=lambda arc: (arc.head, arc.tail))
    shift = _retimed(count, arcs)
    tokens = [arc.tokens + shift[arc.head] - shift[arc.tail] for arc in arcs]
    same_round = [arc for arc, token in zip(arcs, tokens, strict=True) if token == 0]
    first = np.searchsorted([arc.head for arc in arcs], range(count + 1))
    return Recursion(
        np.array([job for job, turn in enumerate(turns) for _ in turn.steps], np.int64),
        np.array(_sorted(count, same_round), np.int64),
        np.array(shift, np.int64),
        first.astype(np.int64),
        np.array([arc.tail for arc in arcs], np.int64),
        np.array(tokens, np.int64),
        np.array([arc.done for arc in arcs], np.bool_),
        np.array([float(arc.background) for arc in arcs]),
        np.array([arc.start for arc in arcs], np.bool_),
        np.array([float(arc.switch) for arc in arcs]),
    )


def _retimed(count: int, arcs: Sequence[Arc]) -> list[int]:
    """Rounds by which each step is late, so that no arc points from a later round."""
    shift = [0] * count
    for _ in range(count + 1):
        late = False
        for arc in arcs:
            if shift[arc.tail] - arc.tokens > shift[arc.head]:
                shift[arc.head], late = shift[arc.tail] - arc.tokens, True
        if not late:
            return shift
    raise ValueError("the order cannot run: a circuit of waits without a token")


def _sorted(count: int, arcs: Sequence[Arc]) -> list[int]:
    """Steps in an order in which each comes after all it waits for in the same round."""
    waits = [{arc.tail for arc in arcs if arc.head == step} for step in range(count)]
    chosen: list[int] = []
    while len(chosen) < count:
        ready = [step for step in range(count) if step not in chosen and not waits[step]]
        if not ready:
            raise ValueError("the order cannot run: a circuit of waits without a token")
        chosen += ready
        for left in waits:
            left.difference_update(ready)
    return chosen


@numba.njit(cache=True)
def _rounds(
    jobs: Ints,
    steps: Ints,
    shift: Ints,
    first: Ints,
    tails: Ints,
    tokens: Ints,
    done_arcs: NDArray[np.bool_],
    least: Floats,
    start_arcs: NDArray[np.bool_],
    fore: Floats,
    hold: Floats,
    done: Floats,
    ends: Floats,
) -> None:
    drawn, reps = hold.shape[1], hold.shape[2]
    depth = (tokens.max() if len(tokens) else 0) + 1
    begun = np.zeros((len(steps), depth, reps))
    for round_ in range(drawn + shift.max() + 1):
        for step in steps:
            iteration = round_ - shift[step]
            if iteration < 0:
                continue
            row = begun[step, round_ % depth]
            row[:] = 0.0
            wait = 0.0
            for arc in range(first[step], first[step + 1]):
                if start_arcs[arc] and iteration > 0:
                    continue
                tail = tails[arc]
                before = round_ - tokens[arc] - shift[tail]
                if before < 0:
                    continue
                wait = max(wait, fore[arc])
                start = begun[tail, (round_ - tokens[arc]) % depth]
                held = done[tail, before % drawn] if done_arcs[arc] else hold[tail, before % drawn]
                if least[arc] > 0.0:
                    for rep in range(reps):
                        row[rep] = max(row[rep], start[rep] + max(held[rep], least[arc]))
                else:
                    for rep in range(reps):
                        row[rep] = max(row[rep], start[rep] + held[rep])
            if wait > 0.0:
                for rep in range(reps):
                    row[rep] += wait
            if iteration < drawn:
                end = ends[jobs[step], iteration]
                last = done[step, iteration]
                for rep in range(reps):
                    end[rep] = max(end[rep], row[rep] + last[rep])
