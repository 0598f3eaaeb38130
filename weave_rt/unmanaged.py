"""What jobs take of a device outside regions: measured, recorded, taken off what blocks may use.

Of each device the driver says how much is taken that is not ours; what was taken when the runtime
started (contexts, other programs) is nobody's here. The jobs of one process share a context and an
allocator, so the driver cannot say whose the rest is. It is attributed by time: *what changes
during a phase on a device is its holder's*. So of job i

- ``sleeping`` (R of the formula) is what its phases have added and not freed by their end;
- ``running`` (A) is that at the beginning of a phase, and the highest growth above it within;
- what changes between phases, also by other programs, is nobody's, and counts whoever runs.

A phase is read at its begin and end, ten times a second between, and by the peak of torch's CUDA
allocator where the phase reached a new one. The *record* of a job is the maximum over ``init`` and
its first iteration, which is over when a phase comes again; or it is pinned by
``init(config={"unmanaged": ...})``. Then F of the design is reckoned anew. Whoever exceeds a record
by a block or more has it raised, and that is an event.

F changes only where nobody runs on the device: before a phase brings anything in, or after it was
released. Called by the local runtime in the thread of the phase, which holds the permit, and by the
thread that samples. The lock guards small tables and is not held while a core function runs.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weave_rt._core import Device
from weave_rt.errors import DoesNotFit, UsableBytesWarning, UsageError, VerifyFailed, WeaveError
from weave_rt.overlay import Unmanaged, usable_frames
from weave_rt.tenant import naming_tensors

__all__ = ["Excess", "UnmanagedMemory", "pinned_records"]

log = logging.getLogger("weave_rt")

INTERVAL_S = 0.1  # between two samples of a phase


@dataclass(frozen=True, slots=True)
class Excess:
    """A job took more outside regions than its record says; bytes of the device.

    Attributes:
        recorded, measured: before, and in the phase that has just ended.
        usable_bytes: what blocks may use from now on.
    """

    device: str
    recorded: Unmanaged
    measured: Unmanaged
    usable_bytes: int

    def as_dict(self) -> dict[str, int]:
        return {
            "recorded_running": self.recorded.running,
            "recorded_sleeping": self.recorded.sleeping,
            "measured_running": self.measured.running,
            "measured_sleeping": self.measured.sleeping,
            "usable_bytes": self.usable_bytes,
        }


@dataclass(slots=True)
class _Account:
    """Of one job on one device."""

    record: Unmanaged
    measured: bool = False
    settled: bool = False  # pinned, or the first iteration is over
    held: int = 0  # now, by what its phases added
    seen: dict[str, int | None] = field(default_factory=dict)  # phases, with their last step


@dataclass(slots=True)
class _Phase:
    """The one that runs on a device."""

    job: str
    began: int  # bytes outside regions beyond the floor, here and at most
    peak: int
    torch: tuple[int, int] | None  # as `_torch_peak` says, at the begin


@dataclass(slots=True)
class _Desk:
    device: Device
    opened: int  # bytes that blocks may use where nobody takes anything
    floor: int  # taken by whomever when the runtime started
    usable: int  # as the core was told last
    base: int = 0  # taken since, by nobody's phase
    accounts: dict[str, _Account] = field(default_factory=dict)
    phase: _Phase | None = None
    due: bool = False  # to be reckoned anew
    short: bool = False  # blocks keep more than they should
    told: tuple[int, int] = (0, 0)  # of the last warning


class UnmanagedMemory:
    """The measurements of one runtime.

    Args:
        devices: by name.
        resized: called with a device's name and its frames when F has changed.

    Call :meth:`close` at the end; devices that are closed or refuse to answer are not measured."""

    def __init__(
        self, devices: Mapping[str, Device], resized: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self._resized = resized
        self._lock = threading.Lock()
        self._desks: dict[str, _Desk] = {}
        for name, device in devices.items():
            usable = device.usable_bytes
            self._desks[name] = _Desk(device, usable, _taken(device) or 0, usable)
        closing = threading.Event()
        thread = threading.Thread(
            target=_keep_sampling,
            args=(weakref.ref(self), closing),
            name="weave-unmanaged",
            daemon=True,
        )
        thread.start()
        # Also before the interpreter ends: it must not find the thread inside a core function.
        self._end_sampling = weakref.finalize(self, _end_sampling, closing, thread)

    def close(self) -> None:
        """End the thread. Twice is fine."""
        self._end_sampling()

    def join(self, job: str, pinned: Mapping[str, Unmanaged]) -> None:
        """A job comes; its records by device name, where they are pinned."""
        with self._lock:
            for name, record in pinned.items():
                desk = self._desks[name]
                desk.accounts[job] = _Account(record, settled=True)
                desk.due = True

    def leave(self, job: str) -> None:
        """A job goes. What its phases have left behind is nobody's from now on."""
        with self._lock:
            for desk in self._desks.values():
                account = desk.accounts.pop(job, None)
                if account is not None:
                    desk.base += account.held
                    desk.due = True

    def records(self, job: str) -> dict[str, Unmanaged]:
        """By device name; without those where nothing was measured or pinned."""
        with self._lock:
            accounts = {name: desk.accounts.get(job) for name, desk in self._desks.items()}
            return {
                name: one.record
                for name, one in accounts.items()
                if one is not None and (one.measured or one.settled)
            }

    def sample(self) -> None:
        """Look at every device where a phase runs."""
        with self._lock:
            running = [(desk, desk.phase) for desk in self._desks.values() if desk.phase]
        for desk, phase in running:
            taken = _taken(desk.device)
            if taken is not None:
                with self._lock:
                    phase.peak = max(phase.peak, taken - desk.floor)

    def begins(self, name: str, job: str, phase: str, step: int | None) -> None:
        """A phase holds device `name` and has not brought anything in. Raises VerifyFailed where
        blocks of others leave for what jobs take, and are not what they should be."""
        desk = self._desks[name]
        taken = _taken(desk.device)
        torch = _torch_peak(desk.device)
        with self._lock:
            account = desk.accounts.setdefault(job, _Account(Unmanaged(job)))
            again = phase in account.seen and (step is None or account.seen[phase] != step)
            if phase != "init":
                account.seen[phase] = step
                if again and account.measured and not account.settled:
                    account.settled = desk.due = True
            if taken is not None:
                outside = taken - desk.floor
                base = max(0, outside - sum(one.held for one in desk.accounts.values()))
                if abs(base - desk.base) >= desk.device.block_bytes:
                    desk.base, desk.due = base, True
                desk.phase = _Phase(job, outside, outside, torch)
            due = desk.due or desk.short
        problem = self._settle(name) if due else None
        if problem is not None:
            raise problem

    def ends(self, name: str, job: str) -> tuple[Excess | None, VerifyFailed | None]:
        """The phase that :meth:`begins` was told of has ended and is released; what it took more
        than its record says, if that is a block or more, and what :meth:`begins` would raise."""
        desk = self._desks[name]
        taken = _taken(desk.device)
        torch = _torch_peak(desk.device)
        excess: tuple[Unmanaged, Unmanaged] | None = None
        with self._lock:
            phase, account = desk.phase, desk.accounts.get(job)
            if phase is None or phase.job != job or account is None:
                return None, None  # it did not get so far
            desk.phase = None
            if taken is not None:
                excess = self._book(desk, account, phase, taken - desk.floor, torch)
            due = desk.due or desk.short
        problem = self._settle(name) if due else None
        if excess is None:
            return None, problem
        old, new = excess
        found = Excess(name, old, new, desk.usable)
        log.warning(
            "job %s takes %d bytes of %s outside regions while it runs and %d asleep; its record"
            " was %d and %d; blocks may use %d",
            *(job, new.running, name, new.sleeping, old.running, old.sleeping, found.usable_bytes),
        )
        return found, problem

    @staticmethod
    def _book(
        desk: _Desk, account: _Account, phase: _Phase, now: int, torch: tuple[int, int] | None
    ) -> tuple[Unmanaged, Unmanaged] | None:
        """Enter what a phase took. The old and new record, where that is an excess."""
        peak = max(phase.peak, now)
        if torch and phase.torch and torch[1] > phase.torch[1]:  # it was reached in this phase
            peak = max(peak, phase.began + torch[1] - phase.torch[0])
        old = account.record
        running = account.held + peak - phase.began
        account.held = max(0, account.held + now - phase.began)
        sleeping = max(old.sleeping, account.held)
        new = Unmanaged(old.name, max(old.running, running, sleeping), sleeping)
        account.measured = True
        if not account.settled:
            account.record = new
            return None
        if max(new.running - old.running, new.sleeping - old.sleeping) < desk.device.block_bytes:
            return None
        account.record, desk.due = new, True
        return old, new

    def _settle(self, name: str) -> VerifyFailed | None:
        """Reckon F anew and tell the core; what a verification of it finds. pre: nobody runs on the
        device."""
        desk = self._desks[name]
        block = desk.device.block_bytes
        with self._lock:
            desk.due = False
            records = [one.record for one in desk.accounts.values() if one.settled]
            nobodys, opened = desk.base, desk.opened
        frames = opened // block
        if nobodys or any(one.running or one.sleeping for one in records):
            try:
                context = desk.floor + nobodys
                frames = min(
                    frames,
                    usable_frames(desk.device.capacity_bytes, block, context, records).frames,
                )
            except DoesNotFit as error:
                log.debug("%s: %s", name, error)
                frames = 1
        if frames * block == desk.usable and not desk.short:
            return None
        try:
            with naming_tensors():
                left = desk.device.set_usable(frames * block)
            usable = desk.device.stats()["blocks_total"] * block
        except WeaveError as error:  # tried again at the next phase
            log.warning("%s: blocks still use what others need: %s", name, error)
            with self._lock:
                desk.due = True
            return error if isinstance(error, VerifyFailed) else None
        with self._lock:
            changed, desk.usable = usable != desk.usable, usable
            desk.short = left > frames * block
            told, desk.told = desk.told, (frames * block, left) if desk.short else (0, 0)
            new = desk.short and told != desk.told
        if changed:
            self._resized(name, usable // block)
        if new:
            _warn(
                f"{name}: {frames * block} bytes are left for blocks beside what jobs take outside"
                f" regions, and blocks keep {left}; raw allocations may fail there: make a job"
                " smaller, or pin less in `unmanaged`"
            )
        return None


def pinned_records(
    job: str,
    given: Mapping[str, Mapping[str, int]] | None,
    placement: Mapping[str, tuple[str, ...]],
) -> dict[str, Unmanaged]:
    """The setting `unmanaged` of a job, by device name. On a device in both pools the larger
    figures hold. Raises UsageError, with the key."""
    found: dict[str, Unmanaged] = {}
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UsageError(f"unmanaged has sizes by pool, and is not {given!r}")
    for pool, sizes in given.items():
        if pool not in placement:
            raise UsageError(f"unmanaged: {pool!r} is not rollout or train")
        if not isinstance(sizes, Mapping):
            raise UsageError(f"unmanaged.{pool} has the keys running and sleeping, not {sizes!r}")
        unknown = sorted(set(sizes) - {"running", "sleeping"})
        if unknown:
            raise UsageError(f"unmanaged.{pool}: no key {unknown[0]!r}; allowed: running, sleeping")
        for key, value in sizes.items():
            if type(value) is not int:
                raise UsageError(f"unmanaged.{pool}.{key}: {value!r} is not a number of bytes")
        sleeping = sizes.get("sleeping", 0)
        one = Unmanaged(job, sizes.get("running", sleeping), sleeping)
        if one.sleeping > one.running:
            raise UsageError(f"unmanaged.{pool}: sleeping is more than running, which includes it")
        for name in placement[pool]:
            old = found.get(name, one)
            found[name] = Unmanaged(
                job, max(old.running, one.running), max(old.sleeping, one.sleeping)
            )
    return found


def _taken(device: Device) -> int | None:
    """Bytes of the device that are neither free nor ours; None where it does not say."""
    try:
        return device.memory()["unmanaged"]
    except WeaveError as error:
        log.debug("%s: %s", device.spec, error)
        return None


def _torch_peak(device: Device) -> tuple[int, int] | None:
    """What torch's CUDA allocator has of the device now, and has had at most; None where it is not
    in use in this process."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # another thread may import it just now
    if device.kind != "cuda" or cuda is None or not cuda.is_initialized():
        return None
    ordinal = int(device.spec.partition(":")[2])
    return cuda.memory_reserved(ordinal), cuda.max_memory_reserved(ordinal)


def _warn(text: str) -> None:
    try:
        warnings.warn(text, UsableBytesWarning, stacklevel=2)
    except UsableBytesWarning:  # made an error by a filter; the phase has ended well all the same
        log.warning("%s", text)


def _end_sampling(closing: threading.Event, thread: threading.Thread) -> None:
    closing.set()
    if thread is not threading.current_thread():  # which may drop the last reference
        thread.join()


def _keep_sampling(
    memory: weakref.ReferenceType[UnmanagedMemory], closing: threading.Event
) -> None:
    while not closing.wait(INTERVAL_S):
        one = memory()
        if one is None:
            return
        one.sample()
        del one
