"""Weave RT: a GPU context-switch runtime for RL post-training.

Trainers use `init` and the job it returns; whoever wants memory that comes and goes on one device
uses `open_device` and `Tenant`. Everything listed here is public, nothing else is. Importing this
imports neither torch nor the core: the scheduler's deciding parts use `weave_rt.overlay`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from weave_rt.errors import (
    DeviceNotFound,
    DrainTimeout,
    DriverError,
    GrowthRefused,
    HostMemoryError,
    NotResident,
    OutOfMemoryError,
    PermitTimeout,
    PhaseNesting,
    RegionPinned,
    ResumeFailed,
    StaleWeights,
    StateChanged,
    StateFileError,
    TenantFailed,
    UsableBytesWarning,
    UsageError,
    VerifyFailed,
    WeaveError,
)

if TYPE_CHECKING:
    from weave_rt.device import Device, HostPool, open_device
    from weave_rt.job import Config, Job, init
    from weave_rt.local import LocalRuntime, Slice
    from weave_rt.permits import FirstCome, Permits, Policy, Request
    from weave_rt.phases import PhaseResult
    from weave_rt.tenant import Buffer, Tenant

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "Config",
    "Device",
    "DeviceNotFound",
    "DrainTimeout",
    "DriverError",
    "FirstCome",
    "GrowthRefused",
    "HostMemoryError",
    "HostPool",
    "Job",
    "LocalRuntime",
    "NotResident",
    "OutOfMemoryError",
    "PermitTimeout",
    "Permits",
    "PhaseNesting",
    "PhaseResult",
    "Policy",
    "RegionPinned",
    "Request",
    "ResumeFailed",
    "Slice",
    "StaleWeights",
    "StateChanged",
    "StateFileError",
    "Tenant",
    "TenantFailed",
    "UsableBytesWarning",
    "UsageError",
    "VerifyFailed",
    "WeaveError",
    "__version__",
    "init",
    "open_device",
]

# Where the names are that need the core; imported when they are first asked for.
_HOMES = {
    "Buffer": "weave_rt.tenant",
    "Config": "weave_rt.job",
    "Device": "weave_rt.device",
    "FirstCome": "weave_rt.permits",
    "HostPool": "weave_rt.device",
    "Job": "weave_rt.job",
    "LocalRuntime": "weave_rt.local",
    "Permits": "weave_rt.permits",
    "PhaseResult": "weave_rt.phases",
    "Policy": "weave_rt.permits",
    "Request": "weave_rt.permits",
    "Slice": "weave_rt.local",
    "Tenant": "weave_rt.tenant",
    "init": "weave_rt.job",
    "open_device": "weave_rt.device",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
