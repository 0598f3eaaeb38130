"""What a run cost: the group's price over time, shared among the jobs that were there. Pure.

Prices are per GPU-hour and only their ratios mean anything. At every moment the jobs present share
the price of all nodes that the group holds, in proportion to what each would pay alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weave_scheduler.spec import POOLS, JobSpec, NodeSpec

if TYPE_CHECKING:
    from weave_scheduler.summary import Runs

__all__ = ["Prices"]


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per hour: of the group, and of each job alone."""

    runs: Runs
    group: float
    alone: dict[str, float]

    @classmethod
    def of(cls, runs: Runs) -> Prices | None:
        """None unless the spec prices both pools."""
        per_node: dict[str, float] = {}
        for pool in POOLS:
            node: NodeSpec = getattr(runs.spec.nodes, pool)
            if node.price is None:
                return None
            per_node[pool] = node.price * node.gpus
        used = {
            (pool, number)
            for job in runs.spec.jobs
            for pool in POOLS
            for number in _nodes(job, pool)
        }
        alone = {
            job.name: sum(per_node[pool] * len(_nodes(job, pool)) for pool in POOLS)
            for job in runs.spec.jobs
        }
        return cls(runs, sum(per_node[pool] for pool, _ in used), alone)

    def total(self) -> float | None:
        """Of the run together."""
        return self.group * self.runs.together.wall_s / 3600 if self.runs.together else None

    def total_solo(self) -> float:
        """Of every job alone on its own nodes."""
        return sum(self.alone[name] * run.wall_s / 3600 for name, run in self.runs.solo.items())

    def shares(self) -> dict[str, float]:
        """Each job's part of the total; the parts add up to it."""
        if self.runs.together is None:
            return {}
        jobs = self.runs.together.jobs
        moments = sorted({0, *(edge for job in jobs for edge in (job.start_ns, job.end_ns))})
        shares = dict.fromkeys((job.name for job in jobs), 0.0)
        for start_ns, end_ns in itertools.pairwise(moments):
            there = [job.name for job in jobs if job.start_ns <= start_ns < job.end_ns]
            paying = there or list(shares)
            weight = sum(self.alone[name] for name in paying)
            hours = (end_ns - start_ns) / 3.6e12
            for name in paying:
                part = self.alone[name] / weight if weight else 1 / len(paying)
                shares[name] += self.group * hours * part
        return shares


def _nodes(job: JobSpec, pool: str) -> tuple[int, ...]:
    asked: tuple[int, ...] | int = getattr(job, pool)
    return tuple(range(asked)) if isinstance(asked, int) else asked
