"""Phases: permits, nesting, versions, async and decorator forms, errors. No time is asserted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from conftest import ROLLOUT, TRAIN, enter

import weave_rt
from weave_rt import (
    Device,
    Job,
    LocalRuntime,
    NotResident,
    PermitTimeout,
    PhaseNesting,
    Slice,
    StaleWeights,
    UsageError,
)


def models(job: Job) -> tuple[torch.nn.Module, torch.nn.Module]:
    policy, engine = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    job.manage("policy", policy, pool="train")
    job.manage("engine", engine, pool="rollout")
    return policy, engine


def test_aliases_and_unknown_names(join: Callable[..., Job]) -> None:
    job = join()
    with job.phase("generate") as a, job.phase("reward") as b:
        assert (a.name, b.name) == ("rollout", "reward")
    with job.phase("update_actor") as c:
        assert c.name == "train"
    with pytest.raises(UsageError, match="rolout"):
        job.phase("rolout")
    wrong: list[dict[str, Any]] = [{"pool": "cpu"}, {"pool": 3}, {"pool": [1]}, {"timeout_s": "5"}]
    for one in wrong:
        with pytest.raises(UsageError, match=next(iter(one))):
            job.phase("train", **one)
    with pytest.raises(UsageError, match="name is a text"):
        job.manage(3, pool="train")  # type: ignore[arg-type]


def test_state_is_resident_in_its_phase_only(join: Callable[..., Job]) -> None:
    job = join()
    tenant = job.manage("kv", pool="rollout")
    with job.phase("rollout"):
        buffer = tenant.buffer(16, "other")
        buffer.view()[:] = b"0123456789abcdef"
        address = buffer.address
    with pytest.raises(NotResident) as caught:
        buffer.view()
    told = caught.value
    assert (told.job, told.tenant, told.tag, told.phase) == ("a", "kv", "other", "rollout")
    with pytest.raises(NotResident):
        tenant.buffer(16)
    with job.phase("train"), pytest.raises(NotResident):
        buffer.view()
    with job.phase("eval"):
        assert bytes(buffer.view()) == b"0123456789abcdef"
        assert buffer.address == address


def test_two_jobs_take_turns_and_keep_their_bytes(join: Callable[..., Job]) -> None:
    jobs = [join("a"), join("b")]
    tenants = [job.manage("kv", pool="rollout", tags={"kv_cache": "keep"}) for job in jobs]
    buffers = []
    size = 1_200_000  # two do not fit in 2 MiB
    for turn in range(3):
        for number, (job, tenant) in enumerate(zip(jobs, tenants, strict=True)):
            with job.phase("rollout") as result:
                if turn == 0:
                    buffers.append(tenant.buffer(size, "kv_cache"))
                else:
                    assert set(bytes(buffers[number].view())) == {16 * turn + number}
                    assert result.resumed_bytes > 0
                    assert result.warm
                buffers[number].view()[:] = bytes([16 * (turn + 1) + number]) * size


def test_sole_job_never_moves_a_byte(join: Callable[..., Job]) -> None:
    job = join()
    policy, engine = models(job)
    for _ in range(3):
        with job.phase("weight_sync") as result:
            engine.load_state_dict(policy.state_dict())
        assert result.resumed_bytes == 0
    assert job.pop_metrics()["weave/bytes_suspended"] == 0


def test_nesting_is_refused_unless_asked_for(join: Callable[..., Job]) -> None:
    job = join()
    tenant = job.manage("state", pool="train")
    with job.phase("train"):
        buffer = tenant.buffer(8)
        with pytest.raises(PhaseNesting, match="nested='switch'"), job.phase("rollout"):
            pass
        with job.phase("rollout", nested="switch"), pytest.raises(NotResident):
            buffer.view()
        buffer.view()[:] = b"12345678"  # taken again
        with job.phase("reward"), job.phase("train"), job.phase("save"):
            buffer.view()
    with job.phase("init"), job.phase("rollout"), job.phase("train"):
        buffer.view()
    assert not tenant.resident


def test_nested_switch_lets_others_in(join: Callable[..., Job]) -> None:
    a, b = join("a", nested="switch"), join("b")
    with a.phase("train"):
        with pytest.raises(PermitTimeout, match="held by a/train"), b.phase("train", timeout_s=0):
            pass
        with a.phase("rollout"), b.phase("train", timeout_s=60):
            pass
        with pytest.raises(PermitTimeout), b.phase("train", timeout_s=0):
            pass


def test_decorators(join: Callable[..., Job]) -> None:
    job = join()
    tenant = job.manage("state", pool="train")

    @job.phase("train")
    def update(value: int) -> bool:
        return tenant.resident and value == 3

    @job.phase("train")
    async def update_later(value: int) -> bool:
        await asyncio.sleep(0)
        return tenant.resident and value == 4

    assert update(3)
    assert update.__name__ == "update"
    assert asyncio.run(update_later(4))
    assert not tenant.resident
    with pytest.raises(UsageError, match="generator"):
        job.phase("train")(lambda: (yield))


def test_stale_weights(join: Callable[..., Job]) -> None:
    job = join()
    models(job)
    enter(job, "rollout")  # the first one, before any training
    enter(job, "train")
    with pytest.raises(StaleWeights, match="weight_sync"):
        enter(job, "rollout")
    with pytest.raises(StaleWeights):
        enter(job, "eval")
    enter(job, "weight_sync")
    assert enter(job, "rollout") == "rollout"
    with pytest.raises(ZeroDivisionError), job.phase("train"):
        raise ZeroDivisionError  # not a new version
    enter(job, "rollout")
    with pytest.raises(ZeroDivisionError), job.phase("weight_sync"):
        raise ZeroDivisionError
    with pytest.raises(StaleWeights, match="did not finish"):
        enter(job, "rollout")
    with job.phase("weight_sync"), job.phase("rollout"):
        pass  # a probe of the weights that are being written is the caller's business
    assert enter(job, "rollout") == "rollout"


def test_max_staleness(join: Callable[..., Job]) -> None:
    job = join(max_staleness=1)
    models(job)
    enter(job, "train")
    enter(job, "rollout")
    enter(job, "train")
    with pytest.raises(StaleWeights, match="2 train phases behind"):
        enter(job, "rollout")


def test_a_phase_inside_one_of_its_own_name_is_one_phase(
    join: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = join(max_staleness=1)
    models(job)
    timed: list[str] = []
    monkeypatch.setattr(job, "note_phase", lambda name, elapsed_ns: timed.append(name))
    with job.phase("train"), job.phase("train"), job.phase("reward"), job.phase("train"):
        pass
    assert timed == ["reward", "train"]  # no second is counted twice
    enter(job, "rollout")  # one version behind, which is allowed


def test_without_modules_in_both_pools_versions_are_not_enforced(join: Callable[..., Job]) -> None:
    job = join()
    job.manage("policy", torch.nn.Linear(2, 2), pool="train")
    enter(job, "train")
    enter(job, "rollout")


def test_discarded_weights_are_stale(join: Callable[..., Job]) -> None:
    a, b = join("a"), join("b")
    engine = torch.nn.Linear(512, 512)
    a.manage("engine", engine, pool="rollout", tags={"weights": "discard"})
    enter(a, "rollout")
    other = b.manage("kv", pool="rollout")
    with b.phase("rollout"):
        kept = other.buffer(1_200_000, "other")
    with pytest.raises(StaleWeights, match="discarded"):
        enter(a, "rollout")
    with a.phase("weight_sync"), torch.no_grad():
        for parameter in engine.parameters():
            parameter.zero_()
    enter(a, "rollout")
    del kept


def test_observer_sees_waits_switches_and_phases(open_checked: Callable[[str], Device]) -> None:
    seen: list[Slice] = []
    devices = {"rollout": [open_checked(ROLLOUT)], "train": [open_checked(TRAIN)]}
    with (
        LocalRuntime(devices, observer=seen.append) as runtime,
        weave_rt.init("a", {"runtime": runtime}) as job,
    ):
        job.manage("policy", pool="train")
        with pytest.raises(ZeroDivisionError), job.phase("weight_sync", step=7):
            raise ZeroDivisionError
    assert [(s.kind, s.devices, s.ok) for s in seen] == [
        ("wait", ("train:0", "rollout:0"), True),
        ("switch", ("train:0",), True),
        ("phase", ("train:0", "rollout:0"), False),
    ]
    assert all(s.step == 7 and s.start_ns <= s.end_ns for s in seen)
    assert seen[1].report is not None
    assert seen[1].report["in"] == "a/policy"


def test_metrics_and_progress(join: Callable[..., Job]) -> None:
    job = join(metrics_prefix="perf/")
    enter(job, "train")
    metrics = job.pop_metrics()
    assert {"perf/train", "perf/permit_wait", "perf/resume", "weave/weight_version"} <= set(metrics)
    assert all(type(value) is float for value in metrics.values())
    assert "perf/train" not in job.pop_metrics()
    with job.phase("rollout"):
        job.progress(1, 4)
        with pytest.raises(UsageError):
            job.progress(5, 4)


def test_mistakes_in_config(runtime: LocalRuntime, join: Callable[..., Job]) -> None:
    for bad, word in [
        ({"modee": "local"}, "no key 'modee'"),
        ({"mode": "unix:/x"}, "not in this version"),
        ({"mode": "observe"}, "not in this version"),
        ({"mode": "banana"}, "not off or local"),
        ({"nested": "maybe"}, "nested"),
        ({"max_staleness": "1"}, "max_staleness"),
        ({"rollout": 0}, "rollout is a list of indices of devices, not 0"),
        ({"train": ["0"]}, "train is a list of indices"),
        ({"acquire_timeout_s": "1"}, "acquire_timeout_s is a number"),
        ({"verify": "everything"}, "not 'off', 'ptr' or 'checksum'"),
        ({"runtime": runtime, "rollout": [3]}, "there is no 3"),
        ({"mode": "local", "rollout_device": "emulated:h2000"}, "h2000"),
    ]:
        with pytest.raises(UsageError, match=word):
            weave_rt.init("x", bad)
    join("x")
    with pytest.raises(UsageError, match="another job_id"):
        join("x")


def test_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEAVE", "local")
    monkeypatch.setenv("WEAVE_ROLLOUT", ROLLOUT)
    monkeypatch.setenv("WEAVE_TRAIN", TRAIN)
    monkeypatch.setenv("WEAVE_JOB_ID", "from-env")
    with weave_rt.init() as first, weave_rt.init("second") as second:
        assert first.job_id == "from-env"
        assert first.runtime is second.runtime  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match="share the devices"):
            weave_rt.init("third", {"train_device": ROLLOUT})
        assert not weave_rt.init("off", {"mode": "off"}).active
    monkeypatch.setenv("WEAVE", "observe")
    with pytest.raises(UsageError, match="not in this version"):
        weave_rt.init()


def test_a_failed_switch_frees_the_permit(join: Callable[..., Job]) -> None:
    a, b = join("a"), join("b")
    tenants = [job.manage("kv", pool="rollout") for job in (a, b)]
    buffers = []
    for job, tenant in zip((a, b), tenants, strict=True):
        with job.phase("rollout"):
            buffers.append(tenant.buffer(1_200_000, "other"))
            buffers[-1].view()[:4] = b"good"
    fault = weave_rt._core.FaultScope(nth=1, only="memcpy_htod_async")
    with fault, pytest.raises(weave_rt.DriverError), a.phase("rollout"):
        pass
    assert fault.calls_failed == 1
    for job, buffer in zip((a, b), buffers, strict=True):
        with job.phase("rollout"):
            assert bytes(buffer.view()[:4]) == b"good"


def test_manage_inside_and_outside_of_phases(join: Callable[..., Job]) -> None:
    job = join()
    with job.phase("init"):
        net = torch.nn.Linear(4, 4)
        tenant = job.manage("net", net, pool="train")
        assert tenant.resident
        net(torch.ones(4))
    with pytest.raises(NotResident):
        net(torch.ones(4))
    more = torch.nn.Linear(4, 4)
    assert job.manage("net", more, net, pool="train") is tenant
    with pytest.raises(NotResident):
        more(torch.ones(4))
    with job.phase("train"):
        net(more(torch.ones(4)))
        with pytest.raises(PhaseNesting):
            job.manage("engine", torch.nn.Linear(2, 2), pool="rollout")
    with pytest.raises(UsageError, match="managed already, in pool 'train'"):
        job.manage("net", pool="rollout")
    with pytest.raises(UsageError, match="type builtins"):
        job.manage("other", {}, pool="train")
    job.manage("other", pool="train")  # the name is still free
    assert [t.name for t in tenant.device.tenants] == ["net", "other"]


def test_several_tenants_come_and_go_together(join: Callable[..., Job]) -> None:
    a, b = join("a"), join("b")
    ours = [a.manage(name, pool="rollout") for name in ("one", "two")]
    theirs = b.manage("big", pool="rollout")
    with a.phase("rollout"):
        buffers = [tenant.buffer(400_000, "other") for tenant in ours]
        for number, buffer in enumerate(buffers):
            buffer.view()[:] = bytes([number]) * buffer.nbytes
    with b.phase("rollout"):
        filler = theirs.buffer(theirs.device.usable_bytes, "other")
        assert not any(tenant.resident for tenant in ours)
    with a.phase("rollout") as result:
        assert result.resumed_bytes >= 800_000
        assert [set(bytes(buffer.view())) for buffer in buffers] == [{0}, {1}]
    del filler


def test_jobs_that_come_and_go(runtime: LocalRuntime) -> None:
    """Jobs start and close in several threads while others switch; every byte is checked."""

    def live(thread: int) -> None:
        for life in range(4):
            with weave_rt.init(f"{thread}.{life}", {"runtime": runtime}) as job:
                tenant = job.manage("kv", pool="rollout")
                for turn in range(3):
                    mark = 32 * thread + 4 * life + turn + 1
                    with job.phase("rollout"):
                        if turn == 0:
                            buffer = tenant.buffer(1_000_000, "other")
                        else:
                            assert set(bytes(buffer.view())) == {mark - 1}
                        buffer.view()[:] = bytes([mark]) * buffer.nbytes
            del buffer

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, range(4)))
    assert runtime.devices["rollout:0"].tenants == []


def test_keep_copies_into_ordinary_memory(join: Callable[..., Job]) -> None:
    job = join()
    tenant = job.manage("kv", pool="rollout")
    with job.phase("rollout"):
        cache = tenant.empty((2, 3), torch.float32, "other").fill_(1.0).requires_grad_()
        with tenant.region("other"):
            kept = job.keep({"a": [cache * 2], "b": (cache, "text")})
    assert torch.equal(kept["a"][0], torch.full((2, 3), 2.0))
    assert torch.equal(kept["b"][0], torch.ones(2, 3))
    assert kept["b"][1] == "text"
    assert not kept["a"][0].requires_grad
    (region,) = tenant.regions
    for tensor in (kept["a"][0], kept["b"][0]):
        assert not region.address <= tensor.data_ptr() < region.address + region.bytes_reserved
