"""Phases of one job in several threads and tasks, and what wakes or cancels one that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from conftest import enter

from weave_rt import (
    Job,
    LocalRuntime,
    PhaseNesting,
    UsageError,
)


def test_async_phases_of_two_jobs_in_one_loop(join: Callable[..., Job]) -> None:
    jobs = [join("a"), join("b")]
    inside: list[str] = []

    async def train(job: Job) -> None:
        for _ in range(3):
            async with job.phase("train"):
                inside.append(job.job_id)
                await asyncio.sleep(0)
                inside.append(job.job_id)

    async def both() -> None:
        await asyncio.gather(*(train(job) for job in jobs))

    asyncio.run(both())
    assert inside == list("aabbaabbaabb")


def test_a_cancelled_async_phase_frees_its_place(join: Callable[..., Job]) -> None:
    a, b = join("a"), join("b")

    async def scenario() -> None:
        async def hold(job: Job) -> None:
            async with job.phase("train"):
                await asyncio.Event().wait()

        with a.phase("train"):
            waiting = asyncio.ensure_future(hold(b))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        running = asyncio.ensure_future(hold(b))
        while not b.actives:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with a.phase("train", timeout_s=60):
            pass

    asyncio.run(scenario())


def test_waiting_for_a_task_of_the_same_thread_is_refused(join: Callable[..., Job]) -> None:
    job = join()

    async def hold(end: asyncio.Event) -> None:
        async with job.phase("train"):
            await end.wait()

    async def main() -> None:
        end = asyncio.Event()
        tasks = [asyncio.create_task(hold(end)) for _ in range(2)]  # one holds it, one waits
        await asyncio.sleep(0)
        with pytest.raises(PhaseNesting, match="'train' of another task of this thread"):
            enter(job, "update_actor")
        assert enter(job, "rollout") == "rollout"
        end.set()
        await asyncio.gather(*tasks)
        assert enter(job, "train") == "train"

    asyncio.run(main())


def test_threads_of_one_job(join: Callable[..., Job]) -> None:
    job = join()
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with job.phase("train"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    with job.phase("train"):
        done = []
        other = threading.Thread(target=lambda: done.append(enter(job, "rollout")))
        other.start()
        other.join()
        assert done == ["rollout"]  # another pool, another thread: at the same time


def test_an_exception_releases_the_permit(join: Callable[..., Job]) -> None:
    a, b = join("a"), join("b")
    with pytest.raises(ZeroDivisionError), a.phase("train"):
        raise ZeroDivisionError
    assert enter(b, "train") == "train"


def test_closing_wakes_a_waiting_thread(join: Callable[..., Job], runtime: LocalRuntime) -> None:
    a, b = join("a"), join("b")
    caught: list[Exception] = []

    def wait() -> None:
        try:
            enter(b, "train")
        except UsageError as error:
            caught.append(error)

    with a.phase("train"):
        thread = threading.Thread(target=wait)
        thread.start()
        while not runtime.permits.waiting():
            pass
        b.close()
        thread.join()
    assert "closed" in str(caught[0])
    with pytest.raises(UsageError, match="closed"):
        b.phase("train").__enter__()
    with a.phase("train"), pytest.raises(UsageError, match="inside its own phase"):
        a.close()
