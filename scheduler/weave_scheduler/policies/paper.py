"""Algorithm 1 of the paper to the letter (section 4.2).

Worst-case durations; groups in order of age; a group whose load reaches its longest solo iteration
is skipped before any placement is tried; a node is refused when the need is not below what is left
(equality refuses); T_coexec from the intra-group policy; the best so far is replaced on strictly
lower cost only; a new group competes last, at the requested size. Three things the paper leaves
open are stated in ``weave_scheduler.policies.candidates`` and in docs/scheduling.md.
"""

from __future__ import annotations

from dataclasses import replace

from weave_scheduler.model import JobModel
from weave_scheduler.policies.admission import oversaturated
from weave_scheduler.policies.candidates import in_group, isolated, shaped, too_wide
from weave_scheduler.policies.cluster import Cluster
from weave_scheduler.policies.decision import Candidate, Decision
from weave_scheduler.policies.memory import too_large_alone
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.weave import judge_candidate

__all__ = ["PaperPolicy"]


class PaperPolicy:
    """``require_unsaturated_after`` of the settings adds the test that Figure 6 implies."""

    name = "paper"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = replace(
            settings or Settings(), mode="worst-case", prune_saturated=True, equal_memory=False
        )

    def decide(self, job: JobModel, cluster: Cluster, *, explain: bool = False) -> Decision:
        """Where the job goes; every candidate is judged, so ``explain`` changes nothing."""
        decision = Decision(job.name, self.name, None)
        best: Candidate | None = None
        for resident in sorted(cluster.residents.values(), key=lambda one: one.id):
            group = resident.group
            refused = shaped(group, job)
            if len(group.members) >= self.settings.max_group:
                refused = f"has {len(group.members)} jobs already"
            elif refused is None and oversaturated(group) >= 0:
                refused = "saturated before the job joins"
            if refused is not None:
                reason = f"group {resident.id}: {refused}"
                decision.ruled_out[reason] = decision.ruled_out.get(reason, 0) + 1
                continue
            for candidate in in_group(job, resident, cluster):
                judged = judge_candidate(candidate, job, cluster, self.settings)
                decision.candidates.append(judged)
                if judged.admitted and (best is None or judged.delta < best.delta):
                    best = judged
        self._own_group(decision, job, cluster, best)
        return decision

    def _own_group(
        self, decision: Decision, job: JobModel, cluster: Cluster, best: Candidate | None
    ) -> None:
        mistake = too_large_alone(
            job, cluster.pools, job.train_nodes, equal=self.settings.equal_memory
        )
        if mistake is not None:
            decision.never = best is None
            decision.reason = f"fits on no node: {mistake}"
        for candidate in isolated(job, cluster, (job.train_nodes,)) if mistake is None else []:
            judged = judge_candidate(candidate, job, cluster, self.settings)
            decision.candidates.append(judged)
            if judged.admitted and (best is None or judged.delta < best.delta):
                best = judged
        decision.chosen = best
        if best is None and not decision.reason:
            decision.reason = "waits: no group takes it, and too few nodes are free"
        elif best is not None:
            decision.reason = ""
        wide = too_wide(job, cluster)
        if best is None and wide is not None:
            decision.never, decision.reason = True, wide
