"""Failures that users of other runtimes met, tried on the Python side; see tests/cases.md."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from weave_rt import Device, DriverError, NotResident, Tenant, UsageError, _core, open_device

SPEC = (
    "emulated:h20?scale=4096&speed=1000&seed=3&capacity=72KiB&granularity=4KiB&block=4KiB"
    "&context=4KiB"
)
BLOCK = 4096

WORKER = f"""
import sys
from weave_rt import _core
device = _core.Device.open({SPEC!r})
tenants, spans = [], []
for name in "ab":
    tenant = device.add_tenant(name)
    tenant.resume()
    spans.append(tenant.region("weights").allocate(10 * {BLOCK}))
    memoryview(spans[-1])[:] = name.encode() * (10 * {BLOCK})
    tenant.release()
    tenants.append(tenant)
print("ready", flush=True)
"""
SWITCHES = """
tenants[0].resume()
while True:
    device.switch(tenants[0], tenants[1])
    device.switch(tenants[1], tenants[0])
"""
REGISTERS = """
while True:
    extra = device.add_tenant("c")
    extra.resume()
    extra.region("weights").allocate(4 * 4096)
    extra.close()
"""


@pytest.mark.parametrize("end", ["", "tenants[0].resume()", "device.close()", "sys.exit(0)"])
def test_exit_with_everything_alive_is_clean(end: str) -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", WORKER + end], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.parametrize("work", [SWITCHES, REGISTERS], ids=["switching", "registering"])
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_process(kind: signal.Signals, work: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER + work], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(kind)
        try:
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()  # else leaving the block waits for one that goes on
    # Python turns SIGINT into KeyboardInterrupt, which ends the process by the same signal.
    assert child.returncode == -kind, errors
    assert "weave:" not in errors


def test_an_error_on_the_draining_thread_reaches_who_waits(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    tenant.region_of("weights").prepare(2 * device.block_bytes)
    with (
        _core.FaultScope(nth=1, only="ctx_synchronize", status=719),
        pytest.raises(DriverError) as raised,
    ):
        tenant.suspend()
    assert (raised.value.code, raised.value.call) == (719, "cuCtxSynchronize")
    assert tenant.resident
    tenant.close()


def test_errors_carry_call_code_and_bytes(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    block = device.block_bytes
    with (
        _core.FaultScope(nth=1, only="mem_create", status=2),
        pytest.raises(MemoryError, match="cuMemCreate") as raised,
    ):
        tenant.buffer(block)
    assert isinstance(raised.value, DriverError)
    assert (raised.value.code, raised.value.call, raised.value.bytes) == (2, "cuMemCreate", block)
    assert len(tenant.buffer(block).view()) == block if device.kind == "emulated" else True
    tenant.close()


def test_other_threads_run_while_the_driver_blocks() -> None:
    """The GIL is not held: during a driver call that waits, another thread makes progress, and it
    may ask this very device."""
    device = open_device(SPEC)
    tenant = device.add_tenant("a")
    tenant.resume()
    tenant.region("weights").prepare(4 * BLOCK)
    inside, answered = threading.Event(), threading.Event()

    def ask() -> None:
        inside.wait()
        while not answered.is_set():
            if tenant.state == "HOST":  # takes the device's lock behind the suspend
                answered.set()

    thread = threading.Thread(target=ask)
    thread.start()
    with _core.FaultScope(nth=1, only="ctx_synchronize", status=0, delay_ns=20_000_000) as scope:
        inside.set()
        tenant.suspend()
        assert scope.calls_delayed == 1
    assert answered.wait(60)
    thread.join()
    device.close()


def test_suspending_while_another_thread_allocates() -> None:
    """No deadlock, typed refusals only, and the bookkeeping holds."""
    device = open_device(SPEC)
    tenant = device.add_tenant("a")
    tenant.resume()
    region = tenant.region("weights")
    stop = threading.Event()
    problems: list[BaseException] = []
    got = 0

    def allocate() -> None:
        nonlocal got
        try:
            while not stop.is_set() or got == 0:
                with suppress(NotResident):
                    region.allocate(5 * BLOCK)
                    got += 1
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=allocate)
    thread.start()
    for _ in range(100):
        tenant.suspend()
        tenant.resume()
    stop.set()
    thread.join()
    assert not problems
    assert got > 0
    assert region.bytes_allocated == 0
    assert region.bytes == 5 * BLOCK
    tenant.close()
    device.close()
    census = device.census()
    assert census.pop("reservations") <= 1  # `region` is still in hand
    assert not any(census.values())


def test_zero_bytes_are_refused_and_leave_no_trace(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    region = tenant.region_of("weights")
    for nbytes in (0,):
        with pytest.raises(UsageError, match="at least one byte"):
            region.allocate(nbytes)
        with pytest.raises(UsageError, match="at least one byte"):
            tenant.buffer(nbytes)
    region.prepare(0)
    assert region.bytes == 0
    tenant.suspend()
    tenant.resume()
    tenant.close()


def test_one_tag_can_be_asked_for_alone(device: Device) -> None:
    tenant = Tenant(device, "a")
    tenant.resume()
    weights, cache = tenant.region_of("weights"), tenant.region_of("kv_cache")
    weights.prepare(device.block_bytes)
    cache.prepare(device.block_bytes)
    assert weights.resident
    assert cache.resident
    tenant.suspend()
    assert (weights.state, cache.state) == ("HOST", "DISCARDED")
    assert not weights.resident
    with pytest.raises(NotResident, match="weights of tenant 'a'"):
        tenant.check_resident("weights")
    tenant.close()
