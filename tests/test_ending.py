"""How a run ends early: signals, processes that are killed, files that cannot be written."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weave_scheduler import outdir
from weave_scheduler.interrupt import Interrupt
from weave_scheduler.outdir import OutDir
from weave_scheduler.progress import Screen
from weave_scheduler.session import run_spec

SPEC = """
version: 1
devices:
  rollout: ["emulated:h20?scale=65536&speed=1000"]
  train: ["emulated:h800?scale=65536&speed=1000"]
jobs:
  - {name: a, kind: synthetic, iterations: 2, state: {rollout: {weights: 1GB}},
     phases: {rollout: 1s, train: 1s}}
"""

#: Stops never, holds a folder, and says when it may be interrupted and when it was.
HOLDER = """
import sys, time
from pathlib import Path
from weave_scheduler.interrupt import Interrupt
from weave_scheduler.outdir import OutDir
with OutDir(Path(sys.argv[1])) as folder, Interrupt() as interrupt:
    interrupt.at_once(folder.abandon)
    folder._writing = "summary.json"
    (folder.path / ".summary.json.half").touch()
    interrupt.on_stop(lambda: print("stopping", flush=True))
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


class Handled:
    """An Interrupt whose signals are calls, whose clock stands still, and whose end is noted."""

    def __init__(self, monkeypatch):
        self.now_s, self.ends, self.calls = 0.0, [], []
        self.interrupt = Interrupt(lambda: self.now_s)
        self.interrupt.on_stop(lambda: self.calls.append("stop"))
        self.interrupt.at_once(lambda: self.calls.append("at once"))
        monkeypatch.setattr(os, "_exit", self.ends.append)

    def signal(self):
        self.interrupt._handle(signal.SIGINT, None)


def test_repeats_of_a_signal_are_ignored_and_a_later_one_ends_at_once(monkeypatch, capfd):
    handled = Handled(monkeypatch)
    for handled.now_s in (10.0, 10.1, 10.2, 12.0):
        handled.signal()
    assert handled.interrupt.stopped()
    assert (handled.calls, handled.ends) == (["stop"], [])
    handled.now_s = 12.1
    handled.signal()
    assert (handled.calls, handled.ends) == (["stop", "at once"], [130])
    said = capfd.readouterr().err
    assert said.endswith("weave: interrupted at once; nothing more was written\n")


def test_an_end_at_once_leaves_no_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "stopping\n"
        deadline_s = time.monotonic() + 60
        while process.poll() is None:  # ignored at first
            assert time.monotonic() < deadline_s
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.returncode == 130
        assert process.stderr.read() == "weave: interrupted at once; nothing more was written\n"
    assert list(tmp_path.iterdir()) == []


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_file_that_cannot_be_written_is_named_and_the_run_is_still_shown(
    spec, tmp_path, monkeypatch
):
    def full(source, target):
        if target.name == "timeline.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.rename(source, target)

    monkeypatch.setattr(outdir.os, "replace", full)
    out = tmp_path / "out"
    outcome = run_spec(spec, out, "together", Screen())
    assert outcome.code == 1
    assert outcome.complaints == [
        f"{out / 'timeline.json'} cannot be written: No space left on device; make room or write"
        " it elsewhere"
    ]
    assert outcome.written == [out / "summary.json"]
    assert outcome.summary["jobs"][0]["iterations"] == 2
    assert [path.name for path in out.iterdir()] == ["summary.json"]


def test_a_process_of_a_solo_run_that_is_killed_is_named(spec):
    spec.write_text(SPEC.replace("iterations: 2", "iterations: 100000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "weave_scheduler", "run", str(spec), "--compare-solo"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr:
        if "a: 1/" in line:
            break
    child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    os.kill(int(child), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == (
        "weave: job a, alone: its process ended by SIGKILL and left no result;"
        " nothing after it was run"
    )


def test_a_folder_is_left_once(tmp_path):
    with OutDir(tmp_path) as folder:
        folder.abandon()
        with OutDir(tmp_path):
            folder.abandon()
            assert [path.name for path in tmp_path.iterdir()] == [".weave-lock"]
