"""Every public operation with several steps, swept over its failure points by the public kit.

Raw tenants first, then `job.manage`, phases and ends of two jobs. The C++ sweep of the core visits
every point; what makes very many calls is sampled here.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from contextlib import suppress

import pytest

from weave_rt import Device, LocalRuntime, Tenant, WeaveError, _core, init, open_device
from weave_rt.testing import (
    Point,
    check_accounts,
    check_contents,
    check_nothing_left,
    check_states,
    sweep,
)

SPEC = (
    "emulated:h20?scale=4096&speed=1000&seed=3&capacity=72KiB&granularity=4KiB&block=4KiB"
    "&context=4KiB&copy=0ns&map=0ns&access=0ns&unmap=0ns&create=0ns"
)
BLOCK = 4096


@functools.cache
def pattern(seed: int, nbytes: int) -> bytes:
    return bytes((index * 131 + index // 251 + seed * 89) & 255 for index in range(nbytes))


class One:
    """A tenant with eight blocks to keep and three to discard, and what it must hold."""

    def __init__(self, device: Device, name: str, seed: int) -> None:
        self.device, self.name, self.seed = device, name, seed
        self.core: _core.Tenant | None = None
        self.spans: dict[str, _core.Span] = {}
        self.written = False

    def attach(self) -> None:
        """Come to the device; goes on where an earlier try was interrupted."""
        if self.core is None:
            self.core = self.device.add_tenant(self.name, "job")
        self.core.resume()
        for tag, policy, blocks in (("weights", "keep", 8), ("kv_cache", "discard", 3)):
            if tag not in self.spans:
                self.spans[tag] = self.core.region(tag, policy).allocate(blocks * BLOCK)
        memoryview(self.spans["weights"])[:] = pattern(self.seed, 8 * BLOCK)
        self.written = True

    @property
    def tenant(self) -> _core.Tenant:
        assert self.core is not None
        return self.core

    def check(self) -> None:
        if self.core is None or self.core.state == "CLOSED" or not self.written:
            return
        if self.core.running:
            assert bytes(memoryview(self.spans["weights"])) == pattern(self.seed, 8 * BLOCK)
        check_contents(self.core, {"weights": pattern(self.seed, 8 * BLOCK)})


class Pair:
    """Two tenants of eleven blocks on sixteen: at least three move each way."""

    def __init__(self, attached: int = 2) -> None:
        self.device = open_device(SPEC, host_budget_bytes=1 << 24)
        self.a, self.b = One(self.device, "a", 1), One(self.device, "b", 2)
        self.extra: _core.Span | None = None
        if attached > 0:
            self.a.attach()
            self.a.tenant.release()
        if attached > 1:
            self.b.attach()
            self.device.switch(self.b.tenant, self.a.tenant)

    def check(self, point: Point) -> None:
        assert point.mode != "once" or all(t.state != "FAILED" for t in self.device.tenants)
        check_states(self.device)
        if point.mode != "none":
            return
        check_accounts(self.device)
        for one in (self.a, self.b):
            one.check()
            if one.core is None or one.core.state == "CLOSED":
                continue
            for other in self.device.tenants:
                other.release()
            one.tenant.resume()
            one.check()

    def close(self) -> None:
        self.a.spans.clear()
        self.b.spans.clear()
        self.extra = None
        self.a.core = self.b.core = None
        end(self.device)


def end(device: Device) -> None:
    device.close()
    device.close()  # again: tries what the driver refused the first time
    gc.collect()
    check_nothing_left(device)


def grow(pair: Pair) -> None:
    pair.a.tenant.resume()
    if pair.extra is None:
        pair.extra = pair.a.tenant.region("weights").allocate(5 * BLOCK)


def close_one(pair: Pair) -> None:
    pair.a.tenant.close()
    pair.a.written = False


def released(attached: int = 2) -> Pair:
    pair = Pair(attached)
    pair.a.tenant.release()
    return pair


@pytest.mark.parametrize(
    ("name", "prepare", "act"),
    [
        ("attach", lambda: Pair(1), lambda pair: pair.b.attach()),
        ("grow", Pair, grow),
        ("suspend", Pair, lambda pair: pair.a.tenant.suspend()),
        ("resume", released, lambda pair: pair.b.tenant.resume()),
        ("switch", Pair, lambda pair: pair.device.switch(pair.a.tenant, pair.b.tenant)),
        ("release", Pair, lambda pair: pair.a.tenant.release()),
        ("close tenant", Pair, close_one),
    ],
)
def test_operation(name: str, prepare: Callable[[], Pair], act: Callable[[Pair], object]) -> None:
    # attach makes very many calls, and the C++ sweep visits each of them
    report = sweep(prepare, act, Pair.check, name=name, stride=4 if name == "attach" else 1)
    print(report)
    assert set(report.visited) == {"once", "from_then_on", "lost_context"}
    assert all(report.visited.values()) or name == "release"


def test_open_and_close_device() -> None:
    class Nothing:
        device: Device | None = None

        def close(self) -> None:
            if self.device is not None:
                end(self.device)
            self.device = None

    def opening(world: Nothing) -> None:
        world.device = open_device(SPEC, host_budget_bytes=1 << 24)

    print(sweep(Nothing, opening, name="open", stride=7))
    print(sweep(Pair, lambda pair: pair.device.close(), name="close", retry=False, stride=5))


def test_the_kit_notices_what_it_should() -> None:
    def leaky(pair: Pair) -> None:
        # swallows the failure of its second step and goes on as if nothing had happened
        with suppress(WeaveError):
            pair.device.switch(pair.a.tenant, pair.b.tenant)
        memoryview(pair.b.spans["weights"])[0] = 1

    with pytest.raises(AssertionError, match="sweep leaky, call"):
        sweep(Pair, leaky, Pair.check, name="leaky", modes=["once"])
    with pytest.raises(ValueError, match="mode 'sometimes'"):
        sweep(Pair, leaky, modes=["sometimes"])


# Jobs: torch state in two pools, phases by two jobs on one device each.

torch = pytest.importorskip("torch")

JOB_SPEC = "emulated:h20?scale=4096&speed=1000&capacity=512KiB&seed=1&copy=0ns&map=0ns&unmap=0ns"


class Jobs:
    """Two jobs on one pair of small devices; each keeps a module that does not fit beside the
    other's."""

    def __init__(self, managed: int = 2) -> None:
        pools = {"rollout": [open_device(JOB_SPEC)], "train": [open_device(JOB_SPEC)]}
        self.devices = [*pools["rollout"], *pools["train"]]
        self.runtime = LocalRuntime(pools, drain_timeout_s=30)
        self.jobs = [init(n, {"runtime": self.runtime}) for n in ("first", "second")]
        self.tenants: dict[int, Tenant] = {}
        room = self.devices[1].usable_bytes
        self.modules = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            self.modules.append(torch.nn.Linear(room * 2 // 3 // 4 // 64, 64, bias=False))
        self.expected = [m.weight.detach().clone() for m in self.modules]
        for index in range(managed):
            self.manage(index)

    def manage(self, index: int) -> None:
        made = self.jobs[index].manage("model", self.modules[index], pool="train")
        assert isinstance(made, Tenant)
        self.tenants[index] = made

    def train(self, index: int) -> None:
        with self.jobs[index].phase("train", timeout_s=30):
            assert torch.equal(self.modules[index].weight.cpu(), self.expected[index])
            with torch.no_grad():
                self.modules[index].weight.add_(0)

    def two_phases(self) -> None:
        self.train(0)
        self.train(1)

    def check(self, point: Point) -> None:
        for device in self.devices:
            check_states(device)
        if point.mode == "none":
            # the permits are free and the values are there
            for index in self.tenants:
                self.train(index)
            for device in self.devices:
                check_accounts(device)

    def close(self) -> None:
        for job in self.jobs:
            job.close()
        for module, expected in zip(self.modules, self.expected, strict=True):
            assert torch.equal(module.weight, expected)
        self.runtime.close()
        self.tenants.clear()
        for device in self.devices:
            end(device)


def test_manage() -> None:
    def act(jobs: Jobs) -> None:
        if 1 not in jobs.tenants:
            jobs.manage(1)

    print(sweep(lambda: Jobs(1), act, Jobs.check, name="manage", stride=3))


def test_phases_of_two_jobs() -> None:
    print(sweep(Jobs, Jobs.two_phases, Jobs.check, name="phases", stride=3))


def test_closing_a_job() -> None:
    def act(jobs: Jobs) -> None:
        jobs.jobs[0].close()
        jobs.tenants.pop(0, None)

    print(sweep(Jobs, act, Jobs.check, name="job close", modes=["once"], stride=2))
