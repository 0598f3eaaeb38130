"""``kind: grpo``: hands a job to the GRPO trainer, which is imported only here and only then."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from weave_rt.errors import UsageError
from weave_scheduler.jobs.kind import Iteration, JobResult, Setting, WrongConfig

if TYPE_CHECKING:
    import weave_rt
    from weave_scheduler.jobs.grpo import IterationRecord
    from weave_scheduler.spec import JobSpec

__all__ = ["GrpoKind"]


class GrpoKind:
    """Two tenants, real weights, real gradients; bytes and times are what they are.

    The trainer builds its models on the CPU, which sees emulated devices only."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def prepare(self, job: JobSpec) -> None:
        if not self._setting.readable:
            raise UsageError(
                "kind grpo computes on the CPU and runs on emulated devices only;"
                " list emulated devices, or give a trainer for GPUs a weave_rt.init of its own"
            )
        try:
            torch = importlib.import_module("torch")
            importlib.import_module("reasoning_gym")
        except ImportError as error:
            raise UsageError(
                f"kind grpo needs {error.name}, which is not installed;"
                " install the extra [examples]"
            ) from None
        self._check_task(job)
        if torch.get_num_threads() != job.threads:
            torch.set_num_threads(job.threads)  # of the whole process; all jobs agree on it

    def _check_task(self, job: JobSpec) -> None:
        """Build the job's task once: much of a config only its data set can judge."""
        from weave_scheduler.jobs.grpo import GrpoConfig
        from weave_scheduler.jobs.grpo.trainer import build_task

        try:
            build_task(GrpoConfig.from_mapping(job.config or {}), job.seed)
        except UsageError as error:
            raise WrongConfig(str(error)) from None
        except Exception as error:
            raise WrongConfig(
                f"grpo config: the task cannot be built: {type(error).__name__}: {error}"
            ) from error

    def run(
        self,
        rt_job: weave_rt.Job,
        spec_job: JobSpec,
        seed: int,
        iterations: int,
        on_iteration: Callable[[Iteration], None],
    ) -> JobResult:
        import torch

        from weave_scheduler.jobs.grpo import GrpoConfig, run_grpo

        def forward(record: IterationRecord) -> None:
            on_iteration(
                Iteration(
                    record.step,
                    loss=record.loss,
                    reward=record.reward_mean,
                    lengths=record.lengths,
                )
            )

        config = GrpoConfig.from_mapping(spec_job.config or {})
        tags: dict[str, str] = dict(spec_job.policy.items())
        result = run_grpo(rt_job, config, seed, iterations, forward, tags)
        return JobResult(
            weights_digest=result.weights_digest,
            loss_digest=result.loss_digest,
            losses=tuple(result.losses),
            rewards=tuple(result.rewards),
            state_bytes=result.state_bytes,
            torch_threads=torch.get_num_threads(),
        )
