"""The exact period of a strict order, and the choice of the order (max-plus algebra).

``rings_of`` says who follows whom on each node, ``strict_period`` is the maximum cycle ratio of the
event graph (Baccelli et al.; notes 3.1 and 3.7), ``best_order`` searches the (n-1)! cyclic orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weave_scheduler.groupmath import Number, Turn
from weave_scheduler.model import PairCost

__all__ = ["Visit", "best_order", "rings_of", "strict_period"]


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit in a node's ring: in round k the job runs that step of its iteration k - lag."""

    job: int
    step: int
    lag: int = 0


def rings_of(turns: Sequence[Turn], order: Sequence[int]) -> Mapping[str, tuple[Visit, ...]]:
    """The cyclic order of visits on each node; a job's visits to a node are neighbours."""
    raise NotImplementedError


def strict_period(
    turns: Sequence[Turn], order: Sequence[int] | None = None, pairs: Sequence[PairCost] = ()
) -> Number:
    """Long-run seconds per iteration, the same for all jobs. Exact for int and Fraction."""
    raise NotImplementedError


def best_order(
    turns: Sequence[Turn], pairs: Sequence[PairCost] = ()
) -> tuple[tuple[int, ...], Number]:
    """The cyclic order with the smallest period, and that; ties to the first in order of names.

    All (n-1)! orders up to 7 jobs; beyond, insertion of one job after the other.
    """
    raise NotImplementedError
