"""The C++ core: devices, tenants, regions and the switch engine. The GIL is released around
everything that can block. Exceptions are the classes of :mod:`weave_rt.errors`."""

import builtins
from collections.abc import Mapping, Sequence
from typing import final

@final
class FaultScope:
    """Disturbs driver calls while it is entered (one scope per process).

    A call is hit when it is the ``nth`` (1 is the next; ``nth=0`` only counts), any one from it on
    (``from_then_on``), or by ``probability``, drawn from ``seed`` and the call's number. A hit call
    first waits ``delay_ns`` on the driver's clock, then returns ``status`` without being made; with
    ``status=0`` it is made. ``only`` names one call, as in calls.def. ``sticky``: the hit loses the
    current context; every call that depends on it returns ``status`` (214, 700, 719) until the
    primary context is reset or released. Raises UsageError."""

    def __init__(
        self,
        nth: int = 0,
        from_then_on: bool = False,
        only: str = "",
        status: int = 999,
        probability: float = 0.0,
        seed: int = 0,
        delay_ns: int = 0,
        sticky: bool = False,
    ) -> None: ...
    def __enter__(self) -> FaultScope: ...
    def __exit__(self, *exc: object) -> None: ...
    @property
    def calls_seen(self) -> int: ...
    @property
    def calls_failed(self) -> int: ...
    @property
    def calls_delayed(self) -> int: ...

def call_counts(kind: str) -> dict[str, int]:
    """Driver calls made so far in this process; kind: ``emulated`` or ``cuda``."""

def parse_emulated(spec: str) -> dict[str, object]:
    """The values of an emulated device spec, scale and speed applied. Raises UsageError.
    Keys: name, capacity_bytes, granularity_bytes, block_bytes, h2d_bytes_per_s, d2h_bytes_per_s,
    duplex, pageable_bytes_per_s, engines, context_bytes, unmanaged_bytes, scale, speed, id, seed,
    and latency_ns.{copy,map,access,unmap,create}. `spec` is the canonical text."""

def cuda_driver() -> dict[str, object]:
    """What the CUDA driver library says: available (bool), library, driver_version, reason,
    missing, and devices: a list of {ordinal, name, uuid, total_bytes}. Never raises."""

def probe_pages() -> dict[str, str | bool]:
    """What a small shared mapping gets when it is asked for as the host pool does: ``shmem``: huge,
    collapsed (small until the kernel was told to) or small, absent where it cannot be tried;
    ``hugetlb``: whether a reserved huge page can be had now."""

def host_bytes_available() -> int:
    """What this process may still take: MemAvailable and the headroom of its cgroups, page cache
    that the kernel would give back counted as free. A host pool grows up to this."""

def probe(spec: str) -> list[dict[str, str | int]]:
    """The codes that a driver gives for calls that are wrong in one way where its documentation is
    silent: {name, behaviour, call, mistake, code} each. Nothing else of the process may use the
    device meanwhile. Raises UsageError, DeviceNotFound, DriverError."""

@final
class HostGrowth:
    """A growth of a host pool that runs in the background. Pieces are used as they come."""

    @property
    def bytes_total(self) -> int: ...
    @property
    def bytes_done(self) -> int: ...  # registered by now, and not given back
    @property
    def finished(self) -> bool: ...
    @property
    def cancelled(self) -> bool: ...  # ended before it was complete, by cancel()
    @property
    def error(self) -> str | None: ...  # why it failed
    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended; false when the time is over. Raises what it failed with:
        HostMemoryError, DriverError. Failed or cancelled, what nobody uses was given back."""
    def cancel(self) -> None:
        """Stop before the next step; does not wait."""

@final
class HostPool:
    """Pinned host memory. Made by Device.open; share one between the devices of a process."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def bytes_registered(self) -> int: ...
    @property
    def bytes_used(self) -> int: ...
    @property
    def pieces(self) -> int: ...
    def reserve(self, job: str, bytes: int, node: int = -1) -> HostGrowth:
        """Grow ahead, for one job, in the background; rounded up to whole blocks. node: a NUMA
        node to prefer. Raises HostMemoryError at once if the budget or the host cannot give it,
        UsageError for zero bytes."""
    def trim(self, job: str | None = None) -> int:
        """Give back all pieces that nobody uses, or those of one job. Returns their bytes."""
    def stats(self) -> dict[str, int | str | dict[int, int]]:
        """bytes_registered, bytes_used, bytes_free (kept for their job), bytes_reserved (of these,
        asked for ahead), bytes_growing, bytes_huge (mapped by huge pages), page_kind (``hugetlb``,
        ``transparent`` or ``small``: of most bytes), pieces, registrations (ever),
        registrations_refused (by the driver, and tried again in halves), waits (for a growth in the
        background), node_bytes (by NUMA node; -1 where the kernel does not confirm it),
        memlock_bytes (absent where there is no limit)."""

@final
class Device:
    @staticmethod
    def open(
        spec: str,
        host_pool: HostPool | None = None,
        host_budget_bytes: int = 0,
        usable_bytes: int = 0,
        spill_directory: str = "",
    ) -> Device:
        """spec: ``emulated:h20?scale=64`` or ``cuda:0`` (``auto`` is resolved in Python).
        usable_bytes caps what tenants may have; 0 for all that is free. spill_directory: where the
        bytes of idle tenants go when pinned memory is at its budget; empty: refused.
        Raises UsageError, DeviceNotFound, DriverError."""
    @property
    def spec(self) -> str: ...
    @property
    def kind(self) -> str: ...  # "emulated" or "cuda"
    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def driver_version(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def usable_bytes(self) -> int: ...  # F of the design, in bytes
    @property
    def block_bytes(self) -> int: ...
    @property
    def scale(self) -> float: ...  # 1 on a GPU
    @property
    def speed(self) -> float: ...  # 1 on a GPU
    @property
    def host_limited(self) -> bool: ...
    @property
    def host_pool(self) -> HostPool: ...
    @property
    def numa_node(self) -> int: ...  # NUMA node of its pinned memory; -1: any, or not known
    @property
    def tenants(self) -> list[Tenant]: ...
    @property
    def closed(self) -> bool: ...
    def add_tenant(self, name: str, job: str = "") -> Tenant: ...
    def switch(
        self,
        outgoing: Tenant | None,
        incoming: Tenant,
        drain_timeout_s: float = 60.0,
        tags: Sequence[str] | None = None,
    ) -> SwitchReport:
        """Hand the device from `outgoing` to `incoming` as one transaction: on success incoming
        runs and outgoing is suspended, moving only what does not fit; on failure outgoing still
        runs, or both are suspended with no byte lost. tags: see Tenant.resume."""
    def set_plan(self, movable: Mapping[Tenant, int], next_use: Sequence[Tenant] = ()) -> None:
        """What may leave the device from now on: at most `movable` blocks of a tenant (those of
        `discard` regions not counted) are away for the sake of others, as long as that suffices;
        those that are not named are not held. `next_use`: whose turn comes next, soonest first;
        the others come last. Moves nothing by itself. Raises UsageError."""
    def prefetch(
        self, tenant: Tenant, next_use: Sequence[Tenant] = (), limit_bytes: int = 0
    ) -> BackgroundCopy:
        """Bring what fits of an idle tenant in while others run; returns at once. Room comes from
        idle tenants that are behind it in `next_use` or not in it, never from one that runs.
        limit_bytes: at most this much; 0 for no limit. Raises UsageError, TenantFailed."""
    def calibrate(self, bytes: int = 0) -> dict[str, float]:
        """Measure plain pinned copies through the driver table: h2d, d2h, and both directions at
        once, in bytes/s (keys h2d, d2h, h2d_duplex, d2h_duplex). Finds out in how many chunks a
        switch is best cut (chunks), and whether one direction after the other is faster than both
        at once (sequential); switches follow. Reports carry limit_s from then on. pre: no tenant
        holds blocks on the device."""
    def slowdown(self, bytes: int = 0) -> float | None:
        """By which share a phase that only writes device memory takes longer, at least, while plain
        copies run both ways, as background copies do; 0.03 is 3 %. Noise makes it smaller, also
        below 0. None where the driver launches no kernels. pre: no tenant holds blocks on the
        device. Raises UsageError, HostMemoryError, DriverError."""
    def use_calibration(self, values: dict[str, float]) -> None:
        """Take over what `calibrate` returned for such a device on this host before; see
        :mod:`weave_rt.calibration`. Raises UsageError for rates that are not more than 0."""
    @property
    def calibration(self) -> dict[str, float]:
        """What reports are held against, as `calibrate` returns it; empty before."""
    def memory(self) -> dict[str, int]:
        """Bytes of the device now, by the driver: total, free, managed (blocks made for tenants),
        unmanaged (the rest: contexts, communicators, private pools, other processes)."""
    def attributes(self) -> dict[str, int]:
        """What the driver says about the device: integrated (one memory with the host),
        compute_mode (0 is default), async_engines, virtual_memory_management, posix_fd_handles,
        gpudirect_rdma_with_vmm, mps_enabled, host_numa_id, pci_domain, pci_bus, pci_device. What
        this driver does not know is absent."""
    def plain_copy(self, bytes_out: int, bytes_in: int) -> float:
        """Seconds for plain pinned copies of so many bytes (in whole blocks) out and in at once,
        without the engine: the yardstick of the benchmarks. Its memory is kept until the
        device closes. Raises UsageError unless twice the larger one is free."""
    def plain_pin(self, bytes: int) -> float:
        """Seconds to pin so many bytes the plain way: one mapping, touched by one thread and
        registered as a whole. Given back at once. Raises HostMemoryError, DriverError."""
    def trim(self, bytes: int) -> int:
        """Give device memory back to the driver: free blocks, then what idle tenants can discard.
        Returns the bytes that the driver took back. Blocks are made again when somebody needs
        them and the driver has memory; until then usable_bytes is smaller."""
    def set_usable(self, bytes: int) -> int:
        """From now on blocks take at most so many bytes of the device: F, because others need more
        or less of it. Never more than when it was opened, never less than the largest tenant has.
        Blocks beyond it go back to the driver, those of idle tenants after they were copied out;
        what runs or is pinned stays. Returns the bytes that blocks may take, or still do where that
        is more. Raises DriverError, DrainTimeout; F is then as it was."""
    def now_ns(self) -> int: ...
    def sleep_until_ns(self, deadline_ns: int) -> None: ...
    def set_verify(self, on: bool) -> None:
        """Compare whatever is copied in a switch, by checksums and by reading it back. A difference
        raises VerifyFailed, and the switch is rolled back. Raises HostMemoryError."""
    @property
    def verifies(self) -> bool: ...
    def stats(self) -> dict[str, int]:
        """Counters: blocks_created, blocks_free, blocks_total, switches, noop_suspends,
        noop_resumes, bytes_out, bytes_in, bytes_background_out, bytes_background_in,
        background_errors, blocks_beyond_plan, blocks_released, bytes_trimmed, spills, loads,
        bytes_spilled, bytes_loaded, bytes_in_files, cleanup_failures, pageable_copies
        (emulated)."""
    def census(self) -> dict[str, int]:
        """What the emulated driver holds for this device now: handles, mappings, reservations,
        registrations, streams, events, bytes_used. Empty on a GPU."""
    def close(self) -> None:
        """Close all tenants, then the device; open Spans become unusable. Twice is fine: the second
        time tries what the driver refused the first time."""

@final
class BackgroundCopy:
    """Copies that run beside a phase. A switch or another operation on the device holds them up
    for as long as it takes."""

    @property
    def bytes_total(self) -> int: ...  # of whole blocks, when it was asked for
    @property
    def bytes_done(self) -> int: ...
    @property
    def began_ns(self) -> int: ...  # of its first block, by the device's clock; 0: none moved
    @property
    def ended_ns(self) -> int: ...  # of the last block that moved
    @property
    def finished(self) -> bool: ...  # also when cancelled, failed, or out of room
    @property
    def cancelled(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is finished within that time. Raises what ended it: DriverError."""
    def cancel(self) -> None:
        """End it after the chunk in flight; what is complete stays. Returns at once."""

@final
class Tenant:
    @property
    def name(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def device(self) -> Device: ...
    @property
    def running(self) -> bool: ...
    @property
    def state(self) -> str:
        """RESIDENT (all regions on the device and mapped), HOST (nothing is), PARTIAL (suspended,
        some blocks still on the device), FAILED, CLOSED."""
    @property
    def bytes(self) -> int: ...
    @property
    def bytes_resident(self) -> int: ...
    @property
    def bytes_spilled(self) -> int: ...  # in files
    @property
    def regions(self) -> list[Region]: ...
    def region(self, tag: str, policy: str = "keep", reserve_bytes: int = 0) -> Region:
        """Get or create the region of a tag; policy ``keep``, ``reload`` or ``discard``.
        reserve_bytes: the largest size it may ever have, 0 for all that the device has."""
    def resume(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> SwitchReport:
        """Bring everything in and run; idle tenants give up what is needed. Running already:
        a counted no-op. With `tags` only these come in, and run; one that runs gets them in
        addition. Raises UsageError for a tag without a region."""
    def suspend(
        self, drain_timeout_s: float = 60.0, tags: Sequence[str] | None = None
    ) -> SwitchReport:
        """Stop running and move everything to the host. Suspended already: a counted no-op. With
        `tags` only these leave, and the tenant goes on with the others. Raises RegionPinned."""
    def release(self) -> None:
        """Stop running; blocks stay on the device until another tenant needs their place."""
    def write_back(self, tag: str) -> BackgroundCopy:
        """Copy out, beside the phase that runs, what will not change any more before its end; the
        switch need not then. Whoever writes there again must say so by Region.mark_dirty(), which
        also cancels this; what is allocated in the region afterwards is left to the switch.
        Returns at once. Raises UsageError (no such region, or not `keep`), NotResident."""
    def publish(self) -> Publication:
        """Begin the next version of the ``reload`` regions, in host memory of its own, whoever has
        the device now. One at a time. Raises UsageError, HostMemoryError, TenantFailed."""
    def spill(self) -> int:
        """Move what an idle tenant has in pinned memory to a file in the spill directory; done by
        itself over the budget. Returns the bytes. Raises UsageError, StateFileError."""
    def rescuable(self) -> dict[str, int]:
        """Tags that rescue() may give, with their bytes."""
    def rescue(self, tag: str = "") -> dict[str, builtins.bytes]:
        """The bytes of every region (or of that of `tag` alone) whose contents are still complete,
        by tag. For a tenant in any state, FAILED included."""
    def rescue_to(self, path: str, metadata: dict[str, str]) -> list[str]:
        """The same, to a safetensors file, without holding them in memory. Returns the tags.
        Raises StateFileError."""
    def close(self) -> None: ...

@final
class Region:
    @property
    def tag(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def address(self) -> int: ...  # never changes
    @property
    def bytes(self) -> int: ...  # whole blocks held now, on the device or the host
    @property
    def bytes_reserved(self) -> int: ...
    @property
    def bytes_allocated(self) -> int: ...
    @property
    def state(self) -> str: ...  # RESIDENT, LEAVING, HOST, ENTERING, DISCARDED, FAILED
    @property
    def resident(self) -> bool: ...  # may be read now: the tenant runs and all blocks are mapped
    @property
    def generation(self) -> int: ...  # +1 whenever contents were lost by `discard`
    def prepare(self, bytes: int) -> None:
        """Grow now, in one step, so that allocate() calls of `bytes` in all need not."""
    def allocate(self, bytes: int, alignment: int = 512) -> Span:
        """Space in the region, growing it by whole blocks. Raises GrowthRefused, HostMemoryError,
        NotResident when the tenant does not run."""
    def mark_clean(self) -> None:
        """Promise not to change the bytes until :meth:`mark_dirty`: they are copied out once, and
        later departures move nothing out. New space is copied out once more. ``keep`` only."""
    def mark_dirty(self) -> None:
        """Take the promise back before writing: host copies are out of date from now on, and
        write-backs of the region that are still under way are cancelled."""
    def pin(self) -> None:
        """Keep the blocks on the device (a NIC or a peer has registered them), until as many
        :meth:`unpin`. Suspending the tenant raises RegionPinned meanwhile."""
    def unpin(self) -> None: ...
    def set_fill(self, fill: str) -> None:
        """What a block holds that comes to this ``discard`` region: ``none`` (whatever was there),
        ``zero``, or ``poison`` (0xA5, so that a read before the first write is noticed)."""
    @property
    def fill(self) -> str: ...
    @property
    def clean(self) -> bool: ...
    def set_pages(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """From now on only these bytes of a ``keep`` region are worth anything: they alone move,
        and have pinned memory. In any order; they may touch or overlap. Raises UsageError for
        bytes outside the region, NotResident, HostMemoryError; the old pages hold then."""
    def clear_pages(self) -> None:
        """All bytes count again, and have pinned memory. Raises NotResident, HostMemoryError."""
    def forget_pages(self) -> None:
        """Which pages are in use has changed: all bytes count until :meth:`set_pages`, which need
        not be called before pinned memory is taken for them. Raises NotResident."""
    @property
    def bytes_in_pages(self) -> int: ...  # of all pages; without them, bytes_allocated
    @property
    def version(self) -> int: ...  # how many were committed to this ``reload`` region
    @property
    def selected(self) -> bool: ...  # its tenant runs, or last ran, with it
    @property
    def pins(self) -> int: ...

@final
class Span:
    """A part of a region. Dropping the last reference frees it. On an emulated device it has the
    buffer protocol (writable bytes); exporting a buffer raises BufferError (caused by NotResident)
    unless resident. On a GPU use `address`."""

    @property
    def address(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def region(self) -> Region: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Publication:
    """The next version of a tenant's ``reload`` regions, while it is written. Nobody sees it before
    :meth:`commit`; dropped without that, the old version stays."""

    def write(self, region: Region, offset: int, data: builtins.bytes | memoryview) -> None:
        """Contiguous bytes for [offset, offset + len). Raises UsageError."""
    def copy(
        self, region: Region, offset: int, source: Region, source_offset: int, bytes: int
    ) -> None:
        """The same from a region whose tenant runs now, on any device, by that device's engine.
        Raises UsageError, NotResident, DriverError."""
    def commit(self) -> None:
        """The version counts from now on, as a whole; for a tenant that runs, from when it next
        comes in. Raises UsageError if bytes of a region were not written; the old one stays."""
    def abort(self) -> None: ...
    @property
    def ended(self) -> bool: ...

def commit_together(publications: list[Publication]) -> None:
    """:meth:`Publication.commit` of all, or of none: also of tenants on several devices. Raises
    UsageError, TenantFailed; then each can be written on, committed or aborted."""

def xxh3_64(data: builtins.bytes) -> int:
    """XXH3 with 64 bits, seed 0."""

def block_checksum(data: builtins.bytes) -> int:
    """What verification stores of a block: xxh3_64 over the little-endian xxh3_64 digests of its
    64 KiB pieces."""

@final
class SwitchReport:
    """What one suspend, resume or switch did. seconds: start of drain until the incoming tenant
    may run."""

    @property
    def outgoing(self) -> list[str]: ...
    @property
    def incoming(self) -> str: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_background(self) -> int: ...  # copied for these tenants since their last switch
    @property
    def bytes_skipped(self) -> int: ...
    @property
    def blocks_remapped(self) -> int: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def as_dict(self) -> dict[str, object]:
        """The switch report of the design, section 9; a key whose value was not measured is
        absent."""

@final
class TensorCopies:
    """What frameworks do without this library, through the same driver table: device memory taken
    and given back with the tensors, one synchronous copy per tensor into host memory that is fresh
    each time. For the naive arms of the benchmarks. Not for two threads at once."""

    def __init__(
        self,
        device: Device,
        segment_bytes: list[int],
        tensors: list[tuple[int, int, int, bool]],
    ) -> None:
        """segment_bytes: the device allocations; tensors: (segment, offset, bytes, keep), in bytes;
        what is not kept is not copied. Raises UsageError, DriverError."""
    @property
    def on_device(self) -> bool: ...
    def allocate(self) -> None:
        """Take the device memory, contents undefined. Raises OutOfMemoryError, DriverError."""
    def load(self, tensor: int, source: object) -> None:
        """Copy from `source`, a contiguous buffer of as many bytes as the tensor has, pageable."""
    def fill(self, tensor: int, value: int) -> None: ...
    def move_out(self, pinned: bool) -> float:
        """Copy what is kept to fresh host memory, `pinned` on the spot or pageable, give the device
        memory back. Seconds of the device's clock. A failure leaves everything on the device."""
    def move_in(self) -> float:
        """Take device memory, copy in, free the host memory. A failure leaves all on the host."""
    def drop(self) -> None:
        """Give the memory back without saving anything."""
    def host_copy(self, tensor: int) -> builtins.bytes: ...
    def close(self) -> None: ...
