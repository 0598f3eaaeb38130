"""What jobs take of a device outside regions: attributed, recorded, pinned, and taken off F. The
memory for it is allocated by the driver of the emulated device, beside the regions."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weave_rt
from weave_rt import Device, Job, LocalRuntime, Slice, UsageError, _core
from weave_rt.errors import GrowthRefused, UsableBytesWarning
from weave_rt.overlay import Unmanaged, usable_frames
from weave_rt.unmanaged import _Account, _Phase, _torch_peak, pinned_records

SPEC = "emulated:h20?scale=4096&speed=50&capacity=2MiB&context=64KiB&unmanaged=32KiB&seed=1"
BLOCK = 16384
POOL = "rollout:0"


class Bench:
    """A runtime with one device, jobs with one tenant each, and raw memory beside them."""

    def __init__(self, device: Device, stack: contextlib.ExitStack, **runtime: Any) -> None:
        self.device = device
        assert device.block_bytes == BLOCK
        self.opened = device.usable_bytes // BLOCK
        self.floor = device.memory()["unmanaged"]
        self.events: list[Slice] = []
        self.stack = stack
        self.runtime = stack.enter_context(
            LocalRuntime({"rollout": [device]}, observer=self.seen, **runtime)
        )
        self.jobs: dict[str, Job] = {}
        self.tenants: dict[str, weave_rt.Tenant] = {}
        self.buffers: dict[str, weave_rt.Buffer] = {}

    def seen(self, one: Slice) -> None:
        if one.kind == "unmanaged":
            self.events.append(one)

    def add(self, name: str, **config: Any) -> Job:
        job = weave_rt.init(name, {"runtime": self.runtime, **config})
        self.stack.callback(job.close)
        self.jobs[name] = job
        self.tenants[name] = job.manage("engine", pool="rollout")
        return job

    def fill(self, name: str, blocks: int) -> None:
        buffer = self.tenants[name].buffer(blocks * BLOCK, "weights")
        buffer.view()[:] = name.encode() * buffer.nbytes
        self.buffers[name] = buffer

    def check(self, name: str) -> None:
        buffer = self.buffers[name]
        assert bytes(buffer.view()) == name.encode() * buffer.nbytes

    def raw(self, blocks: int) -> _core.TensorCopies:
        """So many blocks of the device's memory, until its `drop()`."""
        made = _core.TensorCopies(self.device, [blocks * BLOCK], [])
        self.stack.callback(made.close)
        made.allocate()
        return made

    def peak(self, blocks: int) -> None:
        """A workspace that is gone before the phase ends."""
        raw = self.raw(blocks)
        self.runtime._outside.sample()
        raw.drop()

    def record(self, name: str) -> tuple[float, float] | None:
        one = self.runtime.unmanaged(name).get(POOL)
        return one and (one.running / BLOCK, one.sleeping / BLOCK)

    @property
    def frames(self) -> int:
        return self.device.stats()["blocks_total"]

    def expected(self, *records: tuple[int, int], base: int = 0) -> int:
        """F of the design for these records, in blocks."""
        outside = [Unmanaged(f"{at}", a * BLOCK, r * BLOCK) for at, (a, r) in enumerate(records)]
        context = self.floor + base * BLOCK
        found = usable_frames(self.device.capacity_bytes, BLOCK, context, outside).frames
        return min(found, self.opened)


@pytest.fixture
def bench(open_checked: Callable[[str], Device]) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        made = Bench(open_checked(SPEC), stack)
        yield made
        made.buffers.clear()


def iterate(bench: Bench, name: str, step: int, transient: int = 0) -> None:
    with bench.jobs[name].phase("rollout", step=step):
        if name in bench.buffers:
            bench.check(name)
        if transient:
            bench.peak(transient)


def take_turns(bench: Bench, steps: int) -> None:
    for step in range(steps):
        for name in bench.jobs:
            iterate(bench, name, step)


def test_the_record_is_the_maximum_over_init_and_the_first_iteration(bench: Bench) -> None:
    job = bench.add("a")
    assert not any("unmanaged" in key for key in job.pop_metrics())  # nothing has run
    with job.phase("init"):
        bench.raw(4)  # stays
    iterate(bench, "a", 0, transient=6)
    assert bench.record("a") == (10, 4)
    assert bench.frames == bench.opened  # the first iteration is not over
    iterate(bench, "a", 1, transient=3)
    assert bench.record("a") == (10, 4)
    assert bench.frames == bench.expected((10, 4)) == bench.opened - 10
    assert bench.device.usable_bytes == bench.frames * BLOCK
    metrics = job.pop_metrics()
    assert metrics["weave/unmanaged_running_bytes/rollout"] == 10 * BLOCK
    assert metrics["weave/unmanaged_sleeping_bytes/rollout"] == 4 * BLOCK
    assert "weave/unmanaged_excesses" not in metrics
    assert not any("train" in key for key in metrics)
    assert bench.events == []


def test_phases_without_a_step_make_a_record_too(bench: Bench) -> None:
    job = bench.add("a")
    for _ in range(2):
        with job.phase("rollout"):
            bench.raw(3)
        with job.phase("eval"):
            pass
    # The second rollout is no part of the record: what it takes beyond is an excess.
    assert [one.report["recorded_running"] for one in bench.events if one.report] == [3 * BLOCK]
    assert bench.record("a") == (6, 6)


def test_the_holder_of_the_phase_gets_what_changes_in_it(bench: Bench) -> None:
    bench.add("a")
    bench.add("b")
    with bench.jobs["a"].phase("init"):
        bench.raw(4)
    with bench.jobs["b"].phase("init"):
        bench.raw(2)
        bench.peak(5)
    for step in range(2):
        iterate(bench, "a", step, transient=1)
        iterate(bench, "b", step)
    assert (bench.record("a"), bench.record("b")) == ((5, 4), (7, 2))
    # The worse of 5 + 2 and 7 + 4.
    assert bench.frames == bench.expected((5, 4), (7, 2)) == bench.opened - 11


def test_what_changes_between_phases_is_nobodys(bench: Bench) -> None:
    bench.add("a")
    iterate(bench, "a", 0)
    raw = bench.raw(6)
    iterate(bench, "a", 1, transient=2)
    assert bench.record("a") == (2, 0)
    assert bench.frames == bench.expected((2, 0), base=6) == bench.opened - 8
    raw.drop()
    iterate(bench, "a", 2)
    assert bench.frames == bench.opened - 2


def test_an_excess_is_an_event_and_idle_frames_make_room(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        bench.add(name)
        with bench.jobs[name].phase("init"):
            bench.fill(name, bench.opened * 2 // 3)
    for step in range(2):
        for name in "ab":
            iterate(bench, name, step)
    assert bench.frames == bench.device.stats()["blocks_created"] == bench.opened
    plan = bench.runtime.plan(POOL)
    assert plan is not None
    with caplog.at_level(logging.WARNING, "weave_rt"), bench.jobs["b"].phase("rollout", step=2):
        bench.check("b")
        raw = bench.raw(1)  # there is no room for more beside the blocks of both
        where = bench.buffers["b"].address
    iterate(bench, "a", 2)
    (event,) = bench.events
    assert (event.job, event.phase, event.devices) == ("b", "rollout", (POOL,))
    assert event.start_ns == event.end_ns
    frames = bench.expected((0, 0), (1, 1))
    assert event.report == {
        "recorded_running": 0,
        "recorded_sleeping": 0,
        "measured_running": BLOCK,
        "measured_sleeping": BLOCK,
        "usable_bytes": frames * BLOCK,
    }
    (said,) = (one.message for one in caplog.records if "outside regions" in one.message)
    assert "job b" in said
    assert str(frames * BLOCK) in said
    assert bench.frames == bench.device.stats()["blocks_created"] == frames == bench.opened - 1
    assert bench.jobs["b"].pop_metrics()["weave/unmanaged_excesses"] == 1
    again = bench.runtime.plan(POOL)
    assert again is not None
    assert (again.frames, again.excess) == (frames, plan.excess + 1)
    # With the room that this made the same again, and more.
    with bench.jobs["b"].phase("rollout", step=3):
        assert bench.buffers["b"].address == where
        raw.drop()
        raw = bench.raw(2)
    assert bench.frames == bench.opened - 2
    for step in (4, 5):
        for name in "ab":
            iterate(bench, name, step)
    assert len(bench.events) == 2


def test_a_pinned_record_holds_before_any_memory_is_taken(bench: Bench) -> None:
    pinned = {"rollout": {"running": 20 * BLOCK, "sleeping": 5 * BLOCK}}
    job = bench.add("a", unmanaged=pinned)
    assert bench.record("a") == (20, 5)
    frames = bench.expected((20, 5))
    assert frames == bench.opened - 20
    with job.phase("init"):
        assert bench.frames == frames
        with pytest.raises(GrowthRefused) as caught:
            bench.fill("a", frames + 1)
        assert caught.value.bytes_usable == frames * BLOCK
        assert bench.device.stats()["blocks_created"] == 0
        bench.fill("a", frames)
        bench.peak(18)
    assert bench.events == []
    assert bench.record("a") == (20, 5)
    assert job.pop_metrics()["weave/unmanaged_running_bytes/rollout"] == 20 * BLOCK
    iterate(bench, "a", 0, transient=21)
    assert bench.record("a") == (21, 5)
    assert len(bench.events) == 1


def test_where_blocks_keep_too_much_it_says_so_once_and_nothing_is_lost(bench: Bench) -> None:
    bench.add("a")
    with bench.jobs["a"].phase("init"):
        bench.fill("a", bench.opened - 2)
    bench.add("b", unmanaged={"rollout": {"running": 10 * BLOCK}})
    with pytest.warns(UsableBytesWarning, match="rollout:0: .* blocks keep") as said:
        take_turns(bench, 3)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert bench.frames == bench.opened - 2  # a comes in whole or not at all
    bench.jobs["b"].close()
    iterate(bench, "a", 3)
    assert bench.frames == bench.opened


def test_the_warning_as_an_error_does_not_end_a_phase(bench: Bench) -> None:
    import warnings

    bench.add("a")
    with bench.jobs["a"].phase("init"):
        bench.fill("a", bench.opened)
    bench.add("b", unmanaged={"rollout": {"running": 10 * BLOCK}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterate(bench, "a", 0)
    iterate(bench, "a", 1)


def test_what_a_job_leaves_behind_is_nobodys(bench: Bench) -> None:
    bench.add("a")
    job = bench.add("b")
    with job.phase("init"):
        raw = bench.raw(5)
    for step in range(2):
        iterate(bench, "b", step)
    assert bench.frames == bench.opened - 5
    job.close()
    iterate(bench, "a", 0)
    assert bench.frames == bench.opened - 5
    assert bench.runtime.unmanaged("b") == {}
    raw.drop()
    iterate(bench, "a", 1)
    assert bench.frames == bench.opened
    assert bench.record("a") == (0, 0)


def test_a_thread_looks_while_a_phase_runs(bench: Bench) -> None:
    job = bench.add("a")
    with job.phase("rollout"):
        raw = bench.raw(7)
        deadline = time.monotonic() + 60
        while bench.runtime._outside._desks[POOL].phase.peak < 7 * BLOCK:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        raw.drop()
    assert bench.record("a") == (7, 0)


@pytest.mark.parametrize("from_then_on", [False, True])
def test_what_the_driver_refuses_is_tried_again(bench: Bench, from_then_on: bool) -> None:
    """F changes before phases; whichever call fails, jobs go on, and it comes to what it should."""
    for name in "ab":
        bench.add(name)
        with bench.jobs[name].phase("init"):
            bench.fill(name, bench.opened * 2 // 3)
    desk, fired = bench.runtime._outside._desks[POOL], 0
    for nth in range(1, 30):
        take_turns(bench, 1)  # all frames are in use again
        assert bench.device.stats()["blocks_created"] == bench.opened
        wanted = bench.opened - (nth % 3 + 1)
        desk.base, desk.due = (bench.opened - wanted) * BLOCK, True
        with _core.FaultScope(nth=nth, from_then_on=from_then_on) as fault:
            bench.runtime._outside._settle(POOL)
        fired += fault.calls_failed > 0
        assert desk.due == (bench.frames == bench.opened)
        if desk.due:
            bench.runtime._outside._settle(POOL)
        assert bench.frames == bench.device.stats()["blocks_created"] == wanted
    assert fired > 20
    take_turns(bench, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tpu": {"running": 1}}, "'tpu' is not rollout or train"),
        ({"rollout": {"asleep": 1}}, "no key 'asleep'; allowed: running, sleeping"),
        ({"rollout": {"running": 1, "sleeping": 2}}, "sleeping is more than running"),
        ({"rollout": {"running": -1}}, "running: -1 is below 0"),
        ({"rollout": {"running": 1.5}}, "rollout.running: 1.5 is not a number of bytes"),
        ({"rollout": {"running": "3GB"}}, "rollout.running: '3GB' is not a number of bytes"),
        ({"rollout": 5}, "unmanaged.rollout has the keys running and sleeping, not 5"),
        (5, "unmanaged has sizes by pool"),
    ],
)
def test_wrong_settings_are_refused(bench: Bench, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bench.add("a", unmanaged=given)
    bench.add("a")  # the name is free


def test_on_a_device_in_both_pools_the_larger_figures_hold() -> None:
    sizes = {"rollout": {"running": 5, "sleeping": 4}, "train": {"running": 9}}
    both = {"rollout": (POOL,), "train": (POOL,)}
    assert pinned_records("a", sizes, both) == {POOL: Unmanaged("a", 9, 4)}
    assert pinned_records("a", None, both) == {}


def test_a_new_peak_of_torchs_allocator_is_exact(bench: Bench) -> None:
    """What it has and has had at most, at both ends of a phase; only a new peak is this phase's."""
    desk = bench.runtime._outside._desks[POOL]
    account = _Account(Unmanaged("a"))
    book = bench.runtime._outside._book
    assert book(desk, account, _Phase("a", 100, 100, (1000, 5000)), 150, (1050, 5000)) is None
    assert account.record == Unmanaged("a", 50, 50)
    book(desk, account, _Phase("a", 150, 150, (1050, 5000)), 150, (1050, 7050))
    assert account.record == Unmanaged("a", 50 + 6000, 50)
    book(desk, account, _Phase("a", 150, 9000, (1050, 7050)), 150, None)  # it went away
    assert account.record == Unmanaged("a", 50 + 8850, 50)


def test_a_runtime_that_nobody_closed_lets_the_interpreter_end() -> None:
    """The thread that samples is inside a core function nearly all the time here."""
    done = subprocess.run(
        [sys.executable, "-c", FORGETS_TO_CLOSE, SPEC], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sampled\n", "")


FORGETS_TO_CLOSE = """
import sys, weave_rt, weave_rt.unmanaged as unmanaged
unmanaged.INTERVAL_S = 0
runtime = weave_rt.LocalRuntime({"rollout": [weave_rt.open_device(sys.argv[1])]})
sampled = unmanaged.threading.Event()
taken = unmanaged._taken
def many_times(device):
    sampled.set()
    return [taken(device) for _ in range(99)].pop()
unmanaged._taken = many_times
runtime._outside._desks["rollout:0"].phase = unmanaged._Phase("j", 0, 0, None)
print("sampled" if sampled.wait(60) else "not sampled")
"""


def test_torch_that_is_being_imported_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    cuda: Any = types.SimpleNamespace(kind="cuda", spec="cuda:0")
    assert _torch_peak(cuda) is None
