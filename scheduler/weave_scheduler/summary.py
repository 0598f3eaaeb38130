"""summary.json: what a run and its solo runs measured, in the words of the design. Pure.

Keys whose value was not measured are absent, never zero.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weave_scheduler.compare import comparable, first_difference
from weave_scheduler.costs import Prices
from weave_scheduler.records import JobRecord, RunRecord, SliceRecord
from weave_scheduler.spec import POOLS, JobSpec, Spec

__all__ = [
    "Runs",
    "drift_rows",
    "excess_rows",
    "learning",
    "measured",
    "summarise",
    "switch_rows",
    "unmanaged",
]


@dataclass(slots=True)
class Runs:
    """What was run: all jobs together, each alone, or both."""

    spec: Spec
    together: RunRecord | None = None
    solo: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def all(self) -> list[RunRecord]:
        """Every run, the solo ones first, in the order in which they were made."""
        return [*self.solo.values(), *([self.together] if self.together else [])]

    @property
    def solo_wall_s(self) -> float | None:
        """All jobs one after the other; None unless each was run alone to its end."""
        alone = [self.solo.get(job.name) for job in self.spec.jobs]
        if any(run is None or run.failed or run.stopped for run in alone):
            return None
        return sum(run.wall_s for run in alone if run is not None)

    def job(self, name: str) -> tuple[JobRecord | None, JobRecord | None]:
        """The records of a job alone and together."""
        alone, shared = self.solo.get(name), self.together
        return (
            alone.jobs[0] if alone else None,
            next((job for job in shared.jobs if job.name == name), None) if shared else None,
        )


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the keys that have no value."""
    return {key: value for key, value in row.items() if value is not None}


def summarise(runs: Runs, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The whole summary.json."""
    prices = Prices.of(runs)
    mode = "together" if not runs.solo else ("solo" if not runs.together else "compare-solo")
    return measured(
        {
            "format": "weave-run",
            "version": 1,
            "conditions": dict(conditions),
            "mode": mode,
            "clock": "device",
            "interrupted": True if any(run.stopped for run in runs.all) else None,
            "jobs": [_job_row(runs, job, prices) for job in runs.spec.jobs],
            "pools": _pool_rows(runs),
            "switches": switch_rows(runs.together) if runs.together else None,
            "unmanaged": (excess_rows(runs.together) or None) if runs.together else None,
            "drift": (drift_rows(runs.together) or None) if runs.together else None,
            "totals": _totals(runs, prices),
        }
    )


def learning(rewards: Sequence[float]) -> tuple[float, float, float | None] | None:
    """Mean reward of the first and the last tenth, and the standard error of the difference.

    None without rewards; no error where a tenth is a single iteration.
    """
    if len(rewards) < 2:
        return None
    tenth = max(1, len(rewards) // 10)
    first, last = rewards[:tenth], rewards[-tenth:]
    error = None
    if tenth >= 2:
        error = ((statistics.variance(first) + statistics.variance(last)) / tenth) ** 0.5
    return statistics.fmean(first), statistics.fmean(last), error


def switch_rows(run: RunRecord) -> list[dict[str, Any]]:
    """The reports of all switches, each with its job, its devices and when it began."""
    return [
        {
            "at_s": one.start_ns / 1e9,
            "job": one.job,
            "devices": list(one.devices),
            **(one.report or {"seconds": one.seconds}),
        }
        for one in sorted(run.slices, key=lambda one: one.start_ns)
        if one.kind == "switch"
    ]


def drift_rows(run: RunRecord) -> list[dict[str, Any]]:
    """The phases that left their plan, in order of time; times of the device clock."""
    return [
        measured(
            {
                "job": one.job,
                "phase": one.phase,
                "iteration": one.iteration,
                "at_s": one.at_ns / 1e9,
                "planned_mean_s": one.planned_mean_s,
                "measured_mean_s": one.measured_mean_s,
                "above_max": one.above_max,
                "resubmitted": one.resubmitted,
                "waited_s": one.waited_s,
                "reason": one.reason,
            }
        )
        for one in run.drifts
    ]


def excess_rows(run: RunRecord) -> list[dict[str, Any]]:
    """The phases that took more of a device outside regions than recorded, in order of time."""
    return [
        measured({**values, "at_s": at_ns / 1e9})
        for one in run.excesses
        for values in [asdict(one)]
        for at_ns in [values.pop("at_ns")]
    ]


def _job_row(runs: Runs, job: JobSpec, prices: Prices | None) -> dict[str, Any]:
    alone, shared = runs.job(job.name)
    record = shared or alone
    if record is None:  # interrupted before its turn
        return {"name": job.name, "kind": job.kind, "iterations": 0}
    done = record.error is None and not record.stopped
    both = alone is not None and shared is not None and comparable(alone, shared)
    learned = learning(record.rewards)
    slices = runs.together.slices if runs.together else runs.solo[job.name].slices
    metrics = record.metrics
    return measured(
        {
            "name": job.name,
            "kind": job.kind,
            "iterations": record.iterations,
            "error": record.error,
            "wall_s": shared.wall_s if shared else None,
            "solo_s": alone.wall_s if alone and not (alone.error or alone.stopped) else None,
            "slowdown": shared.wall_s / alone.wall_s if both and shared and alone else None,
            "waited_s": sum(_seconds(slices, "wait", job.name)) if shared else None,
            "reward_first": learned[0] if learned else None,
            "reward_last": learned[1] if learned else None,
            "reward_se": learned[2] if learned else None,
            "loss_digest": record.loss_digest,
            "weights_digest": record.weights_digest,
            "identical_to_solo": (
                first_difference(alone, shared) is None if both and alone and shared else None
            ),
            "slo": job.slo,
            **(_slo(runs, job, shared) if shared and done else {}),
            "cost": prices.shares().get(job.name) if prices and shared else None,
            "warm_switches": _count(metrics, "weave/warm_resumes"),
            "cold_starts": _count(metrics, "weave/cold_starts"),
            "torch_threads": record.torch_threads,
            "state_bytes": record.state_bytes or None,
            "unmanaged": unmanaged(metrics) or None,
        }
    )


def _slo(runs: Runs, job: JobSpec, record: JobRecord) -> dict[str, bool | None]:
    """Mean iteration, without the first one, against worst-case solo and own phase times."""
    ends = record.iteration_ends_ns
    if job.slo is None or len(ends) < 2 or runs.together is None:
        return {}
    mean_s = (ends[-1] - ends[0]) / (len(ends) - 1) / 1e9
    own_s = sum(
        one.seconds
        for one in runs.together.slices
        if one.kind == "phase" and one.job == job.name and one.step
    ) / (len(ends) - 1)
    laws = job.phases.given() if job.kind == "synthetic" and job.phases else {}
    limits = [law.max_s for phase, law in laws.items() if phase != "init"]
    worst = [limit for limit in limits if limit is not None]
    planned = None
    if worst and len(worst) == len(limits):
        planned = mean_s <= job.slo * sum(worst) / runs.together.devices[0].speed
    return {"slo_met_planned": planned, "slo_met_realised": mean_s <= job.slo * own_s}


def _pool_rows(runs: Runs) -> list[dict[str, Any]]:
    rows = []
    for pool in POOLS:
        together = _busy(runs.together, pool) if runs.together else None
        alone = [_busy(run, pool) for run in runs.solo.values()]
        solo_span = sum(busy.span_s for busy in alone)
        solo_share = None
        if runs.solo_wall_s is not None and solo_span > 0:
            solo_share = sum(busy.phases_s for busy in alone) / solo_span
        rows.append(
            measured(
                {
                    "name": pool,
                    "phases_s": together.phases_s if together else None,
                    "switch_s": together.switch_s if together else None,
                    "idle_s": together.idle_s if together else None,
                    "busy_share": together.share if together else None,
                    "busy_share_solo": solo_share,
                }
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Busy:
    """Device-seconds of one pool in one run; a switch inside a phase is part of that phase."""

    span_s: float
    phases_s: float
    switch_s: float

    @property
    def idle_s(self) -> float:
        return max(0.0, self.span_s - self.phases_s - self.switch_s)

    @property
    def share(self) -> float | None:
        return self.phases_s / self.span_s if self.span_s > 0 else None


def _busy(run: RunRecord, pool: str) -> _Busy:
    nodes = {device.node for device in run.devices if device.pool == pool}
    phases_s = switch_s = 0.0
    for node in nodes:
        here = [one for one in run.slices if node in one.devices]
        phases = sorted((one.start_ns, one.end_ns) for one in here if one.kind == "phase")
        phases_s += sum(end_ns - start_ns for start_ns, end_ns in phases) / 1e9
        for one in here:
            if one.kind == "switch":
                before = bisect.bisect_right(phases, (one.start_ns, math.inf)) - 1
                if before < 0 or phases[before][1] <= one.start_ns:  # else it is inside a phase
                    switch_s += one.seconds
    return _Busy(run.wall_s * len(nodes), phases_s, switch_s)


def _totals(runs: Runs, prices: Prices | None) -> dict[str, Any]:
    together, solo_s = runs.together, runs.solo_wall_s
    whole = together is not None and not together.failed and not together.stopped
    reports = [row for row in switch_rows(together) if row] if together else []
    return measured(
        {
            "wall_s": together.wall_s if together else None,
            "solo_wall_s": solo_s,
            "gain": solo_s / together.wall_s if whole and together and solo_s else None,
            "bytes_out": _sum(reports, "bytes_out") if together else None,
            "bytes_in": _sum(reports, "bytes_in") if together else None,
            "bytes_spilled": (together.bytes_spilled or None) if together else None,
            "cost": prices.total() if prices and together else None,
            "cost_solo": prices.total_solo() if prices and solo_s is not None else None,
        }
    )


def _sum(rows: Iterable[Mapping[str, Any]], key: str) -> int | None:
    values = [row[key] for row in rows if key in row]
    return sum(values) if values else None


def _seconds(slices: Iterable[SliceRecord], kind: str, job: str) -> Iterable[float]:
    return (one.seconds for one in slices if one.kind == kind and one.job == job)


def unmanaged(metrics: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """What a job took of a device of each pool outside regions, as recorded, from its metrics."""
    found: dict[str, dict[str, int]] = {}
    for pool in POOLS:
        for when in ("running", "sleeping"):
            size = _count(metrics, f"weave/unmanaged_{when}_bytes/{pool}")
            if size is not None:
                found.setdefault(pool, {})[when] = size
    return found


def _count(metrics: Mapping[str, float], key: str) -> int | None:
    return int(metrics[key]) if key in metrics else None
