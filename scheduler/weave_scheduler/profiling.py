"""``weave profile``: each job alone, once at its limit and K times as it comes, and what that says.

At the limit every response has the token limit (paper 5): a modelled job runs with its laws at
their ``max``. The GRPO trainer always decodes ``max_new_tokens`` tokens, so all its iterations are
at the limit and one pass serves both. Each pass has one iteration more in front, which is not
counted (first touch of memory). Times and bytes are those of the real job: a modelled job's are
multiplied by the devices' speed and scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt.errors import UsageError, WeaveError
from weave_scheduler.conditions import conditions
from weave_scheduler.jobs import Iteration
from weave_scheduler.laws import Constant, Empirical
from weave_scheduler.live import Listener, run_jobs
from weave_scheduler.profile import FORMAT, VERSION
from weave_scheduler.records import DeviceRecord, JobRecord, RunRecord
from weave_scheduler.spec import JobSpec, Phases
from weave_scheduler.specfile import SpecFile, load_spec
from weave_scheduler.summary import unmanaged
from weave_scheduler.traces.lawdata import law_to_data

__all__ = ["ProfileFailed", "profile_spec"]

_LEAST_S = 1e-9  # a phase that took no time the clock could see
_QUANTILES = tuple(round(0.05 * step, 2) for step in range(21))


class ProfileFailed(WeaveError, RuntimeError):
    """A job failed while it was profiled; says which and why."""


def profile_spec(
    path: Path, iterations: int, listener: Listener, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Profile every job of a spec alone. Raises SpecError, UsageError, ProfileFailed."""
    if iterations < 1:
        raise UsageError(f"{iterations} iterations; allowed: 1 or more")
    loaded = load_spec(path)
    jobs, devices, started = [], [], ""
    for job in loaded.spec.jobs:
        limit = _run(loaded, _at_limit(job), 1, listener, stopped) if _has_limit(job) else None
        plain = _run(loaded, job, iterations, listener, stopped)
        jobs.append(_measured(job, plain, limit))
        devices, started = plain.run.devices, started or plain.run.started_at
    block = conditions(devices, started)
    return {"format": FORMAT, "version": VERSION, "conditions": block, "jobs": jobs}


def _has_limit(job: JobSpec) -> bool:
    laws = job.phases.given() if job.phases else {}
    return job.kind == "synthetic" and all(law.max_s is not None for law in laws.values())


def _at_limit(job: JobSpec) -> JobSpec:
    laws = job.phases.given() if job.phases else {}
    worst = {name: Constant(law.max_s) for name, law in laws.items() if law.max_s is not None}
    return job.model_copy(update={"phases": Phases.model_construct(None, **worst)})


@dataclass(slots=True)
class _Pass:
    """One run of one job."""

    run: RunRecord
    lengths: list[int]

    def seconds(self, phase: str) -> list[float]:
        """Of the phase in each counted iteration, on the device clock."""
        return [
            max(_LEAST_S, one.seconds)
            for one in self.run.slices
            if one.kind == "phase" and one.phase == phase and one.ok and (one.step or 0) > 0
        ]

    def phases(self) -> list[str]:
        """The phases of an iteration, in order."""
        return list(dict.fromkeys(
            one.phase for one in self.run.slices if one.kind == "phase" and one.step is not None
        ))  # fmt: skip


def _run(
    loaded: SpecFile,
    job: JobSpec,
    iterations: int,
    listener: Listener,
    stopped: Callable[[], bool],
) -> _Pass:
    longer = job.model_copy(update={"iterations": iterations + 1})
    jobs = tuple(longer if one.name == job.name else one for one in loaded.spec.jobs)
    spec = loaded.spec.model_copy(update={"jobs": jobs})
    ear = _Ear(listener)
    run = run_jobs(replace(loaded, spec=spec), [job.name], ear, stopped)
    record = run.jobs[0]
    if record.error is not None:
        raise ProfileFailed(f"job {job.name} {record.error}")
    if record.stopped:
        raise KeyboardInterrupt
    return _Pass(run, ear.lengths)


def _measured(job: JobSpec, plain: _Pass, limit: _Pass | None) -> dict[str, Any]:
    modelled = job.kind == "synthetic"
    device = plain.run.devices[0]
    speed, scale = (device.speed, device.scale) if modelled else (1.0, 1.0)
    at_limit = plain if job.kind == "grpo" else limit
    phases: dict[str, Any] = {}
    for phase in plain.phases():
        values = [seconds * speed for seconds in plain.seconds(phase)]
        found: dict[str, Any] = {"mean_s": sum(values) / len(values), "n": len(values)}
        limit_s = None
        if at_limit is not None:
            limit_s = max(values + [seconds * speed for seconds in at_limit.seconds(phase)])
            found["limit_s"] = limit_s
        phases[phase] = found | {"law": law_to_data(Empirical.of(values, limit_s))}
    record = plain.run.jobs[0]
    whole: dict[str, Any] = {
        "name": job.name,
        "kind": job.kind,
        "phases": phases,
        "bytes": {
            pool: {tag: round(size * scale) for tag, size in tags.items()}
            for pool, tags in record.state_bytes.items()
        },
    }
    outside = unmanaged(record.metrics)
    if outside:
        whole["unmanaged"] = {
            pool: {when: round(size * scale) for when, size in sizes.items()}
            for pool, sizes in outside.items()
        }
    if plain.lengths:
        drawn = np.quantile(plain.lengths, _QUANTILES)
        whole["tokens"] = {
            "responses": len(plain.lengths),
            "quantiles": [
                {"q": q, "tokens": float(tokens)}
                for q, tokens in zip(_QUANTILES, drawn, strict=True)
            ],
        }
    return whole


@dataclass(slots=True)
class _Ear:
    """Passes on how a run goes and keeps the lengths of the counted responses."""

    listener: Listener
    lengths: list[int] = field(default_factory=list)

    def devices(self, devices: Sequence[DeviceRecord]) -> None:
        self.listener.devices(devices)

    def note(self, text: str) -> None:
        self.listener.note(text)

    def iteration(self, job: str, iteration: Iteration, total: int) -> None:
        if iteration.step > 0:
            self.lengths += iteration.lengths
        self.listener.iteration(job, iteration, total)

    def job_ended(self, job: JobRecord) -> None:
        self.listener.job_ended(job)

    def trace(self, text: str) -> None:
        self.listener.trace(text)
