"""The runtime that all jobs of one process share under ``WEAVE=local``.

Made by the first job that needs it and closed with the last one. Called by `local_job`; one lock,
held while it opens devices.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from weave_rt import calibration
from weave_rt._core import Device
from weave_rt.device import open_beside
from weave_rt.errors import UsageError
from weave_rt.local import LocalRuntime

__all__ = ["leave_process_runtime", "process_runtime"]


@dataclass(slots=True)
class _Shared:
    """The runtime that all jobs of this process share under ``WEAVE=local``."""

    runtime: LocalRuntime
    specs: tuple[str, str]
    users: int = 0


_shared_lock = threading.Lock()
_shared: list[_Shared] = []  # none or one


def process_runtime(rollout: str, train: str) -> LocalRuntime:
    """The runtime of this process, opened on first use on the devices of these specs (several
    separated by commas). Give it back by :func:`leave_process_runtime`.

    Raises UsageError when it runs on other devices already; DeviceNotFound, DriverError."""
    with _shared_lock:
        if not _shared:
            _shared.append(_Shared(_open(rollout, train), (rollout, train)))
        elif _shared[0].specs != (rollout, train):
            raise UsageError(
                f"the jobs of this process share the devices {_shared[0].specs}; "
                f"{(rollout, train)} needs a LocalRuntime of its own: init(config={{'runtime': r}})"
            )
        _shared[0].users += 1
        return _shared[0].runtime


def leave_process_runtime(runtime: LocalRuntime) -> None:
    """The counterpart of :func:`process_runtime`; the last one closes the devices."""
    with _shared_lock:
        if not _shared or _shared[0].runtime is not runtime:
            return
        _shared[0].users -= 1
        if _shared[0].users > 0:
            return
        _shared.clear()
    runtime.close()


def _open(rollout: str, train: str) -> LocalRuntime:
    opened: list[Device] = []
    pools: dict[str, list[Device]] = {"rollout": [], "train": []}
    try:
        for pool, specs in (("rollout", rollout), ("train", train)):
            for spec in specs.split(","):
                device = open_beside(opened, spec.strip(), pool=pool)
                if device not in opened:
                    opened.append(device)
                pools[pool].append(device)
        calibration.calibrate_all(opened)
        return LocalRuntime(pools)
    except BaseException:
        for device in opened:
            device.close()
        raise
