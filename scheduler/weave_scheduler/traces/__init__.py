"""Jobs from files: our own trace format, cluster traces, step logs of trainers.

``read_trace`` and ``write_trace`` for format ``weave-trace`` version 1, ``read_philly`` for
arrivals and durations of the Philly trace, ``read_step_log`` for verl, NeMo-RL and ROLL.
"""

from weave_scheduler.traces.importing import Imported, LogOptions, import_jobs
from weave_scheduler.traces.philly import JobClass, Skipped, read_philly, table6_classes
from weave_scheduler.traces.steplogs import StepTimes, job_from_steps, read_step_log
from weave_scheduler.traces.trace import (
    Trace,
    TraceError,
    parse_trace,
    read_trace,
    trace_text,
    write_trace,
)

__all__ = [
    "Imported",
    "JobClass",
    "LogOptions",
    "Skipped",
    "StepTimes",
    "Trace",
    "TraceError",
    "import_jobs",
    "job_from_steps",
    "parse_trace",
    "read_philly",
    "read_step_log",
    "read_trace",
    "table6_classes",
    "trace_text",
    "write_trace",
]
