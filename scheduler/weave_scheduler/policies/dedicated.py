"""Baselines without sharing: every job on nodes of its own, on both pools or on training nodes.

``solo disaggregated``: each job holds its rollout and training nodes alone; an iteration takes its
solo time. ``co-located``: all phases of a job run on its training nodes, one after the other, so
that it needs no rollout node; a rollout that took R on N_R rollout nodes takes
R x rollout_factor x N_R / N_T there, where ``rollout_factor`` says how much slower one training
node rolls out than one rollout node (the paper gives none; 4.0 / 3.35, the ratio of the memory
bandwidths of its Table 1, since decoding is bound by memory). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weave_scheduler.model import JobModel, PoolModel

__all__ = ["ROLLOUT_FACTOR", "Dedicated", "colocated", "solo_disaggregated"]

#: Seconds of a rollout on one training node per second on one rollout node.
ROLLOUT_FACTOR = 4.0 / 3.35


@dataclass(frozen=True, slots=True)
class Dedicated:
    """One job on nodes of its own: price per hour and mean seconds of an iteration."""

    job: str
    price_per_h: float
    iteration_s: float
    rollout_nodes: int
    train_nodes: int

    @property
    def price_per_iteration(self) -> float:
        return self.price_per_h * self.iteration_s / 3600


def solo_disaggregated(job: JobModel, pools: Mapping[str, PoolModel]) -> Dedicated:
    price = sum(pools[pool].node.cost_per_h * job.nodes(pool) for pool in pools)
    return Dedicated(job.name, price, job.solo_mean_s, job.rollout_nodes, job.train_nodes)


def colocated(
    job: JobModel, pools: Mapping[str, PoolModel], rollout_factor: float = ROLLOUT_FACTOR
) -> Dedicated:
    """Raises ValueError for a factor that is not above 0."""
    if not rollout_factor > 0:
        raise ValueError(f"rollout_factor: {rollout_factor!r}; allowed: more than 0")
    stretch = rollout_factor * job.rollout_nodes / job.train_nodes
    seconds = sum(
        phase.law.mean_s * (stretch if phase.pools == ("rollout",) else 1.0) for phase in job.phases
    )
    price = pools["train"].node.cost_per_h * job.train_nodes
    return Dedicated(job.name, price, seconds, 0, job.train_nodes)
