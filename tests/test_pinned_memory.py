"""Pinned host memory, as it failed users of other runtimes. tests/cases.md, part 4.D. What lies in
the pool itself (pieces, growth, huge pages) is tested in tests/cpp/test_core_host_pool.cpp."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROLLOUT

import weave_rt
from weave_rt import Device, DriverError, Tenant, _core

BLOCK = 4096
TINY = "emulated:h20?scale=4096&speed=100&block=4KiB&granularity=4KiB&context=4KiB"
SIXTEEN = f"{TINY}&capacity=72KiB"  # blocks for tenants

Opening = Callable[[str], Device]


def pair(device: Device) -> tuple[Tenant, Tenant]:
    a, b = Tenant(device, "a", job="a"), Tenant(device, "b", job="b")
    a.resume()
    return a, b


def filled(tenant: Tenant, blocks: int, value: int, tag: str = "weights") -> weave_rt.Buffer:
    buffer = tenant.buffer(blocks * BLOCK, tag)
    buffer.view()[:] = bytes([value]) * buffer.nbytes
    return buffer


def registrations() -> int:
    return _core.call_counts("emulated")["mem_host_register"]


# 79, 96


def test_copies_stay_inside_one_registration_however_a_job_grew(open_checked: Opening) -> None:
    """The device refuses a copy that leaves its registration; none here does."""
    device = open_checked(f"{TINY}&capacity=400KiB")
    before = registrations()
    a, b = pair(device)
    held = [filled(a, n, n, tag) for n in (3, 1, 7, 2, 5, 11) for tag in ("weights", "optimizer")]
    assert registrations() - before > 1
    assert device.host_pool.pieces > 1
    a.switch(b)
    whole = filled(b, device.usable_bytes // BLOCK, 0xEE)
    b.switch(a)
    for buffer in held:
        assert buffer.view() == bytes([buffer.nbytes // BLOCK]) * buffer.nbytes
    held.clear()
    del buffer, whole
    a.close()
    b.close()


def test_many_small_growths_make_few_registrations_and_mappings(open_checked: Opening) -> None:
    device = open_checked(f"{TINY}&capacity=10MiB")
    tenant, _ = pair(device)
    before, count = registrations(), 2000
    held = [tenant.buffer(BLOCK) for _ in range(count)]
    assert registrations() - before < 300  # one each at first, then each 2 % more
    mappings = Path("/proc/self/maps").read_text().count("memfd:weave-host")
    assert mappings <= registrations() - before
    assert device.host_pool.bytes_registered <= count * BLOCK * 1.02
    held.clear()
    tenant.close()


# 83, 101


def test_other_threads_work_while_memory_is_being_pinned(open_checked: Opening) -> None:
    """Neither the GIL nor another device waits for a slow registration."""
    device, other = open_checked(SIXTEEN), open_checked(f"{SIXTEEN}&seed=2")
    tenant, _ = pair(device)
    free, _ = pair(other)
    data = filled(free, 4, 1)
    pinning, worked = threading.Event(), threading.Event()
    turns = 0

    def work() -> None:
        nonlocal turns
        pinning.wait()
        while not worked.is_set():
            free.core.suspend()
            free.core.resume()
            turns += 1

    thread = threading.Thread(target=work)
    thread.start()
    with _core.FaultScope(nth=1, only="mem_host_register", status=0, delay_ns=200_000_000) as scope:
        pinning.set()
        buffer = tenant.buffer(3 * BLOCK)
        during = turns
        assert scope.calls_delayed == 1
    worked.set()
    thread.join()
    assert during > 0
    assert data.view() == bytes([1]) * data.nbytes
    del buffer, data
    tenant.close()
    free.close()


# 80, 88, 91, 97: pinning that does not work


@pytest.mark.parametrize("status", [1, 2, 800, 801])
def test_memory_that_cannot_be_pinned_is_a_typed_error_and_nothing_is_taken(
    open_checked: Opening, status: int
) -> None:
    """No quiet fallback to pageable copies: the caller learns call, code and bytes."""
    device = open_checked(SIXTEEN)
    tenant, other = pair(device)
    held = [filled(tenant, 4, 1)]

    def pinned() -> tuple[int, int, int]:
        pool = device.host_pool
        return pool.bytes_registered, tenant.bytes, device.census()["registrations"]

    before = pinned()
    with (
        _core.FaultScope(nth=1, only="mem_host_register", status=status, from_then_on=True),
        pytest.raises(DriverError) as raised,
    ):
        tenant.buffer(4 * BLOCK, "optimizer")
    assert (raised.value.call, raised.value.code) == ("cuMemHostRegister", status)
    assert raised.value.bytes >= BLOCK
    assert re.search(
        r"RLIMIT_MEMLOCK is (unlimited|\d+ bytes), \d+ bytes of memory", str(raised.value)
    )
    assert pinned() == before
    assert tenant.resident
    held.append(filled(tenant, 12, 2, "optimizer"))  # pinning works again
    tenant.switch(other)
    other.switch(tenant)
    assert held[0].view() == bytes([1]) * held[0].nbytes
    assert held[1].view() == bytes([2]) * held[1].nbytes
    held.clear()
    tenant.close()
    other.close()


# 84, 85, 87


def test_memory_that_could_not_be_unregistered_stays_mapped_until_it_can(
    open_checked: Opening,
) -> None:
    """The device aborts when registered memory is unmapped: a failed unregister must not free it,
    nor be taken for success."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:weave-host")

    none = mapped()
    device = open_checked(SIXTEEN)
    a, b = pair(device)
    filled(a, 4, 1)
    pieces, held = device.census()["registrations"], mapped()
    assert pieces > 0
    assert held > none
    with _core.FaultScope(nth=1, only="mem_host_unregister", status=999, from_then_on=True):
        a.close()
        assert (device.census()["registrations"], mapped()) == (pieces, held)
    b.resume()
    filled(b, 3, 2)  # tried again first
    b.close()
    device.close()
    assert (device.census()["registrations"], mapped()) == (0, none)


def test_what_is_pinned_again_at_an_old_address_is_registered_anew(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    for turn in range(50):  # addresses of a piece that went are used by the next one
        tenant = Tenant(device, "a", job=f"job{turn}")
        tenant.resume()
        data = filled(tenant, 6, turn)
        tenant.suspend()
        tenant.resume()
        assert data.view() == bytes([turn]) * data.nbytes
        del data
        tenant.close()
    assert device.stats()["cleanup_failures"] == 0


# 89


def test_empty_tensors_in_a_set_are_skipped(open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    tenant, _ = pair(device)
    net = torch.nn.Module()
    net.none = torch.nn.Parameter(torch.empty(0))
    net.shard = torch.nn.Parameter(torch.empty(0, 64))
    net.register_buffer("nothing", torch.zeros(3, 0, 5))
    before = registrations()
    tenant.adopt(net)
    assert registrations() == before
    assert tenant.bytes == 0
    assert tenant.empty((0, 7), torch.float32, "weights").shape == (0, 7)
    net.some = torch.nn.Parameter(torch.ones(5))
    tenant.scan()
    tenant.suspend()
    tenant.resume()
    assert net.shard.shape == (0, 64)
    assert bool((net.some == 1).all())
    tenant.close()
    assert net.nothing.shape == (3, 0, 5)


# 93, 95

OWNER = f"""
import os, sys
from weave_rt import Tenant, open_device
device = open_device({SIXTEEN!r})
a, b = Tenant(device, "a"), Tenant(device, "b")
a.resume()
held = [a.buffer(12 * 4096)]
held[0].view()[:] = b"1" * held[0].nbytes
"""


def test_a_killed_owner_leaves_nothing_in_shared_memory() -> None:
    folder = Path("/dev/shm")
    before = set(folder.iterdir())
    script = OWNER + "a.suspend()\nprint(len(os.listdir('/dev/shm')), flush=True)\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert "memfd:weave-host" in maps
        assert "/dev/shm" not in maps
        child.kill()
    left = {path for path in set(folder.iterdir()) - before if "weave" in path.name}
    assert not left


FORKED = """
a.switch(b)
b.buffer(4096)
child = os.fork()
if child == 0:
    maps = open("/proc/self/maps").read()
    os._exit(1 if "memfd:weave-host" in maps else 0)
for value in b"23456":
    b.switch(a)
    held[0].view()[:] = bytes([value]) * held[0].nbytes  # no copy-on-write goes unnoticed
    a.switch(b)
    assert a.core.rescue()["other"] == bytes([value]) * held[0].nbytes
assert "memfd:weave-host" in open("/proc/self/maps").read()
_, status = os.waitpid(child, 0)
assert status == 0, "the child has the pinned memory"
"""


def test_a_forked_child_has_no_pinned_memory_and_the_parent_writes_its_own() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", OWNER + FORKED],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


# 99, 100


def test_no_copy_of_the_engine_goes_through_pageable_memory(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    a, b = pair(device)
    held = [filled(a, 12, 1)]
    a.switch(b)
    held.append(filled(b, 12, 2))
    b.switch(a)
    a.core.rescue()
    b.core.rescue()
    a.switch(b)
    assert device.stats()["pageable_copies"] == 0
    held.clear()
    a.close()
    b.close()


# 104, B 33


def test_state_that_is_in_host_memory_already_is_not_pinned_twice(open_checked: Opening) -> None:
    device = open_checked(ROLLOUT)
    tenant, other = pair(device)
    net = torch.nn.Linear(64, 64)
    opt = torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)
    tenant.adopt(net, opt)  # an optimizer without state
    assert opt.state_dict()["state"] == {}
    net(torch.ones(2, 64)).sum().backward()
    opt.step()
    steps = [state["step"].data_ptr() for state in opt.state.values()]
    tenant.scan()
    tenant.suspend()
    tenant.resume()
    pinned = device.host_pool.bytes_registered
    for _ in range(3):
        tenant.adopt(net, opt)
        tenant.scan()
        tenant.suspend()
        tenant.resume()
    assert device.host_pool.bytes_registered == pinned
    # What an optimizer counts in host memory stays there.
    assert [state["step"].data_ptr() for state in opt.state.values()] == steps
    tenant.close()
    other.close()


# 105


@pytest.mark.parametrize("count", [1, 512, 2560])  # of 20 and of 4 KiB
def test_copies_depend_on_bytes_and_not_on_the_number_of_tensors(
    open_checked: Opening, count: int
) -> None:
    device = open_checked(f"{ROLLOUT}&capacity=16MiB".replace("capacity=2MiB&", ""))
    tenant, other = pair(device)
    total = 10 << 20
    held = [tenant.empty((total // count,), torch.uint8, "weights") for _ in range(count)]
    before = _core.call_counts("emulated")
    report = tenant.suspend()
    tenant.resume()
    after = _core.call_counts("emulated")
    assert report.bytes_out == total
    blocks = -(-total // device.block_bytes)
    for call in ("memcpy_dtoh_async", "memcpy_htod_async"):
        assert after[call] - before[call] == blocks, call
    held.clear()
    tenant.close()
    other.close()


# 92


def test_what_may_be_pinned_is_no_more_than_what_the_kernel_calls_available() -> None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    assert found is not None
    assert 0 < _core.host_bytes_available() <= int(found.group(1)) * 1024 * 1.2  # others run too
