"""Our inter-group policy: the cheapest placement that keeps every limit, first found.

Candidates of all groups are taken in order of the price they add; equal prices in order of the
group's id (older groups first), then of the nodes' load. So the answer is the first admitted
candidate, and a group of its own where nothing dearer is left in front of it. Bounds over arrays
rule most groups out at once (``weave_scheduler.policies.table``); what is left is judged by
``weave_scheduler.policies.admission``, or, for groups of common jobs in mode ``worst-case``, by a
compiled form of the same tests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from weave_scheduler.model import JobModel
from weave_scheduler.policies.admission import judge, oversaturated, solo_s
from weave_scheduler.policies.candidates import grown, in_group, isolated, shaped, too_wide
from weave_scheduler.policies.cluster import Cluster, Resident
from weave_scheduler.policies.decision import Candidate, Decision, Verdict
from weave_scheduler.policies.memory import (
    Residency,
    memory_mistake,
    summed_host_bytes,
    too_large_alone,
)
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.table import GroupTable

__all__ = ["WeavePolicy", "judge_candidate"]


def judge_candidate(
    candidate: Candidate,
    job: JobModel,
    cluster: Cluster,
    settings: Settings,
    residency: Residency = summed_host_bytes,
) -> Candidate:
    """Memory, then saturation where asked for, then the limits of all members."""
    group = grown(candidate, job, cluster)
    mistake = memory_mistake(
        group, cluster.pools, job.name, equal=settings.equal_memory, residency=residency
    )
    if mistake is not None:
        return candidate.judged(Verdict(False, "memory", mistake))
    alone = candidate.group is None
    if settings.require_unsaturated_after and not alone and oversaturated(group) > 0:
        return candidate.judged(Verdict(False, "saturated", "the group would be over-saturated"))
    order = None
    if candidate.group is not None:
        known = cluster.residents[candidate.group].order
        order = None if known is None else (*known, len(group.members) - 1)
    return candidate.judged(judge(group, settings, order))


class WeavePolicy:
    """One policy object serves live and simulated clusters; it holds no state but its table."""

    name = "weave"

    def __init__(
        self, settings: Settings | None = None, residency: Residency = summed_host_bytes
    ) -> None:
        self.settings = settings or Settings()
        self._residency = residency
        self._table = GroupTable(self.settings, residency is summed_host_bytes)

    def decide(self, job: JobModel, cluster: Cluster, *, explain: bool = False) -> Decision:
        """Where the job goes. ``explain`` judges every candidate, also those dearer than the best.

        Raises ValueError where a law has no max and the mode needs it.
        """
        solo_s(job, self.settings)
        decision = Decision(job.name, self.name, None)
        alone = self._own_group(job, cluster)
        self._refuse(decision, job, cluster, alone)
        if decision.never:
            return decision
        fresh = next((one for one in self._affordable(alone, cluster) if one.admitted), None)
        limit = float("inf") if fresh is None else fresh.delta
        if explain:
            found = self._explained(decision, job, cluster, limit)
        else:
            found = self._first(decision, job, cluster, limit)
        decision.candidates += self._affordable(alone, cluster)
        decision.chosen = found or fresh
        if decision.chosen is None:
            decision.reason = _waiting(job, cluster, alone)
        else:
            decision.reason = ""
        return decision

    def _own_group(self, job: JobModel, cluster: Cluster) -> list[Candidate]:
        """Judged candidates of a new group, cheapest first, up to the first admitted one."""
        made = []
        for one in isolated(job, cluster, job.supported(), even_full=True):
            mistake = too_large_alone(
                job, cluster.pools, len(one.placement.train), equal=self.settings.equal_memory
            )
            if mistake is not None:
                made.append(one.judged(Verdict(False, "memory", mistake)))
                continue
            made.append(one.judged(judge(grown(one, job, cluster), self.settings)))
            if made[-1].admitted:
                break
        if not made:
            nothing = isolated(job, Cluster(cluster.pools), (job.train_nodes,), even_full=True)[0]
            made = [nothing.judged(Verdict(False, "capacity", "its nodes belong to other groups"))]
        return made

    def _affordable(self, alone: list[Candidate], cluster: Cluster) -> list[Candidate]:
        """The same, where enough nodes are free now."""
        checked = []
        for one in alone:
            short = _short(one, cluster)
            if one.admitted and short is not None:
                one = one.judged(Verdict(False, "capacity", short))
            checked.append(one)
        return checked

    def _refuse(
        self, decision: Decision, job: JobModel, cluster: Cluster, alone: list[Candidate]
    ) -> None:
        """A job whose need exceeds every node fits nowhere, whoever leaves."""
        wide = too_wide(job, cluster)
        if wide is not None:
            decision.never, decision.reason = True, wide
            return
        memory = [one.verdict for one in alone if one.verdict and one.verdict.by == "memory"]
        if len(memory) == len(job.supported()):
            decision.never = True
            decision.candidates = alone
            decision.reason = f"fits on no node: {memory[0].reason}"

    def _first(
        self, decision: Decision, job: JobModel, cluster: Cluster, limit: float
    ) -> Candidate | None:
        """The first admitted candidate below the price ``limit`` or at it."""
        scan = self._table.scan(job, cluster, limit)
        decision.ruled_out = scan.ruled_out
        quick = scan.quick()
        for candidate in _in_order(scan.generic, job, cluster, limit):
            if quick is not None and _key(quick) <= _key(candidate):
                break
            judged = judge_candidate(candidate, job, cluster, self.settings, self._residency)
            decision.candidates.append(judged)
            if judged.admitted:
                return judged
        if quick is not None:
            decision.candidates.append(quick)
        return quick

    def _explained(
        self, decision: Decision, job: JobModel, cluster: Cluster, limit: float
    ) -> Candidate | None:
        best: Candidate | None = None
        for resident in sorted(cluster.residents.values(), key=lambda one: one.id):
            refused = self._whole_group(job, resident)
            if refused is not None:
                reason = f"group {resident.id}: {refused}"
                decision.ruled_out[reason] = decision.ruled_out.get(reason, 0) + 1
                continue
            for candidate in in_group(job, resident, cluster):
                judged = judge_candidate(candidate, job, cluster, self.settings, self._residency)
                decision.candidates.append(judged)
                if (
                    judged.admitted
                    and judged.delta <= limit
                    and (best is None or judged.delta < best.delta)
                ):
                    best = judged
        return best

    def _whole_group(self, job: JobModel, resident: Resident) -> str | None:
        group = resident.group
        if len(group.members) >= self.settings.max_group:
            return f"has {len(group.members)} jobs already"
        if self.settings.prune_saturated and oversaturated(group) >= 0:
            return "saturated before the job joins"
        shape = shaped(group, job)
        return None if shape is None else f"the job {shape}"


def _key(candidate: Candidate) -> tuple[float, int]:
    assert candidate.group is not None
    return candidate.delta, candidate.group


def _in_order(
    residents: list[Resident], job: JobModel, cluster: Cluster, limit: float
) -> Iterator[Candidate]:
    """Candidates of these groups by price, then group, then load; made as they are asked for."""

    def of(resident: Resident) -> Iterator[tuple[float, int, int, Candidate]]:
        for place, candidate in enumerate(in_group(job, resident, cluster)):
            if candidate.delta <= limit:
                yield candidate.delta, resident.id, place, candidate

    for _, _, _, candidate in heapq.merge(*(of(one) for one in residents)):
        yield candidate


def _short(candidate: Candidate, cluster: Cluster) -> str | None:
    """Why the new nodes are not there; None where they are."""
    for pool in cluster.pools:
        free, need = cluster.free(pool), len(candidate.new_nodes.of(pool))
        if free is not None and need > free:
            return f"needs {need} {pool} node(s), {free} free"
    return None


def _waiting(job: JobModel, cluster: Cluster, alone: list[Candidate]) -> str:
    last = alone[-1]
    if last.admitted:
        return f"waits: no group takes it, and one of its own {_short(last, cluster)}"
    assert last.verdict is not None
    return f"waits: no group takes it, and alone {last.verdict.reason}"
