"""The live runner: opens the devices, plugs the state machine into the runtime, runs the jobs.

Jobs are threads of this process (a node agent and processes take their place later, behind
``weave_scheduler.jobs``). A job that raises ends alone; the others go on.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import weave_rt
from weave_rt.calibration import calibrated
from weave_rt.conditions import now_utc
from weave_rt.errors import GrowthRefused, HostMemoryError, UsageError
from weave_scheduler.devices import OpenDevices, open_devices, pinned_bytes
from weave_scheduler.intra import state_for
from weave_scheduler.jobs import (
    Iteration,
    JobKind,
    JobResult,
    Setting,
    Stopped,
    WrongConfig,
    check_config,
    kind_of,
)
from weave_scheduler.jobs.synthetic import scaled_bytes
from weave_scheduler.livedrift import LiveDrift
from weave_scheduler.liveorder import live_turns
from weave_scheduler.policies.driftdesk import DriftDesk
from weave_scheduler.policy import GroupPolicy
from weave_scheduler.records import (
    DeviceRecord,
    ExcessRecord,
    JobRecord,
    RunRecord,
    SliceRecord,
)
from weave_scheduler.spec import POOLS, JobSpec
from weave_scheduler.specfile import SpecFile
from weave_scheduler.support import Placement, check_runnable
from weave_scheduler.units import format_bytes

__all__ = ["Listener", "check_jobs", "run_jobs"]


class Listener(Protocol):
    """Told how a run goes, from any thread; every method returns at once."""

    def devices(self, devices: Sequence[DeviceRecord]) -> None: ...
    def note(self, text: str) -> None: ...
    def iteration(self, job: str, iteration: Iteration, total: int) -> None: ...
    def job_ended(self, job: JobRecord) -> None: ...
    def trace(self, text: str) -> None: ...


@dataclass(slots=True)
class _Work:
    """One job and what it needs to run."""

    spec: JobSpec
    kind: JobKind
    placement: Placement
    record: JobRecord


def run_jobs(
    loaded: SpecFile,
    names: Sequence[str],
    listener: Listener,
    stopped: Callable[[], bool],
    order: Sequence[str] | None = None,
    drift: DriftDesk | None = None,
) -> RunRecord:
    """Run the named jobs together until all have ended; ``order``: of a strict group, by name;
    ``drift``: watches them.

    A job's failure is in its record. Raises SpecError or UsageError for the user's mistakes and
    DriverError where the devices themselves fail.
    """
    placements = check_jobs(loaded)
    opened = open_devices(loaded, listener.note)
    try:
        first = opened.first
        readable = all(device.kind == "emulated" for device in opened.all)
        setting = Setting(first, first.scale, first.speed, readable, stopped)
        work = [
            _Work(job, kind_of(job, setting), placements[job.name], JobRecord(job.name, job.kind))
            for job in loaded.spec.jobs
        ]
        listener.devices(opened.records())
        _prepare(loaded, work, opened)  # all, so that the first job alone finds a mistake in any
        work = [one for one in work if one.spec.name in names]
        _calibrate(opened, listener)
        run = RunRecord(
            devices=opened.records(),
            jobs=[one.record for one in work],
            started_at=now_utc(),
        )
        running = [one.spec.name for one in work]
        turns = live_turns([(one.spec, one.placement) for one in work], opened.node_names())
        ranks = None if order is None else [running.index(name) for name in order]
        policy = GroupPolicy(state_for(loaded.spec.scheduler.intra, turns, ranks))
        _Runner(opened, work, run, listener, stopped, drift).run(policy, loaded.spec.plan)
        run.bytes_spilled = sum(device.stats()["bytes_spilled"] for device in opened.all)
    except BaseException:
        with suppress(Exception):  # the first failure is the one to report
            opened.close()
        raise
    opened.close()
    return run


def check_jobs(loaded: SpecFile) -> dict[str, Placement]:
    """Where the jobs will run. Raises SpecError for what can be seen without any device."""
    placements = check_runnable(loaded)
    for index, job in enumerate(loaded.spec.jobs):
        mistake = _mistake_in_config(job)
        if mistake is not None:
            raise loaded.error(mistake, "jobs", index, "config")
    return placements


def _mistake_in_config(job: JobSpec) -> str | None:
    try:
        check_config(job)
    except UsageError as error:
        return str(error)
    return None


def _prepare(loaded: SpecFile, work: Sequence[_Work], opened: OpenDevices) -> None:
    """The last things that can fail before the jobs start."""
    for one in work:
        index = loaded.spec.jobs.index(one.spec)
        _check_capacity(loaded, index, one, opened)
        try:
            one.kind.prepare(one.spec)
        except UsageError as error:
            key = "config" if isinstance(error, WrongConfig) else "kind"
            raise loaded.error(_one_line(error), "jobs", index, key) from None


def _calibrate(opened: OpenDevices, listener: Listener) -> None:
    """Rates of plain copies, so that the reports of switches have a limit to be held against."""
    try:
        for device in opened.all:
            calibrated(device)
    except HostMemoryError as error:  # a small budget; the jobs may still fit
        listener.note(f"switches are reported without a limit: {error}")


def _check_capacity(loaded: SpecFile, index: int, one: _Work, opened: OpenDevices) -> None:
    if one.spec.kind != "synthetic" or one.spec.state is None:
        return
    for pool in POOLS:
        sizes: dict[str, int] = getattr(one.spec.state, pool)
        for node in getattr(one.placement, pool):
            device = opened.pools[pool][node]
            block = device.block_bytes
            blocks = sum(-(-scaled_bytes(size, device.scale) // block) for size in sizes.values())
            need = blocks * block
            if need > device.usable_bytes:
                raise loaded.error(
                    f"needs {format_bytes(int(need * device.scale))}, but {pool}:{node}"
                    f" ({device.name}) has {format_bytes(int(device.usable_bytes * device.scale))}"
                    " for jobs; make the job smaller or the device larger",
                    *("jobs", index, "state", pool),
                )


class _Runner:
    """The threads of one run."""

    def __init__(
        self,
        opened: OpenDevices,
        work: Sequence[_Work],
        run: RunRecord,
        listener: Listener,
        stopped: Callable[[], bool],
        drift: DriftDesk | None,
    ) -> None:
        self._opened = opened
        self._work = work
        self._run = run
        self._listener = listener
        self._stopped = stopped
        self._origin_ns = 0
        self._drift = self._watch(drift) if drift is not None else None

    def _watch(self, desk: DriftDesk) -> LiveDrift:
        speed = self._opened.first.speed
        speeds = {
            one.spec.name: speed if one.spec.kind == "synthetic" else 1.0 for one in self._work
        }
        say = self._listener.note
        return LiveDrift(desk, speeds, self._run, self._now_ns, say, self._stopped)

    def run(self, policy: GroupPolicy, plan: str) -> None:
        runtime = weave_rt.LocalRuntime(
            self._opened.pools, policy=policy, observer=self._observe, plan=plan
        )
        try:
            self._origin_ns = self._opened.first.now_ns()
            threads = [
                threading.Thread(target=self._job, args=(runtime, one), name=one.spec.name)
                for one in self._work
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._run.end_ns = max(one.record.end_ns for one in self._work)
        finally:
            runtime.close()

    def _job(self, runtime: weave_rt.LocalRuntime, one: _Work) -> None:
        record = one.record
        record.start_ns = self._now_ns()
        try:
            _keep(record, self._inside(runtime, one))
        except Stopped:
            record.stopped = True
        except BaseException as error:  # one job's end is not the end of the others
            record.error = self._described(one.spec, error)
            record.users_mistake = _is_users_mistake(error)
            self._listener.trace(traceback.format_exc())
        record.end_ns = self._now_ns()
        if self._drift is not None:
            self._drift.ended(record.name)
        self._listener.job_ended(record)

    def _inside(self, runtime: weave_rt.LocalRuntime, one: _Work) -> JobResult:
        spec, record = one.spec, one.record
        nodes = tuple(
            name for pool in ("train", "rollout")
            for name in runtime.placement(pool, getattr(one.placement, pool))
        )  # fmt: skip

        def on_iteration(iteration: Iteration) -> None:
            record.iteration_ends_ns.append(self._now_ns())
            if iteration.loss is not None:
                record.losses.append(iteration.loss)
            if iteration.reward is not None:
                record.rewards.append(iteration.reward)
            self._listener.iteration(spec.name, iteration, spec.iterations)
            if self._stopped() and record.iterations < spec.iterations:
                raise Stopped(f"interrupted after iteration {iteration.step}")
            left = spec.iterations - record.iterations
            if self._drift is not None and not self._drift.iteration_over(
                spec.name, record.iterations, left, runtime.permits, nodes
            ):
                raise Stopped(f"interrupted while it waited after iteration {iteration.step}")

        if self._stopped():
            raise Stopped("interrupted before the start")
        config = {
            "runtime": runtime,
            "rollout": list(one.placement.rollout),
            "train": list(one.placement.train),
            "unmanaged": pinned_bytes(spec, self._opened.first.scale),
        }
        with weave_rt.init(job_id=spec.name, config=config) as rt_job:
            result = one.kind.run(rt_job, spec, spec.seed, spec.iterations, on_iteration)
            record.metrics = dict(rt_job.pop_metrics())
        return result

    def _now_ns(self) -> int:
        return int(self._opened.first.now_ns()) - self._origin_ns

    def _observe(self, one: weave_rt.Slice) -> None:
        if one.kind == "unmanaged":
            at_ns, node = one.end_ns - self._origin_ns, one.devices[0]
            found = ExcessRecord(one.job, one.phase, one.step, node, at_ns, **(one.report or {}))
            self._run.excesses.append(found)
            return
        slice_ = SliceRecord(
            kind=one.kind,
            job=one.job,
            phase=one.phase,
            step=one.step,
            devices=tuple(one.devices),
            start_ns=one.start_ns - self._origin_ns,
            end_ns=one.end_ns - self._origin_ns,
            ok=one.ok,
            report=one.report,
        )
        self._run.slices.append(slice_)
        if self._drift is not None:
            self._drift.measured(slice_)

    def _described(self, spec: JobSpec, error: BaseException) -> str:
        """One line: where it was, and what it said."""
        where = next(
            (one for one in reversed(self._run.slices) if one.job == spec.name and not one.ok), None
        )
        place = ""
        if where is not None:
            place = f" in {where.phase}" + (
                f" of iteration {where.step}" if where.step is not None else ""
            )
        if isinstance(error, GrowthRefused) and _is_users_mistake(error):
            scale = self._opened.first.scale if spec.kind == "synthetic" else 1  # as its sizes are
            return (
                f"failed{place}: it needs {format_bytes(int(error.bytes_needed * scale))} of device"
                f" memory, but the device has {format_bytes(int(error.bytes_usable * scale))} for"
                " jobs; make the job smaller or the device larger"
            )
        said = _one_line(error)
        return f"failed{place}: {type(error).__name__}" + (f": {said}" if said else "")


def _keep(record: JobRecord, result: JobResult) -> None:
    record.weights_digest = result.weights_digest
    record.loss_digest = result.loss_digest
    record.state_bytes = result.state_bytes
    record.torch_threads = result.torch_threads


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _is_users_mistake(error: BaseException) -> bool:
    """Whether the job alone is too large for its device; other failures are the job's own."""
    return isinstance(error, GrowthRefused) and error.bytes_needed > error.bytes_usable > 0
