"""Memory that users of other runtimes lost: not released, leaked, doubled, or fatal when it ran
out. tests/cases.md, part 4.C."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROLLOUT
from small_blocks import BLOCK, TINY, filled, running, shared

import weave_rt
from weave_rt import (
    Device,
    DriverError,
    GrowthRefused,
    HostMemoryError,
    LocalRuntime,
    OutOfMemoryError,
    Tenant,
    _core,
    open_device,
)

SIXTEEN = f"{TINY}&capacity=72KiB"  # blocks for tenants

Opening = Callable[[str], Device]


def registered(device: Device) -> int:
    return device.host_pool.bytes_registered


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found.group(1)) * 1024


# 51, 52


def test_memory_is_free_when_the_call_returns(open_checked: Opening) -> None:
    for seed in range(1, 6):  # on some an unmap waits
        device = open_checked(f"{SIXTEEN}&seed={seed}")
        usable = device.usable_bytes
        a, b = running(device, "a"), Tenant(device, "b")
        data = filled(a, 16, 1)
        a.suspend()
        assert device.stats()["blocks_free"] == 16
        b.resume()
        whole = b.buffer(usable)
        del whole
        b.close()
        a.resume()
        assert data.view() == bytes([1]) * data.nbytes
        del data
        a.close()
    spec = shared("again")
    for _ in range(3):
        device = open_checked(spec)
        tenant = running(device, "a")
        filled(tenant, device.usable_bytes // BLOCK, 3)
        tenant.close()
        device.close()
        assert device.census()["bytes_used"] == 0


def test_a_report_accounts_for_every_byte_that_is_to_leave(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    a, b = running(device, "a"), Tenant(device, "b")
    empty = a.suspend()
    assert (empty.bytes_out, empty.bytes_skipped) == (0, 0)  # nothing managed frees nothing
    a.resume()
    held = [filled(a, 6, 1), filled(a, 4, 2, "kv_cache")]
    report = a.suspend()
    assert (report.bytes_out, report.bytes_skipped) == (6 * BLOCK, 4 * BLOCK)
    assert a.core.bytes_resident == 0
    b.resume()
    held += [filled(b, 10, 3)]
    partly = b.switch(a)
    assert partly.bytes_out + partly.bytes_skipped >= 4 * BLOCK
    assert b.core.bytes - b.core.bytes_resident == partly.bytes_out == 4 * BLOCK
    held.clear()
    a.close()
    b.close()


def test_a_torch_object_whose_memory_is_not_ours_is_refused_not_skipped(
    open_checked: Opening,
) -> None:
    """52, B 2: suspending something that is not managed cannot pass for success."""
    device = open_checked(ROLLOUT)
    tenant = running(device, "a")
    foreign = torch.zeros(1000).share_memory_()
    with pytest.raises(weave_rt.UsageError, match="shared with other processes"):
        tenant.adopt(foreign)
    net = torch.nn.Linear(32, 32)
    tenant.adopt(net)
    held = sum(slot["nbytes"] for slot in tenant.torch_book().index().values())  # type: ignore[misc]
    assert held == sum(p.nbytes for p in net.parameters())
    assert tenant.suspend().bytes_out >= held
    tenant.close()


# 56, 57, 73, B 4, B 16: nothing grows


def test_host_memory_of_many_cycles_is_that_of_the_first(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    a, b = running(device, "a"), Tenant(device, "b")
    held = [filled(a, 12, 1)]
    a.switch(b)
    held.append(filled(b, 12, 2))
    b.switch(a)
    gc.collect()
    before = (registered(device), device.host_pool.pieces, descriptors(), device.census())
    peak, anonymous = 0, resident_bytes()
    calls = _core.call_counts("emulated")
    for _ in range(100):
        a.switch(b)
        peak = max(peak, registered(device))
        b.switch(a)
    assert peak == before[0] == 24 * BLOCK
    assert (registered(device), device.host_pool.pieces, descriptors(), device.census()) == before
    after = _core.call_counts("emulated")
    for call in ("mem_create", "mem_release", "mem_host_register", "mem_host_unregister"):
        assert after[call] == calls[call], call
    assert resident_bytes() - anonymous < 4 << 20
    held.clear()
    a.close()
    b.close()


def test_tensors_that_die_while_paused_leave_nothing_in_a_thousand_rounds(
    open_checked: Opening,
) -> None:
    device = open_checked(SIXTEEN)
    tenant = running(device, "a")
    for turn in range(1000):
        tensor = tenant.empty((3 * BLOCK,), torch.uint8, "weights")
        if turn % 2:
            tenant.suspend()
            del tensor
            tenant.resume()
        else:
            del tensor
        if turn == 9:
            before = (registered(device), descriptors(), tenant.bytes, resident_bytes())
    after = (registered(device), descriptors(), tenant.bytes, resident_bytes())
    assert after[:3] == before[:3]
    assert after[3] - before[3] < 4 << 20
    assert not tenant.torch_book().index()
    tenant.close()
    assert registered(device) == 0


def test_host_memory_goes_back_with_the_tenant(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    for _ in range(20):
        tenant = running(device, "a", job="a")
        filled(tenant, 5, 1)
        tenant.suspend()
        tenant.close()
    assert registered(device) == 0
    assert device.host_pool.bytes_used == 0


# 59, 60


@pytest.mark.parametrize("blocks", [1, 2**4 + 1, 2**6 + 1, 2**8 + 1, 2**9 - 1])
def test_pinned_memory_is_what_was_asked_for_not_the_next_power_of_two(
    open_checked: Opening, blocks: int
) -> None:
    device = open_checked(f"{TINY}&capacity=4MiB")
    tenant = running(device, "a", job="a")
    buffer = tenant.buffer(blocks * BLOCK)
    assert blocks * BLOCK <= registered(device) <= blocks * BLOCK * 1.02
    del buffer
    tenant.close()


def test_a_budget_holds_exactly_what_it_says_and_is_asked_before_anything_is_taken() -> None:
    need = 12 * BLOCK
    device = open_device(SIXTEEN, host_budget_bytes=need * 105 // 100)
    tenant = running(device, "a", job="a")
    buffer = tenant.buffer(need)
    assert registered(device) == need
    with pytest.raises(HostMemoryError) as refused:
        tenant.buffer(4 * BLOCK)
    assert refused.value.bytes_needed > refused.value.bytes_available
    assert registered(device) == need
    del buffer
    tenant.close()
    device.close()
    short = open_device(SIXTEEN, host_budget_bytes=need - 1)
    tenant = running(short, "a", job="a")
    before = _core.call_counts("emulated")["mem_host_register"]
    with pytest.raises(HostMemoryError):
        tenant.buffer(need)
    assert _core.call_counts("emulated")["mem_host_register"] == before
    assert registered(short) == 0
    tenant.close()
    short.close()


# 64, 76, B 8


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["train", "eval", "rollout", "save"]))
)
def test_residency_follows_phases_whatever_their_order(
    open_checked: Opening, order: tuple[str, ...]
) -> None:
    """One GPU for both pools: state of each side is there exactly in the phases that use it."""
    device = open_checked(SIXTEEN)
    with (
        LocalRuntime({"rollout": [device], "train": [device]}) as runtime,
        weave_rt.init("a", {"runtime": runtime}) as job,
    ):
        sides = {pool: job.manage(pool, pool=pool) for pool in ("train", "rollout")}
        held = {}
        for pool, value in (("train", 1), ("rollout", 2)):
            with job.phase("init", pool=pool):
                held[pool] = filled(sides[pool], 12, value)  # type: ignore[arg-type]
        for phase in order:
            pool = "rollout" if phase in ("rollout", "eval") else "train"
            other = "train" if pool == "rollout" else "rollout"
            with job.phase(phase):
                assert (sides[pool].resident, sides[other].resident) == (True, False)
                assert held[pool].view() == bytes([1 if pool == "train" else 2]) * 12 * BLOCK
        held.clear()


def test_phases_that_need_the_same_state_move_it_once(open_checked: Opening) -> None:
    seen: list[weave_rt.Slice] = []
    device = open_checked(SIXTEEN)
    with (
        LocalRuntime({"rollout": [device], "train": [device]}, observer=seen.append) as runtime,
        weave_rt.init("a", {"runtime": runtime}) as job,
    ):
        policy = job.manage("policy", pool="train")
        engine = job.manage("engine", pool="rollout")
        held = []
        for pool, tenant in (("train", policy), ("rollout", engine)):
            with job.phase("init", pool=pool):
                held.append(filled(tenant, 12, 1))  # type: ignore[arg-type]
        for phase in ("rollout", "eval", "rollout", "train", "save", "train"):
            with job.phase(phase):
                pass
        moved = [
            (s.phase, s.report["bytes_out"], s.report["bytes_in"])
            for s in seen
            if s.kind == "switch" and s.report is not None and s.phase != "init"
        ]
        excess = 8 * BLOCK
        assert moved == [
            ("rollout", 0, 0), ("eval", 0, 0), ("rollout", 0, 0),
            ("train", excess, excess), ("save", 0, 0), ("train", 0, 0),
        ]  # fmt: skip
        held.clear()


# 65


def test_a_region_does_not_fragment_when_some_tensors_stay(open_checked: Opening) -> None:
    device = open_checked(f"{TINY}&capacity=1MiB")
    tenant = running(device, "a")
    draw = random.Random(1)
    kept: list[Any] = []
    for step in range(60):
        made = [tenant.empty((draw.randrange(1, 9000),), torch.uint8, "scratch") for _ in range(10)]
        kept.append(made[draw.randrange(10)][:16])  # a view keeps its whole storage
        if len(kept) > 5:
            kept.pop(draw.randrange(5))
        del made
        if step == 10:
            early = tenant.bytes
        tenant.release()
        tenant.resume()
    assert tenant.bytes <= early * 1.25
    kept.clear()
    tenant.close()


# 67


def test_memory_goes_back_to_the_device_it_came_from(open_checked: Opening) -> None:
    one, two = open_checked(SIXTEEN), open_checked(f"{SIXTEEN}&seed=5")
    a, b = running(one, "a"), running(two, "b")
    first, second = filled(a, 3, 1), filled(b, 5, 2)
    b.core.suspend()  # whatever context was current last
    del first
    assert (a.regions[0].bytes_allocated, b.regions[0].bytes_allocated) == (0, 5 * BLOCK)
    a.close()
    assert one.stats()["blocks_free"] == one.stats()["blocks_total"]
    b.resume()
    assert second.view() == bytes([2]) * second.nbytes
    del second
    b.close()


# 68, 103


@pytest.mark.parametrize("granularity", [4096, 65536, 2 << 20])
def test_sizes_are_rounded_to_what_the_device_says(open_checked: Opening, granularity: int) -> None:
    device = open_checked(
        "emulated:h20?scale=4096&speed=100&capacity=32MiB"
        f"&granularity={granularity}&block={granularity}"
    )
    assert device.block_bytes % granularity == 0
    for nbytes in (1, granularity - 1, granularity, granularity + 1, 2 * granularity - 1):
        tenant = running(device, "a")
        span = tenant.region_of("weights").allocate(nbytes)
        assert (span.bytes, tenant.bytes) == (nbytes, math.ceil(nbytes / granularity) * granularity)
        memoryview(span)[nbytes - 1 :] = b"x"
        tenant.suspend()
        tenant.resume()
        assert bytes(memoryview(span)[nbytes - 1 :]) == b"x"
        del span
        tenant.close()


def test_no_handle_is_larger_than_a_block(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    tenant = running(device, "a")
    before = _core.call_counts("emulated")["mem_create"]
    buffer = tenant.buffer(16 * BLOCK)
    assert _core.call_counts("emulated")["mem_create"] - before == 16
    assert device.stats()["blocks_total"] * device.block_bytes == device.usable_bytes
    del buffer
    tenant.close()
    full_size = _core.parse_emulated("emulated:h20")
    assert full_size["block_bytes"] == 64 << 20


# 69


def test_memory_of_a_graph_is_a_tag_whose_addresses_and_bytes_last(open_checked: Opening) -> None:
    device = open_checked(SIXTEEN)
    a, b = running(device, "a"), Tenant(device, "b")
    pool = filled(a, 6, 7, "cuda_graph")
    address = pool.address
    a.switch(b)
    other = filled(b, 16, 9)
    assert a.core.bytes_resident == 0
    b.switch(a)
    assert (pool.address, pool.view() == bytes([7]) * pool.nbytes) == (address, True)
    del pool, other
    a.close()
    b.close()


# 35, 48


def test_running_out_of_memory_is_an_exception_with_numbers_not_the_end(
    open_checked: Opening,
) -> None:
    device = open_checked(SIXTEEN)
    tenant = running(device, "a")
    data = filled(tenant, 8, 1)
    with pytest.raises(GrowthRefused) as refused:
        tenant.buffer(9 * BLOCK)
    assert refused.value.bytes_needed == 17 * BLOCK
    assert refused.value.bytes_usable == 16 * BLOCK
    with (
        _core.FaultScope(nth=1, only="mem_create", status=2),
        pytest.raises(OutOfMemoryError) as out,
    ):
        tenant.buffer(2 * BLOCK)
    assert isinstance(out.value, DriverError)
    assert isinstance(out.value, MemoryError)
    assert data.view() == bytes([1]) * data.nbytes
    more = tenant.buffer(8 * BLOCK)
    del data, more
    tenant.close()
