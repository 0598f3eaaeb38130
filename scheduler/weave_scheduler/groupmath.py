"""How fast the jobs of a group go: steps, the closed form and its conditions, the bounds.

A job's iteration is a ``Turn``: its steps with durations, the nodes they hold and what they follow.
Numbers may be int, Fraction or float; with int and Fraction every result is exact. Sources:
Theorem A and sections 3.2, 3.5 and 3.7 of our notes on round robin, and paper 4.2 and 4.3. The
period of a strict order is in ``weave_scheduler.strictorder``, simulation of the very policy in
``weave_scheduler.groupsim``, random durations in ``weave_scheduler.montecarlo``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from weave_scheduler.model import Group, Intra, Member, PairCost, Phase

__all__ = [
    "Bounds",
    "Number",
    "Period",
    "Step",
    "Turn",
    "bounds",
    "closed_form",
    "longest_phases",
    "mean_phases",
    "turns_of",
    "why_not_closed",
]

Number = int | float | Fraction
Binds = Literal["rollout", "train", "solo"]


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of one job.

    Attributes:
        seconds: how long it holds its nodes, without any switch.
        nodes: what it holds, like ``rollout:0``; empty: a pure latency.
        after: indices of earlier steps of the same turn.
        foreground: added in front of it when another job held one of its nodes before.
        background: copied meanwhile; it may run from start of the phase before + this.
        lag: between freeing its nodes and being done (a migrated tail).
    """

    phase: str
    seconds: Number
    nodes: frozenset[str]
    after: tuple[int, ...] = ()
    foreground: Number = 0
    background: Number = 0
    lag: Number = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of one job; the first step follows all steps of the turn before."""

    job: str
    steps: tuple[Step, ...]

    @property
    def solo(self) -> Number:
        """Its length alone, without switches; a tail counts in full (lag included)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Period:
    """A period and the term that binds: a node's load (``rollout``, ``train``) or one job."""

    seconds: Number
    binds: Binds
    what: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= period of the strict order <= upper, in seconds."""

    lower: Number
    upper: Number


def longest_phases(member: Member, phase: Phase) -> float:
    """The law's ``max``. Raises ValueError where it has none (mode worst-case refuses it)."""
    raise NotImplementedError


def mean_phases(member: Member, phase: Phase) -> float:
    """The law's mean."""
    raise NotImplementedError


def turns_of(
    group: Group, seconds: Callable[[Member, Phase], Number] = longest_phases
) -> tuple[Turn, ...]:
    """The turns of the members, in their order.

    Scales training by the member's degree, takes switch costs of the jobs (zero on nodes that one
    job has to itself), and splits a rollout whose tail migrates into what holds the nodes and a
    lag. Raises ValueError where a law has no max and ``longest_phases`` asks for it.
    """
    raise NotImplementedError


def why_not_closed(
    turns: Sequence[Turn], intra: Intra, pairs: Sequence[PairCost] = ()
) -> str | None:
    """None where the closed form is exact, else the condition that fails, as one line.

    Conditions (design section 8): each job has one rollout and one training phase per iteration,
    no phase holds both pools or none, no lag, switch costs do not depend on the pair and their
    background part fits behind every other job's phase; all on one node pair (any job set of one
    rollout set and one train set counts as a pair) under ``fifo`` and ``strict``; one rollout node
    per job under ``strict`` only; all jobs on all train nodes; ``barrier`` never.
    """
    raise NotImplementedError


def closed_form(turns: Sequence[Turn]) -> Period:
    """max(largest node load, longest solo iteration), switches included (Theorem A).

    pre: why_not_closed(...) is None; else the result is only a lower bound.
    """
    raise NotImplementedError


def bounds(turns: Sequence[Turn]) -> Bounds:
    """Bounds of the period of any strict order (notes 3.5): LB and LB + max(sync, lag) / 2 where
    all jobs share one pair and latencies are pure, else LB and the sum of all solo iterations.
    """
    raise NotImplementedError
