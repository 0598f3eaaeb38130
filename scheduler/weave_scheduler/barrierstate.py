"""Mode ``barrier``: a round ends for all before the next one begins for any; to show why not.

A job that asks for the first phase of an iteration is held until every joined job asks for its
own; then all enter the queues, in the order of the group. Inside a round it is ``fifo``.
"""

from __future__ import annotations

from collections.abc import Mapping

from weave_scheduler.events import PhaseRequested
from weave_scheduler.state import GroupState

__all__ = ["BarrierState"]


class BarrierState(GroupState):
    """``first``: the phase with which an iteration of each job begins, in the group's order.

    Jobs that it does not name take part without a barrier.
    """

    def __init__(self, first: Mapping[str, str]) -> None:
        super().__init__()
        self._first = dict(first)
        self._freed: set[int] = set()  # let through the barrier, not yet granted

    @property
    def held(self) -> tuple[int, ...]:
        """Serials that wait at the barrier."""
        return tuple(serial for serial, ask in self._waiting.items() if self._at_barrier(ask))

    def _at_barrier(self, ask: PhaseRequested) -> bool:
        return self._first.get(ask.job) == ask.phase and ask.serial not in self._freed

    def _startable(self) -> list[PhaseRequested]:
        held = [ask for ask in self._waiting.values() if self._at_barrier(ask)]
        bound = {job for job in self._nodes_of if job in self._first}
        if held and {ask.job for ask in held} >= bound:
            self._open(held)
        self._freed &= self._waiting.keys()
        passed = [ask for ask in self._waiting.values() if not self._at_barrier(ask)]
        return self._first_come(passed, set(self._holder))

    def _open(self, held: list[PhaseRequested]) -> None:
        """All that wait at the barrier enter the queues, one of each job, in the group's order."""
        rank = {job: at for at, job in enumerate(self._first)}
        for ask in sorted(held, key=lambda ask: (rank[ask.job], ask.serial)):
            self._waiting[ask.serial] = self._waiting.pop(ask.serial)  # to the end of the queues
            self._freed.add(ask.serial)

    def queue(self, node: str) -> tuple[int, ...]:
        held = set(self.held)
        return tuple(serial for serial in super().queue(node) if serial not in held)
