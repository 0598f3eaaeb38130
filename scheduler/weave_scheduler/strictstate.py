"""Mode ``strict``: one cyclic order per group, the same on all nodes, pipelined.

Each node has a ring of visits, a phase of a job each; it grants only the visit whose turn it is and
moves on when that phase is done. Durations never change who follows whom, so ends are max-plus
linear in them: a shorter phase never makes anything later. Phases that stand in no ring (``init``,
``save``) start in order of arrival as soon as their nodes are free, ahead of the rings.

A job that joins after the first grant takes part from the next round on, on all its nodes alike, so
that late joining cannot turn the order round between two nodes. One that leaves is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weave_scheduler.events import PhaseRequested
from weave_scheduler.state import GroupState

__all__ = ["RingVisit", "StrictState"]


@dataclass(frozen=True, slots=True)
class RingVisit:
    """In round k of its node: ``phase`` of the job's iteration k - lag, none if that is below 0."""

    job: str
    phase: str
    lag: int = 0


@dataclass(slots=True)
class _Turn:
    """Whose turn it is on one node."""

    round: int = 0
    at: int = 0


class StrictState(GroupState):
    """Queues and permits of a group whose planner gave each node's ring."""

    def __init__(self, rings: Mapping[str, Sequence[RingVisit]]) -> None:
        super().__init__()
        self._rings = {node: tuple(ring) for node, ring in rings.items() if ring}
        self._turns = {node: _Turn() for node in self._rings}
        self._from: dict[str, int] = {}  # job -> the round from which it takes part
        self._begun: set[str] = set()  # nodes whose ring has granted anything
        self._homes: dict[tuple[str, str], frozenset[str]] = {}
        for node, ring in self._rings.items():
            for visit in ring:
                key = visit.job, visit.phase
                self._homes[key] = self._homes.get(key, frozenset()) | {node}

    def next_visit(self, node: str) -> RingVisit | None:
        """Whose turn it is on ``node``; None where no joined job has a visit there."""
        ring, turn = self._rings.get(node, ()), self._turns.get(node, _Turn())
        if not any(visit.job in self._from for visit in ring):
            return None
        seen = _Turn(turn.round, turn.at)
        while not self._takes_part(ring[seen.at], seen.round):
            _advance(seen, len(ring))
        return ring[seen.at]

    def _joined(self, job: str) -> None:
        own = [node for node in self._nodes_of[job] if node in self._begun]
        self._from[job] = max((self._turns[node].round + 1 for node in own), default=0)

    def _left(self, job: str) -> None:
        self._from.pop(job, None)

    def _granted(self, ask: PhaseRequested) -> None:
        for node in self._home(ask):  # what was skipped to get here stays skipped
            self._settle(node)
            self._begun.add(node)

    def _done(self, ended: PhaseRequested) -> None:
        for node in self._home(ended):
            _advance(self._turns[node], len(self._rings[node]))

    def _home(self, ask: PhaseRequested) -> frozenset[str]:
        """The nodes on which it waits for its turn, also if it asks for others; none: outside."""
        return self._homes.get((ask.job, ask.phase), frozenset())

    def _startable(self) -> list[PhaseRequested]:
        taken = set(self._holder)
        outside = [ask for ask in self._waiting.values() if not self._home(ask)]
        found = self._first_come(outside, taken)
        begun = {(ask.job, ask.phase) for ask in self._running.values()}
        for ask in self._waiting.values():
            key = ask.job, ask.phase
            home = self._home(ask)
            free = home and key not in begun and taken.isdisjoint(ask.nodes)
            if free and all(self._is_turn_of(key, node) for node in home):
                found.append(ask)
                begun.add(key)
                taken.update(ask.nodes)
        return found

    def _is_turn_of(self, key: tuple[str, str], node: str) -> bool:
        visit = self.next_visit(node)
        return visit is not None and (visit.job, visit.phase) == key

    def _settle(self, node: str) -> None:
        """Move the turn over visits that do not take place."""
        ring, turn = self._rings[node], self._turns[node]
        while not self._takes_part(ring[turn.at], turn.round):
            _advance(turn, len(ring))

    def _takes_part(self, visit: RingVisit, round_: int) -> bool:
        first = self._from.get(visit.job)
        return first is not None and round_ - visit.lag >= first


def _advance(turn: _Turn, length: int) -> None:
    turn.at += 1
    if turn.at == length:
        turn.at, turn.round = 0, turn.round + 1
