"""How long does pinned host memory take to grow, what does it cost beside what was asked for, and
what does a tenant that goes to a file and comes back cost in time and memory?

Cases: ``growth`` in two arms, ``weave`` (pieces, several threads, huge pages where the host has
them) and ``plain`` (one mapping, touched by one thread, registered as a whole), of the same
bytes; ``spill`` (pinned memory to a file, synced) and ``return`` (a resume that loads from the
file). The key ``pool`` of the record has the page kind, the overhead in bytes, seconds per GiB, and
how much was resident during spill and return beyond the larger of before and after.

Run alone: ``python -m weave_rt.benchmarks.pool --help``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt import _core
from weave_rt.benchmarks.record import Case, record
from weave_rt.device import resolve_spec
from weave_rt.errors import StateChanged, UsageError, WeaveError

__all__ = ["Resident", "run"]

GIB = 1 << 30
DEFAULT_BYTES = 2 * GIB
FULL_BYTES = 8 * GIB
_JOB = "bench"


class Resident:
    """The largest resident size of this process, in bytes, while the context is entered; sampled,
    and from the kernel's own high-water mark where it can be reset. ``before`` and ``after``: at
    entry and exit."""

    _EVERY_S = 0.005

    def __init__(self) -> None:
        self.before = self.after = self.peak = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @staticmethod
    def _status(key: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        return 0

    def _now(self) -> int:
        return self._status("VmRSS:")

    def _sample(self) -> None:
        while not self._over.wait(self._EVERY_S):
            self.peak = max(self.peak, self._now())

    def __enter__(self) -> Resident:
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._has_mark = True
        except OSError:
            self._has_mark = False
        self.before = self.peak = self._now()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        mark = self._status("VmHWM:") if self._has_mark else 0
        self.after = self._now()
        self.peak = max(self.peak, self.after, mark)

    @property
    def growth(self) -> int:
        """Beyond the larger of what was there before and what is there after: what was staged."""
        return self.peak - max(self.before, self.after)


def _alternate(
    arms: Sequence[tuple[Case, Callable[[], float]]], warm_up: int, repeats: int
) -> None:
    """Measure the arms in turn, the order reversed every round; ``warm_up`` rounds do not count."""
    for index in range(warm_up + repeats):
        for case, measure in arms if index % 2 == 0 else reversed(arms):
            seconds = measure()
            if index >= warm_up:
                case.samples_s.append(seconds)


def _growth(
    device: _core.Device, nbytes: int, repeats: int
) -> tuple[list[Case], dict[str, int | str | dict[int, int]]]:
    pool = device.host_pool
    params = {"pool_bytes": nbytes}
    ours = Case("growth", "weave", params, 0, 0, headline=True)
    plain = Case("growth", "plain", params, 0, 0)
    grown: dict[str, int | str | dict[int, int]] = {}

    def grow() -> float:
        started = time.perf_counter()
        pool.reserve(_JOB, nbytes).wait()
        seconds = time.perf_counter() - started
        grown.update(pool.stats())
        pool.trim()
        return seconds

    _alternate([(ours, grow), (plain, lambda: device.plain_pin(nbytes))], 1, repeats)
    return [ours, plain], grown


class _Idler:
    """A tenant whose bytes are one pattern, or are not checked on a GPU."""

    def __init__(self, device: _core.Device, name: str, nbytes: int, seed: int) -> None:
        self.core = device.add_tenant(name, f"{_JOB}-{name}")
        self.core.resume()
        self.span = self.core.region("weights").allocate(nbytes)
        self.checked = device.kind == "emulated"
        self.seed = seed
        if self.checked:
            self._fill(np.frombuffer(memoryview(self.span), dtype=np.uint64), check=False)

    def _fill(self, view: np.ndarray[Any, np.dtype[np.uint64]], check: bool) -> None:
        step = 1 << 20  # in parts: the benchmark watches its own memory
        for begin in range(0, view.size, step):
            part = view[begin : begin + step]
            wanted = np.arange(self.seed + begin, self.seed + begin + part.size, dtype=np.uint64)
            wanted *= np.uint64(0x9E3779B97F4A7C15)
            if not check:
                part[:] = wanted
            elif not np.array_equal(part, wanted):
                raise StateChanged(f"tenant {self.core.name} came back with other bytes")

    def check(self) -> None:
        if self.checked:
            self._fill(np.frombuffer(memoryview(self.span), dtype=np.uint64), check=True)


def _spilling(
    spec: str, nbytes: int, repeats: int, directory: str, progress: Callable[[str], None]
) -> tuple[list[Case], dict[str, int], dict[str, Any]]:
    probe = _core.Device.open(spec)
    block, usable = probe.block_bytes, probe.usable_bytes
    probe.close()
    nbytes = min(-(-nbytes // block) * block, usable // block * block)
    device = _core.Device.open(spec, host_budget_bytes=nbytes + block, spill_directory=directory)
    params = {"tenant_bytes": nbytes, "block_bytes": block}
    spill = Case("spill", "weave", params, nbytes, 0)
    load = Case("return", "weave", params, 0, nbytes)
    growth = {"spill": 0, "return": 0}
    progress(f"spill and return of {nbytes / 1e6:.0f} MB, {repeats} rounds")
    try:
        first = _Idler(device, "a", nbytes, 1)
        first.core.release()
        second = _Idler(device, "b", nbytes, 1 << 40)
        running, waiting = second, first
        for index in range(1 + repeats):  # the first round warms up
            pool = device.host_pool
            running.core.suspend()
            with Resident() as resident:
                started = time.perf_counter()
                running.core.spill()
                spilled_s = time.perf_counter() - started
            growth["spill"] = max(growth["spill"], resident.growth)
            with Resident() as resident:
                started = time.perf_counter()
                waiting.core.resume()
                loaded_s = time.perf_counter() - started
            growth["return"] = max(growth["return"], resident.growth)
            if index > 0:
                spill.samples_s.append(spilled_s)
                load.samples_s.append(loaded_s)
            running, waiting = waiting, running
            running.check()
        stats = pool.stats()
        overhead = {"used": stats["bytes_used"], "registered": stats["bytes_registered"]}
    finally:
        device.close()
    return [spill, load], growth, overhead


def run(
    device_spec: str = "auto",
    full: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    *,
    pool_bytes: int = 0,
    repeats: int = 0,
    directory: str = "",
) -> dict[str, Any]:
    """Measure and return a record.

    Args:
        device_spec: as `open_device` takes it.
        full: 8 GiB instead of 2, 9 rounds instead of 5.
        progress: called with one line of text now and then.
        pool_bytes: how far the pool grows; the spilling tenants have half, or what the device has.
        repeats: rounds, 0 for the default.
        directory: where to spill; by default a new one in the directory for temporary files.

    Raises DeviceNotFound, UsageError, HostMemoryError (the host has no such memory),
    StateFileError, StateChanged."""
    spec = resolve_spec(device_spec)
    nbytes = pool_bytes or (FULL_BYTES if full else DEFAULT_BYTES)
    rounds = repeats or (9 if full else 5)
    if nbytes <= 0:
        raise UsageError(f"a pool of {nbytes} bytes: sizes are at least one byte")
    device = _core.Device.open(spec)
    try:
        progress(f"growth by {nbytes / 1e6:.0f} MB, {rounds} rounds of each arm")
        cases, grown = _growth(device, nbytes, rounds)
        with tempfile.TemporaryDirectory(prefix="weave-bench-", dir=directory or None) as folder:
            more, growth, held = _spilling(spec, nbytes // 2, rounds, folder, progress)
        registered = grown["bytes_registered"]
        assert isinstance(registered, int)
        per_gib = {case.arm: statistics.median(case.samples_s) / (nbytes / GIB) for case in cases}
        summary = {
            "page_kind": grown["page_kind"],
            "bytes_huge": grown["bytes_huge"],
            "pieces": grown["pieces"],
            "node_bytes": {str(node): size for node, size in _items(grown["node_bytes"])},
            "bytes_asked": nbytes,
            "bytes_registered": registered,
            "overhead": registered / nbytes - 1,
            "overhead_in_use": held["registered"] / held["used"] - 1,
            "seconds_per_gib": per_gib["weave"],
            "seconds_per_gib_plain": per_gib["plain"],
            "resident_growth_spill": growth["spill"],
            "resident_growth_return": growth["return"],
        }
        return record(device, [*cases, *more], pool=summary)
    finally:
        device.close()


def _items(nodes: int | str | dict[int, int]) -> list[tuple[int, int]]:
    return sorted(nodes.items()) if isinstance(nodes, dict) else []


def lines(result: dict[str, Any]) -> list[str]:
    """The record's key ``pool`` in words."""
    pool = result["pool"]
    ratio = pool["seconds_per_gib"] / pool["seconds_per_gib_plain"]
    return [
        f"pages {pool['page_kind']}, {pool['pieces']} pieces, overhead {pool['overhead']:.2%}"
        f" ahead, {pool['overhead_in_use']:.2%} in use",
        f"growth {pool['seconds_per_gib']:.3f} s per GiB, {ratio:.2f} of touching by one thread and"
        " registering as a whole",
        f"staged {pool['resident_growth_spill'] / 2**20:.1f} MiB of memory while it spilled and"
        f" {pool['resident_growth_return'] / 2**20:.1f} MiB while it came back",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line for device_check.sh, which runs without the scheduler's dependencies."""
    parser = argparse.ArgumentParser(prog="python -m weave_rt.benchmarks.pool")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bytes", type=int, default=0, help="how far the pool grows")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="file for the record")
    options = parser.parse_args(arguments)
    try:
        result = run(
            options.device,
            options.full,
            lambda text: print(text, file=sys.stderr, flush=True),
            pool_bytes=options.bytes,
            repeats=options.repeats,
        )
    except WeaveError as error:
        print(f"pool: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for line in lines(result):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
