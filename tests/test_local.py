"""The runtime of one process: which devices share what, and what its switches say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import ROLLOUT, TRAIN

import weave_rt
from weave_rt import Buffer, Device, Job, LocalRuntime, Slice, Tenant
from weave_rt import device as device_module
from weave_rt.device import open_beside

SIZES = {"a": 1_200_000, "b": 1_200_000, "c": 50_000}


@dataclass(eq=False)
class Opened:
    """Stands in for a device; there may be no GPU here."""

    spec: str
    host_pool: object
    budget_bytes: int
    host_limited: bool = False
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.spec.partition(":")[0]
        self.host_pool = self.host_pool or object()


def test_host_pools_are_shared_by_kind_and_gpus_opened_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Core:
        @staticmethod
        def open(
            spec: str, host_pool: object, budget_bytes: int, usable_bytes: int, spill: str
        ) -> Opened:
            return Opened(spec, host_pool, budget_bytes)

    monkeypatch.setattr(device_module, "Device", Core)
    opened: list[Any] = []
    for spec in ("cuda:0", ROLLOUT, "cuda:1", "cuda:0", ROLLOUT):
        opened.append(open_beside(opened, spec, host_budget_bytes=7))
    gpu, model, second, again, other = opened
    assert again is gpu
    assert other is not model
    assert second.host_pool is gpu.host_pool
    assert other.host_pool is model.host_pool
    assert model.host_pool is not gpu.host_pool
    assert [one.budget_bytes for one in (gpu, model, second, other)] == [7, 7, 0, 0]


def test_the_runtime_of_a_process_shares_host_pools_by_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []
    plain = open_beside

    def noting(others: Any, spec: str, **more: Any) -> Device:
        asked.append([spec, *(other.spec for other in others)])
        return plain(others, spec, **more)

    monkeypatch.setattr("weave_rt.process_runtime.open_beside", noting)
    config = {"mode": "local", "rollout_device": f"{ROLLOUT}, {ROLLOUT}", "train_device": TRAIN}
    with weave_rt.init("a", config) as job:
        devices = list(job.runtime.devices.values())  # type: ignore[attr-defined]
        assert len(devices) == 3
        assert len({id(one.host_pool) for one in devices}) == 1
    assert [len(names) for names in asked] == [1, 2, 3]


class Rollouts:
    """Jobs a and b, each larger than half the device, and a small one c."""

    def __init__(self, jobs: dict[str, Job], seen: list[Slice]) -> None:
        self.jobs, self.seen = jobs, seen
        self.tenants = {name: job.manage("kv", pool="rollout") for name, job in jobs.items()}
        self.buffers: dict[str, Buffer] = {}

    def __call__(self, names: str) -> list[dict[str, Any]]:
        """One rollout after another; returns what their switches reported."""
        self.seen.clear()
        for name in names:
            with self.jobs[name].phase("rollout"):
                if name not in self.buffers:
                    self.buffers[name] = self.tenants[name].buffer(SIZES[name], "other")
                    self.buffers[name].view()[:] = name.encode() * SIZES[name]
                assert set(bytes(self.buffers[name].view())) == set(name.encode())
        return [one.report for one in self.seen if one.kind == "switch" and one.report]


@pytest.fixture
def rollouts(open_checked: Callable[[str], Device]) -> Iterator[Rollouts]:
    seen: list[Slice] = []
    devices = {"rollout": [open_checked(ROLLOUT)]}
    with contextlib.ExitStack() as stack:
        # Who gives way is told by the order of phases alone only where nobody comes in ahead of it.
        runtime = stack.enter_context(LocalRuntime(devices, observer=seen.append, background=False))
        config = {"runtime": runtime}
        jobs = {name: stack.enter_context(weave_rt.init(name, config)) for name in "abc"}
        made = Rollouts(jobs, seen)
        yield made
        made.buffers.clear()


def test_a_switch_names_the_tenants_that_gave_way(rollouts: Rollouts) -> None:
    rollouts("abc")
    reports = rollouts("aabb")
    assert [report["in"] for report in reports] == ["a/kv", "a/kv", "b/kv", "b/kv"]
    outs = [report["out"] for report in reports]
    assert "b/kv" in outs[0]
    assert outs[1:] == [[], ["a/kv"], []]
    assert [bool(out) for out in outs] == [report["bytes_out"] > 0 for report in reports]


class Failed(Tenant):
    """Every call of the core refuses it, as after a switch that could not be undone."""

    @property
    def core(self) -> Any:
        raise weave_rt.TenantFailed("tenant a/kv failed in a switch")


def test_a_neighbour_that_failed_is_not_in_the_way(rollouts: Rollouts) -> None:
    rollouts("abca")
    tenant = rollouts.tenants["a"]
    tenant.__class__ = Failed
    with pytest.raises(weave_rt.TenantFailed):
        rollouts("a")
    assert [report["in"] for report in rollouts("cbc")] == ["c/kv", "b/kv", "c/kv"]
    tenant.__class__ = Tenant
    rollouts("a")
