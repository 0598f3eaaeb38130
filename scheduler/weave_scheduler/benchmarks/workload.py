"""The paper's simulated jobs: Table 6 phase times, Table 2 footprints, its prices.

Phase times are uniform in the range of a profile (balanced, rollout-heavy, train-heavy) and a size
(S, M, L); ``mixed`` draws both uniformly. The paper gives neither models nor node counts for the
sizes; ours: S, M, L have the footprints of 7B, 14B, 32B, and 1 to ``most_nodes`` rollout nodes with
as many training nodes, every number up to that being a supported degree.
"""

from __future__ import annotations

import numpy as np

from weave_scheduler.model import Degree, JobModel, Need, Node, PoolModel, common_job

__all__ = ["paper_pools", "table6_jobs"]

#: Seconds of rollout and of training: [profile][size] (low, high).
_ROLLOUT = (
    ((50, 100), (100, 200), (200, 300)),
    ((100, 200), (200, 400), (400, 600)),
    ((25, 50), (50, 100), (100, 200)),
)
_TRAIN = (_ROLLOUT[0], _ROLLOUT[2], _ROLLOUT[1])

#: Bytes per 8-GPU node for 7B, 14B, 32B.
_ROLLOUT_BYTES = (275_700_000_000, 445_400_000_000, 490_300_000_000)
_TRAIN_BYTES = (240_000_000_000, 456_100_000_000, 520_400_000_000)


def paper_pools(
    rollout: int | None = None, train: int | None = None, host_bytes: int = 2 * 10**12
) -> dict[str, PoolModel]:
    """Nodes of 8 GPUs and 2 TB at the prices of Table 1; ``None``: as many as asked for."""
    return {
        "rollout": PoolModel("rollout", Node(8, 1.85, host_bytes), rollout),
        "train": PoolModel("train", Node(8, 5.28, host_bytes), train),
    }


def table6_jobs(
    count: int, seed: int, *, most_nodes: int = 4, slo: tuple[float, float] = (1.0, 2.0)
) -> list[JobModel]:
    """Mixed jobs with worst-case durations and SLO from U(slo)."""
    generator = np.random.default_rng(seed)
    jobs = []
    for number in range(count):
        profile, size = (int(one) for one in generator.integers(0, 3, 2))
        nodes = int(generator.integers(1, most_nodes + 1))
        jobs.append(
            common_job(
                f"j{number}",
                float(generator.uniform(*_ROLLOUT[profile][size])),
                float(generator.uniform(*_TRAIN[profile][size])),
                slo=float(generator.uniform(*slo)),
                rollout_nodes=nodes,
                train_nodes=nodes,
                degrees=tuple(Degree(one) for one in range(1, most_nodes + 1)),
                rollout_need=Need(host_bytes=_ROLLOUT_BYTES[size]),
                train_need=Need(host_bytes=_TRAIN_BYTES[size]),
            )
        )
    return jobs
