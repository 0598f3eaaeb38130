"""GRPO from nothing, in plain PyTorch: the real trainer behind ``kind: grpo``.

torch and reasoning-gym are imported when a job runs, not when its config is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from weave_scheduler.jobs.grpo.config import GrpoConfig
from weave_scheduler.jobs.grpo.records import GrpoResult, IterationRecord

if TYPE_CHECKING:
    from weave_rt import Job

__all__ = ["GrpoConfig", "GrpoResult", "IterationRecord", "run_grpo"]


def run_grpo(
    job: Job,
    config: GrpoConfig,
    seed: int,
    iterations: int,
    on_iteration: Callable[[IterationRecord], None],
    engine_tags: Mapping[str, str] | None = None,
) -> GrpoResult:
    """Trains one job for ``iterations`` on-policy iterations and returns its result.

    ``on_iteration`` is called after each iteration, outside all phases. ``engine_tags``: the
    engine's policies for ``weights`` (``keep``, the default, or ``reload``: new ones are published,
    which needs no rollout GPU) and ``kv_cache`` (``discard`` or ``keep``). The result depends on
    ``config``, ``seed`` and the number of torch threads only, to the bit.
    """
    from weave_scheduler.jobs.grpo.trainer import train_grpo

    return train_grpo(job, config, seed, iterations, on_iteration, engine_tags)
