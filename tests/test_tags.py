"""What a tag's policy promises, through the Python tenant: clean, pinned and filled tags, and tags
that come and go one by one, in every order and twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from conftest import ROLLOUT

from weave_rt import Device, GrowthRefused, NotResident, RegionPinned, Tenant, UsageError
from weave_rt.testing import check_states

PATTERN = bytes(range(256)) * 40


class World:
    """A tenant with weights, KV cache and optimizer state, and one that takes the whole device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tenant = Tenant(device, "job", job="a", pool="rollout")
        self.tenant.resume()
        self.buffers = {
            tag: self.tenant.buffer(10_240, tag) for tag in ("weights", "kv_cache", "optimizer")
        }
        for tag in ("weights", "optimizer"):
            self.buffers[tag].view()[:] = PATTERN
        self.other = Tenant(device, "other")

    def disturb(self) -> None:
        """Everything that is not in use leaves the device, and other bytes take its place."""
        self.tenant.release()
        self.other.resume()
        noise = self.other.buffer(self.device.usable_bytes, "scratch")
        noise.view()[:] = b"\x5a" * noise.nbytes
        self.other.release()

    def close(self) -> None:
        self.buffers.clear()
        self.tenant.close()
        self.other.close()


@pytest.fixture
def world(open_checked: Callable[[str], Device]) -> Iterator[World]:
    made = World(open_checked(ROLLOUT))
    yield made
    made.close()


def test_a_clean_tag_leaves_once(world: World) -> None:
    tenant = world.tenant
    tenant.suspend(tags=["optimizer", "kv_cache"])
    tenant.mark_clean("weights")
    assert tenant.suspend().bytes_out == 10_240
    for _ in range(3):
        tenant.resume(tags=["weights"])
        assert bytes(world.buffers["weights"].view()) == PATTERN
        assert tenant.suspend().bytes_out == 0
    tenant.resume(tags=["weights"])
    tenant.mark_dirty("weights")
    world.buffers["weights"].view()[:5] = b"other"
    assert tenant.suspend().bytes_out == 10_240
    tenant.resume()
    assert bytes(world.buffers["weights"].view()) == b"other" + PATTERN[5:]
    with pytest.raises(UsageError, match="not keep"):
        tenant.mark_clean("kv_cache")


def test_a_pinned_tag_stays(world: World) -> None:
    tenant = world.tenant
    tenant.pin("weights")
    with pytest.raises(RegionPinned, match="weights of tenant a/job is pinned") as caught:
        tenant.suspend()
    assert (caught.value.job, caught.value.tenant, caught.value.tag) == ("a", "job", "weights")
    assert tenant.state == "RESIDENT"
    tenant.suspend(tags=["optimizer", "kv_cache"])  # the others may go
    assert bytes(world.buffers["weights"].view()) == PATTERN
    tenant.unpin("weights")
    with pytest.raises(UsageError, match="not pinned"):
        tenant.unpin("weights")
    assert tenant.suspend().bytes_out == 10_240


@pytest.mark.parametrize(("fill", "byte"), [("zero", 0), ("poison", 0xA5)])
def test_a_discarded_tag_comes_back_filled(world: World, fill: str, byte: int) -> None:
    world.tenant.set_fill("kv_cache", fill)
    world.buffers["kv_cache"].view()[:] = b"\x11" * 10_240
    before = next(r for r in world.tenant.regions if r.tag == "kv_cache").generation
    world.disturb()
    world.tenant.resume()
    assert set(world.buffers["kv_cache"].view()) == {byte}
    fresh = world.tenant.buffer(world.device.block_bytes, "kv_cache")
    assert set(fresh.view()) == {byte}
    # the owner of an index over the pages sees that they were dropped
    assert next(r for r in world.tenant.regions if r.tag == "kv_cache").generation > before
    with pytest.raises(UsageError, match="keeps its bytes"):
        world.tenant.set_fill("weights", fill)
    with pytest.raises(UsageError, match="none, zero or poison"):
        world.tenant.set_fill("kv_cache", "random")


TAGS: list[list[str] | None] = [None, ["weights"], ["kv_cache"], ["optimizer", "weights"]]


@pytest.mark.parametrize("leaving", TAGS)
@pytest.mark.parametrize("order", list(itertools.permutations(TAGS, 2)))
def test_every_order_of_leaving_and_coming_is_idempotent(
    world: World, leaving: list[str] | None, order: tuple[list[str] | None, ...]
) -> None:
    tenant = world.tenant
    stats = world.device.stats()
    for twice in (0, 1):
        report = tenant.suspend(tags=leaving)
        assert twice == 0 or report.blocks_remapped == 0
    assert world.device.stats()["noop_suspends"] == stats["noop_suspends"] + 1
    if leaving is None:
        world.disturb()
    for tags in order:
        wanted = set(tags or world.buffers)
        had = {tag for tag in world.buffers if tenant.is_resident(tag)}
        for _ in range(2):
            tenant.resume(tags=tags)
            check_states(world.device)
            for tag, buffer in world.buffers.items():
                assert tenant.is_resident(tag) == (tag in wanted | had)
                if not tenant.is_resident(tag):
                    with pytest.raises(NotResident, match="only other tags are in") as caught:
                        buffer.view()
                    assert caught.value.tag == tag
                    with pytest.raises(NotResident):  # growth in a tag that is away
                        tenant.buffer(10_240, tag)
                elif tag != "kv_cache":
                    assert bytes(buffer.view()) == PATTERN
    tenant.resume()
    assert tenant.state == "RESIDENT"
    for tag in ("weights", "optimizer"):
        assert bytes(world.buffers[tag].view()) == PATTERN


def test_tags_that_are_not_there_are_refused(world: World) -> None:
    for call in (world.tenant.resume, world.tenant.suspend):
        for tags, message in (
            (["grads"], "has no region grads"),
            ([], "no tag is named"),
            ("weights", "is a list of tags"),
        ):
            with pytest.raises(UsageError, match=message):
                call(tags=tags)
    assert world.tenant.state == "RESIDENT"
    world.tenant.close()
    with pytest.raises(UsageError, match="closed"):
        world.tenant.resume(tags=["weights"])


def test_an_engine_with_its_weights_alone_takes_new_ones_and_runs_no_batch(world: World) -> None:
    torch = pytest.importorskip("torch")
    engine = torch.nn.Linear(8, 8)
    world.tenant.adopt(engine)
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.1)
    world.tenant.adopt(optimizer)
    world.tenant.suspend()
    with pytest.raises(NotResident, match="wrap it in"):
        engine.state_dict()
    world.tenant.resume(tags=["weights"])
    engine.load_state_dict({k: torch.ones_like(v) for k, v in engine.state_dict().items()})
    with pytest.raises(NotResident, match=r"kv_cache.*only other tags are in"):
        engine(torch.zeros(1, 8))
    with pytest.raises(NotResident, match="optimizer"):
        optimizer.step()
    world.tenant.resume(tags=["kv_cache"])
    assert torch.equal(engine(torch.zeros(1, 8)), torch.ones(1, 8))
    world.tenant.resume()
    optimizer.step()


def test_a_tag_without_bytes_goes_every_way_and_moves_nothing(
    open_checked: Callable[[str], Device],
) -> None:
    """As the buffers of a model that has none: the region is there and holds no block."""
    tenant = Tenant(open_checked(ROLLOUT), "job", job="a", pool="rollout")
    tenant.resume()
    kept = tenant.buffer(10_240, "weights")
    kept.view()[:] = PATTERN
    for tag in ("buffers", "kv_cache"):
        assert tenant.region_of(tag).bytes == 0
    tenant.write_back("buffers").wait()
    tenant.mark_clean("buffers")
    tenant.pin("buffers")
    tenant.unpin("buffers")
    for tags in (["buffers"], ["kv_cache"], None):
        assert tenant.suspend(tags=tags).bytes_out == (10_240 if tags is None else 0)
        assert tenant.resume(tags=tags).bytes_in == (10_240 if tags is None else 0)
    assert bytes(kept.view()) == PATTERN
    del kept
    tenant.close()


@pytest.mark.parametrize("policy", ["keep", "discard"])
def test_a_cache_that_is_larger_than_the_device_is_refused_and_nothing_changes(
    open_checked: Callable[[str], Device], policy: str
) -> None:
    device = open_checked(ROLLOUT)
    tenant = Tenant(device, "job", job="a", pool="rollout", tags={"kv_cache": policy})
    tenant.resume()
    kept = tenant.buffer(10_240, "weights")
    kept.view()[:] = PATTERN
    before = tenant.bytes
    with pytest.raises(GrowthRefused, match=r"kv_cache.*the device has for tenants") as raised:
        tenant.empty((device.usable_bytes + 1,), "uint8", "kv_cache")
    assert raised.value.bytes_usable == device.usable_bytes
    assert tenant.bytes == before
    tenant.suspend()
    tenant.resume()
    assert bytes(kept.view()) == PATTERN
    del kept
    tenant.close()
