"""Ctrl-C inside what a phase does by itself: no tenant stays running, and no permit taken."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from conftest import enter

from weave_rt import Job, LocalRuntime, Tenant


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def filling(job: Job, *names: str) -> list[Tenant]:
    """Tenants on the training device with two fifths of it each."""
    tenants = [job.manage(name, pool="train") for name in names]
    with job.phase("train"):
        for tenant in tenants:
            tenant.region_of("weights").prepare(tenant.device.usable_bytes * 2 // 5)
    return tenants


def test_in_a_switch(
    join: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, runtime: LocalRuntime
) -> None:
    a, b = join("a"), join("b")
    one, two = filling(a, "one", "two")
    filling(b, "x", "y")
    with monkeypatch.context() as patch:
        # A signal that comes during a core call is raised when that returns, which is here.
        patch.setattr(two, "update_guards", interrupt)
        with pytest.raises(KeyboardInterrupt):
            enter(a, "train")
    assert not one.resident
    assert not two.resident
    assert enter(b, "train") == "train"  # needs more than they leave


def test_at_the_end_of_a_phase(join: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = join("a"), join("b")
    one, two = filling(a, "one", "two")
    filling(b, "x", "y")
    with monkeypatch.context() as patch:
        patch.setattr(one, "scan", interrupt)
        with pytest.raises(KeyboardInterrupt):
            enter(a, "train")
    assert not one.resident
    assert not two.resident
    assert enter(b, "train") == "train"


def test_while_a_phase_is_queued(
    join: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, runtime: LocalRuntime
) -> None:
    a, b = join("a"), join("b")
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            enter(b, "train")
        except BaseException as error:
            caught.append(error)

    with a.phase("train"), monkeypatch.context() as patch:
        patch.setattr(runtime._ahead, "queued", interrupt)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert [type(one) for one in caught] == [KeyboardInterrupt]
        assert not runtime.permits.waiting()
    assert enter(b, "train") == "train"
