"""Fixtures shared by the Python tests. Devices are closed at the end and must hold nothing."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weave_rt
from weave_rt import Device, Job, LocalRuntime, _core, open_device
from weave_rt.device import resolve_spec

os.environ["WEAVE_CACHE"] = "off"  # nothing of the person's who runs the tests is read or written

# nohup ignores SIGHUP and a shell's background SIGINT, and so would what tests start to interrupt.
for ignored, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, usual)

ROLLOUT = "emulated:h20?scale=4096&speed=50&capacity=2MiB&seed=1"
TRAIN = "emulated:h800?scale=4096&speed=50&capacity=2MiB&seed=1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long campaigns run when the command line asks for them (``-m soak``) and not otherwise."""
    if "soak" in (config.getoption("-m") or ""):
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


def _device_specs() -> list[str]:
    """$WEAVE_TEST_DEVICE alone where it is set, else the emulated device, and a GPU if any."""
    wanted = os.environ.get("WEAVE_TEST_DEVICE")
    if wanted:
        return [resolve_spec(wanted)]
    return [ROLLOUT, "cuda:0"] if _core.cuda_driver()["available"] else [ROLLOUT]


def _close_and_check(device: Device) -> None:
    device.close()
    gc.collect()  # a caught exception keeps its frames, and so spans, until then
    assert not any(device.census().values()), f"left on {device.spec}: {device.census()}"


@pytest.fixture
def open_checked() -> Iterator[Callable[[str], Device]]:
    """Open a device by its spec; closed and checked at the end."""
    opened: list[Device] = []

    def opening(spec: str) -> Device:
        opened.append(open_device(spec))
        return opened[-1]

    yield opening
    for device in opened:
        _close_and_check(device)


@pytest.fixture(params=_device_specs())
def device(request: pytest.FixtureRequest, open_checked: Callable[[str], Device]) -> Device:
    """One device for contract tests: emulated, and a GPU where there is one."""
    return open_checked(request.param)


@pytest.fixture
def runtime(open_checked: Callable[[str], Device]) -> Iterator[LocalRuntime]:
    """A runtime with one emulated device per pool."""
    made = LocalRuntime({"rollout": [open_checked(ROLLOUT)], "train": [open_checked(TRAIN)]})
    yield made
    made.close()


@pytest.fixture
def join(runtime: LocalRuntime) -> Any:
    """Make jobs in the runtime; they are closed before it is."""
    jobs: list[Job] = []

    def joining(job_id: str = "a", **config: Any) -> Job:
        jobs.append(weave_rt.init(job_id, {"runtime": runtime, **config}))
        return jobs[-1]

    yield joining
    for job in jobs:
        job.close()


def enter(job: Job, name: str) -> str:
    with job.phase(name) as result:
        return result.name
