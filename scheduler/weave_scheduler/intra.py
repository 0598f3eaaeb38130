"""Which state machine runs a group: from the mode and the turns of its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from weave_scheduler.barrierstate import BarrierState
from weave_scheduler.groupmath import Turn
from weave_scheduler.model import Intra
from weave_scheduler.state import GroupState
from weave_scheduler.strictorder import rings_of
from weave_scheduler.strictstate import RingVisit, StrictState

__all__ = ["state_for"]


def state_for(
    intra: Intra, turns: Sequence[Turn], order: Sequence[int] | None = None
) -> GroupState:
    """The machine of that mode. ``order`` (default: as given) matters to strict and barrier."""
    chosen = range(len(turns)) if order is None else order
    if sorted(chosen) != list(range(len(turns))):
        raise ValueError(f"order {list(chosen)} does not name each of the {len(turns)} jobs once")
    if intra == "fifo":
        return GroupState()
    if intra == "barrier":
        return BarrierState({turns[job].job: turns[job].steps[0].phase for job in chosen})
    return StrictState(
        {
            node: tuple(
                RingVisit(turns[visit.job].job, turns[visit.job].steps[visit.step].phase, visit.lag)
                for visit in ring
            )
            for node, ring in rings_of(turns, chosen).items()
        }
    )
