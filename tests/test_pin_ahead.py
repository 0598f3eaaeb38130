"""Pinned memory that a job asks for at `init`: it grows in the background, its tenants use it, and
it is given back whatever happens."""

from __future__ import annotations

import pytest
import torch

from weave_rt import DriverError, HostMemoryError, LocalRuntime, UsageError, _core, init

MIB = 1 << 20


def registrations() -> int:
    return _core.call_counts("emulated")["mem_host_register"]


def test_tensors_use_what_was_pinned_ahead(runtime: LocalRuntime) -> None:
    pool = runtime.devices["train:0"].host_pool
    with init("a", {"runtime": runtime, "pin_ahead": {"train": MIB}}) as job:
        job._growths[0].wait()
        assert pool.bytes_registered >= MIB
        before = registrations()
        net = torch.nn.Linear(256, 256)
        expected = net.weight.detach().clone()
        job.manage("net", net, pool="train")
        assert registrations() == before
        with job.phase("train"):
            assert torch.equal(net.weight, expected)
        assert job.pop_metrics()["weave/pinned_bytes"] >= MIB
    assert pool.bytes_registered == 0


def test_a_job_that_never_used_it_gives_it_back(runtime: LocalRuntime) -> None:
    pool = runtime.devices["train:0"].host_pool
    with init("a", {"runtime": runtime, "pin_ahead": {"train": MIB}}):
        pass  # maybe still growing
    assert pool.bytes_registered == 0
    with init("a", {"runtime": runtime, "pin_ahead": {"train": 0, "rollout": MIB}}) as job:
        job._growths[0].wait()
    assert runtime.devices["rollout:0"].host_pool.bytes_registered == 0


def test_what_the_host_does_not_have_is_refused_and_the_job_is_not_there(
    runtime: LocalRuntime,
) -> None:
    config = {"runtime": runtime, "pin_ahead": {"rollout": MIB, "train": 1 << 50}}
    with pytest.raises(HostMemoryError):
        init("a", config)
    runtime.devices["rollout:0"].host_pool.trim()
    assert runtime.devices["rollout:0"].host_pool.bytes_registered == 0
    for wrong in ({"train": -1}, {"train": True}, {"train": 1.5}, {"gpu": 1}, 5, "1GB"):
        with pytest.raises(UsageError, match="pin_ahead is a number of bytes by pool"):
            init("a", {"runtime": runtime, "pin_ahead": wrong})
    init("a", {"runtime": runtime}).close()  # its name is free


def test_a_growth_that_fails_is_made_up_for_when_tensors_come(runtime: LocalRuntime) -> None:
    with _core.FaultScope(nth=1, only="mem_host_register", status=2, from_then_on=True):
        job = init("a", {"runtime": runtime, "pin_ahead": {"train": MIB}})
        with pytest.raises(DriverError):
            job._growths[0].wait()
    net = torch.nn.Linear(64, 64)
    expected = net.weight.detach().clone()
    job.manage("net", net, pool="train")
    with job.phase("train"):
        assert torch.equal(net.weight, expected)
    job.close()
    assert torch.equal(net.weight, expected)
