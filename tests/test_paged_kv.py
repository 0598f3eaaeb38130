"""A paged KV cache that is kept: only pages in use move, and a generation that was interrupted
half-way continues bit-identically, whatever took the device meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import ROLLOUT

from weave_rt import Device, HostMemoryError, NotResident, Tenant, UsageError, open_device

PAGES, TOKENS, HEADS, SIZE, LAYERS = 64, 4, 2, 64, 2
WIDTH = HEADS * SIZE


class Decoder(torch.nn.Module):
    """A small transformer whose attention reads keys and values from pages, in any order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(50, WIDTH)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.out = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 50)


class Generation:
    """One response being decoded: its tokens, and the pages that hold its keys and values."""

    def __init__(self, model: Decoder, cache: list[torch.Tensor], pages: list[int]) -> None:
        self.model, self.cache, self.pages = model, cache, pages
        self.tokens = [7]

    def used(self) -> list[int]:
        return self.pages[: -(-len(self.tokens) // TOKENS)]

    @torch.no_grad()
    def step(self) -> None:
        position = len(self.tokens) - 1
        x = self.model.embed(torch.tensor([self.tokens[-1]]))
        for layer, cache in enumerate(self.cache):
            q, k, v = self.model.qkv[layer](x).view(3, HEADS, SIZE)
            page, slot = self.pages[position // TOKENS], position % TOKENS
            cache[0, page, slot], cache[1, page, slot] = k, v
            keys, values = cache[:, self.used()].flatten(1, 2)[:, : position + 1]
            weights = torch.softmax(torch.einsum("hd,thd->ht", q, keys) / SIZE**0.5, -1)
            mixed = torch.einsum("ht,thd->hd", weights, values).reshape(1, WIDTH)
            x = x + self.model.out[layer](mixed)
        logits = self.model.head(x)[0]
        draw = torch.Generator().manual_seed(position)
        self.tokens.append(int(torch.multinomial(torch.softmax(logits, -1), 1, generator=draw)))


def caches(empty: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    return [empty() for _ in range(LAYERS)]


SHAPE = (2, PAGES, TOKENS, HEADS, SIZE)
ORDER = [(i * 23 + 5) % PAGES for i in range(PAGES)]


@pytest.fixture
def device(open_checked: Callable[[str], Device]) -> Device:
    return open_checked(ROLLOUT)


class Engine:
    """The decoder in a tenant whose KV cache is kept by pages, and a tenant that takes it all."""

    def __init__(self, device: Device) -> None:
        self.tenant = Tenant(device, "engine", job="a", pool="rollout", tags={"kv_cache": "keep"})
        self.tenant.resume()
        model = Decoder()
        self.tenant.adopt(model)
        self.cache = caches(lambda: self.tenant.empty(SHAPE, "float32", "kv_cache"))
        self.generation = Generation(model, self.cache, ORDER)
        self.tenant.page_table("kv_cache", self.table)
        self.tenant.release()
        self.other = Tenant(device, "other")
        self.other.resume()
        self.noise = self.other.buffer(device.usable_bytes, "scratch")
        self.other.release()
        self.tenant.resume()

    def table(self) -> tuple[list[int], list[int]]:
        offsets: list[int] = []
        sizes: list[int] = []
        for cache in self.cache:
            more = self.tenant.pages(cache, self.generation.used(), dim=1)
            offsets, sizes = offsets + more[0], sizes + more[1]
        return offsets, sizes

    def disturb(self) -> int:
        """The whole device is written by somebody else. Returns the bytes that came back."""
        self.tenant.switch(self.other)
        self.noise.view()[:] = b"\xff" * self.noise.nbytes  # NaN in any float
        return self.other.switch(self.tenant).bytes_in

    def close(self) -> None:
        del self.noise
        self.tenant.close()
        self.other.close()


@pytest.fixture
def engine(device: Device) -> Iterator[Engine]:
    made = Engine(device)
    yield made
    made.close()


def test_a_generation_that_is_interrupted_continues_bit_identically(engine: Engine) -> None:
    alone = Generation(Decoder(), caches(lambda: torch.empty(SHAPE)), ORDER)
    for _ in range(40):
        alone.step()
    for length in range(40):
        if length % 6 == 3:
            engine.disturb()
        engine.generation.step()
    assert engine.generation.tokens == alone.tokens
    for mine, its in zip(engine.cache, alone.cache, strict=True):
        # the last token's keys are written by the next step; all before are there
        assert torch.equal(mine[:, ORDER[:9]], its[:, ORDER[:9]])


def test_only_pages_in_use_move(engine: Engine) -> None:
    for _ in range(10):
        engine.generation.step()
    used = len(engine.generation.used())
    region = next(r for r in engine.tenant.regions if r.tag == "kv_cache")
    page_bytes = TOKENS * HEADS * SIZE * 4
    moved = engine.disturb()
    assert region.bytes_in_pages == used * page_bytes * 2 * LAYERS
    weights = sum(r.bytes_allocated for r in engine.tenant.regions if r.tag != "kv_cache")
    assert moved <= region.bytes_in_pages + weights + 512
    assert region.bytes_in_pages < region.bytes_allocated / 10
    registered = engine.tenant.device.host_pool.bytes_registered
    engine.disturb()
    assert engine.tenant.device.host_pool.bytes_registered == registered


def test_no_page_in_use_is_fine_and_without_a_table_all_moves(engine: Engine) -> None:
    engine.tenant.page_table("kv_cache", lambda: ([], []))
    few = engine.disturb()
    engine.tenant.page_table("kv_cache", None)
    for cache in engine.cache:
        cache.fill_(2.0)
    kv = sum(cache.nbytes for cache in engine.cache)
    assert engine.disturb() == few + kv
    assert all(bool((cache == 2.0).all()) for cache in engine.cache)


def test_pages_outside_and_tables_that_fail_move_nothing(engine: Engine) -> None:
    region = next(r for r in engine.tenant.regions if r.tag == "kv_cache")
    before = [cache.clone() for cache in engine.cache]

    def broken() -> tuple[list[int], list[int]]:
        raise ZeroDivisionError

    for table, error in (
        (lambda: ([region.bytes - 8], [16]), UsageError),
        (lambda: ([region.bytes + 8], [0]), UsageError),
        (lambda: ([0, 16], [16]), UsageError),
        (broken, ZeroDivisionError),
    ):
        engine.tenant.page_table("kv_cache", table)
        with pytest.raises(error):
            engine.tenant.suspend()
        assert engine.tenant.state == "RESIDENT"
    engine.tenant.page_table("kv_cache", None)
    for cache, old in zip(engine.cache, before, strict=True):
        assert torch.equal(cache.view(torch.int32), old.view(torch.int32))
    for indices, dim, said in (
        ([1, 64, -1], 1, "page 64 is not in 0 to 63"),
        ([0.5], 1, "list of integers"),
        ([0], 9, "dim=9 is not one of a tensor of"),
        ([0], None, "dim=None"),
    ):
        with pytest.raises(UsageError, match=said):
            engine.tenant.pages(engine.cache[0], indices, dim=dim)  # type: ignore[arg-type]
    dims = engine.cache[0].dim()
    by_end = engine.tenant.pages(engine.cache[0], [3, 5], dim=1 - dims)
    assert by_end == engine.tenant.pages(engine.cache[0], [3, 5], dim=1)
    with pytest.raises(UsageError, match="in a region"):
        engine.tenant.pages(torch.zeros(4), [0])
    with pytest.raises(UsageError, match="only pages of a keep tag"):
        engine.other.page_table("scratch", broken)
    engine.tenant.suspend()
    with pytest.raises(NotResident):
        region.set_pages([0], [8])
    engine.tenant.resume()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "not None"),
        (([0], [8], [8]), "two lists of integers"),
        (([0.5], [8]), r"not \(\[0.5\], \[8\]\)"),
        ((["0"], [8]), "two lists of integers"),
        (([0, -512], [8, 8]), "-512"),
        (([0], [-8]), "-8"),
    ],
)
def test_what_a_table_must_not_give_is_refused_with_its_tag(
    engine: Engine, given: Any, said: str
) -> None:
    engine.tenant.page_table("kv_cache", lambda: given)
    with pytest.raises(UsageError, match=f"page table of tag 'kv_cache' g.*{said}") as caught:
        engine.tenant.suspend()
    assert "\n" not in str(caught.value)
    assert engine.tenant.state == "RESIDENT"
    with pytest.raises(UsageError, match=r"page table of tag 'kv_cache' is a function, not \[1\]"):
        engine.tenant.page_table("kv_cache", [1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        engine.tenant.write_back("kv_cache")  # the one from before
    engine.tenant.page_table("kv_cache", engine.table)
    engine.tenant.suspend()


@pytest.mark.parametrize("failing", ["table", "other table", "scan"])
@pytest.mark.parametrize("stop", ["release", "suspend", "switch"])
def test_pages_are_not_lost_where_asking_for_them_fails(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, failing: str, stop: str
) -> None:
    """A page that came into use in a phase whose end raises is there in the next one."""
    tenant, generation = engine.tenant, engine.generation
    plain = tenant.buffer(64, "other")
    healthy = True

    def failing_table() -> tuple[list[int], list[int]]:
        if not healthy:
            raise ZeroDivisionError
        return [], []

    def table() -> tuple[list[int], list[int]]:
        if failing == "table":
            failing_table()
        return engine.table()

    def scan() -> int:
        if not healthy:
            raise ZeroDivisionError
        return 0

    if failing == "other table":  # asked before the one of the cache
        del tenant._page_tables["kv_cache"]
        tenant.page_table("other", failing_table)
    if failing == "scan":
        monkeypatch.setattr(tenant, "scan", scan)
    tenant.page_table("kv_cache", table)
    generation.step()
    engine.disturb()
    while len(generation.used()) < 3:
        generation.step()
    plain.view()[:] = b"\x11" * 64
    healthy = False
    with pytest.raises(ZeroDivisionError):
        {
            "release": tenant.release,
            "suspend": tenant.suspend,
            "switch": lambda: tenant.switch(engine.other),
        }[stop]()
    assert tenant.resident == (stop != "release")
    used = generation.used()
    expected = [cache[:, used].view(torch.int32) for cache in engine.cache]  # not written: NaN
    # Whoever stops it now asks nobody: the core goes by what it knows.
    tenant.device.switch(tenant.core, engine.other.core)
    engine.noise.view()[:] = b"\xff" * engine.noise.nbytes
    engine.other.switch(tenant)
    for cache, old in zip(engine.cache, expected, strict=True):
        assert torch.equal(cache[:, used].view(torch.int32), old)
    assert failing != "other table" or bytes(plain.view()) == b"\x11" * 64
    healthy = True
    engine.disturb()
    region = tenant.region_of("kv_cache")
    assert region.bytes_in_pages < region.bytes_allocated / 10


def kv_pinned(engine: Engine) -> int:
    """Pinned memory for the cache: all that is used but what the other tags take."""
    others = sum(r.bytes for r in engine.tenant.regions if r.tag != "kv_cache")
    return engine.tenant.device.host_pool.bytes_used - others


def test_pinned_memory_is_that_of_the_pages_in_use(engine: Engine) -> None:
    region = engine.tenant.region_of("kv_cache")
    block = engine.tenant.device.block_bytes
    for _ in range(3):
        for _ in range(8):
            engine.generation.step()
        engine.disturb()
        blocks = -(-region.bytes_in_pages // block)
        assert kv_pinned(engine) == blocks * block < region.bytes / 4
    engine.tenant.page_table("kv_cache", None)
    assert kv_pinned(engine) == region.bytes
    engine.tenant.page_table("kv_cache", engine.table)
    assert kv_pinned(engine) == 0


def test_a_cache_that_is_paged_from_the_start_never_takes_more(device: Device) -> None:
    tenant = Tenant(device, "engine", tags={"kv_cache": "keep"})
    tenant.page_table("kv_cache", lambda: ([0], [100]))  # also before it runs
    tenant.resume()
    tenant.page_table("kv_cache", lambda: ([0], [100]))
    pool = device.host_pool
    cache = tenant.buffer(20 * device.block_bytes, "kv_cache")
    assert pool.bytes_used == pool.bytes_registered == 0
    cache.view()[:100] = b"k" * 100
    assert tenant.suspend().bytes_out == 100
    assert pool.bytes_used == pool.bytes_registered == device.block_bytes
    tenant.resume()
    assert bytes(cache.view()[:100]) == b"k" * 100
    del cache
    tenant.close()


def test_pages_for_which_there_is_no_pinned_memory_are_refused() -> None:
    with closing(open_device(ROLLOUT, host_budget_bytes=4 * 16384)) as device:
        block = device.block_bytes
        tenant = Tenant(device, "engine", tags={"kv_cache": "keep"})
        tenant.resume()
        used = [2]
        tenant.page_table("kv_cache", lambda: ([0], [used[0] * block]))
        cache = tenant.buffer(20 * block, "kv_cache")
        cache.view()[:] = b"k" * cache.nbytes
        tenant.suspend()
        tenant.resume()
        assert bytes(cache.view()[: 2 * block]) == b"k" * (2 * block)
        cache.view()[:] = b"m" * cache.nbytes
        used[0] = 9
        for stop in (tenant.suspend, tenant.suspend):
            with pytest.raises(HostMemoryError):
                stop()
            assert tenant.resident
        with pytest.raises(HostMemoryError):
            tenant.release()
        assert not tenant.resident
        other = Tenant(device, "other")
        other.resume()
        with pytest.raises(HostMemoryError):  # its place is not taken either
            other.buffer(device.usable_bytes, "scratch")
        other.release()
        tenant.resume()
        assert bytes(cache.view()) == b"m" * cache.nbytes
        used[0] = 4
        assert tenant.suspend().bytes_out == 4 * block
        tenant.resume()
        assert bytes(cache.view()[: 4 * block]) == b"m" * (4 * block)
        del cache
        tenant.close()
        other.close()


def test_pages_in_use_are_written_back_once(engine: Engine) -> None:
    for _ in range(20):
        engine.generation.step()
    engine.tenant.scan()
    background = engine.tenant.device.stats()["bytes_background_out"]
    assert engine.tenant.write_back("kv_cache").wait(60)
    pages = engine.tenant.region_of("kv_cache").bytes_in_pages
    assert engine.tenant.device.stats()["bytes_background_out"] - background == pages
    weights = sum(r.bytes_allocated for r in engine.tenant.regions if r.tag != "kv_cache")
    assert engine.tenant.switch(engine.other).bytes_out <= weights
    engine.noise.view()[:] = b"\xff" * engine.noise.nbytes
    engine.other.switch(engine.tenant)
    alone = Generation(Decoder(), caches(lambda: torch.empty(SHAPE)), ORDER)
    for _ in range(20):
        alone.step()
    for _ in range(5):
        engine.generation.step()
        alone.step()
    assert engine.generation.tokens == alone.tokens


def test_a_running_cache_is_rescued_with_the_pages_of_this_phase(
    engine: Engine, tmp_path: Path
) -> None:
    """A file written in the middle of a phase has what came into use in it."""
    engine.disturb()
    for _ in range(12):
        engine.generation.step()
    used = engine.generation.used()[:-1]
    expected = [cache[:, used].clone() for cache in engine.cache]
    engine.tenant.rescue(tmp_path / "state.safetensors")
    saved = safetensors.torch.load_file(tmp_path / "state.safetensors")["kv_cache"]
    region = engine.tenant.region_of("kv_cache")
    for cache, wanted in zip(engine.cache, expected, strict=True):
        begin = cache.data_ptr() - region.address
        found = saved[begin : begin + cache.nbytes].view(torch.float32).view(SHAPE)
        assert torch.equal(found[:, used], wanted)


def test_a_cache_without_pages_is_not_what_makes_room(tmp_path: Path) -> None:
    """It has been idle longest, but evicting it would free no pinned memory."""
    spec = "emulated:h20?scale=4096&speed=50&capacity=2MiB&block=16KiB"
    block = 16 << 10
    device = open_device(spec, host_budget_bytes=4 * block, spill_directory=str(tmp_path))
    paged, plain, new = (Tenant(device, name, job=name) for name in ("paged", "plain", "new"))
    paged.resume()
    paged.region_of("kv_cache", "keep")
    paged.page_table("kv_cache", lambda: ([], []))
    cache = paged.buffer(2 * block, "kv_cache")
    paged.release()
    plain.resume()
    weights = plain.buffer(3 * block, "weights")
    weights.view()[:] = b"good" * (weights.nbytes // 4)
    plain.release()
    new.resume()
    more = new.buffer(3 * block, "weights")
    new.release()
    plain.resume()
    assert weights.view() == b"good" * (weights.nbytes // 4)
    del cache, weights, more
    for tenant in (paged, plain, new):
        tenant.close()
    device.close()
