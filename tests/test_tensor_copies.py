"""The naive arms of the benchmarks: what they ask of the driver, their bytes, their failures."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from weave_rt import OutOfMemoryError, UsageError, _core, open_device
from weave_rt.testing import Point, check_nothing_left, sweep

SPEC = (
    "emulated:h20?scale=4096&speed=1000&seed=3&capacity=256KiB&granularity=4KiB&block=4KiB"
    "&context=4KiB&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
)
SEGMENTS = [4096, 10_000, 5000]
# two tensors share the first segment; the last is not kept
TENSORS = [(0, 0, 1000, True), (0, 1024, 3000, True), (1, 0, 10_000, True), (2, 0, 5000, False)]


def pattern(index: int, nbytes: int) -> bytes:
    return bytes((i * 131 + index * 89) & 255 for i in range(nbytes))


class Loaded:
    """Tensors with a pattern, on the device or moved out."""

    def __init__(self, where: str) -> None:
        self.device = open_device(SPEC)
        self.copies = _core.TensorCopies(self.device, SEGMENTS, TENSORS)
        self.copies.allocate()
        for index, (_, _, nbytes, keep) in enumerate(TENSORS):
            if keep:
                self.copies.load(index, pattern(index, nbytes))
            else:
                self.copies.fill(index, 7)
        if where != "device":
            self.copies.move_out(where == "pinned")

    def check(self) -> None:
        """Every kept byte, wherever the tensors are."""
        if self.copies.on_device:
            self.copies.move_out(False)
        for index, (_, _, nbytes, keep) in enumerate(TENSORS):
            if keep:
                assert self.copies.host_copy(index) == pattern(index, nbytes), index

    def close(self) -> None:
        self.copies.close()
        self.copies.close()  # again: tries what the driver refused the first time
        self.device.close()
        self.device.close()
        gc.collect()
        check_nothing_left(self.device)


def calls() -> dict[str, int]:
    return _core.call_counts("emulated")


@pytest.mark.parametrize("pinned", [False, True])
def test_out_and_in_again_keeps_every_byte_and_asks_what_torch_would(pinned: bool) -> None:
    world = Loaded("device")
    before = calls()
    copied = world.device.stats()["pageable_copies"]
    world.copies.move_out(pinned)
    assert not world.copies.on_device
    assert world.device.census()["handles"] == 0, "the memory went back to the driver"
    assert world.device.census()["registrations"] == (3 if pinned else 0)
    world.copies.move_in()
    assert world.device.census()["registrations"] == 0
    made = {call: count - before[call] for call, count in calls().items() if count > before[call]}
    assert made["memcpy_dtoh_async"] == made["memcpy_htod_async"] == 3, "one for each kept tensor"
    assert made["stream_synchronize"] == 6
    assert made["mem_create"] == made["mem_release"] == 3, "one for each segment"
    assert made.get("mem_host_register", 0) == (3 if pinned else 0)
    assert world.device.stats()["pageable_copies"] - copied == (0 if pinned else 6)
    world.check()
    world.close()


def test_order_and_sizes_are_checked() -> None:
    world = Loaded("device")
    with pytest.raises(UsageError, match="not on the host"):
        world.copies.move_in()
    with pytest.raises(UsageError, match="no host copy"):
        world.copies.host_copy(0)
    with pytest.raises(UsageError, match="the source has 3 bytes, the tensor 1000"):
        world.copies.load(0, b"abc")
    with pytest.raises(UsageError, match="no such tensor"):
        world.copies.load(9, b"abc")
    with pytest.raises(ValueError, match="contiguous"):
        world.copies.load(0, np.zeros((1000, 2), np.uint8)[:, 0])
    world.copies.drop()
    with pytest.raises(UsageError, match="not on the device"):
        world.copies.move_out(False)
    with pytest.raises(UsageError, match="allocate first"):
        world.copies.fill(0, 1)
    world.copies.close()
    with pytest.raises(UsageError, match="closed"):
        world.copies.allocate()
    for tensors in ([(1, 0, 1, True)], [(0, 4000, 97, True)], [(0, 0, 0, True)]):
        with pytest.raises(UsageError, match="inside its segment"):
            _core.TensorCopies(world.device, [4096], tensors)
    world.close()


@pytest.mark.parametrize("where", ["device", "pageable", "pinned"])
def test_a_failure_leaves_everything_where_it_was(where: str) -> None:
    def act(world: Loaded) -> None:
        if world.copies.on_device != (where == "device"):
            return  # the fault hit a call that the operation can do without
        if where == "device":
            world.copies.move_out(True)
        else:
            world.copies.move_in()

    def check(world: Loaded, point: Point) -> None:
        if point.error is not None:
            assert world.copies.on_device == (where == "device")
        if point.mode == "none":
            world.check()

    report = sweep(lambda: Loaded(where), act, check, name=where, modes=("once", "from_then_on"))
    print(report)
    assert all(report.visited.values())
    assert all(report.raised.values())


def test_no_room_leaves_nothing() -> None:
    device = open_device(SPEC)
    copies = _core.TensorCopies(device, [200_000, 200_000], [(0, 0, 1, True)])
    with pytest.raises(OutOfMemoryError):
        copies.allocate()
    assert not copies.on_device
    assert device.census()["handles"] == 0
    copies.close()
    device.close()
