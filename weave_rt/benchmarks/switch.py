"""How long does it take to move a tenant out, in, or to swap two, and what could the link do?

Two tenants that each fill the device, so every byte moves. Cases ``one_way_out`` (suspend),
``one_way_in`` (resume) and ``duplex`` (switch), each in two arms: ``weave`` is the engine with
draining and mapping, ``plain`` is pinned copies of the same bytes and nothing else. Efficiency is
the calibrated limit of the link over the median time. On an emulated device only ratios mean
anything; the bytes of both tenants are compared at the end there.

Run alone: ``python -m weave_rt.benchmarks.switch --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weave_rt import _core
from weave_rt.benchmarks.record import Case, alternate, record
from weave_rt.device import resolve_spec
from weave_rt.errors import StateChanged, UsageError, WeaveError

__all__ = ["run"]

SEVEN_B_BYTES = 15_200_000_000  # weights of a 7B rollout per GPU, the default tenant


class _Tenant:
    """A tenant of one region, filled with a pattern where the CPU can write it."""

    def __init__(self, device: _core.Device, name: str, nbytes: int, seed: int) -> None:
        self.core = device.add_tenant(name, "bench")
        self.core.resume()
        self.span = self.core.region("weights").allocate(nbytes)
        self.pattern: np.ndarray[Any, np.dtype[np.uint64]] | None = None
        if device.kind == "emulated":
            view = np.frombuffer(memoryview(self.span), dtype=np.uint64)
            self.pattern = np.arange(seed, seed + view.size, dtype=np.uint64) * 0x9E3779B97F4A7C15
            view[:] = self.pattern

    def check(self) -> None:
        if self.pattern is None:
            return
        view = np.frombuffer(memoryview(self.span), dtype=np.uint64)
        wrong = np.flatnonzero(view != self.pattern)
        if wrong.size:
            raise StateChanged(
                f"tenant {self.core.name}: {wrong.size} words differ after the benchmark, "
                f"the first at offset {int(wrong[0]) * 8}"
            )


def _cases(nbytes: int, rates: dict[str, float], params: dict[str, Any]) -> dict[str, list[Case]]:
    limits = {
        "one_way_out": (nbytes, 0, nbytes / rates["d2h"]),
        "one_way_in": (0, nbytes, nbytes / rates["h2d"]),
        "duplex": (nbytes, nbytes, nbytes / min(rates["d2h_duplex"], rates["h2d_duplex"])),
    }
    return {
        name: [
            Case(name, arm, params, out, into, limit, headline=arm == "weave")
            for arm in ("weave", "plain")
        ]
        for name, (out, into, limit) in limits.items()
    }


def _measure(
    device: _core.Device,
    plain: _core.Device,
    nbytes: int,
    repeats: int,
    progress: Callable[[str], None],
) -> list[Case]:
    rates = device.calibrate()
    params = {"tenant_bytes": nbytes, "block_bytes": device.block_bytes}
    cases = _cases(nbytes, rates, params)
    first = _Tenant(device, "a", nbytes, 1)
    first.core.suspend()
    second = _Tenant(device, "b", nbytes, 1 << 40)
    running, waiting = second, first

    def net(report: _core.SwitchReport) -> float:
        drain_s = report.as_dict()["drain_s"]
        assert isinstance(drain_s, float)
        return report.seconds - drain_s

    def swap() -> float:
        nonlocal running, waiting
        seconds = net(device.switch(running.core, waiting.core))
        running, waiting = waiting, running
        return seconds

    measures: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "one_way_out": (
            lambda: net(running.core.suspend()),
            lambda: plain.plain_copy(nbytes, 0),
        ),
        "one_way_in": (
            lambda: net(running.core.resume()),
            lambda: plain.plain_copy(0, nbytes),
        ),
        "duplex": (swap, lambda: plain.plain_copy(nbytes, nbytes)),
    }
    progress(f"{nbytes / 1e6:.0f} MB per tenant, {repeats} rounds of each case and arm")
    for index in range(1 + repeats):  # the first round warms up
        for name in measures:
            arms = list(zip(cases[name], measures[name], strict=True))
            alternate(arms if index % 2 == 0 else arms[::-1], int(index == 0), int(index > 0))
    for tenant in (running, waiting):
        if not tenant.core.running:
            device.switch(running.core, tenant.core)
        tenant.check()
    return [case for pair in cases.values() for case in pair]


def run(
    device_spec: str = "auto",
    full: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    *,
    sizes_bytes: Sequence[int] = (),
    repeats: int = 0,
) -> dict[str, Any]:
    """Measure and return a record.

    Args:
        device_spec: as `open_device` takes it; an emulated one is opened twice.
        full: more rounds (31 instead of 9) and three sizes instead of one.
        progress: called with one line of text now and then.
        sizes_bytes: bytes per tenant; by default a 7B model's weights, scaled like the device.
        repeats: rounds, 0 for the default.

    Raises DeviceNotFound, UsageError (a size that the device cannot hold), StateChanged."""
    spec = resolve_spec(device_spec)
    scale = float(str(_core.parse_emulated(spec)["scale"])) if spec.startswith("emulated:") else 1.0
    share = int(SEVEN_B_BYTES / scale)
    sizes = list(sizes_bytes) or ([share // 8, share // 2, share] if full else [share])
    rounds = repeats or (31 if full else 9)
    cases: list[Case] = []
    device: _core.Device | None = None
    for size in sizes:
        if size <= 0:
            raise UsageError(f"a tenant of {size} bytes: sizes are at least one byte")
        probe = _core.Device.open(spec)
        block, usable = probe.block_bytes, probe.usable_bytes
        probe.close()
        nbytes = -(-size // block) * block
        if 2 * nbytes > usable:
            raise UsageError(
                f"tenants of {nbytes / 1e6:.0f} MB need twice that on the device, "
                f"which has {usable / 1e6:.0f} MB for tenants"
            )
        device = _core.Device.open(spec, usable_bytes=nbytes)
        plain = _core.Device.open(spec, host_pool=device.host_pool, usable_bytes=2 * nbytes)
        try:
            cases += _measure(device, plain, nbytes, rounds, progress)
        finally:
            plain.close()
            device.close()
    assert device is not None
    return record(device, cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line for device_check.sh, which runs without the scheduler's dependencies."""
    parser = argparse.ArgumentParser(prog="python -m weave_rt.benchmarks.switch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bytes", type=int, nargs="*", default=[], help="per tenant")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="file for the record")
    options = parser.parse_args(arguments)
    try:
        result = run(
            options.device,
            options.full,
            lambda text: print(text, file=sys.stderr, flush=True),
            sizes_bytes=options.bytes,
            repeats=options.repeats,
        )
    except WeaveError as error:
        print(f"switch: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for case in result["cases"]:
        print(
            f"{case['name']:<12} {case['arm']:<6} {case['params']['tenant_bytes'] / 1e9:8.3f} GB"
            f"  p50 {case['p50_s'] * 1e3:9.2f} ms  of the limit {case['efficiency']:.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
