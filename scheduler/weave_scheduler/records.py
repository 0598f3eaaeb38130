"""What a run leaves behind, measured: plain values that travel between processes as JSON.

All times are nanoseconds of the device clock since the run began. A key that was not measured is
None here and absent in what is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

__all__ = [
    "DeviceRecord",
    "DriftRecord",
    "ExcessRecord",
    "JobRecord",
    "RunRecord",
    "SliceRecord",
    "load_run",
]


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device as it was opened."""

    pool: str
    node: str
    spec: str
    kind: str
    name: str
    uuid: str
    driver: int
    capacity_bytes: int
    usable_bytes: int
    block_bytes: int
    scale: float
    speed: float
    host_limited: bool


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """A stretch of time of one job: it waits for a permit, is switched in, or runs a phase."""

    kind: str
    job: str
    phase: str
    step: int | None
    devices: tuple[str, ...]
    start_ns: int
    end_ns: int
    ok: bool = True
    report: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(slots=True)
class JobRecord:
    """One job of a run. ``end_ns`` is when its thread was done, well or not."""

    name: str
    kind: str
    start_ns: int = 0
    end_ns: int = 0
    iteration_ends_ns: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    loss_digest: str | None = None
    weights_digest: str | None = None
    state_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    torch_threads: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    users_mistake: bool = False
    stopped: bool = False

    @property
    def iterations(self) -> int:
        return len(self.iteration_ends_ns)

    @property
    def wall_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(slots=True)
class DriftRecord:
    """A phase whose measured times left its plan, seen after ``iteration``.

    Attributes:
        above_max: durations of the window above the planned max.
        resubmitted: whether the job was submitted again because of it.
        waited_s: until it was placed again, with the ``reason``; None: it was placed at once.
    """

    job: str
    phase: str
    iteration: int
    at_ns: int
    planned_mean_s: float
    measured_mean_s: float
    above_max: int
    resubmitted: bool
    waited_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ExcessRecord:
    """A phase in which a job took more of a device outside regions than its record said, in bytes
    of the device; ``usable_bytes``: what blocks may use there since."""

    job: str
    phase: str
    iteration: int | None
    node: str
    at_ns: int
    recorded_running: int
    recorded_sleeping: int
    measured_running: int
    measured_sleeping: int
    usable_bytes: int


@dataclass(slots=True)
class RunRecord:
    """One run of one or several jobs in one process.

    Attributes:
        bytes_spilled: what left pinned memory for files, all devices together.
    """

    devices: list[DeviceRecord]
    jobs: list[JobRecord] = field(default_factory=list)
    slices: list[SliceRecord] = field(default_factory=list)
    end_ns: int = 0
    started_at: str = ""
    drifts: list[DriftRecord] = field(default_factory=list)
    excesses: list[ExcessRecord] = field(default_factory=list)
    bytes_spilled: int = 0

    @property
    def wall_s(self) -> float:
        """From the start of the jobs, all at once, to the end of the last one."""
        return self.end_ns / 1e9

    @property
    def failed(self) -> list[JobRecord]:
        return [job for job in self.jobs if job.error is not None]

    @property
    def stopped(self) -> bool:
        return any(job.stopped for job in self.jobs)


_RUN = TypeAdapter(RunRecord)


def load_run(values: dict[str, Any]) -> RunRecord:
    """From what ``dataclasses.asdict`` gave, after a journey as JSON. Raises ValueError."""
    return _RUN.validate_python(values)
