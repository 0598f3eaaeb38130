"""Arrivals and durations of the Philly cluster trace, with RL phases drawn from job classes.

The CSV is that of the Pollux artifact (petuum/adaptdl, branch osdi21-artifact; source msr-fiddle
philly-traces, CC-BY 4.0): timestamp, duration in seconds, num_gpus, gpu_time, cluster. It says when
jobs come and how long they stay, nothing of phases: each job gets a class, its phase times from the
class's ranges, and as many iterations as fill its duration alone (paper 7.5 and Table 6).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from weave_scheduler.document import SpecError
from weave_scheduler.laws import Constant
from weave_scheduler.model import JobModel, Phase
from weave_scheduler.traces.fields import number, seconds_between, timestamp

__all__ = ["JobClass", "Skipped", "read_philly", "table6_classes"]

_COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


@dataclass(frozen=True, slots=True)
class JobClass:
    """Uniform ranges of worst-case phase times, in seconds."""

    name: str
    rollout_s: tuple[float, float]
    train_s: tuple[float, float]


@dataclass(frozen=True)
class Skipped:
    """Rows that became no job, by reason."""

    reasons: Counter[str]


def table6_classes() -> tuple[JobClass, ...]:
    """The nine classes of the paper's Table 6; drawn from uniformly they are its mixed workload."""
    even, long, short = (
        ((50, 100), (100, 200), (200, 300)),
        ((100, 200), (200, 400), (400, 600)),
        ((25, 50), (50, 100), (100, 200)),
    )
    profiles = {
        "balanced": (even, even),
        "rollout-heavy": (long, short),
        "train-heavy": (short, long),
    }
    return tuple(
        JobClass(f"{profile}-{size}", rollout[at], train[at])
        for profile, (rollout, train) in profiles.items()
        for at, size in enumerate("SML")
    )


def read_philly(
    lines: Iterable[str],
    *,
    seed: int,
    classes: Sequence[JobClass] | None = None,
    min_duration_s: float = 3600.0,
    max_duration_s: float = 142.9 * 3600,
    min_gpus: int = 1,
    limit: int | None = None,
    slo: tuple[float, float] = (1.0, 2.0),
    file: str = "philly.csv",
) -> tuple[tuple[JobModel, ...], Skipped]:
    """Jobs in order of arrival, the first at 0 s, and what was left out and why.

    Everything drawn follows from ``seed`` and the row alone. Raises SpecError ``FILE:LINE: field``
    for a row that is wrong; rows outside the bounds are skipped and counted.
    """
    rows, skipped = _rows(lines, file, (min_duration_s, max_duration_s), min_gpus)
    if limit is not None:
        skipped["over the limit"] += max(0, len(rows) - limit)
        rows = rows[:limit]
    chosen = table6_classes() if classes is None else tuple(classes)
    jobs = [_job(row, seed, chosen, slo, rows[0][0]) for row in rows]
    return tuple(jobs), Skipped(skipped)


def _rows(
    lines: Iterable[str], file: str, bounds: tuple[float, float], min_gpus: int
) -> tuple[list[tuple[datetime, float, int]], Counter[str]]:
    """Time, duration and line of the rows within the bounds, in order of time."""
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise SpecError(f"{file}:1: columns: must be {', '.join(_COLUMNS)}")
    kept: list[tuple[datetime, float, int]] = []
    skipped: Counter[str] = Counter()
    first: datetime | None = None
    for row in reader:
        try:
            time = timestamp(row["timestamp"], "timestamp")
            first = first or time
            seconds_between(first, time, "timestamp")
            duration_s = number(_numeric(row["duration"]), "duration", above=0)
            gpus = number(_numeric(row["num_gpus"]), "num_gpus", least=0)
        except ValueError as error:
            raise SpecError(f"{file}:{reader.line_num}: {error}") from None
        if gpus < max(1, min_gpus):
            skipped["too few GPUs"] += 1
        elif not bounds[0] <= duration_s <= bounds[1]:
            skipped["too short" if duration_s < bounds[0] else "too long"] += 1
        else:
            kept.append((time, duration_s, reader.line_num))
    kept.sort()
    return kept, skipped


def _numeric(cell: str | None) -> object:
    try:
        return float(cell or "")
    except ValueError:
        return cell


def _job(
    row: tuple[datetime, float, int],
    seed: int,
    classes: Sequence[JobClass],
    slo: tuple[float, float],
    origin: datetime,
) -> JobModel:
    time, duration_s, line = row
    generator = np.random.default_rng([seed, line])
    kind = classes[int(generator.integers(len(classes)))]
    rollout_s = float(generator.uniform(*kind.rollout_s))
    train_s = float(generator.uniform(*kind.train_s))
    return JobModel(
        f"philly-{line}",
        (
            Phase("rollout", ("rollout",), Constant(rollout_s)),
            Phase("train", ("train",), Constant(train_s), ("rollout",)),
        ),
        slo=float(generator.uniform(*slo)),
        iterations=max(1, round(duration_s / (rollout_s + train_s))),
        arrival_s=(time - origin).total_seconds(),
        seed=line,
    )
