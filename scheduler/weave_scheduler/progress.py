"""What a person sees while jobs run: a moving bar per job on a terminal, plain lines elsewhere.

Everything goes to stderr, so that stdout holds results only. Called from job threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from weave_scheduler.jobs import Iteration
from weave_scheduler.records import DeviceRecord, JobRecord
from weave_scheduler.units import format_bytes, format_duration

__all__ = ["Screen"]

_LINE_EVERY_S = 2.0  # per job, where lines are printed instead of bars


class Screen:
    """A listener of runs. Enter it around them; ``debug`` also shows tracebacks of jobs."""

    def __init__(self, *, debug: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._debug = debug
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._next_line_s: dict[str, float] = {}
        self._shown: list[str] = []
        self._progress: Progress | None = None

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[detail]}"),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            with suppress(OSError):
                self._progress.stop()
            self._progress = None

    def stage(self, text: str) -> None:
        """A new part of the run begins; bars start again."""
        with self._lock:
            if self._progress is not None:
                for bar in self._bars.values():
                    self._progress.remove_task(bar)
            self._bars.clear()
            self._next_line_s.clear()
        self._print(text)

    def devices(self, devices: Sequence[DeviceRecord]) -> None:
        """Said once for each set of devices; a solo run opens the same ones again."""
        lines = [
            f"{one.node}: {one.spec} ({one.name}), {format_bytes(one.usable_bytes)} for jobs,"
            f" block {format_bytes(one.block_bytes)}"
            for one in devices
        ]
        if lines != self._shown:
            self._shown = lines
            for line in lines:
                self._print(line)

    def note(self, text: str) -> None:
        line = f"note: {text}"
        if line not in self._shown:
            self._shown.append(line)
            self._print(line)

    def trace(self, text: str) -> None:
        if self._debug:
            self._print(text)

    def iteration(self, job: str, iteration: Iteration, total: int) -> None:
        done = iteration.step + 1
        parts = []
        if iteration.reward is not None:
            parts.append(f"reward {iteration.reward:.3f}")
        if iteration.loss is not None:
            parts.append(f"loss {iteration.loss:.4f}")
        detail = ", ".join(parts)
        with self._lock:
            if self._progress is not None:
                bar = self._bars.get(job)
                if bar is None:
                    bar = self._progress.add_task(job, total=total, detail="")
                    self._bars[job] = bar
                self._progress.update(bar, completed=done, detail=detail)
                return
            now_s = time.monotonic()
            if done < total and now_s < self._next_line_s.get(job, 0.0):
                return
            self._next_line_s[job] = now_s + _LINE_EVERY_S
        self._print(f"{job}: {done}/{total}" + (f", {detail}" if detail else ""))

    def job_ended(self, job: JobRecord) -> None:
        if job.error is not None:
            self._print(f"{job.name}: {job.error}")
        elif job.stopped:
            self._print(f"{job.name}: stopped after {job.iterations} iterations")
        else:
            self._print(f"{job.name}: done in {format_duration(job.wall_s)} of the device clock")

    def _print(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone
            self._console.print(text)
