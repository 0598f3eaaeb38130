"""Device memory that another process holds, takes or gives back meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from small_blocks import BLOCK, filled, running, shared

from weave_rt import (
    Device,
    GrowthRefused,
    OutOfMemoryError,
    Tenant,
)

Opening = Callable[[str], Device]


# 48, 49, 121, B 5: memory that another process holds

HOLDER = """
import sys
from weave_rt import GrowthRefused, OutOfMemoryError, open_device
device = open_device(sys.argv[1])
tenant = device.add_tenant("holder")
tenant.resume()
region, held = tenant.region("weights"), []
print("open", flush=True)
for line in sys.stdin:
    try:
        for _ in range(int(line)):
            held.append(region.allocate(4096))
    except (GrowthRefused, OutOfMemoryError):
        pass
    print(len(held), flush=True)
"""


class Holder:
    """Another process with the same device."""

    def __init__(self, spec: str) -> None:
        command = [sys.executable, "-c", HOLDER, spec]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.hear() == "open"

    def hear(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def ask(self, blocks: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{blocks}\n")
        self.child.stdin.flush()

    def take(self, blocks: int) -> int:
        """Allocate so many blocks, or what it gets; returns what it holds."""
        self.ask(blocks)
        return int(self.hear())

    def leave(self) -> None:
        self.child.communicate()

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def other_process() -> Iterator[Callable[[str], Holder]]:
    made: list[Holder] = []

    def making(spec: str) -> Holder:
        made.append(Holder(spec))
        return made[-1]

    yield making
    for one in made:
        one.kill()


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_memory_of_another_process_is_an_error_that_changes_nothing_and_ends_with_it(
    open_checked: Opening, other_process: Callable[[str], Holder], end: str
) -> None:
    spec = shared(end)
    device = open_checked(spec)
    other = other_process(spec)
    a = running(device, "a")
    data = filled(a, 20, 1)
    assert other.take(24) == 24
    for _ in range(2):  # no state is spoiled: the same answer again
        with pytest.raises(OutOfMemoryError) as refused:
            a.buffer(20 * BLOCK)
        assert (refused.value.call, refused.value.bytes) == ("cuMemCreate", BLOCK)
        assert a.resident
        assert a.bytes == 20 * BLOCK
        assert data.view() == bytes([1]) * data.nbytes
    a.suspend()
    a.resume()
    getattr(other, end)()
    more = filled(a, 20, 2)
    a.suspend()
    a.resume()
    assert data.view() == bytes([1]) * data.nbytes
    assert more.view() == bytes([2]) * more.nbytes
    del data, more
    a.close()


def test_a_switch_does_not_need_memory_that_another_process_may_take(
    open_checked: Opening, other_process: Callable[[str], Holder]
) -> None:
    """Blocks are made once and are ours: what is taken in between cannot be missing at a resume."""
    spec = shared("between")
    device = open_checked(spec)
    half = device.usable_bytes // BLOCK // 2 + 2
    other = other_process(spec)
    a, b = running(device, "a"), Tenant(device, "b")
    first = filled(a, half, 1)
    a.switch(b)
    assert other.take(100) >= 10  # before b has any: it lives in what a gives up
    second = filled(b, half, 2)
    for _ in range(3):
        b.switch(a)
        assert first.view() == bytes([1]) * first.nbytes
        a.switch(b)
        assert second.view() == bytes([2]) * second.nbytes
    del first, second
    a.close()
    b.close()


def test_processes_that_allocate_to_the_limit_each_get_memory_or_a_typed_error(
    open_checked: Opening, other_process: Callable[[str], Holder]
) -> None:
    """63: nobody trusts what was free a moment ago."""
    spec = shared("race", 300)
    device = open_checked(spec)
    other = other_process(spec)
    mine = running(device, "mine")
    region, held = mine.region_of("weights"), []
    other.ask(1000)
    with suppress(OutOfMemoryError, GrowthRefused):
        while True:
            held.append(region.allocate(BLOCK))
    theirs = int(other.hear())
    assert len(held) + theirs >= 290
    assert (len(held) + theirs) * BLOCK <= device.capacity_bytes
    mine.suspend()
    mine.resume()
    del held, region
    mine.close()
