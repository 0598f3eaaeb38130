"""Modes ``fifo`` and ``barrier`` over drawn durations, event by event, compiled.

Chains of phases under ``fifo`` go to ``weave_scheduler.chainkernel``, the rest is here. The second
form of ``weave_scheduler.state`` and ``weave_scheduler.groupsim``: a property test holds
it equal to them, event for event. One group per call; every replication has its own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from weave_scheduler.chainkernel import run_chains
from weave_scheduler.groupmath import Turn, node_numbers
from weave_scheduler.model import Intra, PairCost

__all__ = ["event_ends", "step_frees"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NODES_MAX = 62  # bits of a node set


_HELD, _WAITING, _PLANNED = 0, 1, 2  # places in _State.counts
_FREES, _IS_DONE = 1, 2  # what a planned event does


class _Shape(NamedTuple):
    """What does not change: jobs in their order, steps with node sets and predecessors as bits."""

    order: Ints
    base: Ints  # job -> its first step
    owner: Ints  # step -> job
    nodes: Ints
    after: Ints
    fore: Floats  # [node, job before, step]
    back: Floats
    barrier: bool


class _State(NamedTuple):
    """One replication: per step its planned event, per job where it is, per node who was last."""

    counts: Ints  # held nodes as bits, length of the queue, events planned so far
    queue: Ints
    freed: NDArray[np.bool_]  # let through the barrier
    kind: Ints  # 0 nothing planned
    at: Floats
    planned: Ints
    asked: Ints
    over: Ints
    iteration: Ints
    last: Ints
    since: Floats


def event_ends(
    turns: Sequence[Turn],
    intra: Intra,
    hold: Floats,
    done: Floats,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
    iterations: int | None = None,
) -> Floats:
    """Ends [job, iteration, replication] of the first ``iterations``, in seconds.

    ``hold`` and ``done`` are [step, iteration, replication] as in ``recursion``; jobs go on, with
    their draws from the first one again, until all have done that many iterations (default: as
    many as drawn). Raises ValueError for ``strict`` and for more than 62 kinds of
    nodes (``node_numbers``).
    """
    count = hold.shape[1] if iterations is None else iterations
    ends = np.zeros((len(turns), count, hold.shape[2]))
    steps = sum(len(turn.steps) for turn in turns)
    _fill(turns, intra, hold, done, order, pairs, ends, np.empty((steps, 0, hold.shape[2])))
    return ends


def step_frees(
    turns: Sequence[Turn],
    intra: Intra,
    hold: Floats,
    done: Floats,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
    rounds: int,
    most: int,
) -> Floats:
    """When each step's nodes were free again [step, iteration, replication], in seconds, until all
    jobs have done ``rounds`` iterations; the first ``most`` of each, NaN beyond what it did."""
    freed = np.full((sum(len(turn.steps) for turn in turns), most, hold.shape[2]), np.nan)
    ends = np.zeros((len(turns), rounds, hold.shape[2]))
    _fill(turns, intra, hold, done, order, pairs, ends, freed)
    return freed


def _fill(
    turns: Sequence[Turn],
    intra: Intra,
    hold: Floats,
    done: Floats,
    order: Sequence[int] | None,
    pairs: Sequence[PairCost],
    ends: Floats,
    freed: Floats,
) -> None:
    if intra == "strict":
        raise ValueError("strict has no queues; use weave_scheduler.recursion")
    bit = node_numbers(turns)
    nodes = list({at: node for node, at in bit.items()}.values())  # one for all that are alike
    if len(nodes) > _NODES_MAX:
        raise ValueError(f"{len(nodes)} kinds of nodes in one group; allowed: {_NODES_MAX}")
    steps = [step for turn in turns for step in turn.steps]
    chosen = np.array(range(len(turns)) if order is None else order, np.int64)
    base = np.cumsum([0] + [len(turn.steps) for turn in turns]).astype(np.int64)
    fore, back = _costs(turns, nodes, pairs)
    shape = _Shape(
        chosen,
        base,
        np.array([job for job, turn in enumerate(turns) for _ in turn.steps], np.int64),
        np.array([_bits({bit[node] for node in step.nodes}) for step in steps], np.int64),
        np.array([sum(1 << at for at in step.after) for step in steps], np.int64),
        fore,
        back,
        intra == "barrier",
    )
    by_replication = (2, 0, 1)
    held = np.ascontiguousarray(hold.transpose(by_replication))
    over = held if done is hold else np.ascontiguousarray(done.transpose(by_replication))
    if intra == "fifo" and all(_is_chain(turn) for turn in turns):
        run_chains(chosen, base, shape.nodes, fore, back, held, over, ends, freed)
    else:
        _run(shape, held, over, ends, freed)


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << at for at in numbers)


def _is_chain(turn: Turn) -> bool:
    """Whether each step follows the one before it."""
    return all(step.after == ((at - 1,) if at else ()) for at, step in enumerate(turn.steps))


def _costs(
    turns: Sequence[Turn], nodes: Sequence[str], pairs: Sequence[PairCost]
) -> tuple[Floats, Floats]:
    """Foreground and background [node, job before, step] of a switch."""
    costs = {(pair.pool, pair.outgoing, pair.incoming): pair.cost for pair in pairs}
    steps = [(job, step) for job, turn in enumerate(turns) for step in turn.steps]
    fore = np.zeros((len(nodes), len(turns), len(steps)))
    back = np.zeros_like(fore)
    for node, name in enumerate(nodes):
        for last, turn in enumerate(turns):
            for at, (job, step) in enumerate(steps):
                cost = costs.get((name.split(":")[0], turn.job, turns[job].job))
                fore[node, last, at] = step.foreground if cost is None else cost.foreground_s
                back[node, last, at] = step.background if cost is None else cost.background_s
    return fore, back


@numba.njit(cache=True)
def _run(shape: _Shape, hold: Floats, done: Floats, ends: Floats, freed: Floats) -> None:
    steps, jobs, nodes = len(shape.nodes), len(shape.base) - 1, shape.fore.shape[0]
    for rep in range(hold.shape[0]):
        state = _State(
            np.zeros(3, np.int64),
            np.empty(steps, np.int64),
            np.zeros(steps, np.bool_),
            np.zeros(steps, np.int64),
            np.empty(steps),
            np.empty(steps, np.int64),
            np.zeros(jobs, np.int64),
            np.zeros(jobs, np.int64),
            np.zeros(jobs, np.int64),
            np.full(nodes, -1),
            np.zeros(nodes),
        )
        _replication(shape, state, hold[rep], done[rep], ends[:, :, rep], freed[:, :, rep])


@numba.njit(cache=True)
def _replication(
    shape: _Shape, state: _State, hold: Floats, done: Floats, ends: Floats, freed: Floats
) -> None:
    """From the first requests until every job has done its iterations."""
    jobs, count, drawn = len(shape.base) - 1, ends.shape[1], hold.shape[1]
    for job in shape.order:
        _ask(shape, state, job, 0.0, hold)
    left = jobs
    while left > 0:
        step = _next(state)
        job, now, was = shape.owner[step], state.at[step], state.kind[step]
        draw = state.iteration[job] % drawn
        lag = done[step, draw] - hold[step, draw]
        state.kind[step] = 0
        if was == _FREES:
            if state.iteration[job] < freed.shape[1]:
                freed[step, state.iteration[job]] = now
            state.counts[_HELD] &= ~shape.nodes[step]
            _grant(shape, state, now, hold)
            if lag > 0.0:
                _plan(state, step, now + lag, _IS_DONE)
                continue
        state.over[job] |= 1 << (step - shape.base[job])
        if state.over[job] == (1 << (shape.base[job + 1] - shape.base[job])) - 1:
            if state.iteration[job] < count:
                ends[job, state.iteration[job]] = now
                left -= state.iteration[job] == count - 1
            state.iteration[job] += 1
            state.asked[job] = 0
            state.over[job] = 0
        _ask(shape, state, job, now, hold)


@numba.njit(cache=True)
def _next(state: _State) -> int:
    """The step whose planned end comes first; of equal ones the one planned first."""
    found = -1
    for step in range(len(state.at)):
        if state.kind[step] and (
            found < 0
            or state.at[step] < state.at[found]
            or (state.at[step] == state.at[found] and state.planned[step] < state.planned[found])
        ):
            found = step
    return found


@numba.njit(cache=True)
def _plan(state: _State, step: int, at: float, kind: int) -> None:
    state.at[step] = at
    state.kind[step] = kind
    state.planned[step] = state.counts[_PLANNED]
    state.counts[_PLANNED] += 1


@numba.njit(cache=True)
def _ask(shape: _Shape, state: _State, job: int, now: float, hold: Floats) -> None:
    """Request every step whose predecessors are over."""
    for step in range(shape.base[job], shape.base[job + 1]):
        own = 1 << (step - shape.base[job])
        if state.asked[job] & own == 0 and shape.after[step] & ~state.over[job] == 0:
            state.asked[job] |= own
            state.queue[state.counts[_WAITING]] = step
            state.counts[_WAITING] += 1
            _grant(shape, state, now, hold)


@numba.njit(cache=True)
def _grant(shape: _Shape, state: _State, now: float, hold: Floats) -> None:
    """Start all that are first in all their queues and find all their nodes free."""
    if shape.barrier:
        _open(shape, state)
    taken, kept = state.counts[_HELD], 0
    for place in range(state.counts[_WAITING]):
        step = state.queue[place]
        behind = shape.barrier and _at_barrier(shape, state, step)
        if behind or taken & shape.nodes[step]:
            state.queue[kept] = step
            kept += 1
        else:
            _start(shape, state, step, now, hold)
        if not behind:
            taken |= shape.nodes[step]
    state.counts[_WAITING] = kept


@numba.njit(cache=True)
def _start(shape: _Shape, state: _State, step: int, now: float, hold: Floats) -> None:
    """Grant it: it runs after the switch on those of its nodes where another job was."""
    job, ready, wait = shape.owner[step], now, 0.0
    state.counts[_HELD] |= shape.nodes[step]
    state.freed[step] = False
    for node in range(len(state.last)):
        last = state.last[node]
        if shape.nodes[step] >> node & 1 and last >= 0 and last != job:
            ready = max(ready, state.since[node] + shape.back[node, last, step])
            wait = max(wait, shape.fore[node, last, step])
    for node in range(len(state.last)):
        if shape.nodes[step] >> node & 1:
            state.last[node] = job
            state.since[node] = ready + wait
    end = ready + wait + hold[step, state.iteration[job] % hold.shape[1]]
    _plan(state, step, end, _FREES)


@numba.njit(cache=True)
def _at_barrier(shape: _Shape, state: _State, step: int) -> bool:
    return bool(step == shape.base[shape.owner[step]] and not state.freed[step])


@numba.njit(cache=True)
def _open(shape: _Shape, state: _State) -> None:
    """Where every job waits at the barrier: all of them to the end of the queues, in order."""
    waiting = 0
    for place in range(state.counts[_WAITING]):
        waiting += _at_barrier(shape, state, state.queue[place])
    if waiting < len(shape.order):
        return
    kept = 0
    for place in range(state.counts[_WAITING]):
        step = state.queue[place]
        if not _at_barrier(shape, state, step):
            state.queue[kept] = step
            kept += 1
    for job in shape.order:
        state.queue[kept] = shape.base[job]
        state.freed[shape.base[job]] = True
        kept += 1
