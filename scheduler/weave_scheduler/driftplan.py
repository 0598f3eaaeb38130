"""What a run is watched for: the planned laws of its jobs, and what follows from leaving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from weave_scheduler.model import JobModel, Placement
from weave_scheduler.planinput import job_model, pool_models, settings_of
from weave_scheduler.policies.driftdesk import DriftDesk, DriftRule
from weave_scheduler.policies.names import policy_of
from weave_scheduler.profile import read_profile, with_profile
from weave_scheduler.specfile import SpecFile
from weave_scheduler.support import node_count

__all__ = ["drift_desk"]


def drift_desk(
    loaded: SpecFile,
    placements: Mapping[str, Placement],
    profile: Path | None = None,
    order: Sequence[str] = (),
) -> DriftDesk | None:
    """The desk that watches a run; None where the spec turns it off or no job has a plan.

    Raises SpecError where jobs are to be submitted again and one of them cannot be planned.
    """
    scheduler = loaded.spec.scheduler
    if scheduler.drift == "off":
        return None
    stop = scheduler.drift == "resubmit"
    if profile is not None:
        loaded = with_profile(loaded, read_profile(profile))
    members: list[tuple[JobModel, Placement]] = []
    for job in loaded.spec.jobs:
        try:
            model = job_model(job)
            if stop:
                _ = model.solo_max_s
        except ValueError as error:
            if stop:
                raise loaded.error(
                    f"resubmit plans jobs anew: {error}", "scheduler", "drift"
                ) from None
            continue
        members.append((model, placements[job.name]))
    if not members:
        return None
    pools = {
        pool: replace(model, count=node_count(loaded, pool))
        for pool, model in pool_models(loaded, priced=False).items()
    }
    rule = DriftRule(scheduler.drift_window, scheduler.drift_tolerance, stop)
    policy = policy_of(scheduler.inter, settings_of(loaded.spec))
    return DriftDesk(members, pools, policy, rule, order)
