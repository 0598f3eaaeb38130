"""Live tenants follow the residency plan: who comes, leaves and grows changes targets, and switches
move what the plan says."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import weave_rt
from weave_rt import Buffer, Job, LocalRuntime, Slice, Tenant, UsageError, open_device
from weave_rt.overlay import Link, quotas
from weave_rt.replanning import Replanner, nominal_link

SPEC = "emulated:h20?scale=4096&speed=50&capacity=8MiB&seed=1"
BLOCK = 16384


class Group:
    """Jobs with one tenant each, on one device of so many blocks."""

    def __init__(self, runtime: LocalRuntime, seen: list[Slice], stack: contextlib.ExitStack):
        self.runtime, self._seen, self._stack = runtime, seen, stack
        self.jobs: dict[str, Job] = {}
        self.tenants: dict[str, Tenant] = {}
        self.buffers: dict[str, list[Buffer]] = {}
        self.device = next(iter(runtime.devices.values()))

    def add(self, name: str, blocks: int, tag: str = "weights") -> None:
        """A job comes, or grows by so many blocks; their bytes are its name."""
        if name not in self.jobs:
            job = self._stack.enter_context(weave_rt.init(name, {"runtime": self.runtime}))
            self.jobs[name] = job
            self.tenants[name] = job.manage("engine", pool="rollout")
            self.buffers[name] = []
        with self.jobs[name].phase("rollout"):
            buffer = self.tenants[name].buffer(blocks * BLOCK, tag)
            buffer.view()[:] = name.encode() * (blocks * BLOCK)
            self.buffers[name].append(buffer)

    def turn(self, name: str) -> dict[str, Any]:
        """One phase, as long as the copies behind it take; its switch report. What is kept is
        checked byte for byte."""
        self._seen.clear()
        with self.jobs[name].phase("rollout"):
            for buffer in self.buffers[name]:
                if buffer.tag != "kv_cache":
                    assert bytes(buffer.view()) == name.encode() * buffer.nbytes
            for _, copy in list(self.runtime._ahead._desks["rollout:0"].copies):
                assert copy.wait(60)
        (report,) = (one.report for one in self._seen if one.kind == "switch")
        assert report is not None
        return report

    def leave(self, name: str) -> None:
        self.buffers.pop(name).clear()
        self.jobs.pop(name).close()
        self.tenants.pop(name)

    @property
    def plan(self) -> Any:
        return self.runtime.plan("rollout:0")

    @property
    def movable(self) -> dict[str, int]:
        plan = self.plan
        names = [one.name.partition("/")[0] for one in plan.tenants]
        return dict(zip(names, plan.movable, strict=True))


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    frames, plan, background = request.param
    device = open_device(SPEC, usable_bytes=frames * BLOCK)
    assert device.block_bytes == BLOCK
    seen: list[Slice] = []
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(
            LocalRuntime(
                {"rollout": [device]}, observer=seen.append, plan=plan, background=background
            )
        )
        made = Group(runtime, seen, stack)
        yield made
        made.buffers.clear()
    gc.collect()
    assert not any(device.census().values())


def blocks(report: dict[str, Any]) -> tuple[float, float]:
    return report["bytes_out"] / BLOCK, report["bytes_in"] / BLOCK


FEWEST = [(140, "fewest-bytes", True)]
QUICK = [(140, "least-stall", True)]


@pytest.mark.parametrize("group", FEWEST, indirect=True)
def test_three_of_60_on_140_move_20_each_way(group: Group) -> None:
    for name in "abc":
        group.add(name, 60)
    assert group.movable == {"a": 20, "b": 20, "c": 20}
    for name in "abc":  # until the map follows the plan
        group.turn(name)
    assert group.device.stats()["blocks_beyond_plan"] == 0  # also when c came
    for name in "abcabc":
        assert blocks(group.turn(name)) == (20, 20)
    # Another order than the cycle moves no more.
    for name in "acbacab":
        out, into = blocks(group.turn(name))
        assert max(out, into) <= 20
    assert group.device.stats()["bytes_background_in"] == 0


@pytest.mark.parametrize("group", QUICK, indirect=True)
def test_least_stall_moves_nothing_while_the_device_waits(group: Group) -> None:
    for name in "abc":
        group.add(name, 60)
    assert group.plan.kind == "least-stall"
    for name in "abcabc":
        group.turn(name)
    before = group.device.stats()
    for name in "abc":
        report = group.turn(name)
        assert blocks(report) == (0, 0)
    after = group.device.stats()
    moved = after["bytes_background_in"] - before["bytes_background_in"]
    assert moved == 3 * 40 * BLOCK


@pytest.mark.parametrize("group", [(180, "auto", True)], indirect=True)
def test_where_everything_fits_nothing_moves(group: Group) -> None:
    for name in "abc":
        group.add(name, 60)
    assert group.movable == {"a": 0, "b": 0, "c": 0}
    for name in "abcacb":
        assert blocks(group.turn(name)) == (0, 0)
    assert group.device.stats()["bytes_background_in"] == 0


@pytest.mark.parametrize("group", [(80, "fewest-bytes", True)], indirect=True)
def test_weights_stay_and_caches_change_hands(group: Group) -> None:
    for name in "ab":
        group.add(name, 15)
        group.add(name, 40, "kv_cache")
    assert group.movable == {"a": 40, "b": 40}
    group.turn("a")
    for name in "bababa":
        assert blocks(group.turn(name)) == (0, 0)


@pytest.mark.parametrize("group", [(100, "fewest-bytes", True)], indirect=True)
def test_join_leave_and_growth_change_targets(group: Group) -> None:
    group.add("a", 40)
    assert group.movable == {"a": 0}
    group.add("b", 70)  # 10 too many for both: a window of 10
    assert group.movable == {"a": 10, "b": 10}
    group.add("a", 20)
    assert group.movable == {"a": 30, "b": 30}
    group.turn("b")
    group.turn("a")
    assert blocks(group.turn("b")) == (30, 30)
    group.leave("a")
    assert group.movable == {"b": 0}
    assert blocks(group.turn("b")) == (0, 0)
    group.add("c", 30)
    assert group.movable == {"b": 0, "c": 0}
    group.turn("b")


@pytest.mark.parametrize("group", [(140, "least-stall", False)], indirect=True)
def test_without_background_copies_it_is_fewest_bytes(group: Group) -> None:
    for name in "abc":
        group.add(name, 60)
    assert group.plan.kind == "fewest-bytes"


@pytest.mark.parametrize("group", [(140, "auto", True)], indirect=True)
def test_short_phases_hide_nothing_and_long_ones_do(group: Group) -> None:
    for name in "abc":
        group.add(name, 60)
    for tenant in group.plan.tenants:
        assert tenant.phase_s > 0  # measured
    planner = group.runtime._plans
    name = "rollout:0"
    there = group.runtime.tenants_on(name)
    for _ in range(40):  # old phases are forgotten
        planner.ended(name, there, there, 1e-7)
    assert group.plan.kind == "fewest-bytes"
    for _ in range(40):
        planner.ended(name, there, there, 2.0)
    assert group.plan.kind == "least-stall"
    assert group.plan.others["fewest-bytes"][0] > group.plan.foreground_s == 0


def test_measured_rates_and_quiet_devices(open_checked: Any) -> None:
    device = open_checked(SPEC)
    told: list[tuple[Any, ...]] = []
    link = Link(1e6, 2e6, 5e5, 1e6)
    made = Replanner(
        {"rollout:0": device, "train:0": device},
        lambda *said: told.append(said),
        kind="least-stall",
        quiet=["train:0"],
        links={"rollout:0": link},
    )
    size = device.usable_bytes // device.block_bytes * 2 // 3
    with contextlib.ExitStack() as stack:
        tenants = [Tenant(device, name) for name in "ab"]
        for tenant in tenants:
            stack.callback(tenant.close)
            tenant.resume()
            tenant.buffer(size * BLOCK, "weights")
            tenant.suspend()
        for name in ("rollout:0", "train:0"):
            made.ended(name, tenants, tenants, 1.0)
    assert [(name, ahead) for name, _, ahead in told] == [("rollout:0", True), ("train:0", False)]
    slow, quiet = made.plan("rollout:0"), made.plan("train:0")
    assert slow is not None
    assert quiet is not None
    assert (slow.kind, quiet.kind) == ("least-stall", "fewest-bytes")
    (first, _) = slow.switches
    moved = first.foreground
    assert first.modelled_s == link.limit_s(moved.out * BLOCK, moved.into * BLOCK)


def test_an_unknown_plan_is_refused(open_checked: Any) -> None:
    with pytest.raises(UsageError, match="'slow' is not one of auto, fewest-bytes, least-stall"):
        LocalRuntime({"rollout": [open_checked(SPEC)]}, plan="slow")


def test_the_link_of_an_emulated_device_is_its_models(open_checked: Any) -> None:
    link = nominal_link(open_checked(SPEC))
    assert link.d2h == pytest.approx(55e9 / 4096 * 50)
    assert link.h2d_duplex == pytest.approx(0.75 * link.h2d)


def test_an_older_plan_is_not_told_after_a_newer_one(
    open_checked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread plans and tells between the plan of this one and its telling."""
    device = open_checked(SPEC)
    told: list[tuple[Any, ...]] = []
    made = Replanner({"rollout:0": device}, lambda *said: told.append(said), kind="least-stall")
    size = device.usable_bytes // device.block_bytes * 2 // 3
    with contextlib.ExitStack() as stack:
        tenants = [Tenant(device, name) for name in "ab"]
        for tenant in tenants:
            stack.callback(tenant.close)
            tenant.resume()
            tenant.buffer(size * BLOCK, "weights")
            tenant.suspend()

        def overtaken(plan: Any) -> Any:
            other = threading.Thread(target=made.changed, args=("rollout:0", tenants[:1]))
            other.start()
            other.join()
            return quotas(plan)

        monkeypatch.setattr("weave_rt.replanning.quotas", overtaken)
        made.changed("rollout:0", tenants)
        assert told == [("rollout:0", {}, False)]  # one tenant alone, which never moves
        monkeypatch.undo()
        made.changed("rollout:0", tenants)
        assert len(told) == 2
        assert set(told[1][1]) == set(tenants)
