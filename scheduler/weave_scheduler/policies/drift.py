"""Drift: a job whose phases leave the law that it was planned with. Pure.

Over a window of ``window`` iterations per phase, a phase has drifted when its mean differs from the
planned mean (scaled to the job's nodes) by more than ``tolerance`` of it and by more than
``errors`` standard errors of the window, or when a duration exceeded the planned max, on which a
worst-case plan rests, by more than the share ``above`` of it (a clock is never exact); in both
cases by more than 1 % of the planned iteration, so that phases of milliseconds do not count. What
follows is the operator's choice: the report alone, or, with ``stop``, the job is stopped at the end
of its iteration and submitted again with the measured durations as its laws (paper 5.3: no online
regrouping).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from weave_scheduler.laws import Empirical
from weave_scheduler.model import JobModel

__all__ = ["Drift", "DriftWatch"]

#: Share of the planned iteration alone below which a difference matters to nobody.
_MATTERS = 0.01


@dataclass(frozen=True, slots=True)
class Drift:
    """One phase that left its plan.

    Attributes:
        above_max: durations of the window above the planned max.
        stop: the job is to be stopped at the end of this iteration and submitted again.
    """

    job: str
    phase: str
    planned_mean_s: float
    measured_mean_s: float
    above_max: int
    stop: bool

    @property
    def reason(self) -> str:
        ratio = self.measured_mean_s / self.planned_mean_s
        beyond = f"; {self.above_max} above the planned max" if self.above_max else ""
        return f"job {self.job}: {self.phase} takes {ratio:.2f} of its planned mean{beyond}"


class DriftWatch:
    """Watches one job; told every duration, says when a phase has drifted."""

    def __init__(
        self,
        job: JobModel,
        train_nodes: int | None = None,
        *,
        window: int = 20,
        tolerance: float = 0.15,
        errors: float = 3.0,
        above: float = 1e-9,
        stop: bool = False,
    ) -> None:
        if window < 2 or not tolerance > 0 or not above >= 0:
            raise ValueError("window, tolerance, above: allowed: 2 or more, more than 0, 0 or more")
        self._job = job
        self._scale = job.train_factor(train_nodes) if train_nodes is not None else 1.0
        self._tolerance, self._errors, self._stop = tolerance, errors, stop
        self._above = above
        self._seen: dict[str, deque[float]] = {
            phase.name: deque(maxlen=window) for phase in job.phases
        }
        self._window = window

    @property
    def phases(self) -> frozenset[str]:
        """The planned phases."""
        return frozenset(self._seen)

    def measured(self, phase: str, seconds: float) -> Drift | None:
        """One duration, without switch and wait. Raises KeyError for an unknown phase."""
        seen = self._seen[phase]
        seen.append(seconds)
        if len(seen) < self._window:
            return None
        law = next(one.law for one in self._job.phases if one.name == phase)
        scale = self._scale_of(phase)
        planned = law.mean_s * scale
        mean = math.fsum(seen) / len(seen)
        spread = math.fsum((one - mean) ** 2 for one in seen) / (len(seen) - 1)
        error = math.sqrt(spread / len(seen))
        off = abs(mean - planned)
        least = _MATTERS * self._job.solo_mean_s
        most = math.inf if law.max_s is None else law.max_s * scale
        above = sum(one > most + max(self._above * most, least) for one in seen)
        far = off > max(self._tolerance * planned, self._errors * error, least)
        if above == 0 and not far:
            return None
        return Drift(self._job.name, phase, planned, mean, above, self._stop)

    def again(self, iterations_left: int) -> JobModel:
        """The job as it is submitted again: measured durations as laws where a window is full.

        The planned max stays where no duration exceeded it. Else it keeps its ratio to the mean and
        is at least the longest duration.
        """
        phases = []
        for phase in self._job.phases:
            seen = self._seen[phase.name]
            if len(seen) < self._window:
                phases.append(phase)
                continue
            values = [one / self._scale_of(phase.name) for one in seen]
            most = phase.law.max_s
            if most is not None and max(values) > most:
                mean = math.fsum(values) / len(values)
                most = max(max(values), most * mean / phase.law.mean_s)
            phases.append(replace(phase, law=Empirical.of(values, most)))
        return replace(self._job, phases=tuple(phases), iterations=iterations_left)

    def _scale_of(self, phase: str) -> float:
        return self._scale if phase == "train" else 1.0
