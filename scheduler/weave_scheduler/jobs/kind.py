"""The interface behind which a job runs, and the table of kinds.

The runner knows nothing else about jobs. Today it calls ``run`` in a thread; a node agent calls it
in a process of its own later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from weave_rt.errors import UsageError

if TYPE_CHECKING:
    import weave_rt
    from weave_scheduler.spec import JobSpec

__all__ = [
    "Clock",
    "Iteration",
    "JobKind",
    "JobResult",
    "Setting",
    "Stopped",
    "WrongConfig",
    "check_config",
    "kind_of",
]


class Stopped(Exception):
    """The run was interrupted; raised inside a job to end it early."""


class WrongConfig(UsageError):
    """The mistake is inside the job's ``config``."""


class Clock(Protocol):
    """The clock of a device, in nanoseconds."""

    def now_ns(self) -> int: ...
    def sleep_until_ns(self, deadline_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job may know about where it runs.

    Attributes:
        clock: the device clock by which modelled phases wait.
        scale, speed: those of the run's devices; 1 on a GPU.
        readable: whether the CPU can see the bytes of every device (emulated ones only).
        stopped: whether the run was interrupted; asked between iterations and while waiting.
    """

    clock: Clock
    scale: float = 1.0
    speed: float = 1.0
    readable: bool = True
    stopped: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One finished iteration; ``loss``, ``reward`` and the ``lengths`` of responses in tokens only
    where the kind has them."""

    step: int
    loss: float | None = None
    reward: float | None = None
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job that ran to its end leaves behind; digests are hexadecimal."""

    weights_digest: str
    loss_digest: str | None = None
    losses: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    state_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    torch_threads: int | None = None


class JobKind(Protocol):
    """One kind of job. ``prepare`` is called before the clock of the run starts."""

    def prepare(self, job: JobSpec) -> None:
        """Import what is slow to import. Raises UsageError where the job cannot run here, and
        WrongConfig where its ``config`` is the reason."""

    def run(
        self,
        rt_job: weave_rt.Job,
        spec_job: JobSpec,
        seed: int,
        iterations: int,
        on_iteration: Callable[[Iteration], None],
    ) -> JobResult:
        """Run to the end. What it raises ends this job only."""


def check_config(job: JobSpec) -> None:
    """Raise UsageError where the settings inside ``config`` are wrong. Opens no device."""
    if job.kind == "grpo":
        from weave_scheduler.jobs.grpo import GrpoConfig

        GrpoConfig.from_mapping(job.config or {})


def kind_of(job: JobSpec, setting: Setting) -> JobKind:
    """The kind of a job, ready to run there. pre: the spec was found runnable."""
    if job.kind == "synthetic":
        from weave_scheduler.jobs.synthetic import SyntheticKind

        return SyntheticKind(setting)
    if job.kind == "grpo":
        from weave_scheduler.jobs.training import GrpoKind

        return GrpoKind(setting)
    raise ValueError(f"kind {job.kind} cannot be run")
