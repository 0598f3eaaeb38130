"""Every exception that Weave raises on purpose. All derive from :class:`WeaveError`.

Each also derives from the built-in exception that fits it, so ``except MemoryError`` and
``except TimeoutError`` work as expected. Attributes carry the numbers; the text is one line that
says what to change. The core raises these classes through a translator of its own
(``csrc/bindings/errors.cpp``), which passes the attributes by name.
"""

from __future__ import annotations

__all__ = [
    "DeviceNotFound",
    "DoesNotFit",
    "DrainTimeout",
    "DriverError",
    "GrowthRefused",
    "HostMemoryError",
    "NotResident",
    "OutOfMemoryError",
    "PermitTimeout",
    "PhaseNesting",
    "RegionPinned",
    "ResumeFailed",
    "StaleWeights",
    "StateChanged",
    "StateFileError",
    "TenantFailed",
    "UsableBytesWarning",
    "UsageError",
    "VerifyFailed",
    "WeaveError",
]


class WeaveError(Exception):
    """Base class of all errors of this package."""


class UsageError(WeaveError, ValueError):
    """The caller's mistake: a bad argument, an unknown key, a call in the wrong state."""


class DeviceNotFound(UsageError):
    """A device spec names something that this machine does not have."""


class DoesNotFit(UsageError):
    """A plan is impossible: a tenant is larger than the device.

    Attributes:
        tenant: its name; empty where no single one is to blame.
        blocks_needed: what it needs while it runs.
        frames: how many blocks the device has room for.
    """

    def __init__(
        self, message: str, *, tenant: str = "", blocks_needed: int = 0, frames: int = 0
    ) -> None:
        super().__init__(message)
        self.tenant = tenant
        self.blocks_needed = blocks_needed
        self.frames = frames


class UsableBytesWarning(RuntimeWarning):
    """Blocks keep more of a device than jobs leave for them by what they take outside regions."""


class DriverError(WeaveError, RuntimeError):
    """A CUDA driver call failed (real or emulated).

    Attributes:
        code: the ``CUresult``.
        call: the driver's symbol, for example ``"cuMemMap"``.
        bytes: the size that was asked for, 0 where the call has none.
    """

    def __init__(self, message: str, *, code: int = 0, call: str = "", bytes: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.call = call
        self.bytes = bytes


class OutOfMemoryError(DriverError, MemoryError):
    """The driver had no memory left for ``bytes``."""


class NotResident(WeaveError, RuntimeError):
    """Bytes were touched while they are not on the device, or may leave it at any moment.

    Attributes:
        job, tenant, tag: whose bytes.
        phase: the phase to wrap the access in, for example ``"train"``; may be empty.
    """

    def __init__(
        self, message: str, *, job: str = "", tenant: str = "", tag: str = "", phase: str = ""
    ) -> None:
        super().__init__(message)
        self.job = job
        self.tenant = tenant
        self.tag = tag
        self.phase = phase


class RegionPinned(WeaveError, RuntimeError):
    """A tenant cannot be suspended: a region of it is pinned to the device.

    Attributes:
        job, tenant, tag: which region.
    """

    def __init__(self, message: str, *, job: str = "", tenant: str = "", tag: str = "") -> None:
        super().__init__(message)
        self.job = job
        self.tenant = tenant
        self.tag = tag


class ResumeFailed(WeaveError, RuntimeError):
    """A tenant cannot come in because running tenants hold the device.

    Attributes:
        holders: names of the tenants that run there now.
        bytes_missing: how much more they would have to give up.
    """

    def __init__(self, message: str, *, holders: list[str], bytes_missing: int = 0) -> None:
        super().__init__(message)
        self.holders = holders
        self.bytes_missing = bytes_missing


class GrowthRefused(WeaveError, MemoryError):
    """A tenant wants more device memory than can be given to it.

    Attributes:
        bytes_needed: what the tenant would hold after growing.
        bytes_available: what it could hold at most now.
        bytes_usable: what the device has for tenants in all.
    """

    def __init__(
        self,
        message: str,
        *,
        bytes_needed: int = 0,
        bytes_available: int = 0,
        bytes_usable: int = 0,
    ) -> None:
        super().__init__(message)
        self.bytes_needed = bytes_needed
        self.bytes_available = bytes_available
        self.bytes_usable = bytes_usable


class HostMemoryError(WeaveError, MemoryError):
    """The pinned host pool cannot grow: over its budget, or the host has no memory to give.

    Attributes:
        bytes_needed: what was asked for.
        bytes_available: what could still be given.
    """

    def __init__(self, message: str, *, bytes_needed: int = 0, bytes_available: int = 0) -> None:
        super().__init__(message)
        self.bytes_needed = bytes_needed
        self.bytes_available = bytes_available


class DrainTimeout(WeaveError, TimeoutError):
    """Work on the device did not finish in time; nothing was changed."""


class TenantFailed(WeaveError, RuntimeError):
    """A switch failed and could not be undone; ``tenant.rescue(path)`` saves what is readable."""


class PermitTimeout(WeaveError, TimeoutError):
    """A phase waited longer than its ``timeout_s`` for its permit."""


class PhaseNesting(WeaveError, RuntimeError):
    """A phase was entered inside another one that needs different pools."""


class StaleWeights(WeaveError, RuntimeError):
    """A rollout was about to run on weights that are older than the policy's, or discarded."""


class StateFileError(WeaveError, OSError):
    """A file with a tenant's bytes cannot be written, or is not what was written.

    Attributes:
        path: the file.
        tag: the tag whose bytes it concerns; empty where it is the whole file.
    """

    def __init__(self, message: str, *, path: str = "", tag: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.tag = tag


class StateChanged(WeaveError, RuntimeError):
    """A verification found other bytes, another address or another size than before."""


class VerifyFailed(StateChanged):
    """With ``verify="checksum"``: bytes are not what was copied. The switch was rolled back.

    Attributes:
        job, tenant, tag: whose bytes.
        offset: where in the region the first difference is, in bytes.
        tensor: the managed tensor there, where one is known; may be empty.
    """

    def __init__(
        self, message: str, *, job: str = "", tenant: str = "", tag: str = "", offset: int = 0
    ) -> None:
        super().__init__(message)
        self.job = job
        self.tenant = tenant
        self.tag = tag
        self.offset = offset
        self.tensor = ""
