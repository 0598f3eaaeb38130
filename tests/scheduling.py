"""Jobs, pools and clusters that the tests of the inter-group policies draw from."""

from __future__ import annotations

import numpy as np

from weave_scheduler.benchmarks.workload import table6_jobs
from weave_scheduler.laws import Constant, Lognormal
from weave_scheduler.model import (
    Degree,
    JobModel,
    Need,
    Node,
    Phase,
    PoolModel,
    SwitchCost,
    Tail,
    common_job,
)

GB = 10**9
H20, H800 = 1.85, 5.28

__all__ = ["GB", "H20", "H800", "job", "odd_job", "pools", "random_job", "table6_jobs"]


def pools(rollout=None, train=None, memory=2000 * GB):
    """8-GPU nodes of H20 and H800 at the paper's prices: 14.8 and 42.24 per hour."""
    return {
        "rollout": PoolModel("rollout", Node(8, H20, memory), rollout),
        "train": PoolModel("train", Node(8, H800, memory), train),
    }


def job(name, rollout_s, train_s, slo=2.0, *, need=0, train_need=0, **more):
    return common_job(
        name, rollout_s, train_s, slo=slo,
        rollout_need=Need(host_bytes=need), train_need=Need(host_bytes=train_need), **more,
    )  # fmt: skip


def random_job(name, generator, *, most_nodes=3, switches=True, degrees=True):
    """A common job of 1 to ``most_nodes`` nodes, in floats, so that ties do not happen."""
    rollout_s, train_s = generator.uniform(50, 600), generator.uniform(25, 300)
    nodes = int(generator.integers(1, most_nodes + 1))
    cost = [SwitchCost(float(generator.uniform(0, 8))) if switches else SwitchCost()] * 2
    return job(
        name, float(rollout_s), float(train_s), float(generator.uniform(1, 2.5)),
        need=int(generator.integers(100, 700)) * GB,
        train_need=int(generator.integers(100, 700)) * GB,
        rollout_nodes=nodes, train_nodes=nodes,
        degrees=tuple(Degree(d) for d in range(1, most_nodes + 1)) if degrees else (),
        switch_rollout=cost[0], switch_train=cost[1],
    )  # fmt: skip


def odd_job(name, generator):
    """A job outside the conditions of the closed form: a sync, a tail, or a latency."""
    kind = int(generator.integers(3))
    rollout_s, train_s = float(generator.uniform(50, 300)), float(generator.uniform(25, 200))
    tail = Tail(0.8, 1.0, 0.1) if kind == 1 else None
    phases = [
        Phase("rollout", ("rollout",), Constant(rollout_s), (), tail),
        Phase("train", ("train",), Constant(train_s), ("rollout",)),
    ]
    if kind != 1:
        held = ("train", "rollout") if kind == 0 else ()
        phases.append(Phase("weight_sync", held, Constant(5.0), ("train",)))
    return JobModel(name, tuple(phases), slo=float(generator.uniform(1, 2.5)))


def noisy_job(name, generator, cv=0.2):
    """Lognormal phases with a max, for mode quantile."""
    laws = [
        Lognormal(mean, cv, 2 * mean)
        for mean in (float(generator.uniform(50, 300)), float(generator.uniform(25, 200)))
    ]
    phases = (
        Phase("rollout", ("rollout",), laws[0]),
        Phase("train", ("train",), laws[1], ("rollout",)),
    )
    return JobModel(
        name, phases, slo=float(generator.uniform(1.3, 2.2)), iterations=100,
        seed=int(generator.integers(2**31)),
    )  # fmt: skip


def rng(seed):
    return np.random.default_rng(seed)
