"""Weave RT: a GPU context-switch runtime for RL post-training.

Trainers use `init` and the job it returns; whoever wants memory that comes and goes on one device
uses `open_device` and `Tenant`. Everything listed here is public, nothing else is. Importing this
does not import torch.
"""

from weave_rt.device import Device, HostPool, open_device
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
    UsageError,
    VerifyFailed,
    WeaveError,
)
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
    "UsageError",
    "VerifyFailed",
    "WeaveError",
    "__version__",
    "init",
    "open_device",
]
