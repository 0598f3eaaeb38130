"""Silent corruption that users of other runtimes met: what comes back must be what left, or an
error. tests/cases.md, part 4.A. Bytes are compared with an undisturbed copy; between leaving and
coming back another tenant overwrites the device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import ROLLOUT

import weave_rt
from weave_rt import Device, Job, LocalRuntime, NotResident, StaleWeights, Tenant, UsageError, _core

BLOCK = 16384
TINY = "emulated:h20?scale=4096&speed=100&capacity=72KiB&block=4KiB&granularity=4KiB&context=4KiB"


class Disturbed:
    """A tenant, and a neighbour that takes the whole device and overwrites it."""

    def __init__(self, device: Device, **settings: Any) -> None:
        self.tenant = Tenant(device, "job", job="a", pool="train", **settings)
        self.other = Tenant(device, "other")
        self.other.resume()
        self.noise = self.other.buffer(device.usable_bytes, "weights")
        self.other.switch(self.tenant)
        self.turn = 0

    def disturb(self) -> None:
        self.tenant.switch(self.other)
        self.turn += 1
        self.noise.view()[:] = bytes([self.turn]) * self.noise.nbytes
        self.other.switch(self.tenant)

    def close(self) -> None:
        self.tenant.close()
        del self.noise
        self.other.close()


@pytest.fixture
def make(open_checked: Callable[[str], Device]) -> Iterator[Callable[..., Disturbed]]:
    made: list[Disturbed] = []

    def making(**settings: Any) -> Disturbed:
        made.append(Disturbed(open_checked(ROLLOUT), **settings))
        return made[-1]

    yield making
    for one in made:
        one.close()


@pytest.fixture
def pair(make: Callable[..., Disturbed]) -> Disturbed:
    return make()


@functools.cache
def pattern(seed: int, nbytes: int) -> bytes:
    return torch.randint(
        0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    ).numpy().tobytes()  # fmt: skip


# 1


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_regions_with_and_without_backup_come_back_whole_in_any_order(
    open_checked: Callable[[str], Device], order: tuple[str, ...], verify: bool
) -> None:
    device = open_checked(ROLLOUT)
    device.set_verify(verify)
    tenants, kept = {}, {}
    size = device.usable_bytes * 2 // 3 // BLOCK * BLOCK  # no two fit together
    for seed, name in enumerate("abc"):
        tenant = Tenant(device, name)
        tenant.resume()
        data = tenant.buffer(size // 2, "weights")
        cache = tenant.buffer(size // 2, "kv_cache")
        kept[name] = pattern(seed, data.nbytes)
        data.view()[:] = kept[name]
        cache.view()[:] = bytes([0xEE]) * cache.nbytes
        tenants[name] = (tenant, data, cache)
        tenant.suspend()
    for name in (*order, *reversed(order)):
        tenant, data, cache = tenants[name]
        tenant.resume()
        assert data.view() == kept[name], name
        cache.view()[:] = bytes([0x77]) * cache.nbytes
        tenant.suspend()
    for tenant, _, _ in tenants.values():
        tenant.close()
    tenants.clear()
    del data, cache


# 3, 4, 5, B 21, 22


class Engine(torch.nn.Module):
    """What an inference engine has beside its weights: tables in no state dict, running
    statistics, scales of a quantised cache as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        inv_freq = 1.0 / 100.0 ** (torch.arange(16) / 16)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("k_scale", torch.tensor(0.37))
        self.register_buffer("v_scale", torch.tensor([1.25], dtype=torch.bfloat16))
        self.plain_scale = torch.tensor(2.5)  # an attribute: nobody manages it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.norm(self.mix(x * self.inv_freq)) * self.k_scale * self.v_scale * self.plain_scale
        )


def engine(seed: int = 1) -> Engine:
    torch.manual_seed(seed)
    made = Engine()
    for _ in range(3):
        made(torch.randn(8, 16))  # running statistics that are no defaults
    return made.eval()


@pytest.mark.parametrize("cache", ["keep", "discard"])
def test_the_first_output_after_a_cycle_equals_the_last_before_it(
    make: Callable[..., Disturbed], cache: str
) -> None:
    """Buffers are state of their own: a discarded cache takes neither tables nor scales along."""
    pair = make(tags={"kv_cache": cache})
    net = engine()
    before = {name: b.clone() for name, b in net.named_buffers()}
    pair.tenant.adopt(net)
    kv = pair.tenant.empty((64, 16), torch.bfloat16, "kv_cache").fill_(1.0)
    scale = pair.tenant.empty((), torch.float32, "buffers").fill_(0.125)  # of that cache
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        probe = net(x).clone()
        for _ in range(3):
            pair.disturb()
            assert torch.equal(net(x), probe)
            assert float(scale) == 0.125
            assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    assert (kv == 1).all() or cache == "discard"
    pair.tenant.scan()
    assert {slot["tag"] for slot in pair.tenant.torch_book().index().values()} == {
        "weights", "buffers", "kv_cache"
    }  # fmt: skip


def test_discarded_weights_are_an_error_before_the_first_token_and_buffers_are_kept(
    runtime: LocalRuntime,
) -> None:
    with (
        weave_rt.init("a", {"runtime": runtime}) as job,
        weave_rt.init("b", {"runtime": runtime}) as b,
    ):
        net = engine()
        buffers = {name: x.clone() for name, x in net.named_buffers()}
        job.manage("engine", net, pool="rollout", tags={"weights": "discard"})
        other = b.manage("all", pool="rollout")
        with b.phase("rollout"):
            noise = other.buffer(runtime.devices["rollout:0"].usable_bytes, "other")
            noise.view()[:] = bytes([9]) * noise.nbytes
        with pytest.raises(StaleWeights, match="discarded"), job.phase("rollout"):
            net(torch.zeros(2, 16))
        with job.phase("weight_sync"), torch.no_grad():
            for name, x in net.named_buffers():
                assert torch.equal(x, buffers[name]), name
            net.mix.weight.zero_()
        with job.phase("rollout"):
            net(torch.zeros(2, 16))
        del noise


# 9


OPERATIONS: dict[str, Callable[[Tenant, Tenant], object]] = {
    "suspend": lambda a, b: a.suspend(),
    "resume": lambda a, b: a.resume(),
    "release": lambda a, b: a.release(),
    "switch": lambda a, b: a.switch(b),
    "back": lambda a, b: b.switch(a),
}


def test_every_order_of_operations_done_twice_is_legal_or_raises_and_never_loses_a_byte(
    open_checked: Callable[[str], Device],
) -> None:
    device = open_checked(TINY)
    a, b = Tenant(device, "a"), Tenant(device, "b")
    size = device.usable_bytes * 2 // 3 // device.block_bytes * device.block_bytes
    data: dict[str, Any] = {}
    for tenant in (a, b):
        tenant.resume()
        data[tenant.name] = tenant.buffer(size, "weights")
        data[tenant.name].view()[:] = pattern(ord(tenant.name), size)
        tenant.suspend()
    refused = 0
    for order in itertools.product(OPERATIONS, repeat=3):
        for name in order:
            for _ in range(2):
                try:
                    OPERATIONS[name](a, b)
                except (weave_rt.ResumeFailed, UsageError):
                    refused += 1
                    assert a.resident != b.resident  # refused because the other one runs
                for tenant in (a, b):
                    if tenant.resident:
                        assert data[tenant.name].view() == pattern(ord(tenant.name), size), order
                    else:
                        with pytest.raises(NotResident):
                            data[tenant.name].view()
        a.release()
        b.release()
    stats = device.stats()
    assert refused > 0
    assert stats["noop_suspends"] > 0
    assert stats["noop_resumes"] > 0
    data.clear()
    a.close()
    b.close()


# 11


def test_the_owner_of_an_index_learns_that_its_pages_are_gone(pair: Disturbed) -> None:
    cache = pair.tenant.buffer(BLOCK, "kv_cache")
    weights = pair.tenant.buffer(BLOCK, "weights")
    (kv,) = [r for r in pair.tenant.regions if r.tag == "kv_cache"]
    (kept,) = [r for r in pair.tenant.regions if r.tag == "weights"]
    index = {"prefix": kv.generation}
    pair.tenant.release()  # nothing was lost: the index is good
    pair.tenant.resume()
    assert index["prefix"] == kv.generation
    seen = {kv.generation}
    for _ in range(3):
        pair.disturb()
        assert kv.generation not in seen
        seen.add(kv.generation)
    assert kept.generation == 0
    del cache, weights


# 12, B 28


def test_all_ranks_report_the_same_bytes_and_every_byte_held(
    open_checked: Callable[[str], Device],
) -> None:
    """Tensor parallel ranks with an adapter in a tag of its own: none comes back lighter."""
    reports = []
    for rank in range(2):
        pair = Disturbed(open_checked(ROLLOUT))
        held = [pair.tenant.buffer(n * BLOCK, tag) for n, tag in ((5, "weights"), (3, "other"))]
        for number, buffer in enumerate(held):
            buffer.view()[:] = pattern(rank * 10 + number, buffer.nbytes)
        out = pair.tenant.switch(pair.other)
        assert out.bytes_out == pair.tenant.bytes == 8 * BLOCK
        pair.noise.view()[:] = bytes([1]) * pair.noise.nbytes
        into = pair.other.switch(pair.tenant)
        assert into.bytes_in == out.bytes_out
        assert [b.view() == pattern(rank * 10 + n, b.nbytes) for n, b in enumerate(held)] == [
            True
        ] * 2
        reports.append((out.bytes_out, into.bytes_in))
        del held, buffer
        pair.close()
    assert reports[0] == reports[1]


# 13


def test_weights_that_were_laid_out_anew_after_loading_come_back_as_they_are(
    pair: Disturbed,
) -> None:
    net = torch.nn.Module()
    raw = torch.randint(-128, 128, (32, 48), dtype=torch.int8)
    net.register_buffer("packed", raw.t().contiguous().view(torch.int32))  # another type and shape
    net.register_buffer("blocked", raw.view(4, 8, 48).permute(1, 0, 2))  # not contiguous
    net.weight = torch.nn.Parameter(raw.to(torch.float8_e4m3fn), requires_grad=False)
    layout = {k: (v.shape, v.stride(), v.dtype) for k, v in net.state_dict().items()}
    values = {k: v.clone().view(torch.uint8) for k, v in net.state_dict().items()}
    pair.tenant.adopt(net)
    for _ in range(2):
        pair.disturb()
        now = net.state_dict()
        assert {k: (v.shape, v.stride(), v.dtype) for k, v in now.items()} == layout
        assert all(torch.equal(v.view(torch.uint8), values[k]) for k, v in now.items())


# 15, 16, B 30


def test_tied_weights_of_two_modules_are_one_storage_with_one_copy(pair: Disturbed) -> None:
    embed = torch.nn.Embedding(64, 64)
    head = torch.nn.Linear(64, 64, bias=False)
    head.weight = embed.weight
    nbytes = embed.weight.nbytes
    pair.tenant.adopt(embed)
    allocated = [r.bytes_allocated for r in pair.tenant.regions]
    pair.tenant.adopt(head)  # an alias of what is managed already
    assert [r.bytes_allocated for r in pair.tenant.regions] == allocated == [nbytes]
    out = pair.tenant.switch(pair.other)
    assert out.bytes_out == nbytes
    pair.other.switch(pair.tenant)
    assert head.weight is embed.weight
    with torch.no_grad():
        embed.weight.fill_(3.0)
    pair.disturb()
    assert bool((head.weight == 3.0).all())
    del embed  # the other owner still has it
    pair.disturb()
    assert bool((head.weight == 3.0).all())
    pair.tenant.close()
    assert bool((head.weight == 3.0).all())


# 17


def test_views_of_every_kind_keep_strides_offsets_and_bytes(pair: Disturbed) -> None:
    base = torch.arange(4096, dtype=torch.float32)
    whole = base.view(64, 64)
    views = {
        "offset": base[100:200],
        "transposed": whole.t(),
        "sliced": whole[::3, 5:60:7],
        "expanded": base[7:8].expand(50, 50),
        "overlapping": base.as_strided((100, 10), (3, 1), 11),
        "flipped-type": base[:16].view(torch.int16),
        "empty": base[10:10],
        "scalar": base[4095],
    }
    lone = torch.arange(300, dtype=torch.float32)[100:110]  # the only one left of its storage
    module = torch.nn.Module()
    for name, view in {**views, "lone": lone}.items():
        module.register_buffer(name, view)
    layout = {n: (b.shape, b.stride(), b.storage_offset()) for n, b in module.named_buffers()}
    values = {n: b.clone() for n, b in module.named_buffers()}
    pair.tenant.adopt(module)
    (region,) = pair.tenant.regions
    assert region.bytes_allocated == base.nbytes + -(-300 * 4 // 512) * 512  # storages, not views
    for _ in range(2):
        pair.disturb()
        for name, buffer in module.named_buffers():
            assert (buffer.shape, buffer.stride(), buffer.storage_offset()) == layout[name]
            assert torch.equal(buffer, values[name]), name
    base[100] = -1.0  # what nobody registered follows too
    assert float(views["offset"][0]) == -1.0
    assert float(whole[1, 36]) == -1.0


# 19


def test_bytes_may_be_read_as_soon_as_a_call_returns(
    open_checked: Callable[[str], Device],
) -> None:
    """No copy is still in flight when suspend, rescue or switch returns, however slow the link."""
    device = open_checked(
        "emulated:h20?scale=4096&speed=50&capacity=1MiB&seed=1&h2d=40MB/s&d2h=40MB/s"
    )
    tenant = Tenant(device, "a")
    tenant.resume()
    data = tenant.buffer(12 * BLOCK, "weights")
    for turn in range(3):
        data.view()[:] = pattern(turn, data.nbytes)
        assert tenant.core.rescue()["weights"] == pattern(turn, data.nbytes)
        tenant.suspend()
        assert tenant.core.rescue()["weights"] == pattern(turn, data.nbytes)
        tenant.resume()
        assert data.view() == pattern(turn, data.nbytes)
    del data
    tenant.close()


# 20


def test_a_new_tensor_at_an_old_address_is_not_taken_for_the_old_one(pair: Disturbed) -> None:
    module = torch.nn.Module()
    module.register_buffer("old", torch.full((128,), 1.0))
    pair.tenant.adopt(module)
    address = module.old.data_ptr()
    del module.old
    fresh = pair.tenant.empty((128,), torch.float32, "buffers").fill_(2.0)
    assert fresh.data_ptr() == address
    assert [key.split("/")[1] for key in pair.tenant.torch_book().index()] == ["empty(128,)"]
    module.register_buffer("old", torch.full((128,), 3.0))  # the same name, elsewhere
    assert pair.tenant.scan() == 1
    pair.tenant.verify_addresses()
    pair.disturb()
    assert bool((fresh == 2.0).all())
    assert bool((module.old == 3.0).all())
    assert module.old.data_ptr() != address


def test_a_freed_span_at_the_same_address_is_another_span(pair: Disturbed) -> None:
    region = pair.tenant.region_of("weights")
    first = region.allocate(4096)
    address = first.address
    view = memoryview(first)
    del first  # the view still reads it, so its place is not given away
    second = region.allocate(4096)
    assert second.address != address
    view.release()
    del view
    third = region.allocate(4096)
    assert third.address == address
    del second, third


# 8, B 6


@pytest.mark.parametrize("only", ["memcpy_htod_async", "mem_map", "mem_set_access"])
@pytest.mark.parametrize("nth", [1, 3, 5])
def test_a_backup_is_dropped_only_when_everything_is_back(
    open_checked: Callable[[str], Device], only: str, nth: int
) -> None:
    device = open_checked(ROLLOUT)
    tenant = Tenant(device, "a")
    tenant.resume()
    parts = {tag: tenant.buffer(4 * BLOCK, tag) for tag in ("weights", "optimizer")}
    for seed, buffer in enumerate(parts.values()):
        buffer.view()[:] = pattern(seed, buffer.nbytes)
    tenant.suspend()
    with _core.FaultScope(nth=nth, only=only) as fault:
        try:
            tenant.resume()
        except weave_rt.DriverError:
            assert tenant.state == "HOST" or not tenant.resident
            saved = tenant.core.rescue()
            assert saved["weights"] == pattern(0, 4 * BLOCK)
            assert saved["optimizer"] == pattern(1, 4 * BLOCK)
        else:
            assert fault.calls_failed == 0
    tenant.resume()
    for seed, buffer in enumerate(parts.values()):
        assert buffer.view() == pattern(seed, buffer.nbytes)
    parts.clear()
    del buffer
    tenant.close()


def test_phases_bring_all_tags_of_a_tenant_or_none(runtime: LocalRuntime) -> None:
    """Waking one tag and running on another cannot be asked for."""
    with weave_rt.init("a", {"runtime": runtime}) as job:
        assert isinstance(job, Job)
        tenant = job.manage("engine", engine(), pool="rollout")
        assert isinstance(tenant, Tenant)
        with job.phase("rollout"):
            kv = tenant.buffer(BLOCK, "kv_cache")
        tenant.suspend()
        assert {r.resident for r in tenant.regions} == {False}
        with job.phase("rollout"):
            assert {r.resident for r in tenant.regions} == {True}
        del kv
