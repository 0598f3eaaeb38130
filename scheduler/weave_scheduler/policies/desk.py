"""The desk where jobs arrive, wait, leave and come back: the only writer of a cluster. Pure.

Live and simulated runs drive the same object. A job that fits nowhere waits, with the reason. When
nodes or room come free the waiting jobs are tried again in order of arrival. What may overtake a
waiting job is the rule ``backfill`` of the settings: ``packing`` (default) lets a job through that
needs no free node, so that free nodes are kept for the first in line; ``none`` lets nothing
through; ``any`` whatever fits. A failed job is a new arrival with the iterations that it still has
to do (paper 5.3); the others of its group go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from weave_scheduler.model import JobModel, PoolModel
from weave_scheduler.policies.cluster import Cluster
from weave_scheduler.policies.decision import Decision
from weave_scheduler.policies.settings import Settings

__all__ = ["Desk", "Policy", "Waiting"]


class Policy(Protocol):
    """Decides about one job; reads the cluster and changes nothing."""

    name: str
    settings: Settings

    def decide(self, job: JobModel, cluster: Cluster, *, explain: bool = False) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that fits nowhere now, and why."""

    job: JobModel
    reason: str


class Desk:
    """Applies a policy's decisions to a cluster."""

    def __init__(self, policy: Policy, pools: Mapping[str, PoolModel]) -> None:
        self.policy = policy
        self.cluster = Cluster(pools)
        self._line: dict[str, Waiting] = {}

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """In order of arrival."""
        return tuple(self._line.values())

    def submit(self, job: JobModel) -> Decision:
        """A new job. Raises ValueError for a name that is placed or waits already."""
        if job.name in self.cluster or job.name in self._line:
            raise ValueError(f"job {job.name} is here already; give each job a name of its own")
        decision = self._try(job, behind=bool(self._line))
        if decision.chosen is None and not decision.never:
            self._line[job.name] = Waiting(job, decision.reason)
        return decision

    def leave(self, job: str) -> list[Decision]:
        """A job that is done or cancelled; who could be placed because of that."""
        if self._line.pop(job, None) is None:
            if job not in self.cluster:
                raise ValueError(f"job {job} is not here")
            self.cluster.remove(job)
        return self._serve()

    def fail(self, job: str, iterations_left: int) -> list[Decision]:
        """A job that died: it arrives again behind those that wait. The last decision is its own.

        pre: iterations_left >= 1 and the job is placed.
        """
        model = self._model(job)
        served = self.leave(job)
        return [*served, self.submit(replace(model, iterations=iterations_left))]

    def resubmit(self, job: str, again: JobModel) -> list[Decision]:
        """A job that was stopped at the end of an iteration and comes back with other laws."""
        served = self.leave(job)
        return [*served, self.submit(again)]

    def adopt(self, cluster: Cluster) -> list[Decision]:
        """Go on with the same jobs placed anew, as after a regrouping; who waited is tried again.

        Raises ValueError where other jobs are placed there.
        """
        placed = [{name for one in each.residents.values() for name in one.group.names}
                  for each in (self.cluster, cluster)]  # fmt: skip
        if placed[0] != placed[1]:
            raise ValueError(f"jobs differ: {', '.join(sorted(placed[0] ^ placed[1]))}")
        self.cluster = cluster
        return self._serve()

    def _model(self, job: str) -> JobModel:
        group = self.cluster.home(job).group
        return group.members[group.names.index(job)].job

    def _serve(self) -> list[Decision]:
        """Try those who wait, in order, until nobody can be placed."""
        placed: list[Decision] = []
        blocked = False
        for name, one in list(self._line.items()):
            decision = self._try(one.job, behind=blocked)
            if decision.chosen is None:
                self._line[name] = Waiting(one.job, decision.reason)
                blocked = True
                continue
            del self._line[name]
            placed.append(decision)
        return placed

    def _try(self, job: JobModel, *, behind: bool) -> Decision:
        """Decide and apply; ``behind``: somebody waits in front."""
        rule = self.policy.settings.backfill
        decision = self.policy.decide(job, self.cluster)
        chosen = decision.chosen
        if chosen is None:
            return decision
        new = len(chosen.new_nodes.rollout) + len(chosen.new_nodes.train)
        if behind and (rule == "none" or (rule == "packing" and new)):
            decision.chosen = None
            first = next(iter(self._line))
            decision.reason = f"waits behind job {first}: it would take {new} free node(s)"
            if rule == "none":
                decision.reason = f"waits behind job {first}"
            return decision
        verdict = chosen.verdict
        self.cluster.place(
            job,
            chosen.placement,
            chosen.group,
            None if verdict is None else verdict.order,
            "" if verdict is None else verdict.by,
        )
        return decision
