"""What of a valid spec this version can run; everything else is refused, never ignored.

A key whose feature comes with a later version is validated in ``weave_scheduler.spec`` and named
here with one line. Also decides where the jobs run: one node per pool and job.
"""

from __future__ import annotations

from collections.abc import Iterator

from weave_scheduler.document import SpecError
from weave_scheduler.model import Placement
from weave_scheduler.spec import POOLS, JobSpec, NodeSpec
from weave_scheduler.specfile import SpecFile

__all__ = ["Placement", "check_runnable", "node_count", "notes", "place_jobs"]

_LATER = "is not supported by this version of weave run"

#: What the engine of a ``grpo`` job may do with its tags; others stay as they are by default.
_GRPO_POLICIES = {"weights": ("keep", "reload"), "kv_cache": ("discard", "keep")}


def check_runnable(loaded: SpecFile) -> dict[str, Placement]:
    """The placement of every job. Raises SpecError for what ``weave run`` cannot do."""
    for refusal in _refusals(loaded):
        raise refusal
    return place_jobs(loaded)


def place_jobs(loaded: SpecFile) -> dict[str, Placement]:
    """Pinned nodes as they are; a job that pins none gets the only node of the pool."""
    placements: dict[str, Placement] = {}
    for index, job in enumerate(loaded.spec.jobs):
        nodes: dict[str, tuple[int, ...]] = {}
        for pool in POOLS:
            asked = getattr(job, pool)
            count = node_count(loaded, pool)
            ids = tuple(range(count)) if asked == count else asked
            if isinstance(ids, int):
                raise loaded.error(
                    f"the {pool} pool has {count} nodes and the job does not say which one it"
                    f" uses; write {pool}: [0], or another id up to {count - 1}",
                    *("jobs", index, pool),
                )
            if len(ids) > 1:
                raise loaded.error(f"a job on {len(ids)} nodes {_LATER}", "jobs", index, pool)
            if ids[0] >= count:
                raise loaded.error(
                    f"{list(ids)} is out of range; the {pool} pool has {count} node(s)",
                    *("jobs", index, pool),
                )
            nodes[pool] = ids
        placements[job.name] = Placement(**nodes)
    return placements


def notes(loaded: SpecFile) -> list[str]:
    """What the reader should know about keys that ``weave run`` has no use for."""
    return [
        f"job {job.name}: state and phases of kind {job.kind} are measured; those in the spec"
        " serve plans only"
        for job in loaded.spec.jobs
        if job.kind != "synthetic" and (job.state is not None or job.phases is not None)
    ]


def node_count(loaded: SpecFile, pool: str) -> int:
    """How many nodes of the pool the devices of the spec make."""
    node: NodeSpec = getattr(loaded.spec.nodes, pool)
    devices = len(getattr(loaded.spec.devices, pool)) if loaded.spec.devices else 1
    return node.count or devices // node.gpus


def _refusals(loaded: SpecFile) -> Iterator[SpecError]:
    spec = loaded.spec
    for pool in POOLS:
        if getattr(spec.nodes, pool).gpus > 1:
            yield loaded.error(f"more than one GPU per node {_LATER}", "nodes", pool, "gpus")
    for index, job in enumerate(spec.jobs):
        yield from _job_refusals(loaded, index, job)
    scheduler = spec.scheduler
    for key, wrong in {
        "mode": scheduler.mode != "worst-case",
        "require_unsaturated_after": scheduler.require_unsaturated_after,
        "tail": scheduler.tail is not None,
    }.items():
        if wrong:
            value = getattr(scheduler, key)
            yield loaded.error(f"{value} {_LATER}; remove the key", "scheduler", key)
    if len(spec.jobs) > scheduler.max_group:
        yield loaded.error(
            f"the {len(spec.jobs)} jobs form one group; allow that many or run fewer",
            *("scheduler", "max_group"),
        )


def _job_refusals(loaded: SpecFile, index: int, job: JobSpec) -> Iterator[SpecError]:
    at = ("jobs", index)
    first = loaded.spec.jobs[0]
    if job.kind == "command":
        yield loaded.error(f"command {_LATER}; allowed: grpo, synthetic", *at, "kind")
    if job.threads != first.threads:
        yield loaded.error(
            f"is {job.threads}, but job {first.name} has {first.threads}; jobs of one process"
            " share one number of torch threads, give all the same",
            *at,
            "threads",
        )
    for key, wrong in {
        "arrival": job.arrival > 0,
        "ranks": job.ranks > 1,
        "train_nodes": job.train_nodes is not None and 1 not in job.train_nodes,
        "restart_every": job.restart_every > 0,
    }.items():
        if wrong:
            yield loaded.error(f"{getattr(job, key)} {_LATER}; remove the key", *at, key)
    for tag, policy in job.policy.items() if job.kind == "grpo" else ():
        allowed = _GRPO_POLICIES.get(tag, ("discard",) if tag == "scratch" else ("keep",))
        if policy not in allowed:
            yield loaded.error(
                f"{policy} does not work for a grpo job; allowed: {', '.join(allowed)}",
                *(*at, "policy", tag),
            )
