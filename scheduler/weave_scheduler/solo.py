"""A job alone, in a process of its own that shares nothing with ours but the spec's path.

The parent reads JSON lines from a pipe: progress, and at the end the record or the mistake. The
child ends when asked (SIGTERM) and when its parent dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from weave_rt.errors import UsageError, WeaveError
from weave_scheduler.document import SpecError
from weave_scheduler.interrupt import Interrupt
from weave_scheduler.jobs import Iteration
from weave_scheduler.live import Listener, run_jobs
from weave_scheduler.records import DeviceRecord, JobRecord, RunRecord, load_run
from weave_scheduler.specfile import load_spec

__all__ = ["SoloFailed", "run_solo", "serve_solo"]

_PR_SET_PDEATHSIG = 1

#: Like ``-m weave_scheduler``, but never imports from the current folder, which may be a source
#: tree without the compiled core.
_ENTRY = """\
import sys
if sys.path[0] == "":
    del sys.path[0]
from weave_scheduler.cli import main
main()
"""


class SoloFailed(WeaveError, RuntimeError):
    """The process of a solo run ended without a result.

    Attributes:
        users_mistake: whether the reason is a mistake in the spec.
    """

    def __init__(self, message: str, *, users_mistake: bool = False) -> None:
        super().__init__(message)
        self.users_mistake = users_mistake


def run_solo(spec: Path, job: str, listener: Listener, interrupt: Interrupt) -> RunRecord:
    """Run one job alone in a new process and wait for it. Raises SoloFailed."""
    read_fd, write_fd = os.pipe()
    arguments = ["solo-job", str(spec), job, "--result-fd", str(write_fd)]
    command = [sys.executable, "-c", _ENTRY, *arguments]
    try:
        child = subprocess.Popen(
            command, pass_fds=[write_fd], stdin=subprocess.DEVNULL, start_new_session=True
        )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    interrupt.at_once(child.kill)
    interrupt.on_stop(child.terminate)
    try:
        with os.fdopen(read_fd, encoding="utf-8") as lines:
            answer = _follow(lines, job, listener)
        code = child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        interrupt.forget(child.terminate)
    if isinstance(answer, RunRecord):
        return answer
    if isinstance(answer, SoloFailed):
        raise answer
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    raise SoloFailed(
        f"job {job}, alone: its process ended {how} and left no result; nothing after it was run"
    )


def serve_solo(spec: Path, job: str, result_fd: int) -> int:
    """The child's side. Returns the exit code; what there is to say goes through the pipe."""
    _die_with_parent()
    with Interrupt() as interrupt, os.fdopen(result_fd, "w", encoding="utf-8") as lines:
        listener = _Wire(lines)
        try:
            run = run_jobs(load_spec(spec), [job], listener, interrupt.stopped)
        except (SpecError, UsageError) as error:
            listener.send("mistake", str(error))
            return 2
        except WeaveError as error:
            listener.send("failure", f"{type(error).__name__}: {error}")
            return 1
        listener.send("run", asdict(run))
    return 0


def _follow(lines: TextIO, job: str, listener: Listener) -> RunRecord | SoloFailed | None:
    answer: RunRecord | SoloFailed | None = None
    for line in lines:
        kind, value = json.loads(line)
        match kind:
            case "devices":
                listener.devices([DeviceRecord(**one) for one in value])
            case "note":
                listener.note(value)
            case "trace":
                listener.trace(value)
            case "iteration":
                listener.iteration(job, Iteration(**value["iteration"]), value["total"])
            case "ended":
                listener.job_ended(JobRecord(**value))
            case "run":
                answer = load_run(value)
            case "mistake" | "failure":
                answer = SoloFailed(value, users_mistake=kind == "mistake")
    return answer


class _Wire:
    """A listener that writes JSON lines for the parent."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def send(self, kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, and we are about to be
            self._lines.write(json.dumps([kind, value]) + "\n")
            self._lines.flush()

    def devices(self, devices: Sequence[DeviceRecord]) -> None:
        self.send("devices", [asdict(one) for one in devices])

    def note(self, text: str) -> None:
        self.send("note", text)

    def trace(self, text: str) -> None:
        self.send("trace", text)

    def iteration(self, job: str, iteration: Iteration, total: int) -> None:
        self.send("iteration", {"iteration": asdict(iteration), "total": total})

    def job_ended(self, job: JobRecord) -> None:
        self.send("ended", asdict(job))


def _die_with_parent() -> None:
    """Linux: get SIGTERM when the parent dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == 1:  # it died before we asked
        os.kill(os.getpid(), signal.SIGTERM)
