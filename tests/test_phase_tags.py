"""Phases that name tags: only these come in, an inner phase brings in what else it needs, and every
byte is what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import enter

import weave_rt
from weave_rt import (
    Buffer,
    Device,
    Job,
    LocalRuntime,
    NotResident,
    ResumeFailed,
    Tenant,
    UsageError,
)

SPEC = "emulated:h20?scale=4096&speed=50&seed=1&capacity=2MiB"
SIZE = 256 * 1024


class World:
    """A job with a trainer and an engine, and one that needs the whole device, which both pools
    share. Trainer and engine do not fit there together."""

    def __init__(self, open_checked: Callable[[str], Device]) -> None:
        self.device = open_checked(SPEC)
        self.runtime = LocalRuntime(
            {"rollout": [self.device], "train": [self.device]}, background=False
        )
        self.job = weave_rt.init("a", {"runtime": self.runtime})
        self.other = weave_rt.init("b", {"runtime": self.runtime})
        self.policy: Tenant = self.job.manage("policy", pool="train")  # type: ignore[assignment]
        self.engine: Tenant = self.job.manage(  # type: ignore[assignment]
            "engine", pool="rollout", tags={"kv_cache": "keep"}
        )
        self.bytes: dict[tuple[str, str], Buffer] = {}
        with self.job.phase("train"):
            self.fill(self.policy, "weights", "optimizer", "grads")
        with self.job.phase("rollout"):
            self.fill(self.engine, "weights", *["kv_cache"] * 5)
        all_of_it: Any = self.other.manage("all", pool="train")
        with self.other.phase("train"):
            noise = all_of_it.buffer(self.device.usable_bytes, "scratch")
            noise.view()[:] = b"\x5a" * noise.nbytes

    def fill(self, tenant: Tenant, *tags: str) -> None:
        for tag in tags:
            buffer = tenant.buffer(SIZE, tag)
            buffer.view()[:] = bytes([len(self.bytes) + 1]) * SIZE
            self.bytes[f"{tenant.name}{len(self.bytes)}", tag] = buffer

    def resident(self) -> set[str]:
        """What may be touched now, with its bytes as they were written."""
        found = set()
        for number, ((_, tag), buffer) in enumerate(self.bytes.items()):
            if buffer.tenant.is_resident(tag):
                assert buffer.view()[:] == bytes([number + 1]) * SIZE
                found.add(f"{buffer.tenant.name}.{tag}")
            else:
                with pytest.raises(NotResident):
                    buffer.view()
        return found

    def close(self) -> None:
        self.bytes.clear()
        self.job.close()
        self.other.close()
        self.runtime.close()


@pytest.fixture
def world(open_checked: Callable[[str], Device]) -> Iterator[World]:
    made = World(open_checked)
    yield made
    made.close()


WEIGHTS = {"policy.weights", "engine.weights"}


def test_only_the_named_tags_come_in(world: World) -> None:
    said = "held by a/policy in the same phase; let 'weight_sync' name the `tags`"
    with pytest.raises(ResumeFailed, match=said), world.job.phase("weight_sync"):
        pass
    enter(world.other, "train")
    with world.job.phase("weight_sync", tags=["weights"]) as result:
        assert world.resident() == WEIGHTS
        assert result.resumed_bytes == 2 * SIZE
        with pytest.raises(NotResident, match="name it in the tags of the phase, or call resume"):
            world.engine.buffer(16, "kv_cache")
        world.engine.resume(tags=["kv_cache"])
        assert world.resident() == {*WEIGHTS, "engine.kv_cache"}
    assert world.resident() == set()
    enter(world.other, "train")
    with world.job.phase("rollout"):
        assert world.resident() == {"engine.weights", "engine.kv_cache"}
    with world.job.phase("train", tags=("optimizer", "weights")):
        assert world.resident() == {"policy.weights", "policy.optimizer"}


def test_a_tenant_without_these_tags_stays_out(world: World) -> None:
    with world.job.phase("weight_sync", tags=["optimizer"]) as result:
        assert world.resident() == {"policy.optimizer"}
        assert not world.engine.resident
        assert result.resumed_bytes == SIZE
    with world.job.phase("rollout", tags=["optimizer"]):  # the permit alone
        assert world.resident() == set()


def test_an_inner_phase_brings_in_the_rest(world: World) -> None:
    job = world.job
    job.pop_metrics()
    with job.phase("weight_sync", tags=["weights"]):
        with job.phase("train", tags=["grads"]) as result:
            assert world.resident() == {*WEIGHTS, "policy.grads"}
        assert result.resumed_bytes == SIZE
        with job.phase("train", tags=["grads", "weights"]) as result:
            assert result.resumed_bytes == 0
        assert job.pop_metrics()["weave/bytes_resumed"] == 3 * SIZE
        with pytest.raises(ResumeFailed), job.phase("rollout"):
            pass
        assert world.resident() == {*WEIGHTS, "policy.grads"}  # as before
    with job.phase("rollout", tags=["weights"]):
        with job.phase("train", tags=["grads"], nested="switch"):
            assert world.resident() == {"policy.grads"}
        with job.phase("rollout"):
            with job.phase("train", nested="switch"):
                enter(world.job, "reward")
                assert "engine.weights" not in world.resident()
            assert world.resident() == {"engine.weights", "engine.kv_cache"}
        assert world.resident() == {"engine.weights", "engine.kv_cache"}
    assert world.resident() == set()
    assert enter(world.other, "train") == "train"


def test_tasks_inside_one_phase(world: World) -> None:
    job = world.job

    async def generate() -> set[str]:
        async with job.phase("rollout"):
            return world.resident()

    async def roll_out() -> list[set[str]]:
        async with job.phase("rollout", tags=["weights"]):
            return await asyncio.gather(*(generate() for _ in range(4)))

    assert asyncio.run(roll_out()) == [{"engine.weights", "engine.kv_cache"}] * 4
    assert world.resident() == set()


def test_weights_are_copied_where_nothing_else_is(join: Callable[..., Job]) -> None:
    job = join()
    policy, engine = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(policy.parameters())
    job.manage("policy", policy, optimizer, pool="train")
    job.manage("engine", engine, pool="rollout")
    with job.phase("train"):
        policy(torch.ones(1, 64)).sum().backward()
        optimizer.step()
    with job.phase("weight_sync", tags=["weights"]) as sync:
        sync.publish(engine, policy)
        with pytest.raises(NotResident) as caught:
            optimizer.step()
        assert caught.value.tag == "optimizer"
    with job.phase("weight_sync"):
        optimizer.step()
    job.close()
    assert not torch.equal(engine.weight, policy.weight)


@pytest.mark.parametrize("config", [{"mode": "off"}, {}])
def test_mistakes(runtime: LocalRuntime, config: dict[str, str]) -> None:
    with weave_rt.init("a", config or {"runtime": runtime}) as job:
        for tags, message in (
            ("weights", "is a list of tags, not 'weights'"),
            (["wieghts"], "'wieghts' is not one of weights"),
            ([], "no tag is named"),
            ([3], "is a list of tags"),
            (3, "is a list of tags"),
        ):
            with pytest.raises(UsageError, match=message):
                job.phase("train", tags=tags)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="policies go by tag"):
            job.manage("m", pool="train", tags=["weights"])  # type: ignore[arg-type]
        with job.phase("train", tags=["weights"]):
            pass
