"""What the intra-group state machine is told: frozen values, no behaviour.

A node is named by its pool and number, ``rollout:0``. A serial names one request for a phase; it
is never used again. Serials that grow by one keep the memory of past ones small.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Event", "JobJoined", "JobLeft", "PhaseCancelled", "PhaseDone", "PhaseRequested"]


@dataclass(frozen=True, slots=True)
class JobJoined:
    """A job may request phases on these nodes from now on."""

    job: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobLeft:
    """A job is gone; what it waits for and holds is over."""

    job: str


@dataclass(frozen=True, slots=True)
class PhaseRequested:
    """A job wants to run a phase on all of ``nodes`` at once; none is fine."""

    job: str
    phase: str
    nodes: tuple[str, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class PhaseDone:
    """The phase of a granted request has ended; its nodes are free."""

    serial: int


@dataclass(frozen=True, slots=True)
class PhaseCancelled:
    """A request is withdrawn before its grant. After it this changes nothing: what was granted
    ends by PhaseDone."""

    serial: int


Event = JobJoined | JobLeft | PhaseRequested | PhaseDone | PhaseCancelled
