"""The turns of the jobs of a run: which phases an iteration has, and which devices each holds.

Only their shape matters to the modes ``strict`` and ``barrier``. Durations are unknown here and
stand as 1 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weave_scheduler.groupmath import Step, Turn
from weave_scheduler.jobphases import pools_held, turn_phases
from weave_scheduler.model import Placement
from weave_scheduler.spec import JobSpec

__all__ = ["live_turns"]


def live_turns(
    jobs: Sequence[tuple[JobSpec, Placement]], names: Mapping[str, Sequence[str]]
) -> tuple[Turn, ...]:
    """One turn per job. ``names`` are the names of the devices of each pool, by node id."""
    turns = []
    for job, placement in jobs:
        steps = [
            Step(
                phase,
                1,
                frozenset(
                    names[pool][n] for pool in pools_held(job, phase) for n in placement.of(pool)
                ),
                () if at == 0 else (at - 1,),
            )
            for at, phase in enumerate(turn_phases(job))
        ]
        turns.append(Turn(job.name, tuple(steps)))
    return tuple(turns)
