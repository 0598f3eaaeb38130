"""Permits: nothing overtakes, and nobody who went away blocks the others. No time is measured:
waiters are known to wait because `Permits.waiting` lists them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weave_rt import FirstCome, Permits, PermitTimeout, Request, UsageError

BOTH = ("train:0", "rollout:0")


def granted(permits: Permits, *tickets: object) -> list[bool]:
    waiting = {request.serial for request in permits.waiting()}
    return [ticket.request.serial not in waiting for ticket in tickets]  # type: ignore[attr-defined]


@pytest.fixture
def permits() -> Permits:
    made = Permits()
    for job in "abc":
        made.join(job, BOTH)
    return made


def test_nothing_overtakes(permits: Permits) -> None:
    first = permits.request("a", "train", ["train:0"])
    both = permits.request("b", "weight_sync", BOTH)
    behind = permits.request("c", "rollout", ["rollout:0"])  # its device is free, but b is ahead
    assert granted(permits, first, both, behind) == [True, False, False]
    permits.release(first)
    assert granted(permits, both, behind) == [True, False]
    permits.release(both)
    assert granted(permits, behind) == [True]


def test_timeout_withdraws(permits: Permits) -> None:
    first = permits.request("a", "train", ["train:0"])
    late = permits.request("b", "train", ["train:0"])
    with pytest.raises(PermitTimeout, match=r"held by a/train"):
        permits.wait(late, timeout_s=0.0)
    behind = permits.request("c", "train", ["train:0"])
    permits.release(first)
    permits.wait(behind, timeout_s=60)


def test_a_granted_permit_that_timed_out_passes_on(permits: Permits) -> None:
    ticket = permits.request("a", "train", ["train:0"])
    permits.withdraw(ticket)
    permits.withdraw(ticket)
    permits.release(ticket)
    behind = permits.request("b", "train", ["train:0"])
    assert granted(permits, behind) == [True]


def test_a_closed_job_blocks_nobody_and_its_waiters_are_told(permits: Permits) -> None:
    held = permits.request("a", "train", ["train:0"])
    gone = permits.request("a", "train", ["train:0"])
    behind = permits.request("b", "train", ["train:0"])
    permits.leave("a")
    permits.leave("a")
    permits.wait(behind, timeout_s=60)
    with pytest.raises(UsageError, match="closed"):
        permits.wait(gone, timeout_s=60)
    permits.release(held)
    assert granted(permits, behind) == [True]


def test_waiting_threads_are_woken(permits: Permits) -> None:
    first = permits.request("a", "train", ["train:0"])
    order: list[str] = []

    def run(job: str, ticket: object) -> None:
        permits.wait(ticket, timeout_s=60)  # type: ignore[arg-type]
        order.append(job)
        permits.release(ticket)  # type: ignore[arg-type]

    tickets = [(job, permits.request(job, "train", ["train:0"])) for job in "bc"]
    threads = [threading.Thread(target=run, args=pair) for pair in tickets]
    for thread in threads:
        thread.start()
    permits.release(first)
    for thread in threads:
        thread.join()
    assert order == ["b", "c"]


def test_a_cancelled_coroutine_blocks_nobody(permits: Permits) -> None:
    async def scenario() -> None:
        first = permits.request("a", "train", ["train:0"])
        waiter = asyncio.ensure_future(
            permits.wait_async(permits.request("b", "train", ["train:0"]))
        )
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        with pytest.raises(PermitTimeout):
            await permits.wait_async(permits.request("b", "train", ["train:0"]), 0.001)
        behind = permits.request("c", "train", ["train:0"])
        permits.release(first)
        await permits.wait_async(behind, 60)

    asyncio.run(scenario())


def test_withdrawing_takes_no_permit_from_who_is_past_its_wait(permits: Permits) -> None:
    held = permits.request("b", "train", ["train:0"])
    permits.request("a", "weight_sync", BOTH)
    second = permits.request("a", "rollout", ["rollout:0"])
    entered: list[bool] = []

    def wake(told: object) -> None:  # a thread that is woken, and quick
        try:
            permits.wait(second, timeout_s=0.0)
            entered.append(True)
        except UsageError:
            entered.append(False)

    second.told.add_done_callback(wake)
    permits.withdraw_waiting("a")
    assert permits.waiting() == []
    assert len(entered) == 1
    behind = permits.request("b", "rollout", ["rollout:0"])
    assert granted(permits, behind) == [not entered[0]]
    permits.release(second)
    assert granted(permits, behind) == [True]
    permits.release(held)


def test_withdrawing_lets_the_next_job_in(permits: Permits) -> None:
    held = permits.request("a", "train", ["train:0"])
    gone = [permits.request("b", "weight_sync", BOTH) for _ in range(3)]
    behind = permits.request("c", "rollout", ["rollout:0"])
    permits.withdraw_waiting("b")
    permits.wait(behind, timeout_s=60)
    for ticket in gone:
        with pytest.raises(UsageError, match="closed while a phase waited"):
            permits.wait(ticket, timeout_s=60)
    assert permits.waiting() == []
    permits.release(held)


def test_mistakes_are_refused(permits: Permits) -> None:
    with pytest.raises(UsageError, match="another job_id"):
        permits.join("a", BOTH)
    with pytest.raises(UsageError, match="has not joined"):
        permits.request("z", "train", ["train:0"])
    with pytest.raises(UsageError, match="placed on"):
        permits.request("a", "train", ["train:7"])


def test_a_policy_that_raises_leaves_nobody_waiting() -> None:
    class Broken(FirstCome):
        def released(self, serial: int) -> Sequence[int]:
            raise ZeroDivisionError("policy")

    permits = Permits(Broken())
    permits.join("a", BOTH)
    first = permits.request("a", "train", ["train:0"])
    second = permits.request("a", "train", ["train:0"])
    permits.release(first)
    with pytest.raises(ZeroDivisionError):
        permits.wait(second, timeout_s=60)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("request"),
                st.sets(st.sampled_from(["train:0", "train:1", "rollout:0"]), min_size=1),
            ),
            st.tuples(st.just("end"), st.integers(0, 20)),
        ),
        max_size=40,
    )
)
def test_first_come_against_queues(events: list[tuple[str, object]]) -> None:
    """The one list of `FirstCome` equals the definition: a queue per device, first in all."""
    policy, queues = FirstCome(), {d: [] for d in ("train:0", "train:1", "rollout:0")}  # type: ignore[var-annotated]
    requests: dict[int, Request] = {}
    running: set[int] = set()
    for number, (kind, value) in enumerate(events):
        if kind == "request":
            request = Request(number, "a", "train", tuple(sorted(value)))  # type: ignore[call-overload]
            requests[number] = request
            for name in request.devices:
                queues[name].append(number)
            told = policy.requested(request)
        elif requests:
            serial = sorted(requests)[value % len(requests)]  # type: ignore[operator]
            for name in requests.pop(serial).devices:
                queues[name].remove(serial)
            told = policy.released(serial) if serial in running else policy.cancelled(serial)
            running.discard(serial)
        else:
            continue
        # a running request stays at the head of its queues until it ends
        expected = {s for s, r in requests.items() if all(queues[d][0] == s for d in r.devices)}
        assert set(told) == expected - running
        running |= set(told)
