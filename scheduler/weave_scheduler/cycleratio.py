"""Maximum cycle ratio: the largest (sum of weights) / (sum of tokens) over the circuits of a graph.

Lawler's parametric search: with a guess r, a circuit whose weight - r * tokens is positive gives a
better guess, its own ratio; when there is none, r is the answer. Every guess is the ratio of a real
circuit, so the search ends with an exact value. ``exact_ratio`` computes with int and Fraction,
``float_ratio`` is compiled. Tokens of single arcs may be negative, those of circuits must not be
zero (a deadlock): ValueError.
"""

from __future__ import annotations

import math
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
    unit = math.lcm(*(Fraction(weight).denominator for _, _, weight, _ in arcs))
    whole = [(tail, head, int(weight * unit), tokens) for tail, head, weight, tokens in arcs]
    top, bottom = 0, 1  # the guess as a fraction, in whole numbers because those are fast
    while True:
        gains = [
            (tail, head, weight * bottom - top * tokens) for tail, head, weight, tokens in whole
        ]
        circuit = _positive_circuit(count, gains)
        if circuit is None:
            ratio = Fraction(top, bottom * unit)
            return ratio.numerator if ratio.denominator == 1 else ratio
        top = sum(whole[arc][2] for arc in circuit)
        bottom = sum(whole[arc][3] for arc in circuit)
        if bottom <= 0:
            raise ValueError(_DEADLOCK)


def _positive_circuit(count: int, arcs: Sequence[tuple[int, int, int]]) -> list[int] | None:
    """Arcs of one circuit with a positive sum, or None (Bellman-Ford for longest walks)."""
    best = [0] * count
    came = [-1] * count
    touched = -1
    for _ in range(count):
        touched = -1
        for arc, (tail, head, gain) in enumerate(arcs):
            reach = best[tail] + gain
            if reach > best[head]:
                best[head], came[head], touched = reach, arc, head
        if touched < 0:
            return None
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = touched
    while node not in seen:  # backwards until a node comes again
        seen[node] = len(walk)
        walk.append(came[node])
        node = arcs[came[node]][0]
    return walk[seen[node] :]


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
