"""The runtime prepares for the next phase while one runs. One block stands for 1 GB of the sizes
that the design names."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weave_rt
from weave_rt import Buffer, Device, DriverError, LocalRuntime, Slice, _core, open_device
from weave_rt.lookahead import _successors

SPEC = "emulated:h20?scale=4096&speed=1000&seed=1&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
GIGA = 16384  # the block of that device


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; the limit only ends a test that has failed."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


class Rollouts:
    """Jobs of `sizes` blocks each on one device with room for `usable`."""

    def __init__(self, usable: int, sizes: list[int], **runtime: Any) -> None:
        self.seen: list[Slice] = []
        self.device = open_device(SPEC, usable_bytes=usable * GIGA)
        self.runtime = LocalRuntime(
            {"rollout": [self.device]}, observer=self.seen.append, **runtime
        )
        config = {"runtime": self.runtime}
        self.jobs = [weave_rt.init("abcde"[i], config) for i in range(len(sizes))]
        self.tenants = [job.manage("kv", pool="rollout") for job in self.jobs]
        self.buffers: list[Buffer] = []
        self.marks = [0] * len(sizes)
        for i, size in enumerate(sizes):
            with self.jobs[i].phase("init", pool="rollout"):
                self.buffers.append(self.tenants[i].buffer(size * GIGA, "other"))
                self._write(i)

    def _write(self, i: int) -> None:
        self.marks[i] = (self.marks[i] + 1) % 200
        self.buffers[i].view()[:] = bytes([self.marks[i] + i]) * self.buffers[i].nbytes

    @contextlib.contextmanager
    def phase(self, i: int) -> Iterator[dict[str, Any]]:
        """A rollout of job i, which finds its bytes and writes others; gives the switch report."""
        self.seen.clear()
        with self.jobs[i].phase("rollout"):
            assert set(bytes(self.buffers[i].view())) == {self.marks[i] + i}
            self._write(i)
            yield next(s.report for s in self.seen if s.kind == "switch" and s.report)

    def turn(self, i: int) -> dict[str, Any]:
        with self.phase(i) as report:
            return report

    def is_here(self, i: int) -> bool:
        return self.tenants[i].core.bytes_resident == self.tenants[i].bytes

    def close(self) -> None:
        self.buffers.clear()
        for job in self.jobs:
            job.close()
        self.runtime.close()
        assert not any(self.device.census().values()), self.device.census()


@pytest.fixture
def rollouts() -> Iterator[Callable[..., Rollouts]]:
    made: list[Rollouts] = []

    def make(usable: int, sizes: list[int], **runtime: Any) -> Rollouts:
        made.append(Rollouts(usable, sizes, **runtime))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_three_of_sixty_on_140_wait_for_nothing(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60])
    before: dict[str, int] = {}
    for step in range(12):
        if step == 6:
            before = run.device.stats()
        with run.phase(step % 3) as report:
            if step >= 6:
                assert report["bytes_in"] + report["bytes_out"] == 0
                assert report["bytes_background"] == 80 * GIGA
            if step >= 3:  # from the second cycle on it is known who comes next
                until(lambda i=(step + 1) % 3: run.is_here(i))
    after = run.device.stats()
    for way in ("bytes_background_in", "bytes_background_out"):
        assert after[way] - before[way] <= 6 * 40 * GIGA


def test_copies_in_the_background_are_slices(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60])
    for step in range(6):
        with run.phase(step % 3):
            if step >= 3:
                until(lambda i=(step + 1) % 3: run.is_here(i))
    run.seen.clear()
    with run.jobs[0].phase("rollout"):
        found = [one for one in run.seen if one.kind == "background"]
    assert [(one.job, one.devices, one.ok) for one in found] == [("a", ("rollout:0",), True)]
    assert found[0].report == {"bytes_in": 40 * GIGA, "tenant": "kv"}
    phase = next(one for one in run.seen if one.kind == "switch")
    assert 0 < found[0].start_ns < found[0].end_ns <= phase.end_ns


def test_a_plan_bounds_what_moves(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60], background=False)
    run.runtime.set_plan("rollout:0", dict.fromkeys(run.tenants, 20))
    for step in (0, 1, 2):
        run.turn(step)
    for step in (0, 1, 2, 1, 0, 2, 0, 1, 2):
        report = run.turn(step)
        assert report["bytes_in"] == report["bytes_out"] == 20 * GIGA
        assert report["bytes_background"] == 0
    assert run.device.stats()["blocks_beyond_plan"] == 0
    with pytest.raises(weave_rt.UsageError, match="no device 'train:0'"):
        run.runtime.set_plan("train:0", {})


def test_two_of_sixty_on_80_gain_nothing_by_it(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(80, [60, 60])
    for step in range(6):
        report = run.turn(step % 2)
        assert report["bytes_in"] == report["bytes_out"] == 40 * GIGA
    assert run.device.stats()["bytes_background_in"] == 0


def test_jobs_that_fit_and_a_job_alone_are_never_touched(
    rollouts: Callable[..., Rollouts],
) -> None:
    for run in (rollouts(180, [60, 60, 60]), rollouts(80, [60])):
        for step in range(9):
            run.turn(step % len(run.jobs))
        stats = run.device.stats()
        for key in ("bytes_in", "bytes_out", "bytes_background_in", "bytes_background_out"):
            assert stats[key] == 0


def test_the_head_of_the_queue_comes_before_the_order_of_the_last_cycle(
    rollouts: Callable[..., Rollouts],
) -> None:
    run = rollouts(140, [60, 60, 60])
    for step in range(7):
        with run.phase(step % 3):
            pass
    waiting = threading.Thread(target=run.turn, args=(2,))
    with run.phase(0):  # b would be next
        until(lambda: run.is_here(1))
        waiting.start()
        until(lambda: run.is_here(2))
        assert not run.is_here(1)
    waiting.join()
    run.turn(1)


def test_somebody_else_ends_it(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60])
    for step in (0, 1, 2, 0, 1, 2, 0, 2, 1, 0, 2, 1, 1, 0):
        run.turn(step)  # each finds its bytes, however far the guess had come


def test_a_job_leaves_while_it_is_prefetched(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60])
    for step in range(6):
        run.turn(step % 3)
    with run.phase(0):
        run.buffers[1] = run.buffers[0]  # nothing of b is used any more
        run.jobs[1].close()
    run.turn(2)
    run.turn(0)
    assert run.runtime.tenants_on("rollout:0") == [run.tenants[0], run.tenants[2]]


def test_what_goes_wrong_in_the_background_ends_no_phase(
    rollouts: Callable[..., Rollouts], caplog: pytest.LogCaptureFixture
) -> None:
    run = rollouts(140, [60, 60, 60])
    for step in range(6):
        with run.phase(step % 3):
            if step >= 3:
                until(lambda i=(step + 1) % 3: run.is_here(i))
    broken = _core.FaultScope(nth=1, from_then_on=True, only="memcpy_htod_async")
    with broken, run.phase(0) as report:
        assert report["bytes_in"] == 0
        until(lambda: run.device.stats()["background_errors"] > 0)
    with caplog.at_level(logging.WARNING, "weave_rt"):
        assert run.turn(1)["bytes_in"] > 0
    assert "cuMemcpyHtoDAsync" in caplog.text
    run.turn(2)


def test_write_back_of_a_tenant(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(80, [60, 60])
    tenant = run.tenants[0]
    with run.phase(0):
        copy = tenant.write_back("other")
        assert copy.wait(60)
        assert copy.finished
        assert not copy.failed
        assert copy.bytes_done == copy.bytes_total == 60 * GIGA
        copy.cancel()
        with pytest.raises(weave_rt.UsageError, match="nothing was put in tag 'grads' of"):
            tenant.write_back("grads")
    assert run.turn(1)["bytes_out"] == 0
    assert run.turn(0)["bytes_out"] == 40 * GIGA
    with pytest.raises(weave_rt.NotResident):
        tenant.write_back("other")
    with run.phase(0), _core.FaultScope(nth=1, from_then_on=True, only="memcpy_dtoh_async"):
        copy = tenant.write_back("other")
        with pytest.raises(DriverError, match="cuMemcpyDtoHAsync"):
            copy.wait()
        assert copy.failed


def test_two_hundred_phases_create_nothing(rollouts: Callable[..., Rollouts]) -> None:
    run = rollouts(140, [60, 60, 60])
    run.runtime.set_plan("rollout:0", dict.fromkeys(run.tenants, 60))

    def turn(step: int) -> None:
        with run.phase(step % 3):
            if step % 2:
                run.tenants[step % 3].write_back("other")

    for step in range(9):
        turn(step)
    until(lambda: run.is_here(0))
    addresses = [buffer.address for buffer in run.buffers]
    census, before = run.device.census(), _core.call_counts("emulated")
    for step in range(9, 209):
        turn(step)
    after = _core.call_counts("emulated")
    for call in ("mem_create", "mem_release", "mem_host_register", "mem_host_unregister",
                 "mem_address_reserve", "stream_create", "event_create"):  # fmt: skip
        assert after[call] == before[call], call
    assert [buffer.address for buffer in run.buffers] == addresses
    still = run.device.census()
    for key in ("handles", "registrations", "streams", "events", "bytes_used"):
        assert still[key] == census[key], key


def test_who_followed_the_last_time() -> None:
    a, b, c = (("a",), ("b",), ("c",))
    follow: Any = _successors
    assert follow([a, b, c], c) == []
    assert follow([a, b, c, a], a) == [b, c]
    assert follow([a, b, a, c, a], a) == [c]
    assert follow([a], a) == []


def mode_of(spec: str) -> str:
    """What the switch of a calibrated device reports."""
    device: Device = open_device(spec)
    device.calibrate()
    first, second = (device.add_tenant(name) for name in "ab")
    spans = []
    for tenant in (first, second):
        tenant.resume()
        spans.append(tenant.region("weights").allocate(9 << 20))
        tenant.release()
    mode = str(first.resume().as_dict()["mode"])
    spans.clear()
    device.close()
    return mode


def test_the_mode_is_chosen_by_calibration() -> None:
    # On the modelled clock; but a thread that gets no core makes a link slow, so a few attempts.
    for duplex, mode in (("0.45", "sequential"), ("1", "duplex")):
        spec = f"emulated:h20?scale=1024&duplex={duplex}&capacity=16MiB"
        assert any(mode_of(spec) == mode for _ in range(5)), spec
