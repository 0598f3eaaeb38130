"""Maximum cycle ratio: the largest (sum of weights) / (sum of tokens) over the circuits of a graph.

Lawler's parametric search: with a guess r, a circuit whose weight - r * tokens is positive gives a
better guess, its own ratio; when there is none, r is the answer. Every guess is the ratio of a real
circuit, so the search ends with an exact value. ``exact_ratio`` computes with int and Fraction,
``float_ratio`` is compiled. Tokens of single arcs may be negative, those of circuits must not be
zero (a deadlock): ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["exact_ratio", "float_ratio"]

_DEADLOCK = "the order cannot run: a circuit of waits without a token"
_TOLERANCE = 1e-11  # of a float guess, relative


def exact_ratio(count: int, arcs: Sequence[tuple[int, int, int | Fraction, int]]) -> Fraction | int:
    """Exact; ``arcs`` are (tail, head, weight, tokens) between nodes 0 .. count - 1."""
    guess = Fraction(0)
    while True:
        circuit = _positive_circuit(
            count, [(tail, head, weight - guess * tokens) for tail, head, weight, tokens in arcs]
        )
        if circuit is None:
            return guess.numerator if guess.denominator == 1 else guess
        weight = sum((Fraction(arcs[arc][2]) for arc in circuit), Fraction(0))
        tokens = sum(arcs[arc][3] for arc in circuit)
        if tokens <= 0:
            raise ValueError(_DEADLOCK)
        guess = weight / tokens


def _positive_circuit(count: int, arcs: Sequence[tuple[int, int, Fraction]]) -> list[int] | None:
    """Arcs of one circuit with a positive sum, or None (Bellman-Ford for longest walks)."""
    best = [Fraction(0)] * count
    came: list[int | None] = [None] * count
    touched = None
    for _ in range(count):
        touched = None
        for arc, (tail, head, gain) in enumerate(arcs):
            if best[tail] + gain > best[head]:
                best[head], came[head], touched = best[tail] + gain, arc, head
        if touched is None:
            return None
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = touched
    while node is not None and node not in seen:  # backwards until a node comes again
        seen[node] = len(walk)
        arc_in = came[node]
        if arc_in is None:
            return None
        walk.append(arc_in)
        node = arcs[arc_in][0]
    return walk[seen[node] :] if node is not None else None


def float_ratio(
    count: int,
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    weights: NDArray[np.float64],
    tokens: NDArray[np.int64],
) -> float:
    """The same with floats, to a relative 1e-11; the result is the ratio of a real circuit."""
    ratio = float(_float_ratio(count, tails, heads, weights, tokens))
    if ratio < 0:
        raise ValueError(_DEADLOCK)
    return ratio


@numba.njit(cache=True)
def _float_ratio(
    count: int,
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    weights: NDArray[np.float64],
    tokens: NDArray[np.int64],
) -> float:
    guess = 0.0
    scale = max(1e-300, weights.sum())
    best = np.empty(count)
    came = np.empty(count, np.int64)
    mark = np.empty(count, np.int64)
    while True:
        best[:] = 0.0
        came[:] = -1
        touched = -1
        for _ in range(count):
            touched = -1
            for arc in range(len(tails)):
                reach = best[tails[arc]] + weights[arc] - guess * tokens[arc]
                if reach > best[heads[arc]] + _TOLERANCE * scale:
                    best[heads[arc]] = reach
                    came[heads[arc]] = arc
                    touched = heads[arc]
            if touched < 0:
                return guess
        mark[:] = 0
        node = touched
        while mark[node] == 0 and came[node] >= 0:
            mark[node] = 1
            node = tails[came[node]]
        if came[node] < 0:
            return guess
        weight, token, start = 0.0, 0, node
        while True:
            arc = came[node]
            weight += weights[arc]
            token += tokens[arc]
            node = tails[arc]
            if node == start:
                break
        if token <= 0:
            return -1.0
        if weight / token <= guess * (1 + _TOLERANCE):
            return guess
        guess = weight / token
