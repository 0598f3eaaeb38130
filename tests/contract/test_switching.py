"""What every device promises about switches; one body for emulated and CUDA devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weave_rt import Device, DriverError, ResumeFailed, Tenant, _core, open_device

torch = pytest.importorskip("torch")

BLOCKS = 12  # of the device for tenants; each tenant below has 8 and they share


class Trainer:
    """A tenant with weights and a cache, and the values that its weights must have."""

    def __init__(self, device: Device, name: str, seed: int) -> None:
        self.tenant = Tenant(device, name)
        self.tenant.resume()
        block = device.block_bytes
        self.weights = self.tenant.empty((5 * block // 4,), torch.float32, "weights")
        self.cache = self.tenant.empty((3 * block,), torch.uint8, "kv_cache")
        self.generator = torch.Generator().manual_seed(seed)
        self.step()

    def step(self) -> None:
        self.expected = torch.rand(self.weights.shape, generator=self.generator)
        self.weights.copy_(self.expected)

    def intact(self) -> bool:
        return bool(torch.equal(self.weights.cpu(), self.expected))


@pytest.fixture
def shared(device: Device) -> Iterator[Device]:
    """The device again, with room for one and a half tenants."""
    opened = open_device(device.spec, usable_bytes=BLOCKS * device.block_bytes)
    yield opened
    opened.close()
    assert not any(opened.census().values())


@pytest.fixture
def pair(shared: Device) -> Iterator[tuple[Trainer, Trainer]]:
    first = Trainer(shared, "a", 1)
    first.tenant.release()
    second = Trainer(shared, "b", 2)
    second.tenant.switch(first.tenant)
    yield first, second
    for trainer in (first, second):
        del trainer.weights, trainer.cache
        trainer.tenant.close()


def test_only_the_excess_moves_and_bytes_are_exact(pair: tuple[Trainer, Trainer]) -> None:
    first, second = pair
    block = first.tenant.device.block_bytes
    address = first.weights.data_ptr()
    for _ in range(5):
        assert first.intact()
        first.step()
        report = first.tenant.switch(second.tenant)
        # 16 blocks on 12: four leave, of which three are cache.
        assert report.bytes_out == block
        assert second.intact()
        second.step()
        second.tenant.switch(first.tenant)
    assert first.weights.data_ptr() == address
    stats = first.tenant.device.stats()
    assert stats["blocks_created"] == BLOCKS
    assert stats.get("pageable_copies", 0) == 0


def test_steady_state_creates_and_registers_nothing(pair: tuple[Trainer, Trainer]) -> None:
    first, second = pair
    first.tenant.switch(second.tenant)
    second.tenant.switch(first.tenant)
    before = _core.call_counts(first.tenant.device.kind)
    for _ in range(5):
        first.tenant.switch(second.tenant)
        second.tenant.switch(first.tenant)
    after = _core.call_counts(first.tenant.device.kind)
    for call in ("mem_create", "mem_release", "mem_host_register", "mem_host_unregister",
                 "mem_address_reserve", "stream_create", "event_create"):  # fmt: skip
        assert after[call] == before[call], call


def test_a_holder_is_named_and_nothing_changes(pair: tuple[Trainer, Trainer]) -> None:
    first, second = pair
    with pytest.raises(ResumeFailed) as refused:
        second.tenant.resume()
    assert refused.value.holders == ["a"]
    assert first.tenant.resident
    assert first.intact()


@pytest.mark.parametrize(
    "call",
    [
        "ctx_synchronize",
        "event_record",
        "mem_map",
        "mem_set_access",
        "mem_unmap",
        "memcpy_dtoh_async",
        "memcpy_htod_async",
    ],
)
def test_one_failing_call_is_undone(pair: tuple[Trainer, Trainer], call: str) -> None:
    first, second = pair
    with _core.FaultScope(nth=1, only=call) as fault, pytest.raises(DriverError) as failed:
        first.tenant.switch(second.tenant)
    assert fault.calls_failed == 1
    assert failed.value.code == 999
    assert first.tenant.resident
    assert first.intact()
    first.tenant.switch(second.tenant)
    assert second.intact()
    second.tenant.switch(first.tenant)
    assert first.intact()


def test_small_pages_move_together_and_are_exact(shared: Device) -> None:
    """Where the driver copies batches: fewer calls than pages. Everywhere: the same bytes."""
    block, page = shared.block_bytes, 256
    engine, other = Tenant(shared, "engine", tags={"kv_cache": "keep"}), Tenant(shared, "other")
    pinned = shared.host_pool.bytes_used
    engine.resume()
    caches: list[torch.Tensor] = []
    engine.page_table("kv_cache", lambda: engine.pages(caches[0], used))
    caches.append(engine.empty((8 * block // page, page), torch.uint8, "kv_cache"))
    cache = caches[0]
    assert shared.host_pool.bytes_used == pinned
    generator = torch.Generator().manual_seed(3)
    used = torch.randperm(cache.shape[0], generator=generator)[:200].sort().values.tolist()
    engine.release()
    other.resume()
    noise = other.empty((BLOCKS * block,), torch.uint8, "scratch")
    other.switch(engine)
    for turn in range(3):
        expected = torch.randint(0, 256, (len(used), page), dtype=torch.uint8, generator=generator)
        cache[used] = expected.to(cache.device)
        before = _core.call_counts(shared.kind)
        assert engine.switch(other).bytes_out == len(used) * page
        noise.fill_(turn + 1)
        assert other.switch(engine).bytes_in == len(used) * page
        after = _core.call_counts(shared.kind)
        assert torch.equal(cache[used].cpu(), expected)
        calls = {
            name: after[f"memcpy_{name}_async"] - before[f"memcpy_{name}_async"]
            for name in ("dtoh", "htod", "batch")
        }
        if calls["batch"] > 0:
            assert sum(calls.values()) < len(used)
    used_bytes = shared.host_pool.bytes_used - pinned
    assert used_bytes == -(-len(used) * page // block) * block
    del cache, noise
    caches.clear()
    engine.close()
    other.close()
