"""Drift in a group that runs: who has left its plan, who is submitted again, who may go on. Pure.

The runner tells every measured duration and every end of an iteration. With ``stop``, a job whose
phases left their laws is taken out of its group at the end of that iteration and submitted again
with the measured durations, as a new arrival on its own nodes; it keeps its state and goes on with
its next iteration as soon as the policy places it (docs/scheduling.md 10). What a run cannot change
is the strict order of its rings: a placement that was admitted under another order is none here.
A job that no policy would place goes on alone when nobody else is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weave_scheduler.model import JobModel, Placement, PoolModel
from weave_scheduler.policies.admission import judge
from weave_scheduler.policies.decision import Decision
from weave_scheduler.policies.desk import Desk, Policy
from weave_scheduler.policies.drift import Drift, DriftWatch

__all__ = ["DriftDesk", "DriftRule"]


@dataclass(frozen=True, slots=True)
class DriftRule:
    """What counts as drift, and what follows.

    Attributes:
        window: iterations of a window.
        tolerance: share of the planned mean by which the measured one may differ, and of the
            planned max by which one duration may exceed it.
        stop: whether a job that drifted is submitted again.
    """

    window: int = 20
    tolerance: float = 0.15
    stop: bool = False


class DriftDesk:
    """The jobs of one run. ``order``: names in the strict order that runs, if one does."""

    def __init__(
        self,
        members: Sequence[tuple[JobModel, Placement]],
        pools: Mapping[str, PoolModel],
        policy: Policy,
        rule: DriftRule,
        order: Sequence[str] = (),
    ) -> None:
        self._rule = rule
        self._order = tuple(order)
        self._placement = {job.name: place for job, place in members}
        self._desk = Desk(policy, pools)
        self._watches: dict[str, DriftWatch] = {}
        self._found: dict[str, dict[str, Drift]] = {}  # drift that is not reported yet, per phase
        self._told: set[tuple[str, str]] = set()
        self._unplaceable: dict[str, tuple[JobModel, str]] = {}
        at = [job.name for job, _ in members]
        for job, place in members:
            pinned = replace(
                job,
                rollout_nodes=len(place.rollout),
                train_nodes=len(place.train),
                rollout_pins=place.rollout,
                train_pins=place.train,
            )
            self._watch(pinned)
            group = None if not self._desk.cluster.residents else 0
            self._desk.cluster.place(pinned, place, group)
        if self._order and self._desk.cluster.residents:
            resident = self._desk.cluster.residents[0]
            ring = tuple(at.index(name) for name in self._order if name in at)
            self._desk.cluster.residents[0] = replace(resident, order=ring)

    def measured(self, job: str, phase: str, seconds: float) -> None:
        """One duration of a placed job, without switch and wait. Unplanned phases are ignored."""
        watch = self._watches.get(job)
        if watch is None or phase not in watch.phases:
            return
        drift = watch.measured(phase, seconds)
        if drift is not None and (job, phase) not in self._told:
            self._found.setdefault(job, {})[phase] = drift

    def iteration_over(self, job: str, left: int) -> list[Drift]:
        """What has drifted, told once per phase. With ``stop`` and iterations ``left`` the job has
        been submitted again: ask :meth:`may_run`."""
        found = list(self._found.pop(job, {}).values())
        if not found:
            return []
        self._told |= {(job, drift.phase) for drift in found}
        if self._rule.stop and left > 0:
            again = self._watches[job].again(left)
            self._told = {(name, phase) for name, phase in self._told if name != job}
            self._watch(again)
            self._settle(self._desk.resubmit(job, again), {job: again})
        return found

    def ended(self, job: str) -> None:
        """The job is done, or failed; whoever waited may go on now."""
        self._found.pop(job, None)
        if self._unplaceable.pop(job, None) is None and self._is_here(job):
            self._settle(self._desk.leave(job))

    def may_run(self, job: str) -> bool:
        """Whether the job is placed."""
        return job in self._desk.cluster

    def reason(self, job: str) -> str:
        """Why the job waits; empty where it does not."""
        if job in self._unplaceable:
            return self._unplaceable[job][1]
        for waiting in self._desk.waiting:
            if waiting.job.name == job:
                return self._refusal(waiting.job) or waiting.reason
        return ""

    def _refusal(self, job: JobModel) -> str:
        """What the group that runs has against the job."""
        decision = self._desk.policy.decide(job, self._desk.cluster, explain=True)
        verdicts = [one.verdict for one in decision.candidates if one.group is not None]
        return next((one.reason for one in verdicts if one is not None and one.reason), "")

    def _watch(self, job: JobModel) -> None:
        rule = self._rule
        self._watches[job.name] = DriftWatch(
            job,
            len(self._placement[job.name].train),
            window=rule.window,
            tolerance=rule.tolerance,
            above=rule.tolerance,
            stop=rule.stop,
        )

    def _is_here(self, job: str) -> bool:
        return job in self._desk.cluster or any(one.job.name == job for one in self._desk.waiting)

    def _in_the_order_that_runs(self, job: str) -> bool:
        """Whether the job's group keeps its limits in the order of the rings that run."""
        resident = self._desk.cluster.home(job)
        if not self._order or resident.order is None:
            return True
        names = resident.group.names
        ring = tuple(names.index(name) for name in self._order if name in names)
        if not _same_ring(resident.order, ring):
            verdict = judge(resident.group, self._desk.policy.settings, ring)
            if not verdict.admitted or verdict.order != ring:
                return False
        self._desk.cluster.residents[resident.id] = replace(resident, order=ring)
        self._desk.cluster.changed.add(resident.id)
        return True

    def _settle(
        self, decisions: list[Decision], submitted: Mapping[str, JobModel] | None = None
    ) -> None:
        """Refuse what the run cannot do; where nobody is placed then, the first in line goes on."""
        while decisions:
            one = decisions.pop(0)
            if one.never:
                self._unplaceable[one.job] = (submitted or {})[one.job], one.reason
            elif one.chosen is not None and not self._in_the_order_that_runs(one.job):
                job = self._model(one.job)
                decisions += self._desk.leave(one.job)
                self._unplaceable[one.job] = job, "its limit needs another strict order"
        if len(self._desk.cluster):
            return
        for name, (job, _) in self._unplaceable.items():
            del self._unplaceable[name]
            self._desk.cluster.place(job, self._placement[name], None)
            return
        for waiting in self._desk.waiting:
            served = self._desk.leave(waiting.job.name)
            if served:  # somebody behind it could go on; it stays in line
                again = self._desk.submit(waiting.job)
                self._settle([*served, again], {waiting.job.name: waiting.job})
            else:
                name = waiting.job.name
                self._desk.cluster.place(waiting.job, self._placement[name], None)
            return

    def _model(self, job: str) -> JobModel:
        group = self._desk.cluster.home(job).group
        return group.members[group.names.index(job)].job


def _same_ring(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the same members follow each other."""
    turned = other.index(one[0])
    return tuple(one) == (*other[turned:], *other[:turned])
