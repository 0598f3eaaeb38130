"""The public test kit: sweep an operation over its failure points, and take a device's census.

Whoever writes an operation in several steps on top of this package (an adapter, a trainer's hook)
sweeps it like we sweep ours::

    def prepare():                      # fresh for every point; returns what the others get
        return World(open_device("emulated:h20?scale=4096&speed=1000"))

    report = sweep(prepare, act=lambda world: world.switch(), check=lambda world, point: ...)
    print(report)

Imports neither torch nor pytest; failures are AssertionErrors. One sweep at a time per process,
because a driver call says nothing about who made it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from weave_rt import _core
from weave_rt._core import Device
from weave_rt.errors import DriverError, HostMemoryError, TenantFailed, WeaveError

__all__ = [
    "MODES",
    "Point",
    "Sweep",
    "check_accounts",
    "check_contents",
    "check_nothing_left",
    "check_states",
    "descriptors",
    "sweep",
]

#: How a call fails: the n-th one only, every one from it on, or by losing the context there.
MODES = ("once", "from_then_on", "lost_context")

LOST = 719  # CUDA_ERROR_LAUNCH_FAILED
UNKNOWN = 999


class World(Protocol):
    """What `prepare` returns: at least a way to end it."""

    def close(self) -> None: ...


W = TypeVar("W", bound=World)


@dataclass(frozen=True, slots=True)
class Point:
    """One failure point: the `nth` driver call of the operation, failed in this `mode`."""

    nth: int
    mode: str
    code: int
    fired: bool = False
    error: BaseException | None = None


@dataclass(slots=True)
class Sweep:
    """What a sweep visited, by mode; its text is one line per mode."""

    name: str
    visited: dict[str, int] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(
            f"sweep {self.name:<14} {mode:<13} {points:4} points, {self.raised[mode]:4} raised"
            for mode, points in self.visited.items()
        )


def sweep(
    prepare: Callable[[], W],
    act: Callable[[W], object],
    check: Callable[[W, Point], object] | None = None,
    *,
    name: str = "operation",
    modes: Iterable[str] = MODES,
    retry: bool = True,
    errors: tuple[type[BaseException], ...] = (DriverError, TenantFailed, HostMemoryError),
    stride: int = 1,
) -> Sweep:
    """Fail driver call n of `act`, for n = 1, 2, ... until it makes fewer calls, in each mode.

    For every point `prepare` makes a fresh world; `act` runs under the fault and may only raise one
    of `errors`, a DriverError with the code that was injected; `check` looks at what is left,
    still under the fault; then the fault ends, `act` is tried again and must work (`retry`),
    `check` looks again, and the world is closed. Descriptors of the process must be what they were.

    Args:
        check: called as ``check(world, point)``; see :func:`check_states`, :func:`check_contents`.
        stride: visit every `stride`-th point only, for operations with very many calls.

    Raises AssertionError with the point in its text. Returns what was visited."""
    result = Sweep(name)
    modes = tuple(modes)
    if unknown := set(modes) - set(MODES):
        raise ValueError(f"mode {min(unknown)!r} is not one of {', '.join(MODES)}")
    gc.collect()
    gc.freeze()  # what exists already (torch, say) is not looked at again after every point
    try:
        for mode in modes:
            _sweep_mode(result, mode, prepare, act, check, retry, errors, stride)
    finally:
        gc.unfreeze()
    return result


def _sweep_mode(
    result: Sweep,
    mode: str,
    prepare: Callable[[], W],
    act: Callable[[W], object],
    check: Callable[[W, Point], object] | None,
    retry: bool,
    errors: tuple[type[BaseException], ...],
    stride: int,
) -> None:
    result.visited[mode] = result.raised[mode] = 0
    code = LOST if mode == "lost_context" else UNKNOWN
    nth = 1
    while True:
        point = Point(nth, mode, code)
        try:
            point = _visit(prepare, act, check, point, retry, errors)
        except BaseException as problem:
            where = f"sweep {result.name}, call {nth}, {mode}"
            raise AssertionError(f"{where}: {problem!r}") from problem
        if not point.fired:
            return
        result.visited[mode] += 1
        result.raised[mode] += point.error is not None
        nth += stride


def _visit(
    prepare: Callable[[], W],
    act: Callable[[W], object],
    check: Callable[[W, Point], object] | None,
    point: Point,
    retry: bool,
    errors: tuple[type[BaseException], ...],
) -> Point:
    before = descriptors()
    world = prepare()
    try:
        error: BaseException | None = None
        with _core.FaultScope(
            nth=point.nth,
            from_then_on=point.mode == "from_then_on",
            status=point.code,
            sticky=point.mode == "lost_context",
        ) as fault:
            try:
                act(world)
            except errors as raised:
                error = raised
            if type(error) is DriverError:
                assert error.code == point.code, f"{error} carries another code"
            fired = fault.calls_failed > 0
            assert fired or error is None, f"raised without a fault: {error!r}"
            point = Point(point.nth, point.mode, point.code, fired, error)
            if error is not None:
                error.__traceback__ = None  # its frames would keep spans alive
            if fired and check is not None:
                check(world, point)
        if fired and retry:
            act(world)
            if check is not None:
                check(world, Point(point.nth, "none", 0))
    finally:
        world.close()
    del world
    gc.collect()
    assert descriptors() == before, f"{descriptors() - before} descriptors are left"
    return point


def descriptors() -> int:
    """Open file descriptors of this process; emulated blocks and host pieces have one each."""
    return len(os.listdir("/proc/self/fd"))


def check_nothing_left(device: Device) -> None:
    """A closed device holds nothing (emulated; a GPU has no census)."""
    left = {what: count for what, count in device.census().items() if count}
    assert not left, f"left on {device.spec}: {left}"


def check_states(device: Device) -> None:
    """Every tenant is in a state that a failed operation may end in: running with every region
    there; suspended with each block on the device or in a complete host copy; or FAILED."""
    for tenant in device.tenants:
        state = tenant.state
        assert state in ("RESIDENT", "HOST", "PARTIAL", "FAILED"), state
        if tenant.running:
            whole = all(region.selected for region in tenant.regions)
            assert state == "RESIDENT" or not whole, f"{tenant.name} runs, but is {state}"
            for region in (r for r in tenant.regions if r.selected):
                assert region.state == "RESIDENT", f"{tenant.name}/{region.tag}: {region.state}"
                assert region.resident
        for region in tenant.regions:
            assert region.bytes_allocated <= region.bytes <= region.bytes_reserved
            assert region.state not in ("LEAVING", "ENTERING"), f"{region.tag}: {region.state}"


def check_accounts(device: Device) -> None:
    """Frames and host bytes add up. For a device without failed tenants, after an operation has
    completed (then nothing waits for an undo)."""
    stats = device.stats()
    held = sum(tenant.bytes_resident for tenant in device.tenants) // device.block_bytes
    assert held + stats["blocks_free"] == stats["blocks_total"], (held, stats)
    kept = sum(r.bytes for t in device.tenants for r in t.regions if r.policy == "keep")
    assert device.host_pool.bytes_used >= kept
    assert device.host_pool.bytes_registered >= device.host_pool.bytes_used
    census = device.census()
    if census:
        mapped = sum(t.bytes_resident for t in device.tenants if t.state == "RESIDENT")
        created = stats["blocks_created"]
        assert census["handles"] == created, census
        assert census["mappings"] >= created + mapped // device.block_bytes, census


def check_contents(tenant: _core.Tenant, expected: dict[str, bytes]) -> None:
    """The first bytes of each region of a tenant are `expected`, read through `rescue`, in whatever
    state the tenant is. A region that rescue does not give is not compared."""
    try:
        saved = tenant.rescue()
    except WeaveError:
        return
    for tag, wanted in expected.items():
        if tag in saved:
            assert saved[tag][: len(wanted)] == wanted, f"{tenant.name}/{tag} has other bytes"
