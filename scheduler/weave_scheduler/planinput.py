"""From a spec to what the planner works with: jobs, pools, settings.

Durations are those of the spec's ``phases``; a job without them cannot be planned. An iteration is
the phases that the job runs every time, one after the other, each on the pools that it holds when
it runs. A node whose host memory the spec does not give is not tested for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from weave_scheduler.document import SpecError
from weave_scheduler.gpus import Gpu
from weave_scheduler.jobphases import pools_held, published_tags, tag_policy, turn_phases
from weave_scheduler.model import Degree, JobModel, Need, Node, Phase, PoolModel
from weave_scheduler.montecarlo import least_draws
from weave_scheduler.policies.settings import Settings
from weave_scheduler.spec import POOLS, JobSpec, NodeSpec, Outside, Spec
from weave_scheduler.specfile import SpecFile

__all__ = [
    "MOST_DRAWS",
    "UNKNOWN_BYTES",
    "check_quantile",
    "job_model",
    "job_models",
    "need_of",
    "pool_models",
    "settings_of",
]

#: Host memory of a node that the spec does not give: more than any need.
UNKNOWN_BYTES = 2**62

#: Joint draws of a test in mode ``quantile``, at most.
MOST_DRAWS = 5000


def settings_of(spec: Spec) -> Settings:
    """The policy's settings from the ``scheduler`` keys, with the draws that the quantile needs."""
    scheduler = spec.scheduler
    needed = least_draws(scheduler.quantile, scheduler.confidence)
    return Settings(
        replications=max(Settings().replications, needed),
        intra=scheduler.intra,
        mode=scheduler.mode,
        quantile=scheduler.quantile,
        confidence=scheduler.confidence,
        max_group=scheduler.max_group,
        require_unsaturated_after=scheduler.require_unsaturated_after,
    )


def pool_models(
    loaded: SpecFile, *, priced: bool = True, gpus: Mapping[str, Gpu] | None = None
) -> dict[str, PoolModel]:
    """The pools. ``priced``: a pool without a price is refused with a SpecError. ``gpus``: what is
    known of each pool's devices."""
    pools: dict[str, PoolModel] = {}
    for pool in POOLS:
        node: NodeSpec = getattr(loaded.spec.nodes, pool)
        if node.price is None and priced:
            if "nodes" not in loaded.spec.model_fields_set:
                raise loaded.missing_beside(
                    "jobs",
                    "nodes",
                    "is missing; a plan compares prices per GPU-hour, write on the level of jobs"
                    " nodes: {rollout: {price: 1.85}, train: {price: 5.28}}",
                )
            raise loaded.error(
                "is missing; a plan compares prices, give one per GPU-hour like price: 1.85",
                *("nodes", pool, "price"),
            )
        memory = UNKNOWN_BYTES if node.host_memory is None else node.host_memory
        known = Node(node.gpus, node.price or 0.0, memory, gpu=(gpus or {}).get(pool))
        pools[pool] = PoolModel(pool, known, node.count)
    return pools


def job_models(loaded: SpecFile) -> list[JobModel]:
    """All jobs in order of arrival (ties: of the spec). Raises SpecError with the line."""
    worst = loaded.spec.scheduler.mode == "worst-case"
    models = []
    for index, job in enumerate(loaded.spec.jobs):
        try:
            model = job_model(job)
            if worst:
                _ = model.solo_max_s
        except ValueError as error:
            raise SpecError(str(loaded.error(str(error), "jobs", index))) from None
        models.append(model)
    return sorted(models, key=lambda one: one.arrival_s)


def check_quantile(loaded: SpecFile) -> None:
    """Raises SpecError where the quantile needs more joint draws than a plan makes."""
    scheduler = loaded.spec.scheduler
    needed = least_draws(scheduler.quantile, scheduler.confidence)
    if scheduler.mode == "quantile" and needed > MOST_DRAWS:
        raise loaded.error(
            f"{scheduler.quantile} at confidence {scheduler.confidence} needs {needed} joint draws;"
            f" allowed: up to {MOST_DRAWS}, like 0.999 at 0.95",
            *("scheduler", "quantile"),
        )


def job_model(job: JobSpec) -> JobModel:
    """One job. Raises ValueError where a phase has no law, or a law that cannot be planned."""
    given = job.phases.given() if job.phases else {}
    phases: list[Phase] = []
    for name in turn_phases(job):
        if name not in given:
            if name in ("reward", "weight_sync"):
                continue  # not worth a law
            raise ValueError(
                f"job {job.name}: phases: {name} has no duration; a plan needs one, like"
                f" {name}: 100s"
            )
        after = (phases[-1].name,) if phases else ()
        phases.append(Phase(name, pools_held(job, name), given[name], after))
    if not phases:
        raise ValueError(f"job {job.name}: phases: none is given; a plan needs durations")
    rollout, train = (_asked(job, pool) for pool in POOLS)
    return JobModel(
        job.name,
        tuple(phases),
        slo=job.slo,
        iterations=job.iterations,
        arrival_s=job.arrival,
        rollout_nodes=rollout[0],
        train_nodes=train[0],
        degrees=tuple(Degree(one) for one in sorted(set(job.train_nodes or ()))),
        rollout_pins=rollout[1],
        train_pins=train[1],
        rollout_need=need_of(job, "rollout"),
        train_need=need_of(job, "train"),
        restart=job.restart_every > 0,
        seed=job.seed,
    )


def _asked(job: JobSpec, pool: str) -> tuple[int, tuple[int, ...]]:
    asked: int | tuple[int, ...] = getattr(job, pool)
    return (asked, ()) if isinstance(asked, int) else (len(asked), asked)


def need_of(job: JobSpec, pool: str) -> Need:
    """Bytes per node: what the job's state takes in host memory, and what a phase needs. What is
    published fills a second place on the host; what is reloaded and never published needs none."""
    sizes: dict[str, int] = getattr(job.state, pool) if job.state else {}
    policy = {tag: tag_policy(job, pool, tag) for tag in sizes}
    kept = sum(size for tag, size in sizes.items() if policy[tag] == "keep")
    stored = sum(size for tag, size in sizes.items() if policy[tag] != "discard")
    outside = getattr(job.unmanaged, pool) if job.unmanaged else Outside()
    published = published_tags(job) if pool == "rollout" else frozenset()
    spare = sum(size for tag, size in sizes.items() if tag in published)
    return Need(stored, sum(sizes.values()), kept, outside.sleeping, outside.running, spare)
