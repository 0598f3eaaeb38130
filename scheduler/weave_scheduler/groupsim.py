"""One group under the very policy that will run: the state machine on a modelled clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weave_scheduler.groupmath import Number, Turn
from weave_scheduler.model import Intra, PairCost

__all__ = ["JobTimes", "simulate_group", "simulated_iterations"]


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Ends of a job's iterations in seconds from the start."""

    job: str
    ends: tuple[Number, ...]

    def mean_after(self, warm: int) -> Number:
        """Mean iteration after the first ``warm`` ones."""
        raise NotImplementedError


def simulate_group(
    turns: Sequence[Turn] | Sequence[Sequence[Turn]],
    intra: Intra,
    iterations: int,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
) -> tuple[JobTimes, ...]:
    """Event for event what ``weave_scheduler.state`` decides, all jobs starting at 0.

    ``turns`` is one turn per job, or per job one turn for each iteration. Jobs go on until every
    job has finished ``iterations`` (so that none runs alone at the end); only those are returned.
    """
    raise NotImplementedError


def simulated_iterations(
    turns: Sequence[Turn],
    intra: Intra,
    *,
    order: Sequence[int] | None = None,
    pairs: Sequence[PairCost] = (),
    iterations: int = 60,
) -> tuple[Number, ...]:
    """The long-run mean iteration seconds of each job under that policy, all durations fixed.

    Follows the trajectory until the state repeats (exact), else takes the mean of the second half
    of ``iterations`` rounds.
    """
    raise NotImplementedError
