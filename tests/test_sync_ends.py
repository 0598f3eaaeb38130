"""How a `weight_sync` ends: interrupted, cancelled, on an event loop, or with engines left out. Its
permit and its gate are given back whatever happens, and a version counts where all have it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from weave_rt import Buffer, LocalRuntime, StaleWeights, UsageError, init, open_device

SPEC = "emulated:h20?scale=4096&speed=50&capacity=2MiB"
NBYTES = 5000


class Engines:
    """A job with three engines of plain reload bytes; the last is never published to."""

    def __init__(self) -> None:
        self.runtime = LocalRuntime({"rollout": [open_device(SPEC)], "train": [open_device(SPEC)]})
        self.job: Any = init("a", {"runtime": self.runtime, "max_staleness": 0})
        self.buffers: dict[str, Buffer] = {}
        with self.job.phase("init"):
            for name in ("e0", "e1", "frozen"):
                tenant = self.job.manage(name, pool="rollout", tags={"weights": "reload"})
                self.buffers[name] = tenant.buffer(NBYTES, "weights")
                self.buffers[name].view()[:] = bytes(NBYTES)

    def train(self) -> None:
        with self.job.phase("train"):
            pass

    def publish(self, sync: Any, version: int, *names: str) -> None:
        for name in names:
            sync.publish_bytes(self.buffers[name], bytes([version]) * NBYTES)

    def sync(self, version: int, *names: str) -> None:
        with self.job.phase("weight_sync") as sync:
            self.publish(sync, version, *names)

    def versions(self) -> list[int]:
        with self.job.phase("rollout"):
            seen = [set(buffer.view()) for buffer in self.buffers.values()]
        assert all(len(one) == 1 for one in seen)  # no mixture within an engine
        return [one.pop() for one in seen]

    def close(self) -> None:
        """Not called where the test has failed: closing waits for permits."""
        assert not self.job.actives
        self.buffers.clear()
        self.job.close()
        self.runtime.close()


class Changing:
    """In the place of `Versions.changing`: what happens to those who wait for it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.asked, self.free = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def __enter__(self) -> None:
        self.threads.append(threading.get_ident())
        self.asked.set()
        if self.error is not None:
            raise self.error
        if threading.current_thread() is not threading.main_thread():
            assert self.free.wait(60)

    def __exit__(self, *exc: object) -> None:
        pass


def test_an_interrupt_while_a_sync_waits_leaks_nothing() -> None:
    made = Engines()
    made.train()
    changing, made.job.versions.changing = made.job.versions.changing, Changing()
    made.job.versions.changing.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        made.sync(1, "e0", "e1")
    made.job.versions.changing = changing
    with made.job.phase("init", pool="train", timeout_s=0):
        pass
    with pytest.raises(StaleWeights):
        made.versions()
    made.sync(2, "e0", "e1")  # would say that a version is being published already
    assert made.versions() == [2, 2, 0]
    made.close()


def test_an_interrupt_at_the_end_of_a_phase_leaves_the_gate_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Engines()
    end = made.runtime.end

    def interrupted(*args: Any, **options: Any) -> None:
        end(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(made.runtime, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    monkeypatch.undo()
    with made.job.phase("train", timeout_s=0):
        pass
    made.close()


@pytest.mark.parametrize("cancel", [False, True])
def test_the_event_loop_runs_while_a_sync_waits(cancel: bool) -> None:
    made = Engines()
    made.train()
    lock, changing = made.job.versions.changing, Changing()

    async def synchronise() -> None:
        async with made.job.phase("weight_sync") as sync:
            made.publish(sync, 1, "e0", "e1")
            made.job.versions.changing = changing

    async def scenario() -> None:
        task = asyncio.ensure_future(synchronise())
        while not changing.asked.is_set():
            await asyncio.sleep(0)
        assert changing.threads != [threading.get_ident()]
        with pytest.raises(UsageError, match="beside one of another task"):
            made.job.close()  # would wait for this very thread
        if cancel:
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()  # a commit under way is waited for
        changing.free.set()
        if cancel:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task

    asyncio.run(scenario())
    made.job.versions.changing = lock
    assert made.versions() == [1, 1, 0]
    made.close()


def test_a_sync_that_leaves_an_engine_out_does_not_count() -> None:
    made = Engines()
    made.train()
    made.sync(1, "e0", "e1")
    assert made.versions() == [1, 1, 0]  # one that is never published to holds nobody up
    made.train()
    made.sync(2, "e0")
    assert made.job.versions.engine == 1
    with pytest.raises(StaleWeights, match="1 train phases behind"):
        made.versions()
    made.sync(2, "e1")  # now both have it
    assert made.versions() == [2, 2, 0]
    assert made.job.versions.engine == 2
    made.close()


def test_publishing_no_bytes_opens_no_version() -> None:
    made = Engines()
    made.train()
    with made.job.phase("weight_sync") as sync:
        made.publish(sync, 1, "e0")
        sync.publish_bytes(made.buffers["e1"], b"")
        sync.publish_bytes(made.buffers["e1"], bytes(9), NBYTES, 0)
        with pytest.raises(UsageError, match="outside a buffer"):
            sync.publish_bytes(made.buffers["e1"], b"", NBYTES + 1)
    assert made.versions() == [1, 0, 0]
    made.close()
