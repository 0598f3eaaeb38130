"""What is left of a switch when the next tenant came in the background? Case ``look_ahead``.

Three equal tenants in turn on a device that holds two and a third of them (60 GB each on 140, say).
While one runs, what the next one misses is copied in and the last one's place is taken for it; the
phase is as long as that takes. Then comes the switch, which is what a sample measures. The arm
``plain`` is what a switch without looking ahead copies: one whole tenant out and one in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from weave_rt import _core
from weave_rt.benchmarks.arms import BenchTenant, open_plain
from weave_rt.benchmarks.load import busy_cores
from weave_rt.benchmarks.record import Case

__all__ = ["measure"]

TENANTS = 3
PLACES = 7 / 3  # of one tenant, on the device


class _Turns:
    """Three tenants that take turns, and what their switches moved."""

    def __init__(self, device: _core.Device, sizes: dict[tuple[str, str], int]) -> None:
        self._device = device
        self.tenants: list[BenchTenant] = []
        for number in range(TENANTS):
            if self.tenants:
                self.tenants[-1].core.release()
            self.tenants.append(BenchTenant(device, f"t{number}", sizes, number << 40 | 1))
        self.reports: list[_core.SwitchReport] = []
        self.background_s: list[float] = []
        self._turn = TENANTS - 1  # the last one runs

    def switch(self) -> float:
        """Bring the next one in beside the running one, then switch; the switch's seconds."""
        running = self.tenants[self._turn % TENANTS].core
        coming = self.tenants[(self._turn + 1) % TENANTS].core
        then = self.tenants[(self._turn + 2) % TENANTS].core
        began = self._device.now_ns()
        self._device.prefetch(coming, [coming, then]).wait()
        self.background_s.append((self._device.now_ns() - began) / 1e9)
        report = self._device.switch(running, coming)
        self.reports.append(report)
        self._turn += 1
        drain_s = report.as_dict()["drain_s"]
        assert isinstance(drain_s, float)
        return report.seconds - drain_s

    def check(self) -> None:
        for _ in range(TENANTS):
            self.switch()
            self.tenants[self._turn % TENANTS].check()


def measure(
    spec: str,
    sizes: dict[tuple[str, str], int],
    params: dict[str, Any],
    repeats: int,
    load: bool,
    progress: Callable[[str], None],
    with_plain: bool = True,
) -> list[Case]:
    """Both arms, or `weave` alone, measured alternately. `spec` is resolved and has room for two
    and a third tenants (`sizes`: bytes by tag and policy, in whole blocks), else the list is empty
    and `progress` told.

    Raises StateChanged."""
    nbytes = sum(sizes.values())
    kept = sum(size for (_, policy), size in sizes.items() if policy == "keep")
    probe = _core.Device.open(spec)
    block = probe.block_bytes
    needed = int(PLACES * nbytes) // block * block
    usable = probe.usable_bytes
    probe.close()
    if needed > usable:
        progress(f"without look_ahead: it needs {needed / 1e6:.0f} MB, not {usable / 1e6:.0f}")
        return []
    device = _core.Device.open(spec, usable_bytes=needed)
    plain: _core.Device | None = None
    try:
        device.calibrate()
        turns = _Turns(device, sizes)
        case = Case("look_ahead", "weave", params, 0, 0, headline=True)
        yardstick = Case("look_ahead", "plain", params, kept, kept)
        if with_plain:
            plain = open_plain(spec, kept, device, progress, "look_ahead ")
        progress(f"look_ahead: three tenants of {nbytes / 1e6:.0f} MB, {repeats} rounds")
        with busy_cores(load):
            for index in range(TENANTS + repeats):  # the first turn of each warms up
                seconds = turns.switch()
                if index >= TENANTS:
                    case.samples_s.append(seconds)
                    if plain is not None:
                        yardstick.samples_s.append(plain.plain_copy(kept, kept))
        counted = turns.reports[TENANTS:]
        case.bytes_out = max(report.bytes_out for report in counted)
        case.bytes_in = max(report.bytes_in for report in counted)
        case.more["bytes_background"] = statistics.median(r.bytes_background for r in counted)
        case.more["background_s"] = statistics.median(turns.background_s[TENANTS:])
        turns.check()
    finally:
        if plain is not None:
            plain.close()
        device.close()
    return [case, yardstick] if yardstick.samples_s else [case]
