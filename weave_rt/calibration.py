"""What the link of a device can do, measured once per host and driver and then remembered.

`calibrated` gives a device the rates that its reports are held against: from the user's cache
folder where they are known, else by measuring. One small JSON file per host and device lies in
``$XDG_CACHE_HOME/weave`` (``~/.cache/weave``); ``WEAVE_CACHE=off`` neither reads nor writes it.
Called by the runtime of a process and by ``weave run``; ``weave doctor`` measures anew. Benchmarks
measure in their own process always and never come here.

A file is written beside its place and renamed, so readers see a whole one or none. Two processes
that measured at once would each see half a link: a lock file lets them take turns, and who waited
finds the file. A lock that cannot be had costs a measurement that is not remembered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import weave_rt
from weave_rt._core import Device
from weave_rt.conditions import host_conditions
from weave_rt.errors import HostMemoryError

__all__ = [
    "MOST_SLOWDOWN",
    "calibrate_all",
    "calibrated",
    "is_disturbed",
    "recall",
    "remember",
]

log = logging.getLogger("weave_rt")

FORMAT, VERSION = "weave-calibration", 1
RATES = ("h2d", "d2h", "h2d_duplex", "d2h_duplex")  # the least that a file must have
KEPT = 100  # files; the oldest go
MAX_AGE_S = 30 * 86400.0  # links change: another slot, a setting of the firmware
SLOWDOWN = "background_slowdown"  # optional: what background copies cost, as a share of a phase
SLOW_LINK = 3e9  # bytes/s; pageable copies on a GPU reach that, pinned ones four times as much
MOST_SLOWDOWN = 0.03  # beyond it there are none
PATIENCE_S = 30.0  # how long to wait for another process that measures


def calibrated(device: Device, *, anew: bool = False) -> dict[str, Any]:
    """Give `device` its rates, in bytes/s as `Device.calibrate` returns them, and return them.

    Remembered ones are used unless `anew`; measured ones are remembered. pre: no tenant holds
    blocks on the device, else only what is remembered can be had.

    Raises what `Device.calibrate` raises: UsageError, HostMemoryError, DriverError."""
    if not anew and (known := recall(device)) is not None:
        return known
    with _turn() as ours:
        if not anew and (known := recall(device)) is not None:
            return known  # whom we waited for has measured it
        rates: dict[str, Any] = dict(device.calibrate())
        if ours:
            remember(device, rates)
    return rates


def calibrate_all(devices: Sequence[Device]) -> None:
    """Give each its rates, and warn of a GPU's link that is no faster than pageable memory; where
    there is no memory to measure with, reports go without a limit."""
    try:
        for device in devices:
            rates = calibrated(device)
            if device.kind != "emulated" and (slow := slow_directions(rates)):
                log.warning("the link of %s is slow: %s; see weave doctor", device.name, slow)
    except HostMemoryError as error:  # the jobs may still fit
        log.info("switches are reported without a limit: %s", error)


def recall(device: Device) -> dict[str, Any] | None:
    """Give `device` the rates that are remembered for it, and return them; None where there are
    none. A file that cannot be read, is of another version, old or damaged counts as none."""
    path = _path(device)
    if path is None:
        return None
    try:
        if time.time() - path.stat().st_mtime > MAX_AGE_S:
            return None
        record = json.loads(path.read_text())
        if (record["format"], record["version"]) != (FORMAT, VERSION):
            return None
        if record["key"] != _key(device):
            return None
        rates = record["rates"]
        if not all(math.isfinite(rates[name]) and rates[name] > 0 for name in RATES):
            return None
        device.use_calibration(rates)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return dict(rates)


def slow_directions(rates: dict[str, Any]) -> str:
    """The directions of a GPU's link that are as slow as copies of pageable memory, with rates in
    GB/s: "h2d 1.9 GB/s, d2h 2.0 GB/s"; empty where none is."""
    slow = [
        f"{way} {rates[way] / 1e9:.1f} GB/s" for way in ("h2d", "d2h") if rates[way] < SLOW_LINK
    ]
    return ", ".join(slow)


def is_disturbed(rates: dict[str, Any] | None) -> bool:
    """Whether these rates say that background copies slow a phase down by too much. False where
    nobody has measured it: ``weave doctor`` does."""
    slowdown = (rates or {}).get(SLOWDOWN, 0.0)
    return isinstance(slowdown, int | float) and slowdown > MOST_SLOWDOWN


def remember(device: Device, rates: dict[str, Any]) -> bool:
    """Write the rates of `device` for later processes; whether that was possible."""
    path = _path(device)
    if path is None:
        return False
    record = {
        "format": FORMAT,
        "version": VERSION,
        "conditions": host_conditions(),
        "key": _key(device),
        "rates": rates,
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(json.dumps(record, indent=1) + "\n")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        files = sorted(path.parent.glob("calibration-*.json"), key=lambda one: one.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:  # a full disk, a folder that is not ours: measured next time again
        log.info("the calibration of %s is not remembered: %s", device.spec, error)
        return False
    return True


def _folder() -> Path | None:
    if os.environ.get("WEAVE_CACHE", "").strip().lower() in ("off", "0"):
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification says to ignore another
        return Path(base) / "weave"
    with suppress(RuntimeError):  # nobody knows whose home this is
        return Path.home() / ".cache" / "weave"
    return None


def _path(device: Device) -> Path | None:
    folder = _folder()
    if folder is None:
        return None
    digest = hashlib.sha256(json.dumps(_key(device), sort_keys=True).encode()).hexdigest()
    return folder / f"calibration-{digest[:24]}.json"


def _key(device: Device) -> dict[str, Any]:
    """What the rates depend on. The name of the host is in it because a home folder may be shared
    and images of machines are copied with their identity; a miss costs less than wrong rates."""
    emulated = device.kind == "emulated"
    return {
        "machine": _machine(),
        "host": platform.node(),
        "cores": len(os.sched_getaffinity(0)),
        "kind": device.kind,
        "driver": device.driver_version,
        # Each opening of an emulated device is another one, which the same spec describes.
        "device": device.spec if emulated else f"{device.name} {device.uuid}",
        "block_bytes": device.block_bytes,
        "weave": weave_rt.__version__,
    }


def _machine() -> str:
    """An identity that outlives a boot; empty where the system has none."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with suppress(OSError):
            if text := path.read_text().strip():
                return hashlib.sha256(text.encode()).hexdigest()[:32]  # it is not to be published
    return ""


@contextmanager
def _turn() -> Iterator[bool]:
    """The right to measure on this host, and whether we have it: not without a cache folder, nor
    if another process keeps it for too long."""
    folder = _folder()
    try:
        if folder is None:
            raise OSError("no cache")
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _taken(lock)
    finally:
        os.close(lock)  # and with it the lock, also when this process is killed


def _taken(lock: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while (taken := _try(lock)) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return taken


def _try(lock: int) -> bool | None:
    """None: somebody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks
        return False
    return True
