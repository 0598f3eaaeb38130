"""The exact period of a strict order, and the choice of the order (max-plus algebra).

``rings_of`` says who follows whom on each node, ``strict_period`` is the maximum cycle ratio of the
event graph (Baccelli et al., Synchronization and Linearity; notes 3.1 and 3.7), ``best_order``
searches the (n-1)! cyclic orders. Exact for int and Fraction, compiled for floats.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from weave_scheduler.cycleratio import exact_ratio, float_ratio
from weave_scheduler.groupmath import Number, Turn, closed_form
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
    """Step ``head`` of iteration k starts at least ``weight`` after ``tail`` of k - tokens."""

    tail: int
    head: int
    weight: Number
    tokens: int


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
    rings = rings_of(turns, order)
    before: dict[tuple[int, int], list[tuple[str, Visit, int]]] = {}
    for node, ring in rings.items():
        for at, visit in enumerate(ring):
            last = ring[at - 1]
            tokens = last.lag - visit.lag + (1 if at == 0 else 0)
            before.setdefault((visit.job, visit.step), []).append((node, last, tokens))
    costs = {(pair.pool, pair.outgoing, pair.incoming): pair.cost for pair in pairs}
    arcs: list[Arc] = []
    for job, turn in enumerate(turns):
        for at, step in enumerate(turn.steps):
            head = base[job] + at
            behind: list[tuple[int, Number, int]] = []
            waits: list[Number] = []
            for node, last, tokens in before.get((job, at), ()):
                other = turns[last.job].steps[last.step]
                held, fore, back = other.seconds, step.foreground, step.background
                pair = costs.get((node.split(":")[0], turns[last.job].job, turn.job))
                if pair is not None:
                    fore, back = pair.foreground_s, pair.background_s
                if last.job == job:
                    fore = back = 0
                behind.append((base[last.job] + last.step, max(held, back), tokens))
                waits.append(fore)
            fore = max(waits, default=0)
            arcs += [Arc(tail, head, weight + fore, tokens) for tail, weight, tokens in behind]
            arcs += _follows(turn, base[job], at, fore)
    return arcs


def _follows(turn: Turn, base: int, at: int, fore: Number) -> list[Arc]:
    """Arcs from what the step depends on in its own job."""
    arcs = []
    after, tokens = turn.steps[at].after, 0
    if not after:  # on-policy: everything of the turn before
        after, tokens = tuple(range(len(turn.steps))), 1
    for earlier in after:
        step = turn.steps[earlier]
        arcs.append(Arc(base + earlier, base + at, step.seconds + step.lag + fore, tokens))
    return arcs


def strict_period(
    turns: Sequence[Turn], order: Sequence[int] | None = None, pairs: Sequence[PairCost] = ()
) -> Number:
    """Long-run seconds per iteration, the same for all jobs that share nodes.

    Exact for int and Fraction. Jobs without common nodes are one event graph each; the largest of
    their periods is returned. Raises ValueError for an order that cannot run.
    """
    if not turns:
        return 0
    arcs = arcs_of(turns, range(len(turns)) if order is None else order, pairs)
    count = sum(len(turn.steps) for turn in turns)
    exact = [
        (arc.tail, arc.head, arc.weight, arc.tokens)
        for arc in arcs
        if isinstance(arc.weight, int | Fraction)
    ]
    if len(exact) == len(arcs):
        return exact_ratio(count, exact)
    return float_ratio(
        count,
        np.array([arc.tail for arc in arcs], np.int64),
        np.array([arc.head for arc in arcs], np.int64),
        np.array([float(arc.weight) for arc in arcs]),
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
