"""From jobs of the planner to an instance of the exact optimum. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weave_scheduler.exact.columns import Instance
from weave_scheduler.model import JobModel, Member, Placement, PoolModel
from weave_scheduler.policies.admission import limit_s
from weave_scheduler.policies.memory import host_bytes
from weave_scheduler.policies.settings import Settings
from weave_scheduler.policies.table import common_times

__all__ = ["instance_of"]


def instance_of(
    jobs: Sequence[JobModel], pools: Mapping[str, PoolModel], settings: Settings
) -> Instance:
    """Worst-case durations. Raises ValueError for jobs of several rollout nodes or of another kind
    than one rollout and one training."""
    degrees = sorted({degree for job in jobs for degree in job.supported()})
    shape = (len(jobs), len(degrees))
    train, stored = np.full(shape, np.inf), np.zeros(shape)
    rollout = np.zeros(len(jobs))
    for row, job in enumerate(jobs):
        if job.rollout_nodes != 1:
            raise ValueError(
                f"job {job.name} asks for {job.rollout_nodes} rollout nodes; the exact optimum"
                " takes jobs of one"
            )
        for column, degree in enumerate(degrees):
            if degree not in job.supported():
                continue
            member = Member(job, Placement((0,), tuple(range(degree))))
            times = common_times(member, settings)
            if times is None:
                raise ValueError(f"job {job.name}: its iteration is not a rollout and a training")
            rollout[row] = times[0]
            train[row, column] = times[2]
            stored[row, column] = host_bytes(job, "train", degree)
    return Instance(
        rollout_s=rollout,
        train_s=train,
        rollout_switch_s=np.array([job.switch_rollout.foreground_s for job in jobs]),
        train_switch_s=np.array([job.switch_train.foreground_s for job in jobs]),
        limit_s=np.array([limit_s(job, settings) for job in jobs]),
        rollout_bytes=np.array(
            [float(host_bytes(job, "rollout", job.train_nodes)) for job in jobs]
        ),
        train_bytes=stored,
        degrees=np.array(degrees, dtype=np.int64),
        rollout_price=pools["rollout"].node.cost_per_h,
        train_price=pools["train"].node.cost_per_h,
        rollout_memory=float(pools["rollout"].node.host_bytes),
        train_memory=float(pools["train"].node.host_bytes),
        max_group=settings.max_group,
    )
