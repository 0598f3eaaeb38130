"""With WEAVE off a trainer's script is the same, so what it may call is there and does nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import weave_rt
from weave_rt import Tenant, UsageError, _core
from weave_rt.off import PlainCopy, PlainReport, PlainTenant
from weave_rt.publishing import Sync

# What only this library calls: regions, and what is beside a real device.
INTERNAL = {
    *("core", "region_at", "region_of", "span", "torch_book"),
    *("update_guards", "not_resident", "ask_pages"),
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def plain_tenant(*objects: object) -> Any:
    job = weave_rt.init("x", {"mode": "off"})
    return job.manage("engine", *objects, pool="rollout", tags={"weights": "reload"})


def test_a_tenant_has_everything_that_one_on_a_device_has() -> None:
    plain = plain_tenant()
    wanted = public(Tenant) | {"name", "job", "pool", "policies", "device"}
    assert wanted - INTERNAL == public(PlainTenant) | {*vars(plain)} - {"_device", "_modules"}
    for name in public(Tenant) - INTERNAL:
        real = getattr(Tenant, name)
        if inspect.isfunction(real):
            ours = inspect.signature(getattr(PlainTenant, name)).parameters
            theirs = inspect.signature(real).parameters
            assert [(p.name, p.kind, p.default) for p in ours.values()] == [
                (p.name, p.kind, p.default) for p in theirs.values()
            ], name


def test_a_phase_gives_what_one_on_devices_gives() -> None:
    with weave_rt.init("x", {"mode": "off"}).phase("weight_sync") as sync:
        assert public(Sync) - public(type(sync)) == {"job", "failed", "published", "commits"}


@pytest.mark.parametrize(
    ("plain", "real"),
    [(PlainCopy, _core.BackgroundCopy), (PlainReport, _core.SwitchReport)],
)
def test_what_calls_return_has_the_same_names(plain: type, real: type) -> None:
    assert public(plain) == public(real)


def test_every_call_is_harmless(tmp_path: Path) -> None:
    engine = torch.nn.Linear(4, 4)
    tenant = plain_tenant(engine)
    copy = tenant.write_back("optimizer")
    assert copy.wait(0)
    assert copy.finished
    assert not copy.failed
    with pytest.raises(UsageError, match="tag 'optimiser'"):
        tenant.write_back("optimiser")
    assert tenant.suspend(tags=["weights"]).bytes_out == tenant.resume().bytes_in == 0
    assert tenant.switch(tenant).as_dict() == {}
    assert tenant.rescue(tmp_path / "state") == []
    assert tenant.publishes
    assert tenant.has_modules
    assert tenant.manages(engine)
    tenant.verify_addresses()
    with pytest.raises(UsageError, match="negative"):
        tenant.empty((-3,), "float32")
    tenant.close()


@pytest.mark.parametrize("mode", ["off", "local"])
def test_a_script_means_the_same(runtime: weave_rt.LocalRuntime, mode: str) -> None:
    engine, policy = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    with weave_rt.init("x", {"mode": "off"} if mode == "off" else {"runtime": runtime}) as job:
        first = job.manage("engine", engine, pool="rollout")
        assert job.manage("engine", pool="rollout") is first
        for pool, tags in (("train", None), ("rollout", {"kv_cache": "keep"})):
            with pytest.raises(UsageError, match="managed already, in pool 'rollout'"):
                job.manage("engine", pool=pool, tags=tags)
        with job.phase("weight_sync") as sync:
            sync.publish(job.manage("engine", pool="rollout"), policy)
        with job.phase("rollout"):
            value = engine.weight * 2
            kept = job.keep({"a": [value, 3]})
            was = value.detach().clone()
            value.detach().zero_()
            assert torch.equal(kept["a"][0], was)
            assert not kept["a"][0].requires_grad
            assert kept["a"][1] == 3
        with pytest.raises(UsageError, match="pool 'x'"):
            job.phase("train", pool="x")


def test_settings_in_the_place_of_the_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"job_id is a text, not .'mode'"):
        weave_rt.init({"mode": "local"})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["off", "keep", "reload"])
def test_a_tenant_stands_for_its_module_and_numbers_are_converted(
    runtime: weave_rt.LocalRuntime, policy: str
) -> None:
    settings = {"mode": "off"} if policy == "off" else {"runtime": runtime}
    tags = {} if policy == "off" else {"weights": policy}
    with weave_rt.init("x", settings) as job:
        engine, weights = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double().state_dict()
        tenant = job.manage("engine", engine, pool="rollout", tags=tags)
        with job.phase("weight_sync") as sync:
            sync.publish(tenant, weights)
        with job.phase("rollout"):
            assert torch.equal(engine.weight, weights["weight"].float())
        empty = job.manage("none", pool="rollout", tags=tags)
        said = "has no reload region" if policy == "reload" else "has 0 modules"
        with job.phase("weight_sync") as sync, pytest.raises(UsageError, match=said):
            sync.publish(empty, weights)
