"""Closing tenants and jobs: no tensor is left on memory that goes away, and nobody's phase ends
under them. No time is asserted; waiting threads are seen to wait."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import ROLLOUT

import weave_rt
from weave_rt import Device, DrainTimeout, Job, LocalRuntime, Tenant, TenantFailed, UsageError
from weave_rt import local_job as local_job_module
from weave_rt.adapters.torch import Book


class Core:
    """The core's tenant with some of its methods replaced."""

    def __init__(self, core: Any, **replaced: Callable[..., Any]) -> None:
        self._core = core
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*args: object) -> Any:
        raise error

    return raise_it


@pytest.fixture
def tenant(open_checked: Callable[[str], Device]) -> Iterator[Tenant]:
    made = Tenant(open_checked(ROLLOUT), "policy", job="a", pool="train")
    made.resume()
    yield made
    made.close()


def in_a_region(tenant: Tenant, tensor: torch.Tensor) -> bool:
    return any(
        r.address <= tensor.data_ptr() < r.address + r.bytes_reserved for r in tenant.regions
    )


# --- tenants


@pytest.mark.parametrize("error", [DrainTimeout("stuck"), weave_rt.DriverError("lost")])
def test_tensors_leave_even_when_nothing_can_be_read(tenant: Tenant, error: Exception) -> None:
    net = torch.nn.Linear(8, 8)
    tenant.adopt(net)
    core = tenant.core
    tenant._core = Core(core, rescue=raising(error))  # type: ignore[assignment]
    with pytest.raises(TenantFailed, match="lost the bytes of 2 tensors"):
        tenant.close()
    assert tenant.state == core.state == "CLOSED"
    assert not any(p.any() for p in net.parameters())
    net(torch.ones(1, 8))


def test_a_discarded_tag_has_nothing_to_lose(tenant: Tenant) -> None:
    cache = tenant.empty(8, "float32", "kv_cache").fill_(1.0)
    tenant._core = Core(tenant.core, rescue=raising(DrainTimeout("stuck")))  # type: ignore[assignment]
    tenant.close()
    assert not cache.any()


def test_an_interrupted_close_leaves_tensors_where_they_are(tenant: Tenant) -> None:
    net = torch.nn.Linear(8, 8)
    before = [p.detach().clone() for p in net.parameters()]
    tenant.adopt(net)
    core = tenant.core
    tenant._core = Core(core, rescue=raising(KeyboardInterrupt()))  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        tenant.close()
    assert tenant.state == "RESIDENT"
    assert in_a_region(tenant, net.weight)
    tenant._core = core
    tenant.close()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_each_tag_is_dropped_before_the_next(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = torch.nn.Linear(8, 8)
    opt = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 8)).sum().backward()
    opt.step()
    tenant.adopt(net, opt)
    tenant.buffer(100, "other")  # no tensor's
    saved = tenant.core.rescue()
    assert set(saved) == {"weights", "grads", "optimizer", "other"}
    held: list[tuple[str, int]] = []
    plain = Book._move_out

    def move_out(self: Book, slot: Any, *args: Any) -> None:
        held.append((slot.tag, len(saved)))
        plain(self, slot, *args)

    monkeypatch.setattr(Book, "_move_out", move_out)
    tenant.torch_book().evict(saved)
    assert sorted({count for _, count in held}) == [0, 1, 2]
    assert len({tag for tag, _ in held}) == len(set(held)) == 3
    assert not saved


@pytest.mark.parametrize(
    ("name", "closed"), [("state", "CLOSED"), ("bytes", 0), ("regions", []), ("resident", False)]
)
def test_properties_while_another_thread_closes(tenant: Tenant, name: str, closed: object) -> None:
    class Racing(Tenant):
        """Closed right after the first look at the core."""

        def __init__(self) -> None:
            self.cores = [tenant.core]

        @property
        def _core(self) -> Any:
            return self.cores.pop() if self.cores else None

    racing = Racing()
    assert getattr(racing, name) == getattr(tenant, name)
    assert getattr(racing, name) == closed


# --- jobs


@pytest.fixture
def job(runtime: LocalRuntime) -> Iterator[Job]:
    made = weave_rt.init("a", {"runtime": runtime})
    yield made
    made.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for another thread; the test's own time limit ends it."""
    while not condition():
        threading.Event().wait(0.001)


def test_closing_waits_for_the_phase_of_another_thread(
    job: Job, runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(local_job_module, "PATIENCE_S", 0.0)
    runtime.drain_timeout_s = 0.001
    net = torch.nn.Linear(8, 8)
    tenant = job.manage("policy", net, pool="train")
    inside, go = threading.Event(), threading.Event()
    seen: list[str] = []

    def train() -> None:
        with job.phase("train"):
            inside.set()
            go.wait()
            seen.append(tenant.state)
            if tenant.resident:
                with torch.no_grad():
                    net.weight.fill_(2.0)

    closers = [threading.Thread(target=job.close) for _ in range(2)]
    trainer = threading.Thread(target=train)
    trainer.start()
    inside.wait()
    with caplog.at_level(logging.WARNING, "weave_rt"):
        for closer in closers:
            closer.start()
        threading.Event().wait(0.1)
        go.set()
        for thread in (trainer, *closers):
            thread.join()
    assert seen == ["RESIDENT"]
    assert bool((net.weight == 2.0).all())
    assert [r.getMessage() for r in caplog.records] == [
        "job a: closing waits for a phase to end: train"
    ]
    assert not job.active


def test_a_phase_that_asks_while_its_job_closes_is_refused(job: Job, runtime: LocalRuntime) -> None:
    """Past its gate, but too late to be withdrawn: it must not wait for a permit, because closing
    waits for it, perhaps inside the very phase that holds that permit."""
    other = weave_rt.init("b", {"runtime": runtime})
    plain, refused = runtime.request, []

    def request(*args: Any) -> Any:
        closer.start()
        until(lambda: job.gate.waiting())  # type: ignore[attr-defined]
        return plain(*args)

    def train() -> None:
        try:
            with job.phase("train"):
                pass
        except UsageError as error:
            refused.append(str(error))

    closer = threading.Thread(target=job.close)
    with other.phase("train"):
        runtime.request = request  # type: ignore[method-assign]
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        closer.join()
        runtime.request = plain  # type: ignore[method-assign]
    other.close()
    assert refused == ["job 'a' is closed"]


def test_closing_beside_a_task_of_the_same_thread_is_refused(
    job: Job, runtime: LocalRuntime
) -> None:
    other = weave_rt.init("b", {"runtime": runtime})

    async def hold() -> None:
        async with job.phase("train"):
            await asyncio.Event().wait()

    async def ended(task: asyncio.Task[None]) -> None:
        with pytest.raises(UsageError, match="another task of this thread"):
            job.close()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def scenario() -> None:
        running = asyncio.ensure_future(hold())
        while not job.actives:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await ended(running)
        with other.phase("train"):
            waiting = asyncio.ensure_future(hold())
            while not runtime.permits.waiting():
                await asyncio.sleep(0)
            await ended(waiting)
        with job.phase("train"):
            pass

    asyncio.run(scenario())
    other.close()
    job.close()
    assert not job.active


FORKED = """
import os, signal
from weave_rt import _core
device = _core.Device.open("emulated:h20?scale=4096&speed=50")
tenant = device.add_tenant("actor", "job")
tenant.resume()
region = tenant.region("weights")
span = region.allocate(100)
copy = tenant.write_back("weights")
assert copy.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(30)
    device.close()
    del copy, span, region, tenant, device
    raise SystemExit
_, status = os.waitpid(child, 0)
assert status == 0, status
memoryview(span)[:] = bytes(100)
tenant.suspend()
tenant.resume()
assert bytes(memoryview(span)) == bytes(100)
device.close()
"""


def test_a_forked_child_ends_and_the_device_is_its_parents() -> None:
    # It has none of the device's threads: who waited for them there would wait for ever.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
