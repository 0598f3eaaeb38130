"""What the phases of a job of a spec are: their order, the pools that each holds, and what becomes
of the job's tags in them. Asked by plans and by runs, so that both mean the same.

A ``reload`` tag has its truth on the host. In the rollout pool ``weight_sync`` publishes a new
version of it, and needs the training pool only; what is published is trained, so the tag of that
name in the training pool is ``keep``. A version is that of all ``reload`` tags of the rollout pool.
Without a ``weight_sync``, and elsewhere, a ``reload`` tag is loaded once and stays as it is. Pure.
"""

from __future__ import annotations

from weave_scheduler.laws import POOLS_OF
from weave_scheduler.spec import JobSpec

__all__ = ["pools_held", "published_tags", "tag_policy", "turn_phases"]

_GRPO = ("rollout", "reward", "train", "weight_sync")

#: Tags whose contents do not survive a suspend unless the spec says otherwise.
_DISCARDED = frozenset({"kv_cache", "scratch"})


def turn_phases(job: JobSpec) -> tuple[str, ...]:
    """The phases that the job runs in every iteration, in order; ``init`` and the like are not."""
    if job.kind == "grpo":
        return _GRPO
    given = job.phases.given() if job.phases else {}
    return tuple(phase for phase in given if phase != "init")


def published_tags(job: JobSpec) -> frozenset[str]:
    """Tags of the rollout pool of which every ``weight_sync`` publishes a new version."""
    if "weight_sync" not in turn_phases(job):
        return frozenset()
    if job.kind == "grpo":  # its state is measured
        held = {"weights"}
    else:
        held = {tag for tag, size in (job.state.rollout if job.state else {}).items() if size}
    return frozenset(tag for tag, policy in job.policy.items() if policy == "reload") & held


def pools_held(job: JobSpec, phase: str) -> tuple[str, ...]:
    """The pools that a phase of the job holds, in the order in which they are taken."""
    if phase == "weight_sync" and published_tags(job):
        return ("train",)
    return POOLS_OF[phase]


def tag_policy(job: JobSpec, pool: str, tag: str) -> str:
    """``keep``, ``reload`` or ``discard``: what holds for that tag in that pool."""
    if pool == "train" and tag in published_tags(job):
        return "keep"
    default = "discard" if tag in _DISCARDED else "keep"
    return next((policy for name, policy in job.policy.items() if name == tag), default)
