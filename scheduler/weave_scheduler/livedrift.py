"""Drift while jobs run: tells ``DriftDesk`` what was measured, and holds a job that has to wait.

Called from the threads of the jobs; one condition guards the desk. A job that is submitted again
leaves the group between two iterations, when it holds no permit, and joins again when it is placed.
Its memory stays as it is, so it goes on exactly where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from weave_scheduler.policies.drift import Drift
from weave_scheduler.policies.driftdesk import DriftDesk
from weave_scheduler.records import DriftRecord, RunRecord, SliceRecord

__all__ = ["Gate", "LiveDrift"]

_LOOK_EVERY_S = 0.05  # how long an interrupt may go unnoticed


class Gate(Protocol):
    """Where a job leaves and joins: ``weave_rt``'s permits."""

    def leave(self, job: str) -> None: ...
    def join(self, job: str, devices: tuple[str, ...]) -> None: ...


class LiveDrift:
    """``speeds``: by job, how many seconds of the real job one second of the device clock is."""

    def __init__(
        self,
        desk: DriftDesk,
        speeds: Mapping[str, float],
        run: RunRecord,
        now_ns: Callable[[], int],
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._desk = desk
        self._speeds = speeds
        self._run = run
        self._now_ns = now_ns
        self._say = say
        self._stopped = stopped
        self._changed = threading.Condition()

    def measured(self, one: SliceRecord) -> None:
        """A slice of the run; phases after the first iteration count."""
        if one.kind == "phase" and one.ok and one.step and one.job in self._speeds:
            with self._changed:
                self._desk.measured(one.job, one.phase, one.seconds * self._speeds[one.job])

    def iteration_over(
        self, job: str, done: int, left: int, gate: Gate, devices: tuple[str, ...]
    ) -> bool:
        """Between two iterations: report, and where asked for wait for a place.

        Returns False where the run was interrupted meanwhile.
        """
        with self._changed:
            found = self._desk.iteration_over(job, left)
            if not found:
                return True
            again = found[0].stop and left > 0
            made = [self._record(drift, done, again) for drift in found]
            self._run.drifts += made
            placed, reason = self._desk.may_run(job), self._desk.reason(job)
            self._changed.notify_all()
        after = f" in iterations up to {done}"
        for drift in found:
            self._say(f"drift: {drift.reason}{after}")
        if not again:
            return True
        self._say(f"drift: job {job} is submitted again" + ("" if placed else f": {reason}"))
        if placed:
            return True
        for one in made:
            one.reason = reason
        return self._wait(job, made, gate, devices)

    def ended(self, job: str) -> None:
        """The job's thread is done; those who wait may be next."""
        with self._changed:
            self._desk.ended(job)
            self._changed.notify_all()

    def _wait(
        self, job: str, made: list[DriftRecord], gate: Gate, devices: tuple[str, ...]
    ) -> bool:
        start_ns = self._now_ns()
        gate.leave(job)
        with self._changed:
            while not (self._desk.may_run(job) or self._stopped()):
                self._changed.wait(_LOOK_EVERY_S)
        end_ns = self._now_ns()
        for one in made:
            one.waited_s = (end_ns - start_ns) / 1e9
        self._run.slices.append(SliceRecord("wait", job, "a place", None, (), start_ns, end_ns))
        if self._stopped():
            return False
        gate.join(job, devices)
        self._say(f"drift: job {job} goes on")
        return True

    def _record(self, drift: Drift, done: int, again: bool) -> DriftRecord:
        speed = self._speeds[drift.job]
        return DriftRecord(
            job=drift.job,
            phase=drift.phase,
            iteration=done - 1,
            at_ns=self._now_ns(),
            planned_mean_s=drift.planned_mean_s / speed,
            measured_mean_s=drift.measured_mean_s / speed,
            above_max=drift.above_max,
            resubmitted=again,
        )
