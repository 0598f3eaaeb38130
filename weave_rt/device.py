"""Opening devices: what `auto` means, and a warning where the host is slower than the model.

`Device` is the core's own class. Called by users, the local runtime and the command line.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from weave_rt import _core
from weave_rt._core import Device, HostPool
from weave_rt.errors import UsageError

__all__ = ["POOLS", "Device", "HostPool", "open_beside", "open_device", "resolve_spec"]

POOLS = ("train", "rollout")  # the fixed order in which a job that wants both takes them

_EMULATED = {"rollout": "emulated:h20?scale=64", "train": "emulated:h800?scale=64"}


def resolve_spec(spec: str = "auto", pool: str = "rollout") -> str:
    """The spec that `auto` stands for here: a GPU if the driver reports one (the second one for
    the training pool, where there are two), else an emulated device. Others are returned as is.

    Raises UsageError for an unknown pool."""
    if not isinstance(spec, str):
        raise UsageError(f"a device is a text like 'cuda:0', not {spec!r}")
    if pool not in POOLS:
        raise UsageError(f"pool {pool!r} is not one of rollout, train")
    if spec != "auto":
        return spec
    found = _core.cuda_driver()["devices"]
    gpus = len(found) if isinstance(found, list) else 0
    if gpus == 0:
        return _EMULATED[pool]
    return "cuda:1" if pool == "train" and gpus > 1 else "cuda:0"


def open_device(
    spec: str = "auto",
    *,
    pool: str = "rollout",
    host_pool: HostPool | None = None,
    host_budget_bytes: int = 0,
    usable_bytes: int = 0,
    spill_directory: str = "",
) -> Device:
    """Open a device: ``cuda:0``, ``emulated:h20?scale=64``, or ``auto``.

    Args:
        pool: ``rollout`` or ``train``; only says what `auto` means.
        host_pool: pinned host memory to share with another device of this process.
        host_budget_bytes: limit of a new host pool, 0 for none.
        usable_bytes: at most this much of the device for tenants, 0 for all that is free.
        spill_directory: where the state of idle tenants goes when pinned memory is at its budget;
            made if need be. Empty: a growth over the budget is refused.

    Warns when the host cannot copy as fast as an emulated spec says. Raises UsageError,
    DeviceNotFound, DriverError."""
    for name, value in (("host_budget_bytes", host_budget_bytes), ("usable_bytes", usable_bytes)):
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise UsageError(f"{name} is a number of bytes, 0 or more, not {value!r}")
    if not isinstance(spill_directory, str):
        raise UsageError(f"spill_directory is a path as text, not {spill_directory!r}")
    device = Device.open(
        resolve_spec(spec, pool), host_pool, host_budget_bytes, usable_bytes, spill_directory
    )
    if device.host_limited:
        warnings.warn(
            f"this host copies slower than {device.spec} models: its timings are host_limited; "
            "raise scale or lower speed",
            RuntimeWarning,
            stacklevel=2,
        )
    return device


def open_beside(
    others: Sequence[Device],
    spec: str,
    *,
    pool: str = "rollout",
    host_budget_bytes: int = 0,
    usable_bytes: int = 0,
    spill_directory: str = "",
) -> Device:
    """Open a device for use together with `others`, which are open in this process.

    A GPU that is among them is returned as it is; emulated devices are always new ones. The host
    pool is that of the others of the same kind, because one pool belongs to one driver; only the
    first of a kind makes one, with `host_budget_bytes`. usable_bytes: as :func:`open_device` takes
    it. Each device spills to `spill_directory`, also for the others' sake. Raises like that."""
    resolved = resolve_spec(spec, pool)
    kind = resolved.partition(":")[0]
    alike = [other for other in others if other.kind == kind]
    known = next((d for d in alike if kind == "cuda" and d.spec == resolved), None)
    if known is not None:
        return known
    shared = alike[0].host_pool if alike else None
    budget = 0 if shared is not None else host_budget_bytes
    return open_device(
        resolved,
        pool=pool,
        host_pool=shared,
        host_budget_bytes=budget,
        usable_bytes=usable_bytes,
        spill_directory=spill_directory,
    )
