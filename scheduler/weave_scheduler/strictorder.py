"""The exact period of a strict order, and the choice of the order (max-plus algebra).

``rings_of`` says who follows whom on each node, ``strict_period`` is the maximum cycle ratio of the
event graph (Baccelli et al., Synchronization and Linearity; notes 3.1 and 3.7), ``best_order``
searches the (n-1)! cyclic orders. Exact for int and Fraction, compiled for floats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from weave_scheduler.cycleratio import exact_ratio, float_ratio
from weave_scheduler.groupmath import Number, Step, Turn, closed_form
from weave_scheduler.model import PairCost

__all__ = ["Arc", "Visit", "arcs_of", "best_order", "rings_of", "strict_period"]

_ALL_ORDERS = 7  # jobs up to which all (n-1)! orders are tried


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit in a node's ring: in round k the job runs that step of its iteration k - lag."""

    job: int
    step: int
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Arc:
    """Step ``head`` of iteration k starts at least ``weight`` after ``tail`` of k - tokens.

    Attributes:
        done: it waits until the tail is done, lag included (own job), else until nodes are free.
        background: and at least this after the tail began.
        foreground: added after all waiting of the head is over; the same for all its arcs, the
            largest of their ``switch``.
        switch: the foreground of a switch from the tail's job on their common node.
        start: it counts in the first iteration of the head only, where visits with a lag do not
            take place and the one before them comes next; later it says nothing new.
    """

    tail: int
    head: int
    tokens: int
    done: bool
    background: Number
    foreground: Number
    switch: Number
    start: bool = False

    def weight(self, tail: Step) -> Number:
        held = tail.seconds + (tail.lag if self.done else 0)
        return max(held, self.background) + self.foreground


def rings_of(turns: Sequence[Turn], order: Sequence[int]) -> dict[str, tuple[Visit, ...]]:
    """The cyclic order of visits on each node; a job's visits to a node are neighbours.

    What a job does there after it has been on other nodes (a sync that needs the rollout nodes,
    say) comes first in its slot of the next round, in front of the next rollout: lag 1. So other
    jobs go on in between.
    """
    nodes = sorted({node for turn in turns for step in turn.steps for node in step.nodes})
    rings: dict[str, tuple[Visit, ...]] = {}
    for node in nodes:
        ring: list[Visit] = []
        for job in order:
            early: list[int] = []
            late: list[int] = []
            away = False
            for at, step in enumerate(turns[job].steps):
                if node in step.nodes:
                    (late if away else early).append(at)
                elif step.nodes and early:
                    away = True
            ring += [Visit(job, at, 1) for at in late] + [Visit(job, at) for at in early]
        rings[node] = tuple(ring)
    return rings


def arcs_of(
    turns: Sequence[Turn], order: Sequence[int], pairs: Sequence[PairCost] = ()
) -> list[Arc]:
    """The event graph; its nodes are the steps of all jobs, numbered in the order of ``turns``."""
    base = list(itertools.accumulate((len(turn.steps) for turn in turns), initial=0))
    costs = {(pair.pool, pair.outgoing, pair.incoming): pair.cost for pair in pairs}
    behind: dict[int, list[Arc]] = {}
    for node, ring in rings_of(turns, order).items():
        for last, visit, tokens, start in _neighbours(ring):
            step = turns[visit.job].steps[visit.step]
            fore, back = step.foreground, step.background
            pair = costs.get((node.split(":")[0], turns[last.job].job, turns[visit.job].job))
            if pair is not None:
                fore, back = pair.foreground_s, pair.background_s
            if last.job == visit.job:
                fore = back = 0
            tail, head = base[last.job] + last.step, base[visit.job] + visit.step
            arc = Arc(tail, head, tokens, False, back, 0, fore, start)
            behind.setdefault(head, []).append(arc)
    arcs: list[Arc] = []
    for job, turn in enumerate(turns):
        for at in range(len(turn.steps)):
            own = behind.get(base[job] + at, [])
            most = max((arc.switch for arc in own if not arc.start), default=0)
            arcs += [replace(arc, foreground=most) for arc in own]
            arcs += _follows(turn, base[job], at, most)
    return arcs


def _neighbours(ring: Sequence[Visit]) -> Iterator[tuple[Visit, Visit, int, bool]]:
    """Who comes after whom, with the tokens between them, and whether only at the start."""
    now = [visit for visit in ring if visit.lag == 0]
    for at, visit in enumerate(ring):
        last = ring[at - 1]
        yield last, visit, last.lag - visit.lag + (1 if at == 0 else 0), False
    for last, visit in itertools.pairwise(now):
        if ring[ring.index(visit) - 1] != last:
            yield last, visit, 0, True


def _follows(turn: Turn, base: int, at: int, fore: Number) -> list[Arc]:
    """Arcs from what the step depends on in its own job."""
    after, tokens = turn.steps[at].after, 0
    if not after:  # on-policy: everything of the turn before
        after, tokens = tuple(range(len(turn.steps))), 1
    return [Arc(base + earlier, base + at, tokens, True, 0, fore, 0) for earlier in after]


def strict_period(
    turns: Sequence[Turn], order: Sequence[int] | None = None, pairs: Sequence[PairCost] = ()
) -> Number:
    """Long-run seconds per iteration, the same for all jobs that share nodes.

    Exact for int and Fraction. Jobs without common nodes are one event graph each; the largest of
    their periods is returned. Raises ValueError for an order that cannot run.
    """
    if not turns:
        return 0
    chosen = range(len(turns)) if order is None else order
    arcs = [arc for arc in arcs_of(turns, chosen, pairs) if not arc.start]
    steps = [step for turn in turns for step in turn.steps]
    weights = [arc.weight(steps[arc.tail]) for arc in arcs]
    exact = [
        (arc.tail, arc.head, weight, arc.tokens)
        for arc, weight in zip(arcs, weights, strict=True)
        if isinstance(weight, int | Fraction)
    ]
    if len(exact) == len(arcs):
        return exact_ratio(len(steps), exact)
    return float_ratio(
        len(steps),
        np.array([arc.tail for arc in arcs], np.int64),
        np.array([arc.head for arc in arcs], np.int64),
        np.array(weights, np.float64),
        np.array([arc.tokens for arc in arcs], np.int64),
    )


def best_order(
    turns: Sequence[Turn], pairs: Sequence[PairCost] = ()
) -> tuple[tuple[int, ...], Number]:
    """The cyclic order with the smallest period, and that; ties to the first one tried.

    The first job stays first. All (n-1)! orders up to 7 jobs, in lexicographic order, ended early
    by one that reaches the lower bound; beyond, one job after the other where it costs least.
    """
    count = len(turns)
    if count <= 2:
        order = tuple(range(count))
        return order, strict_period(turns, order, pairs)
    if count > _ALL_ORDERS:
        return _inserted(turns, pairs)
    lower = closed_form(turns).seconds
    best: tuple[tuple[int, ...], Number] | None = None
    for rest in itertools.permutations(range(1, count)):
        order = (0, *rest)
        period = strict_period(turns, order, pairs)
        if best is None or period < best[1]:
            best = order, period
        if best[1] <= lower:
            break
    assert best is not None
    return best


def _inserted(turns: Sequence[Turn], pairs: Sequence[PairCost]) -> tuple[tuple[int, ...], Number]:
    order: tuple[int, ...] = (0,)
    period: Number = 0
    for job in range(1, len(turns)):
        tried = []
        for at in range(1, len(order) + 1):
            longer = (*order[:at], job, *order[at:])
            part = [turns[index] for index in sorted(longer)]
            rank = {index: place for place, index in enumerate(sorted(longer))}
            ranked = tuple(rank[index] for index in longer)
            tried.append((strict_period(part, ranked, pairs), longer))
        period, order = min(tried)
    return order, period
