"""200 switches: nothing is created, released or registered, memory stays flat, addresses and bytes
are the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from weave_rt import _core, open_device

SPEC = (
    "emulated:h20?scale=4096&speed=1000&capacity=160KiB&granularity=4KiB&block=4KiB&context=4KiB"
    "&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
)
# Whatever takes or gives memory, address space, pages, streams or events.
LASTING = (
    "mem_create", "mem_release", "mem_address_reserve", "mem_address_free", "mem_host_register",
    "mem_host_unregister", "stream_create", "stream_destroy", "event_create", "event_destroy",
    "primary_ctx_retain", "primary_ctx_release",
)  # fmt: skip
SIZES = {"weights": 40_000, "optimizer": 60_000}


def lasting() -> dict[str, int]:
    counts = _core.call_counts("emulated")
    return {call: counts[call] for call in LASTING}


def switch(device: _core.Device, out: _core.Tenant, into: _core.Tenant) -> int:
    return device.switch(out, into).bytes_out


def suspend_and_resume(_: _core.Device, out: _core.Tenant, into: _core.Tenant) -> int:
    moved = out.suspend().bytes_out
    into.resume()
    return moved


@pytest.mark.parametrize("hand_over", [switch, suspend_and_resume])
def test_200_switches_ask_the_driver_for_nothing_lasting(
    hand_over: Callable[[_core.Device, _core.Tenant, _core.Tenant], int],
) -> None:
    device = open_device(SPEC, host_budget_bytes=1 << 22)
    names = ("a", "b")
    cores = {name: device.add_tenant(name, "job") for name in names}
    spans: dict[tuple[str, str], _core.Span] = {}
    wanted: dict[tuple[str, str], int] = {}
    for seed, name in enumerate(names, 1):
        if seed > 1:
            device.switch(cores["a"], cores["b"])
        else:
            cores["a"].resume()
        for tag, nbytes in SIZES.items():
            span = spans[name, tag] = cores[name].region(tag).allocate(nbytes)
            memoryview(span)[:] = bytes((i * 31 + seed * 7) & 255 for i in range(nbytes))
            wanted[name, tag] = zlib.crc32(memoryview(span))
    hand_over(device, cores["b"], cores["a"])
    hand_over(device, cores["a"], cores["b"])
    addresses = {key: span.address for key, span in spans.items()}
    before, census, stats = lasting(), device.census(), device.stats()
    pool = device.host_pool.bytes_registered, device.host_pool.bytes_used
    moved = 0
    running, waiting = names[1], names[0]
    for _ in range(200):
        moved += hand_over(device, cores[running], cores[waiting])
        running, waiting = waiting, running
        for tag in SIZES:
            assert zlib.crc32(memoryview(spans[running, tag])) == wanted[running, tag]
    assert moved > 200 * 40_000, "every switch moved something"
    assert lasting() == before
    assert device.census() == census
    assert device.stats()["blocks_created"] == stats["blocks_created"]
    assert (device.host_pool.bytes_registered, device.host_pool.bytes_used) == pool
    assert {key: span.address for key, span in spans.items()} == addresses
    spans.clear()
    device.close()
