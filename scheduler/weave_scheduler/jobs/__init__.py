"""How a job is run: one small interface, and one class for each ``kind`` of a spec."""

from weave_scheduler.jobs.kind import (
    Iteration,
    JobKind,
    JobResult,
    Setting,
    Stopped,
    WrongConfig,
    check_config,
    kind_of,
)

__all__ = [
    "Iteration",
    "JobKind",
    "JobResult",
    "Setting",
    "Stopped",
    "WrongConfig",
    "check_config",
    "kind_of",
]
